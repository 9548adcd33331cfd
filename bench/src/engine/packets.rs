//! Flows by number, and their packets.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::packets::{udp, vxlan};

use super::{Case, tables};

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// From a pod to another node's pod; decided before.
    Encap,
    /// From another node's pod to one of ours; decided before.
    Decap,
    /// From a pod to a VIP, whose backend is another node's pod: DNAT and encapsulation; decided before.
    Translate,
    /// The first packet of such a flow.
    NewFlow,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Encap, Self::Decap, Self::Translate, Self::NewFlow];
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encap => "encap",
            Self::Decap => "decap",
            Self::Translate => "translate",
            Self::NewFlow => "new-flow",
        })
    }
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::V4 { "v4" } else { "v6" })
    }
}

/// Pods of this node that send; each has all source ports.
const PODS: u32 = 200;
const FIRST_PORT: u32 = 1_024;
const PORTS: u32 = 64_000;

/// Makes the packets of a case, one after the other in the same bytes. Their UDP checksum is that of another flow: the
/// engine updates it and never looks whether it was right.
pub(crate) struct PacketMaker {
    case: Case,
    bytes: Vec<u8>,
    /// Where the inner IP header begins.
    ip_at: usize,
}

impl PacketMaker {
    pub(crate) fn new(case: &Case) -> Self {
        let headers_len = if case.family == Family::V4 { 28 } else { 48 };
        let inner = udp(&flow(case, 0), &vec![7; case.packet_len - headers_len]);
        let (bytes, ip_at) = match case.path {
            Path::Decap => (vxlan(tables::VNI, tables::OUR_MAC, &inner), 22),
            _ => (inner, 0),
        };
        Self { case: *case, bytes, ip_at }
    }

    /// The node that a flow's packets go to or come from.
    pub(crate) fn node(&self, number: u32) -> u32 {
        number % self.case.nodes
    }

    /// The packet of flow `number`, in a VXLAN payload if it comes from a peer.
    pub(crate) fn packet(&mut self, number: u32) -> &[u8] {
        let FlowKey { src, dst, src_port, dst_port, .. } = flow(&self.case, number);
        let packet = &mut self.bytes[self.ip_at..];
        let ports_at = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                packet[12..16].copy_from_slice(&src.octets());
                packet[16..20].copy_from_slice(&dst.octets());
                20
            }
            (src, dst) => {
                packet[8..24].copy_from_slice(&v6(src).octets());
                packet[24..40].copy_from_slice(&v6(dst).octets());
                40
            }
        };
        packet[ports_at..ports_at + 2].copy_from_slice(&src_port.to_be_bytes());
        packet[ports_at + 2..ports_at + 4].copy_from_slice(&dst_port.to_be_bytes());
        &self.bytes
    }
}

fn flow(case: &Case, number: u32) -> FlowKey {
    let ours = tables::local_pod(case.family, number % PODS);
    let our_port = (FIRST_PORT + number / PODS % PORTS) as u16;
    let (theirs, their_port) = match case.path {
        Path::Encap | Path::Decap => (tables::remote_pod(case.family, number % case.nodes), tables::POD_PORT),
        Path::Translate | Path::NewFlow => {
            (tables::vip(case.family, number % case.services), tables::VIP_PORT)
        }
    };
    let sent =
        FlowKey { src: ours, dst: theirs, protocol: Protocol::UDP, src_port: our_port, dst_port: their_port };
    if case.path == Path::Decap { sent.reversed() } else { sent }
}

fn v6(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}
