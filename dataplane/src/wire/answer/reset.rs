//! The TCP reset that refuses a connection.
//!
//! Read first: RFC 9293 sections 3.5.2 (reset generation) and 3.10.7.1 (a segment for a closed port).

use super::{emit_ip, ip_header_len, may_answer};
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::{L4, Protocol};
use crate::wire::tcp::{self, ACK, FIN, RST, SYN, Tcp};

/// Length of the packet [`emit_reset`] writes in answer to the IP packet `of`, in bytes.
pub fn reset_len(of: &[u8]) -> usize {
    ip_header_len(of) + tcp::HEADER_LEN
}

/// Writes the IP packet that refuses the connection `of` belongs to, from its destination to its source, and
/// returns its length. `None` if `of` is no whole TCP packet, is itself a reset, came from or went to an address
/// that is no single host's, or if `out` is too short.
pub fn emit_reset(out: &mut [u8], of: &[u8]) -> Option<usize> {
    let inner = InnerPacket::parse(of).ok()?;
    let L4::Tcp { flags } = inner.l4 else { return None };
    if flags & RST != 0 || inner.fragment != Fragment::Whole || !may_answer(&inner) {
        return None;
    }
    let segment = Tcp::new_checked(&of[usize::from(inner.l4_offset)..]).ok()?;
    let payload_len = inner.total_len - inner.headers_len() as u32;
    let sequence_len = payload_len + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    let (seq, ack, flags) = if flags & ACK != 0 {
        (segment.ack(), 0, RST)
    } else {
        (0, segment.seq().wrapping_add(sequence_len), RST | ACK)
    };
    let len = reset_len(of);
    let out = out.get_mut(..len)?;
    let back = inner.flow.reversed();
    let l4_offset = emit_ip(out, back.src, back.dst, Protocol::TCP, 0)?;
    let (src_port, dst_port) = (back.src_port, back.dst_port);
    let header = tcp::Header { src_port, dst_port, seq, ack, flags, window: 0 };
    tcp::emit(&mut out[l4_offset..], header);
    Tcp::new_checked(&mut out[l4_offset..]).ok()?.fill_checksum(back.src, back.dst);
    Some(len)
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, PacketBuilderStep, SlicedPacket, TcpHeader, TransportSlice};

    use super::*;

    fn v4() -> PacketBuilderStep<etherparse::IpHeaders> {
        PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    }

    fn v6() -> PacketBuilderStep<etherparse::IpHeaders> {
        let addr = |last| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        PacketBuilder::ipv6(addr(1), addr(2), 64)
    }

    fn build(ip: PacketBuilderStep<etherparse::IpHeaders>, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = TcpHeader::new(4000, 80, 0xffff_fff0, 1024);
        header.acknowledgment_number = 77;
        (header.fin, header.syn, header.rst) = (flags & FIN != 0, flags & SYN != 0, flags & RST != 0);
        header.ack = flags & ACK != 0;
        let mut packet = Vec::new();
        ip.tcp_header(header).write(&mut packet, payload).unwrap();
        packet
    }

    fn reset(of: &[u8]) -> Option<TcpHeader> {
        let mut out = vec![0xaa; reset_len(of)];
        let len = emit_reset(&mut out, of)?;
        assert_eq!(len, out.len());
        let packet = SlicedPacket::from_ip(&out).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("no TCP") };
        let expected = match packet.net.unwrap() {
            etherparse::NetSlice::Ipv4(ip) => {
                let header = ip.header().to_header();
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!((header.source, header.destination), ([10, 0, 0, 2], [10, 0, 0, 1]));
                tcp.calc_checksum_ipv4(header.source, header.destination).unwrap()
            }
            etherparse::NetSlice::Ipv6(ip) => {
                tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()).unwrap()
            }
            _ => panic!("no IP"),
        };
        assert_eq!(tcp.checksum(), expected);
        assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 4000));
        Some(tcp.to_header())
    }

    #[test]
    fn a_reset_of_a_segment_without_ack_acknowledges_all_of_it() {
        for (flags, payload, ack) in [
            (SYN, &b""[..], 0xffff_fff1),
            (SYN, b"early", 0xffff_fff6),
            (FIN, &[0; 32], 17),
            (0, b"", 0xffff_fff0),
        ] {
            for packet in [build(v4(), flags, payload), build(v6(), flags, payload)] {
                let header = reset(&packet).unwrap();
                assert!(header.rst && header.ack && !header.syn);
                assert_eq!((header.sequence_number, header.acknowledgment_number), (0, ack));
            }
        }
    }

    #[test]
    fn a_reset_of_a_segment_with_ack_takes_its_ack_as_sequence() {
        for packet in [build(v4(), ACK, b"data"), build(v6(), SYN | ACK, b"")] {
            let header = reset(&packet).unwrap();
            assert!(header.rst && !header.ack);
            assert_eq!((header.sequence_number, header.acknowledgment_number), (77, 0));
        }
    }

    #[test]
    fn a_reset_is_never_reset() {
        assert_eq!(reset(&build(v4(), RST, b"")), None);
        assert_eq!(reset(&build(v6(), RST | ACK, b"")), None);
    }

    #[test]
    fn what_is_no_whole_tcp_packet_is_not_reset() {
        let mut fragment = build(v4(), SYN, &[0; 16]);
        fragment[6] = 0x20;
        assert_eq!(reset(&fragment), None);
        let mut udp = Vec::new();
        v4().udp(1, 2).write(&mut udp, b"x").unwrap();
        assert_eq!(reset(&udp), None);
        assert_eq!(emit_reset(&mut [0; 39], &build(v4(), SYN, b"")), None, "no room");
        assert_eq!(emit_reset(&mut [0; 64], &[]), None);
    }
}
