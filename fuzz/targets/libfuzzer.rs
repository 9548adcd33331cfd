//! libFuzzer's entry to the target that the environment variable `WINDLASS_FUZZ_TARGET` names.
#![no_main]

use std::sync::OnceLock;

use windlass_fuzz::{TARGETS, Target, named};

static TARGET: OnceLock<&Target> = OnceLock::new();

fn chosen() -> &'static Target {
    let name = std::env::var("WINDLASS_FUZZ_TARGET").unwrap_or_default();
    named(&name).unwrap_or_else(|| {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("WINDLASS_FUZZ_TARGET is {name:?}, and the targets are: {}", names.join(" "));
        std::process::exit(2)
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.get_or_init(chosen).run)(data));
