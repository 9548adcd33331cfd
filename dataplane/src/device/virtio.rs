//! The virtio network header before each packet of a TUN device.
//!
//! Virtual I/O Device (VIRTIO) 1.2 section 5.1.6; `struct virtio_net_hdr` of linux/virtio_net.h, in the host's
//! byte order as a TUN device has it unless told otherwise.

use crate::device::segments::headers_len;
use crate::packet::Checksum;

/// Length of the header, in bytes.
pub const HEADER_LEN: usize = 10;

const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Length of the header of a device that takes tunnelled superpackets, in bytes: `struct
/// virtio_net_hdr_v1_hash_tunnel`.
pub const TUNNEL_HEADER_LEN: usize = 24;

const UDP_TUNNEL_CSUM: u8 = 8;
const GSO_UDP_TUNNEL_IPV4: u8 = 0x20;
const GSO_UDP_TUNNEL_IPV6: u8 = 0x40;

const TCP_CHECKSUM_OFFSET: u16 = 16;
const TCP_FLAGS: usize = 13;
const TCP_CWR: u8 = 0x80;

/// What a received header says of its packet: its segment length (0: an ordinary packet) and the state of its checksum; `None` for a segmentation this program did not ask for (such as
/// UDP fragmentation).
pub fn decode(header: &[u8; HEADER_LEN]) -> Option<(u16, Checksum)> {
    let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let checksum = match header[0] & NEEDS_CSUM {
        0 => Checksum::Complete,
        _ => Checksum::Partial { start: field(6), offset: field(8) },
    };
    match header[1] & !GSO_ECN {
        GSO_NONE => Some((0, checksum)),
        GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 => Some((field(4), checksum)),
        _ => None,
    }
}

/// The header to write before `packet`, which begins with its IP header. `None` for what a header cannot say: a
/// superpacket with a complete checksum, or offsets outside the packet.
pub fn encode(packet: &[u8], segment_len: u16, checksum: Checksum) -> Option<[u8; HEADER_LEN]> {
    let mut header = [0; HEADER_LEN];
    let Checksum::Partial { start, offset } = checksum else {
        return (segment_len == 0).then_some(header);
    };
    if usize::from(start) + usize::from(offset) + 2 > packet.len() {
        return None;
    }
    header[0] = NEEDS_CSUM;
    header[6..8].copy_from_slice(&start.to_ne_bytes());
    header[8..10].copy_from_slice(&offset.to_ne_bytes());
    if segment_len != 0 {
        let headers_len = headers_len(packet, checksum).filter(|len| *len <= packet.len())?;
        header[1] = gso_type(packet, start, offset);
        header[2..4].copy_from_slice(&u16::try_from(headers_len).ok()?.to_ne_bytes());
        header[4..6].copy_from_slice(&segment_len.to_ne_bytes());
    }
    Some(header)
}

/// Where a tunnelled superpacket has its headers, in bytes from the start of its frame.
pub struct Tunnel {
    /// Whether the outer header is IPv6.
    pub is_ipv6: bool,
    /// The outer UDP header.
    pub transport: usize,
    /// The inner IP header.
    pub inner_network: usize,
}

/// The header to write before the frame of a superpacket in a UDP tunnel whose outer checksum is to be made, too.
/// `packet` is the inner IP packet. `None` as for [`encode`], and for a packet that is no superpacket.
pub fn encode_tunnelled(
    packet: &[u8],
    segment_len: u16,
    checksum: Checksum,
    tunnel: &Tunnel,
) -> Option<[u8; TUNNEL_HEADER_LEN]> {
    let plain = encode(packet, segment_len, checksum).filter(|_| segment_len != 0)?;
    let mut header = [0; TUNNEL_HEADER_LEN];
    let plain = counted_from(plain, tunnel.inner_network)?;
    header[..HEADER_LEN].copy_from_slice(&plain);
    header[0] |= UDP_TUNNEL_CSUM;
    header[1] |= if tunnel.is_ipv6 { GSO_UDP_TUNNEL_IPV6 } else { GSO_UDP_TUNNEL_IPV4 };
    header[20..22].copy_from_slice(&u16::try_from(tunnel.transport).ok()?.to_le_bytes());
    header[22..24].copy_from_slice(&u16::try_from(tunnel.inner_network).ok()?.to_le_bytes());
    Some(header)
}

/// The same header where the packet begins `before` bytes behind the start of its frame: the length of the headers and the
/// start of the checksum count from there. `None` beyond 64 KB.
pub(crate) fn counted_from(mut header: [u8; HEADER_LEN], before: usize) -> Option<[u8; HEADER_LEN]> {
    let counted: &[usize] = match (header[0] & NEEDS_CSUM, header[1]) {
        (0, _) => &[],
        (_, GSO_NONE) => &[6],
        _ => &[2, 6],
    };
    for &at in counted {
        let offset = u16::from_ne_bytes([header[at], header[at + 1]]);
        let offset = offset.checked_add(u16::try_from(before).ok()?)?;
        header[at..at + 2].copy_from_slice(&offset.to_ne_bytes());
    }
    Some(header)
}

fn gso_type(packet: &[u8], start: u16, offset: u16) -> u8 {
    if offset != TCP_CHECKSUM_OFFSET {
        return GSO_UDP_L4;
    }
    let version = if packet[0] >> 4 == 6 { GSO_TCPV6 } else { GSO_TCPV4 };
    // Only the first segment may carry CWR (RFC 3168 section 6.1.2): the flag says that the kernel must see to it.
    match packet[usize::from(start) + TCP_FLAGS] & TCP_CWR {
        0 => version,
        _ => version | GSO_ECN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(version: u8, start: usize, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 3000];
        packet[0] = version << 4 | 5;
        packet[start + 12] = 8 << 4;
        packet[start + TCP_FLAGS] = flags;
        packet
    }

    #[test]
    fn superpackets_survive_the_round_trip() {
        let cases = [
            (tcp(4, 20, 0x10), 20, 16, GSO_TCPV4, 52),
            (tcp(6, 40, 0x10), 40, 16, GSO_TCPV6, 72),
            (tcp(4, 20, 0x90), 20, 16, GSO_TCPV4 | GSO_ECN, 52),
            (tcp(4, 20, 0), 20, 6, GSO_UDP_L4, 28),
        ];
        for (packet, start, offset, gso, headers_len) in cases {
            let checksum = Checksum::Partial { start, offset };
            let header = encode(&packet, 1400, checksum).unwrap();
            assert_eq!(header[1], gso);
            assert_eq!(u16::from_ne_bytes([header[2], header[3]]), headers_len);
            assert_eq!(decode(&header), Some((1400, checksum)));
        }
    }

    #[test]
    fn a_tunnelled_superpacket_is_described_from_the_start_of_its_frame() {
        let tunnel = Tunnel { is_ipv6: false, transport: 34, inner_network: 64 };
        let checksum = Checksum::Partial { start: 20, offset: 16 };
        let header = encode_tunnelled(&tcp(4, 20, 0x10), 1400, checksum, &tunnel).unwrap();
        assert_eq!(header[..2], [NEEDS_CSUM | UDP_TUNNEL_CSUM, GSO_TCPV4 | GSO_UDP_TUNNEL_IPV4]);
        let fields = [2, 4, 6, 8].map(|at| u16::from_ne_bytes([header[at], header[at + 1]]));
        assert_eq!(fields, [64 + 52, 1400, 64 + 20, 16]);
        assert_eq!(header[20..], [34, 0, 64, 0]);
        assert_eq!(encode_tunnelled(&tcp(4, 20, 0), 0, checksum, &tunnel), None);
    }

    #[test]
    fn an_ordinary_packet_has_an_empty_header() {
        assert_eq!(encode(&[0x45; 40], 0, Checksum::Complete), Some([0; HEADER_LEN]));
        assert_eq!(decode(&[0; HEADER_LEN]), Some((0, Checksum::Complete)));
    }

    #[test]
    fn what_a_header_cannot_say_is_refused() {
        assert_eq!(encode(&[0x45; 40], 1000, Checksum::Complete), None);
        assert_eq!(encode(&[0x45; 40], 0, Checksum::Partial { start: 30, offset: 16 }), None);
        assert_eq!(encode(&[0x45; 37], 9, Checksum::Partial { start: 20, offset: 16 }), None);
        let mut fragmented = [0; HEADER_LEN];
        fragmented[1] = 3;
        assert_eq!(decode(&fragmented), None);
    }
}
