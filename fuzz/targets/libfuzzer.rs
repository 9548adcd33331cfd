//! libFuzzer's entry to [`windlass_fuzz::decap`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| windlass_fuzz::decap(data));
