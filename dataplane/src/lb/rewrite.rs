//! Address and port translation in place, with the checksums' deltas computed once per flow.

use std::net::IpAddr;

use crate::packet::Checksum;
use crate::wire::bytes::{put, put_u16, u16_at};
use crate::wire::checksum::Delta;
use crate::wire::flow::{Addresses, FlowKey, Protocol};
use crate::wire::ipv4;

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

/// A [`Rewrite`] in the form in which it goes into a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replacement<A> {
    addresses: A,
    ports: [u8; 4],
    deltas: Deltas,
}

impl<A: Addresses> Replacement<A> {
    /// The form of a rewrite to a flow of this family.
    pub fn new(rewrite: &Rewrite) -> Self {
        let ports = u32::from(rewrite.to.src_port) << 16 | u32::from(rewrite.to.dst_port);
        Self { addresses: A::of(&rewrite.to), ports: ports.to_be_bytes(), deltas: rewrite.deltas }
    }
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
#[inline]
pub fn apply<A: Addresses>(packet: &mut [u8], place: Place, new: &Replacement<A>) {
    let checksum_offset = match place.protocol {
        Protocol::TCP => 16,
        Protocol::UDP => 6,
        _ => return,
    };
    let Replacement { addresses, ports, deltas } = new;
    put(packet, A::OFFSET, addresses.as_ref());
    if A::IS_V4 {
        update(packet, ipv4::CHECKSUM, |sum| deltas.header.apply(sum));
    }
    let Some(l4_offset) = place.l4_offset else { return };
    put(packet, l4_offset, ports);
    let udp = place.protocol == Protocol::UDP;
    update(packet, l4_offset + checksum_offset, |sum| match place.checksum {
        Checksum::Partial { .. } => deltas.partial.apply_partial(sum),
        Checksum::Complete if udp && A::IS_V4 && sum == 0 => 0,
        Checksum::Complete => match deltas.complete.apply(sum) {
            0 if udp => 0xffff,
            sum => sum,
        },
    });
}

#[inline]
fn update(packet: &mut [u8], at: usize, change: impl FnOnce(u16) -> u16) {
    let sum = change(u16_at(packet, at));
    put_u16(packet, at, sum);
}
