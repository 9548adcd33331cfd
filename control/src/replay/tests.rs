#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use windlass_dataplane::wire::ethernet::{self, Mac};
use windlass_dataplane::wire::protocol::Protocol;
use windlass_dataplane::wire::vxlan::{self, Vni};
use windlass_dataplane::wire::{ipv4, udp};

use super::*;
use crate::capture::RAW_IP;
use crate::compile::compile;
use crate::config::{Config, settings};
use crate::node::{UnknownHost, resolve};
use crate::source::manifests::load_text;

const EXAMPLE: &str = include_str!("../../examples/worked-example.yaml");

fn node_a() -> Replay {
    let state = load_text("example", EXAMPLE, "flannel.alpha.coreos.com").unwrap().state;
    let settings = settings::from_arguments(["--node", "node-a"]).unwrap();
    let (settings, _) = resolve(&state, &Config::new(&settings, || None).unwrap(), &UnknownHost).unwrap();
    Replay::new(compile(&state, &settings).tables, settings, engine::Settings::default())
}

fn packet(src: [u8; 4], dst: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut out = vec![0; ipv4::HEADER_LEN + udp::HEADER_LEN];
    let header = ipv4::Header {
        src: Ipv4Addr::from(src),
        dst: Ipv4Addr::from(dst),
        protocol: Protocol::UDP,
        tos: 0,
        ttl: 64,
        ident: 0,
        dont_fragment: true,
        total_len: out.len() as u16,
    };
    ipv4::emit(&mut out, header);
    udp::emit(&mut out[ipv4::HEADER_LEN..], ports.0, ports.1, udp::HEADER_LEN as u16);
    out
}

/// The datagram in which node b sends `inner` to node a.
fn from_b(inner: &[u8]) -> Vec<u8> {
    let mut payload = vec![0; HEADERS_LEN];
    vxlan::emit(&mut payload, Vni::new(4096).unwrap());
    let mac: Mac = "ce:7a:e5:af:6a:e9".parse().unwrap();
    ethernet::emit(&mut payload[vxlan::HEADER_LEN..], mac, Mac([2, 0, 0, 0, 0, 1]), ethernet::IPV4);
    payload.extend_from_slice(inner);
    let (b, a) = ("192.168.1.51:50000".parse().unwrap(), "192.168.1.40:4789".parse().unwrap());
    outer::datagram(b, a, 0, &payload)
}

fn replayed(replay: &mut Replay, bytes: &[u8]) -> Replayed {
    let at = Duration::from_secs(1_760_000_000);
    let captured = Captured { link: RAW_IP, at, bytes, original_len: bytes.len() as u32, comment: None };
    replay.packet(&captured).unwrap()
}

#[test]
fn inner_and_outer_packets_take_their_way_and_all_are_accounted_for() {
    let mut replay = node_a();
    let to_b = packet([10, 244, 0, 14], [10, 244, 2, 15], (4000, 80));
    let sent = replayed(&mut replay, &to_b);
    assert_eq!(sent.verdict, Verdict::Sent);
    let datagram = UdpDatagram::in_packet(&sent.to_underlay[0]).unwrap();
    assert_eq!((datagram.destination_port, &datagram.payload[HEADERS_LEN..]), (4789, &to_b[..]));

    let to_us = packet([10, 244, 2, 15], [10, 244, 0, 14], (80, 4000));
    let delivered = replayed(&mut replay, &from_b(&to_us));
    assert_eq!((delivered.verdict, &delivered.to_overlay[0]), (Verdict::Sent, &to_us));

    let spoofed = packet([10, 244, 7, 7], [10, 244, 0, 14], (80, 4000));
    let dropped = replayed(&mut replay, &from_b(&spoofed));
    assert_eq!((dropped.verdict, dropped.reason.as_deref()), (Verdict::Dropped, Some("source_spoofed")));

    let refused = replayed(&mut replay, &packet([10, 244, 0, 14], [10, 96, 0, 10], (4000, 9)));
    assert_eq!((refused.verdict, refused.reason.as_deref()), (Verdict::Rejected, Some("unserved_port")));

    let summary = replay.summary();
    assert_eq!((summary.received, summary.generated, summary.sent, summary.dropped), (4, 1, 3, 2));
    assert_eq!(summary.drops, BTreeMap::from([("source_spoofed", 1), ("unserved_port", 1)]));
}

#[test]
fn what_is_not_this_nodes_to_handle_is_passed_over_with_the_reason() {
    let mut replay = node_a();
    let ours = replayed(&mut replay, &packet([10, 244, 0, 14], [10, 244, 2, 15], (4000, 80)));
    for (bytes, expected) in [
        (ours.to_underlay[0].clone(), "this node sent it"),
        (packet([10, 244, 2, 15], [10, 244, 0, 14], (80, 4000)), "10.244.2.15 is neither"),
        (vec![0x45; 10], "no whole IP packet"),
    ] {
        let replayed = replayed(&mut replay, &bytes);
        assert_eq!(replayed.verdict, Verdict::PassedOver);
        assert!(replayed.reason.as_ref().unwrap().contains(expected), "{replayed:?}");
    }
    let bytes = [0x45; 40];
    let cut =
        Captured { link: RAW_IP, at: Duration::ZERO, bytes: &bytes, original_len: 1_500, comment: None };
    assert!(replay.packet(&cut).unwrap().reason.unwrap().starts_with("only 40 of its 1500 bytes"));
}
