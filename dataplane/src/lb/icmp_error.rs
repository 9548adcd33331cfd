//! ICMP errors about translated packets: both the error and the packet it quotes are translated back
//! (RFC 5508 section 4, RFC 5382 REQ-9).

use std::net::IpAddr;

use super::conntrack::{Connection, FlowDirection};
use crate::wire::checksum::{self, Delta};
use crate::wire::flow::{FlowKey, Protocol};
use crate::wire::quoted::Quoted;

/// What an ICMP error becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorTranslation {
    /// The error's source: the VIP if the backend sent it, a third router's own address otherwise.
    pub src: IpAddr,
    /// The error's destination: who sent the quoted packet.
    pub dst: IpAddr,
    /// The quoted packet as that one sent it.
    pub quoted: FlowKey,
}

impl ErrorTranslation {
    /// The translation of an error from `sender` that travels in `direction` of `connection`.
    pub fn new(connection: &Connection, direction: FlowDirection, sender: IpAddr) -> Self {
        let to = connection.translated(direction);
        let from = match direction {
            FlowDirection::Original => connection.original,
            FlowDirection::Reply => connection.reply,
        };
        let src = if sender == from.src { to.src } else { sender };
        Self { src, dst: to.dst, quoted: to.reversed() }
    }

    /// Rewrites `packet`, an ICMP error whose quote was found by [`quoted`](crate::wire::quoted::quoted), with its
    /// ICMP header at `icmp_offset`. A wrong checksum stays wrong.
    pub fn apply(&self, packet: &mut [u8], icmp_offset: usize, quoted: &Quoted) {
        let before = checksum::fold(checksum::sum(&packet[icmp_offset..]));
        self.rewrite_quote(&mut packet[quoted.offset..], quoted);
        let after = checksum::fold(checksum::sum(&packet[icmp_offset..]));
        let body = Delta::default().replace_u16(before, after);

        let addresses = set_addresses(packet, self.src, self.dst);
        let delta = if self.src.is_ipv6() { addresses.replace_u16(before, after) } else { body };
        update(packet, icmp_offset + CHECKSUM, delta);
    }

    fn rewrite_quote(&self, quote: &mut [u8], quoted: &Quoted) {
        let addresses = set_addresses(quote, self.quoted.src, self.quoted.dst);
        if !matches!(self.quoted.protocol, Protocol::TCP | Protocol::UDP) {
            return;
        }
        let l4_offset = quoted.l4_offset - quoted.offset;
        let (old, new) = (quoted.flow, self.quoted);
        let delta = addresses.replace_u16(old.src_port, new.src_port).replace_u16(old.dst_port, new.dst_port);
        quote[l4_offset..l4_offset + 2].copy_from_slice(&new.src_port.to_be_bytes());
        quote[l4_offset + 2..l4_offset + 4].copy_from_slice(&new.dst_port.to_be_bytes());
        if let Some(at) = quoted.l4_checksum_offset() {
            let at = at - quoted.offset;
            let disabled = new.protocol == Protocol::UDP && quote[at..at + 2] == [0, 0];
            if !disabled {
                update(quote, at, delta);
            }
        }
    }
}

/// Where the ICMP checksum lies, in bytes from the ICMP header's start.
const CHECKSUM: usize = 2;

/// Replaces the addresses of an IP header (and an IPv4 header checksum), and returns what that does to a sum
/// over them.
fn set_addresses(packet: &mut [u8], src: IpAddr, dst: IpAddr) -> Delta {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let delta = replace(packet, 12, &src.octets(), Delta::default());
            let delta = replace(packet, 16, &dst.octets(), delta);
            update(packet, 10, delta);
            delta
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let delta = replace(packet, 8, &src.octets(), Delta::default());
            replace(packet, 24, &dst.octets(), delta)
        }
        _ => Delta::default(),
    }
}

fn replace(packet: &mut [u8], at: usize, new: &[u8], delta: Delta) -> Delta {
    let old = &mut packet[at..at + new.len()];
    let delta = delta.replace(old, new);
    old.copy_from_slice(new);
    delta
}

fn update(packet: &mut [u8], at: usize, delta: Delta) {
    let sum = delta.apply(u16::from_be_bytes([packet[at], packet[at + 1]]));
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
