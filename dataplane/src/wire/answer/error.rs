//! ICMP and ICMPv6 errors about packets.
//!
//! Read first: RFC 792, RFC 1812 section 4.3.2 (how much to quote), RFC 4443 sections 2.4 and 3, RFC 1191 for
//! the MTU of a Fragmentation Needed.

use std::net::IpAddr;

use super::{emit_ip, ip_header_len};
use crate::wire::bytes::put_u16;
use crate::wire::icmp::{self, v4, v6};
use crate::wire::ip::ip_version;
use crate::wire::protocol::Protocol;
use crate::wire::{checksum, ipv4, ipv6};

/// The longest error packet over IPv4, in bytes (RFC 1812 section 4.3.2.3).
const MAX_ERROR_LEN_V4: usize = 576;
/// The longest error packet over IPv6, in bytes (RFC 4443 section 2.4 c).
const MAX_ERROR_LEN_V6: usize = ipv6::MIN_MTU as usize;

/// Precedence 6, internetwork control, as RFC 1812 section 4.3.2.5 asks for errors.
const ERROR_TOS_V4: u8 = 0xc0;

/// What an error says about the packet it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// No one listens there: IPv4 3/3, IPv6 1/4.
    PortUnreachable,
    /// No way there: IPv4 3/1, IPv6 1/3 (address unreachable).
    HostUnreachable,
    /// Too long for the next link: IPv4 3/4, IPv6 Packet Too Big.
    FragmentationNeeded {
        /// The link's MTU in bytes; sent as at least 1,280 over IPv6 and at most 65,535 over IPv4.
        mtu: u32,
    },
    /// TTL or hop limit ran out: IPv4 11/0, IPv6 3/0.
    TimeExceeded,
}

impl Error {
    fn header(self, ipv6: bool) -> icmp::Header {
        let (message_type, code, rest) = match (self, ipv6) {
            (Self::PortUnreachable, false) => (v4::UNREACHABLE, 3, 0),
            (Self::PortUnreachable, true) => (v6::UNREACHABLE, 4, 0),
            (Self::HostUnreachable, false) => (v4::UNREACHABLE, 1, 0),
            (Self::HostUnreachable, true) => (v6::UNREACHABLE, 3, 0),
            (Self::FragmentationNeeded { mtu }, false) => (v4::UNREACHABLE, 4, mtu.min(u32::from(u16::MAX))),
            (Self::FragmentationNeeded { mtu }, true) => (v6::TOO_BIG, 0, mtu.max(ipv6::MIN_MTU)),
            (Self::TimeExceeded, false) => (v4::TIME_EXCEEDED, 0, 0),
            (Self::TimeExceeded, true) => (v6::TIME_EXCEEDED, 0, 0),
        };
        icmp::Header { message_type, code, rest }
    }
}

/// Length of the packet [`emit_error`] writes about the IP packet `quoted`, in bytes.
pub fn error_len(quoted: &[u8]) -> usize {
    let longest = if ip_version(quoted) == Some(6) { MAX_ERROR_LEN_V6 } else { MAX_ERROR_LEN_V4 };
    (ip_header_len(quoted) + icmp::HEADER_LEN + quoted_len(quoted)).min(longest)
}

/// Writes a whole IP packet from `src` to the source of the IP packet `quoted` and returns its length. It
/// quotes as much as fits in 576 (IPv4) or 1,280 bytes (IPv6), without Ethernet padding. Writes nothing and
/// returns 0 if `quoted` has no IP header of `src`'s version, or `out` is shorter than [`error_len`].
/// Whether an error may be sent at all is for [`may_answer`](super::may_answer) to say.
pub fn emit_error(out: &mut [u8], error: Error, src: IpAddr, quoted: &[u8]) -> usize {
    try_emit_error(out, error, src, quoted).unwrap_or(0)
}

fn try_emit_error(out: &mut [u8], error: Error, src: IpAddr, quoted: &[u8]) -> Option<usize> {
    let dst = source(quoted)?;
    let protocol = if src.is_ipv6() { Protocol::ICMPV6 } else { Protocol::ICMP };
    let len = error_len(quoted);
    let out = out.get_mut(..len)?;
    let icmp_offset = emit_ip(out, src, dst, protocol, ERROR_TOS_V4)?;
    let message = &mut out[icmp_offset..];
    icmp::emit(message, error.header(src.is_ipv6()));
    let body = &mut message[icmp::HEADER_LEN..];
    body.copy_from_slice(&quoted[..body.len()]);
    let checksum = if src.is_ipv6() {
        checksum::transport(src, dst, protocol, message)
    } else {
        checksum::checksum(message)
    };
    put_u16(message, icmp::CHECKSUM, checksum);
    Some(len)
}

fn source(packet: &[u8]) -> Option<IpAddr> {
    match ip_version(packet)? {
        4 => Some(ipv4::Ipv4::new_header(packet).ok()?.src().into()),
        6 => Some(ipv6::Ipv6::new_header(packet).ok()?.src().into()),
        _ => None,
    }
}

/// Length of an IP packet without Ethernet padding, in bytes.
fn quoted_len(packet: &[u8]) -> usize {
    let claimed = match ip_version(packet) {
        Some(4) => ipv4::Ipv4::new_header(packet).map(|ip| usize::from(ip.total_len()).max(ip.header_len())),
        _ => ipv6::Ipv6::new_header(packet).map(|ip| ip.total_len()),
    };
    claimed.map_or(packet.len(), |len| len.min(packet.len()))
}

#[cfg(test)]
mod tests;
