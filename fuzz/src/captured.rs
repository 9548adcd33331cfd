//! Real packets to begin from: `captures/node.pcapng` is what passed a node beside a stock one, pods on both, as
//! `tests/tests/nodes/seeds.rs` captured it. Of each kind of packet, one is a seed.

use std::collections::BTreeMap;

use windlass_control::capture::{UdpDatagram, packets};
use windlass_tests::packets::kind;
use windlass_tests::topology::VXLAN_PORT;

use crate::Seed;
use crate::check::HEADERS_LEN;
use crate::node::UNDERLAY_A;

static CAPTURE: &[u8] = include_bytes!("../captures/node.pcapng");

/// More than it holds.
const MAX_PACKETS: usize = 100_000;

/// By their kinds, the VXLAN payloads that the node received over IPv4, as a peer sent them.
pub fn received() -> Vec<Seed> {
    let datagrams = ip_packets().filter_map(UdpDatagram::in_packet);
    let to_us = datagrams.filter(|datagram| {
        datagram.destination_port == VXLAN_PORT && datagram.destination.to_string() == UNDERLAY_A
    });
    first_of_each(
        to_us.filter_map(|datagram| Some((kind(datagram.payload.get(HEADERS_LEN..)?)?, datagram.payload))),
    )
}

/// By their kinds, the packets that the node read from its device or wrote to it.
pub fn inner() -> Vec<Seed> {
    let is_inner = |packet: &&[u8]| {
        UdpDatagram::in_packet(packet).is_none_or(|datagram| datagram.destination_port != VXLAN_PORT)
    };
    first_of_each(ip_packets().filter(is_inner).filter_map(|packet| Some((kind(packet)?, packet))))
}

fn ip_packets() -> impl Iterator<Item = &'static [u8]> {
    let captured = packets(CAPTURE, MAX_PACKETS).unwrap_or_else(|error| unreachable!("{error}"));
    captured.into_iter().filter_map(|captured| captured.ip_packet().ok())
}

fn first_of_each<'a>(packets: impl Iterator<Item = (String, &'a [u8])>) -> Vec<Seed> {
    let mut first = BTreeMap::new();
    for (kind, bytes) in packets {
        first.entry(kind).or_insert(bytes);
    }
    let seed =
        |(kind, bytes): (String, &[u8])| -> Seed { (format!("captured-{kind}").leak(), bytes.to_vec()) };
    first.into_iter().map(seed).collect()
}

/// The same seeds with `head` before each, where a target wants one.
pub fn headed<'a>(seeds: Vec<Seed>, head: &'a [u8]) -> impl Iterator<Item = Seed> + use<'a> {
    seeds.into_iter().map(move |(name, bytes)| (name, [head, &bytes].concat()))
}
