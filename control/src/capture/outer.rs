//! The outer headers of a datagram, which the socket keeps from us, written down for a capture file.

use std::net::{IpAddr, SocketAddr};

use windlass_dataplane::wire::protocol::Protocol;
use windlass_dataplane::wire::{ipv4, ipv6, udp};

/// TTL and hop limit that Linux gives to what it sends.
const TTL: u8 = 64;

/// UDP source ports are taken from this one on (RFC 7348 section 5).
pub const FIRST_SOURCE_PORT: u16 = 49_152;

/// The IP packet that carries `payload` from `source` to `destination`, which are of one family. Its UDP checksum is
/// zero over IPv4 and right over IPv6. A length beyond 65,535 bytes, a superpacket's, is written as 0, as Linux does.
pub fn datagram(source: SocketAddr, destination: SocketAddr, tos: u8, payload: &[u8]) -> Vec<u8> {
    let udp_len = udp::HEADER_LEN + payload.len();
    let header_len = if source.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let len = |len: usize| u16::try_from(len).unwrap_or(0);
    let mut out = vec![0; header_len + udp::HEADER_LEN];
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total_len = len(header_len + udp_len);
            let protocol = Protocol::UDP;
            let header =
                ipv4::Header { src, dst, protocol, tos, ttl: TTL, ident: 0, dont_fragment: true, total_len };
            ipv4::emit(&mut out, header);
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6::Header {
                src,
                dst,
                next_header: Protocol::UDP,
                traffic_class: tos,
                flow_label: 0,
                hop_limit: TTL,
                payload_len: len(udp_len),
            };
            ipv6::emit(&mut out, header);
        }
        _ => return payload.to_vec(),
    }
    udp::emit(&mut out[header_len..], source.port(), destination.port(), len(udp_len));
    out.extend_from_slice(payload);
    if source.is_ipv6()
        && let Ok(mut header) = udp::Udp::new_header(&mut out[header_len..])
    {
        header.fill_checksum(source.ip(), destination.ip());
    }
    out
}
