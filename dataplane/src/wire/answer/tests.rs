use super::*;
use crate::wire::flow::{FlowKey, portless};
use crate::wire::sample::{Transport, V4, V6, plain};
use crate::wire::tcp;

#[test]
fn no_error_answers_an_error_a_group_or_a_later_fragment() {
    // C7
    let parse = |packet: &[u8]| InnerPacket::parse(packet).unwrap();
    for ipv6 in [false, true] {
        let good = parse(&plain(ipv6, Transport::Tcp { flags: tcp::SYN, option_words: 0 }, b"").build());
        assert!(may_answer(&good));
        assert!(may_answer(&InnerPacket { fragment: Fragment::First, ..good }));
        assert!(!may_answer(&InnerPacket { fragment: Fragment::Later, ..good }));
        assert!(!may_answer(&parse(&plain(ipv6, Transport::Unreachable, &[]).build())));
        assert!(may_answer(&parse(&plain(ipv6, Transport::Echo { reply: true }, &[]).build())));
        let bad: &[&str] = if ipv6 {
            &["::", "::1", "ff02::1", "ff0e::1"]
        } else {
            &["0.0.0.0", "127.0.0.1", "224.0.0.1", "239.255.255.250", "255.255.255.255"]
        };
        for addr in bad {
            let addr = addr.parse().unwrap();
            assert!(!may_answer(&InnerPacket { flow: FlowKey { src: addr, ..good.flow }, ..good }), "{addr}");
            assert!(!may_answer(&InnerPacket { flow: FlowKey { dst: addr, ..good.flow }, ..good }), "{addr}");
        }
    }
    let class_e = InnerPacket {
        flow: portless(V4.0.into(), [240, 1, 2, 3].into(), Protocol::UDP),
        ..parse(&plain(false, Transport::Udp, b"").build())
    };
    assert!(may_answer(&class_e), "clusters use 240/4 for pods");
    for (message_type, expected) in [(137, false), (135, true), (2, false)] {
        let mut packet = plain(true, Transport::Echo { reply: false }, &[0; 32]).build();
        packet[40] = message_type;
        assert_eq!(may_answer(&parse(&packet)), expected, "ICMPv6 type {message_type}");
    }
    assert_eq!(parse(&plain(true, Transport::Udp, b"").build()).flow.src, IpAddr::from(V6.0));
}
