//! The headers before an encapsulated superpacket: virtio, Ethernet, IP and UDP.

use std::net::{IpAddr, SocketAddr};

use super::Segments;
use crate::device::linux::virtio::{self, TUNNEL_HEADER_LEN, Tunnel};
use crate::device::segments::{ENCAPSULATION_LEN, headers_len};
use crate::offload::segment;
use crate::packet::Checksum;
use crate::wire::bytes::put_u16;
use crate::wire::checksum::{fold, pseudo_header};
use crate::wire::ethernet::{self, Mac};
use crate::wire::protocol::Protocol;
use crate::wire::{ipv4, ipv6, udp};

/// Most bytes the headers take: those of IPv6.
const MAX_LEN: usize = TUNNEL_HEADER_LEN + ethernet::HEADER_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;

/// The kernel's default, net.ipv4.ip_default_ttl.
const TTL: u8 = 64;

/// What the outer headers say.
pub(super) struct Outer {
    /// The TAP's own address, so that the frame counts as sent to this host.
    pub(super) mac: Mac,
    /// Where it comes from: an underlay address and a source port of the pool.
    pub(super) source: SocketAddr,
    /// The remote VTEP.
    pub(super) remote: SocketAddr,
    /// TOS byte or traffic class.
    pub(super) tos: u8,
}

/// The headers of one superpacket.
pub(super) struct Headers {
    bytes: [u8; MAX_LEN],
    len: usize,
    /// Length of the outer IP and UDP headers.
    outer_len: usize,
    /// Length of the VXLAN, Ethernet, IP and transport headers behind them, which every segment repeats.
    repeated_len: usize,
}

impl Headers {
    /// The headers, to be followed by the payload.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Length of a full segment from its outer IP header on, in bytes.
    pub(super) fn wire_len(&self, segment_len: u16) -> usize {
        self.outer_len + self.repeated_len + usize::from(segment_len)
    }

    /// What `payload`, whose headers these are, leaves as.
    pub(super) fn segments(&self, payload: &[u8], segment_len: u16) -> Segments {
        let count = segment::count(payload.len(), self.repeated_len, segment_len);
        Segments { count: count as u64, len: (payload.len() + (count - 1) * self.repeated_len) as u64 }
    }
}

/// The headers before `payload`, which begins with its VXLAN header. `None` for what cannot leave whole: longer than
/// an IP packet, of a complete checksum, between families, or with offsets outside the packet.
pub(super) fn headers(
    outer: &Outer,
    payload: &[u8],
    segment_len: u16,
    checksum: Checksum,
) -> Option<Headers> {
    let mut bytes = [0; MAX_LEN];
    let udp_len = u16::try_from(udp::HEADER_LEN + payload.len()).ok()?;
    let (virtio_part, frame) = bytes.split_at_mut(TUNNEL_HEADER_LEN);
    let (ethernet_part, ip) = frame.split_at_mut(ethernet::HEADER_LEN);
    let (ethertype, ip_len) = match (outer.source.ip(), outer.remote.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total_len = udp_len.checked_add(ipv4::HEADER_LEN as u16)?;
            let (protocol, tos, ttl) = (Protocol::UDP, outer.tos, TTL);
            let (ident, dont_fragment) = (0, true);
            ipv4::emit(ip, ipv4::Header { src, dst, protocol, tos, ttl, ident, dont_fragment, total_len });
            (ethernet::IPV4, ipv4::HEADER_LEN)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (next_header, traffic_class, hop_limit) = (Protocol::UDP, outer.tos, TTL);
            let (flow_label, payload_len) = (0, udp_len);
            let header =
                ipv6::Header { src, dst, next_header, traffic_class, flow_label, hop_limit, payload_len };
            ipv6::emit(ip, header);
            (ethernet::IPV6, ipv6::HEADER_LEN)
        }
        _ => return None,
    };
    ethernet::emit(ethernet_part, outer.mac, outer.mac, ethertype);
    let transport = &mut ip[ip_len..];
    udp::emit(transport, outer.source.port(), outer.remote.port(), udp_len);
    // Whoever cuts the packet makes each segment's checksum of this sum, of addresses and length.
    let pseudo = pseudo_header(outer.source.ip(), outer.remote.ip(), Protocol::UDP, u32::from(udp_len));
    put_u16(transport, udp::CHECKSUM, fold(pseudo));
    let inner = payload.get(ENCAPSULATION_LEN..)?;
    let frame_len = ethernet::HEADER_LEN + ip_len + udp::HEADER_LEN;
    let tunnel = Tunnel {
        is_ipv6: ethertype == ethernet::IPV6,
        transport: ethernet::HEADER_LEN + ip_len,
        inner_network: frame_len + ENCAPSULATION_LEN,
    };
    virtio_part.copy_from_slice(&virtio::encode_tunnelled(inner, segment_len, checksum, &tunnel)?);
    Some(Headers {
        bytes,
        len: TUNNEL_HEADER_LEN + frame_len,
        outer_len: ip_len + udp::HEADER_LEN,
        repeated_len: ENCAPSULATION_LEN + headers_len(inner, checksum)?,
    })
}
