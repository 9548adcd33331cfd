//! Address and port translation in place, with the checksums' deltas computed once per flow.

use std::net::IpAddr;

use crate::packet::Checksum;
use crate::wire::checksum::Delta;
use crate::wire::flow::{FlowKey, Protocol};

/// What a translation does to the three sums of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deltas {
    /// To the IPv4 header checksum: the addresses.
    pub header: Delta,
    /// To a complete TCP, UDP or ICMPv6 checksum: addresses and ports.
    pub complete: Delta,
    /// To a partial one, which covers the addresses alone.
    pub partial: Delta,
}

/// The source and destination that a packet of a flow gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// New source and destination.
    pub to: FlowKey,
    /// The sums' deltas.
    pub deltas: Deltas,
}

impl Rewrite {
    /// The rewrite that makes a packet of flow `from` one of flow `to`. Both are of one family.
    pub fn new(from: &FlowKey, to: &FlowKey) -> Self {
        let partial = Delta::default();
        let partial = replace_addr(replace_addr(partial, from.src, to.src), from.dst, to.dst);
        let complete =
            partial.replace_u16(from.src_port, to.src_port).replace_u16(from.dst_port, to.dst_port);
        Self { to: *to, deltas: Deltas { header: partial, complete, partial } }
    }
}

fn replace_addr(delta: Delta, from: IpAddr, to: IpAddr) -> Delta {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => delta.replace(&from.octets(), &to.octets()),
        (IpAddr::V6(from), IpAddr::V6(to)) => delta.replace(&from.octets(), &to.octets()),
        _ => delta,
    }
}

/// New addresses and ports as they stand in the packet.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    /// Source address, 4 or 16 bytes.
    pub src: &'a [u8],
    /// Destination address, as long as the source.
    pub dst: &'a [u8],
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// What a rewrite must know of a parsed TCP or UDP packet.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// TCP or UDP; packets of other protocols are left as they are, for none is tracked.
    pub protocol: Protocol,
    /// Where the transport header begins; `None` for a later fragment, which has none.
    pub l4_offset: Option<usize>,
    /// State of the transport checksum.
    pub checksum: Checksum,
}

/// Rewrites `packet`, which begins at its IP header.
///
/// An IPv4 UDP checksum of 0 stays 0 (RFC 768: none was computed), and one that becomes 0 is written as 0xFFFF.
pub fn apply(packet: &mut [u8], place: Place, new: Replacement<'_>, deltas: &Deltas) {
    let checksum_offset = match place.protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        _ => return,
    };
    let is_v4 = new.src.len() == 4;
    let (src_at, dst_at) = if is_v4 { (12, 16) } else { (8, 24) };
    packet[src_at..src_at + new.src.len()].copy_from_slice(new.src);
    packet[dst_at..dst_at + new.dst.len()].copy_from_slice(new.dst);
    if is_v4 {
        update(packet, 10, |sum| deltas.header.apply(sum));
    }
    let Some(l4_offset) = place.l4_offset else { return };
    packet[l4_offset..l4_offset + 2].copy_from_slice(&new.src_port.to_be_bytes());
    packet[l4_offset + 2..l4_offset + 4].copy_from_slice(&new.dst_port.to_be_bytes());
    let udp = place.protocol == Protocol::UDP;
    update(packet, l4_offset + checksum_offset, |sum| match place.checksum {
        Checksum::Partial { .. } => deltas.partial.apply_partial(sum),
        Checksum::Complete if udp && is_v4 && sum == 0 => 0,
        Checksum::Complete => match deltas.complete.apply(sum) {
            0 if udp => 0xffff,
            sum => sum,
        },
    });
}

fn update(packet: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    let sum = change(u16::from_be_bytes([packet[at], packet[at + 1]]));
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
