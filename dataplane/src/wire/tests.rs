use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;

use super::answer::{echo, error, reset};
use super::inner::{InnerPacket, fragment_header};
use super::quoted::quoted;
use super::sample::{Transport, assert_checksums, plain, samples};

/// Everything that takes bytes of a stranger: none of it may panic.
fn run_everything(bytes: &[u8]) {
    let parsed = InnerPacket::parse(bytes);
    let _ = fragment_header(bytes);
    let _ = quoted(bytes);
    let mut out = vec![0; 1280];
    for src in [IpAddr::from([10, 0, 0, 1]), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let len = error::emit_error(&mut out, error::Error::HostUnreachable, src, bytes);
        assert!(len == 0 || len == error::error_len(bytes));
    }
    let _ = reset::emit_reset(&mut out, bytes);
    if let Ok(inner) = parsed {
        assert!(inner.headers_len() <= inner.total_len as usize && inner.total_len as usize <= bytes.len());
        for segment_len in [0, 1, 100] {
            let _ = crate::offload::segment::segment(bytes, &inner, segment_len, 1, &mut out);
        }
    }
    let mut copy = bytes.to_vec();
    super::ip::set_ecn(&mut copy, 3);
    echo::echo_reply_in_place(&mut copy);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_truncation_is_malformed(sample in samples(0..16)) {
        // A12
        let bytes = sample.build();
        for len in 0..bytes.len() {
            prop_assert!(InnerPacket::parse(&bytes[..len]).is_err(), "{} of {}", len, bytes.len());
            run_everything(&bytes[..len]);
        }
    }

    #[test]
    fn a_damaged_packet_never_panics(
        sample in samples(0..64),
        damage in prop::collection::vec((0usize..80, any::<u8>()), 1..4),
    ) {
        // A13
        let mut bytes = sample.build();
        for (at, byte) in damage {
            if let Some(old) = bytes.get_mut(at) {
                *old = byte;
            }
        }
        run_everything(&bytes);
    }

    #[test]
    fn random_bytes_never_panic(version in 0u8..16, mut bytes in prop::collection::vec(any::<u8>(), 0..160)) {
        if let Some(first) = bytes.first_mut() {
            *first = (if version < 8 { 4 } else { 6 }) << 4 | *first & 0xf;
        }
        run_everything(&bytes);
    }
}

#[test]
fn samples_have_right_checksums() {
    for ipv6 in [false, true] {
        assert_checksums(&plain(ipv6, Transport::Tcp { flags: 0, option_words: 0 }, b"12345678").build());
    }
}
