//! Packets made in answer to a packet: what they have in common, and which packets may be answered.
//!
//! Read first: RFC 1122 section 3.2.2 and RFC 4443 section 2.4 e (whom to answer).

pub mod echo;
pub mod error;
pub mod reset;

use std::net::IpAddr;

use super::inner::{Fragment, InnerPacket};
use super::ip::ip_version;
use super::protocol::{L4, Protocol};
use super::{ipv4, ipv6};

const FRESH_TTL: u8 = 64;

/// Whether an ICMP error about `packet` is allowed: not about an ICMP error or redirect, not about a later
/// fragment, and only from and to addresses of single hosts (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e).
pub fn may_answer(packet: &InnerPacket) -> bool {
    packet.l4 != L4::IcmpError
        && packet.fragment != Fragment::Later
        && is_single_host(packet.flow.src)
        && is_single_host(packet.flow.dst)
}

fn is_single_host(addr: IpAddr) -> bool {
    match addr {
        // 0/8 is "this network"; clusters do use the reserved 240/4 for pods.
        IpAddr::V4(v4) => {
            v4.octets()[0] != 0 && !v4.is_multicast() && !v4.is_loopback() && !v4.is_broadcast()
        }
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast() && !v6.is_loopback(),
    }
}

/// Writes the IP header of a packet that fills `out` and returns its length; `None` if the addresses are of two
/// versions or `out` is no possible packet. `tos` counts over IPv4 only.
fn emit_ip(out: &mut [u8], src: IpAddr, dst: IpAddr, protocol: Protocol, tos: u8) -> Option<usize> {
    let len = u16::try_from(out.len()).ok()?;
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) if out.len() >= ipv4::HEADER_LEN => {
            let (ttl, ident, dont_fragment, total_len) = (FRESH_TTL, 0, true, len);
            ipv4::emit(out, ipv4::Header { src, dst, protocol, tos, ttl, ident, dont_fragment, total_len });
            Some(ipv4::HEADER_LEN)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) if out.len() >= ipv6::HEADER_LEN => {
            let header = ipv6::Header {
                src,
                dst,
                next_header: protocol,
                traffic_class: 0,
                flow_label: 0,
                hop_limit: FRESH_TTL,
                payload_len: len - ipv6::HEADER_LEN as u16,
            };
            ipv6::emit(out, header);
            Some(ipv6::HEADER_LEN)
        }
        _ => None,
    }
}

/// Length of the plain IP header of an answer to `packet`, in bytes.
fn ip_header_len(packet: &[u8]) -> usize {
    if ip_version(packet) == Some(6) { ipv6::HEADER_LEN } else { ipv4::HEADER_LEN }
}

#[cfg(test)]
mod tests;
