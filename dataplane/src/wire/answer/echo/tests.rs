use proptest::prelude::*;

use super::*;
use crate::wire::sample::{Transport, assert_checksums, plain, samples};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn an_echo_reply_in_place_is_what_a_stack_would_send(sample in samples(0..200)) {
        let request = sample.build();
        let mut packet = request.clone();
        let wanted = matches!(sample.transport, Transport::Echo { reply: false });
        prop_assert_eq!(echo_reply_in_place(&mut packet), wanted);
        if wanted {
            assert_checksums(&packet);
            let (before, after) = (InnerPacket::parse(&request).unwrap(), InnerPacket::parse(&packet).unwrap());
            prop_assert_eq!((after.flow, after.l4), (before.flow.reversed(), L4::EchoReply));
            prop_assert_eq!(&packet[after.headers_len()..], &request[before.headers_len()..]);
        } else {
            prop_assert_eq!(packet, request);
        }
    }
}

#[test]
fn an_echo_reply_has_a_fresh_ttl() {
    for ipv6 in [false, true] {
        let mut packet = plain(ipv6, Transport::Echo { reply: false }, b"ping").build();
        packet[if ipv6 { 7 } else { 8 }] = 1;
        if let Ok(mut ip) = ipv4::Ipv4::new_header(&mut packet) {
            ip.fill_checksum();
        }
        assert!(echo_reply_in_place(&mut packet));
        assert_eq!(InnerPacket::parse(&packet).unwrap().ttl, 64);
        assert_checksums(&packet);
    }
}
