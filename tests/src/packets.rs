//! Packets for tests, made and taken apart by etherparse: another implementation than the one under test.

use std::net::IpAddr;

use etherparse::{Ipv4Header, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::inner::{Fragment, InnerPacket};
use windlass_dataplane::wire::protocol::L4;
use windlass_dataplane::wire::tcp::{ACK, FIN, RST, SYN};

/// A UDP datagram of `flow` inside an IP packet, with right checksums.
pub fn udp(flow: &FlowKey, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let written = match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => PacketBuilder::ipv4(src.octets(), dst.octets(), 64)
            .udp(flow.src_port, flow.dst_port)
            .write(&mut out, payload),
        (IpAddr::V6(src), IpAddr::V6(dst)) => PacketBuilder::ipv6(src.octets(), dst.octets(), 64)
            .udp(flow.src_port, flow.dst_port)
            .write(&mut out, payload),
        _ => unreachable!("a flow of two families"),
    };
    written.unwrap_or_else(|error| unreachable!("a UDP packet: {error}"));
    out
}

/// Flags of a TCP segment that tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// SYN.
    Syn,
    /// SYN and ACK.
    SynAck,
    /// ACK, with or without data.
    Ack,
    /// FIN and ACK.
    Fin,
    /// RST.
    Rst,
}

/// A TCP segment of `flow` inside an IP packet, with right checksums.
pub fn tcp(flow: &FlowKey, kind: Tcp, payload: &[u8]) -> Vec<u8> {
    macro_rules! build {
        ($ip:expr) => {{
            let builder = $ip.tcp(flow.src_port, flow.dst_port, 1_000, 64_000);
            let mut out = Vec::new();
            let written = match kind {
                Tcp::Syn => builder.syn().write(&mut out, payload),
                Tcp::SynAck => builder.syn().ack(77).write(&mut out, payload),
                Tcp::Ack => builder.ack(77).write(&mut out, payload),
                Tcp::Fin => builder.fin().ack(77).write(&mut out, payload),
                Tcp::Rst => builder.rst().write(&mut out, payload),
            };
            written.unwrap_or_else(|error| unreachable!("a TCP packet: {error}"));
            out
        }};
    }
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => build!(PacketBuilder::ipv4(src.octets(), dst.octets(), 64)),
        (IpAddr::V6(src), IpAddr::V6(dst)) => build!(PacketBuilder::ipv6(src.octets(), dst.octets(), 64)),
        _ => unreachable!("a flow of two families"),
    }
}

/// An ICMP or ICMPv6 echo request.
pub fn ping(src: IpAddr, dst: IpAddr, id: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let written = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => PacketBuilder::ipv4(src.octets(), dst.octets(), 64)
            .icmpv4_echo_request(id, 1)
            .write(&mut out, b"ping"),
        (IpAddr::V6(src), IpAddr::V6(dst)) => PacketBuilder::ipv6(src.octets(), dst.octets(), 64)
            .icmpv6_echo_request(id, 1)
            .write(&mut out, b"ping"),
        _ => unreachable!("addresses of two families"),
    };
    written.unwrap_or_else(|error| unreachable!("an ICMP packet: {error}"));
    out
}

/// The flow of an IP packet as etherparse reads it; panics where a checksum is wrong.
pub fn verified_flow(packet: &[u8]) -> FlowKey {
    let sliced = SlicedPacket::from_ip(packet).unwrap_or_else(|error| unreachable!("{error}: {packet:02x?}"));
    let (src, dst): (IpAddr, IpAddr) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header checksum");
            (header.source.into(), header.destination.into())
        }
        Some(NetSlice::Ipv6(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        other => unreachable!("neither IPv4 nor IPv6: {other:?}"),
    };
    let (protocol, src_port, dst_port, checksum, expected) = match &sliced.transport {
        Some(TransportSlice::Udp(udp)) => {
            let header = udp.to_header();
            let expected = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    header.calc_checksum_ipv4_raw(src.octets(), dst.octets(), udp.payload())
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    header.calc_checksum_ipv6_raw(src.octets(), dst.octets(), udp.payload())
                }
                _ => unreachable!("two families"),
            };
            (Protocol::UDP, header.source_port, header.destination_port, header.checksum, expected)
        }
        Some(TransportSlice::Tcp(tcp)) => {
            let header = tcp.to_header();
            let expected = match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => tcp.calc_checksum_ipv4(src.octets(), dst.octets()),
                (IpAddr::V6(src), IpAddr::V6(dst)) => tcp.calc_checksum_ipv6(src.octets(), dst.octets()),
                _ => unreachable!("two families"),
            };
            (Protocol::TCP, header.source_port, header.destination_port, header.checksum, expected)
        }
        other => unreachable!("neither UDP nor TCP: {other:?}"),
    };
    let expected = expected.unwrap_or_else(|error| unreachable!("{error}"));
    let no_udp_checksum = protocol == Protocol::UDP && src.is_ipv4() && checksum == 0;
    assert!(
        checksum == expected || no_udp_checksum,
        "transport checksum {checksum:#06x}, not {expected:#06x}"
    );
    FlowKey { src, dst, protocol, src_port, dst_port }
}

/// An IPv4 packet with a changed header and the header checksum that belongs to it.
pub fn with_header(mut packet: Vec<u8>, edit: impl FnOnce(&mut Ipv4Header)) -> Vec<u8> {
    let (mut header, _) =
        Ipv4Header::from_slice(&packet).unwrap_or_else(|error| unreachable!("an IPv4 packet: {error}"));
    edit(&mut header);
    header.header_checksum = header.calc_header_checksum();
    packet[..20].copy_from_slice(&header.to_bytes()[..20]);
    packet
}

/// An IPv4 or IPv6 packet with this TOS byte or traffic class.
pub fn with_tos(mut packet: Vec<u8>, tos: u8) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        packet[0] = 0x60 | tos >> 4;
        packet[1] = packet[1] & 0x0f | tos << 4;
        return packet;
    }
    packet[1] = tos;
    with_header(packet, |_| ())
}

/// The TOS byte or traffic class of an IP packet.
pub fn tos(packet: &[u8]) -> u8 {
    if packet[0] >> 4 == 6 { packet[0] << 4 | packet[1] >> 4 } else { packet[1] }
}

/// The payload of a VXLAN datagram: VXLAN header, Ethernet header, `inner`.
pub fn vxlan(vni: u32, dst: Mac, inner: &[u8]) -> Vec<u8> {
    let ethertype = if inner.first().is_some_and(|byte| byte >> 4 == 6) { 0x86dd } else { 0x0800 };
    vxlan_of(vni, dst, ethertype, inner)
}

/// The same with any ethertype.
pub fn vxlan_of(vni: u32, dst: Mac, ethertype: u16, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x08, 0, 0, 0];
    out.extend((vni << 8).to_be_bytes());
    out.extend(dst.0);
    out.extend([0x02, 0, 0, 0, 0, 1]);
    out.extend(ethertype.to_be_bytes());
    out.extend(inner);
    out
}

/// What a VXLAN datagram holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The VXLAN header.
    pub header: [u8; 8],
    /// Inner Ethernet destination.
    pub dst: Mac,
    /// Inner Ethernet source.
    pub src: Mac,
    /// Inner ethertype.
    pub ethertype: u16,
    /// The inner packet.
    pub inner: Vec<u8>,
}

/// Takes a VXLAN datagram apart; the frame by etherparse.
pub fn opened(payload: &[u8]) -> Opened {
    let mut header = [0; 8];
    header.copy_from_slice(&payload[..8]);
    let sliced = SlicedPacket::from_ethernet(&payload[8..])
        .unwrap_or_else(|error| unreachable!("{error}: {payload:02x?}"));
    let Some(LinkSlice::Ethernet2(frame)) = sliced.link else { unreachable!("no Ethernet frame") };
    Opened {
        header,
        dst: Mac(frame.destination()),
        src: Mac(frame.source()),
        ethertype: frame.ether_type().0,
        inner: payload[22..].to_vec(),
    }
}

/// A TCP or UDP packet as a kernel hands it to a network card: its checksum field holds the sum of the pseudo-header.
pub fn partial(mut packet: Vec<u8>) -> (Vec<u8>, Checksum) {
    let v6 = packet[0] >> 4 == 6;
    let (start, protocol, addresses) = if v6 { (40, packet[6], 8..40) } else { (20, packet[9], 12..20) };
    let offset = if protocol == 6 { 16 } else { 6 };
    let mut pseudo = packet[addresses].to_vec();
    pseudo.extend([0, protocol]);
    pseudo.extend(((packet.len() - start) as u16).to_be_bytes());
    let sum = ones_complement_sum(&pseudo);
    packet[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
    (packet, Checksum::Partial { start: start as u16, offset: offset as u16 })
}

/// The packet as a network card would send it.
pub fn completed(mut packet: Vec<u8>, checksum: Checksum) -> Vec<u8> {
    if let Checksum::Partial { start, offset } = checksum {
        let (start, at) = (usize::from(start), usize::from(start + offset));
        let sum = !ones_complement_sum(&packet[start..]);
        let sum = if sum == 0 && offset == 6 { 0xffff } else { sum };
        packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// What an IP packet is, in a word: family, transport, the flags of TCP, and which fragment; `None` for one that the
/// engine would call malformed.
pub fn kind(packet: &[u8]) -> Option<String> {
    let packet = InnerPacket::parse(packet).ok()?;
    let family = if packet.flow.src.is_ipv4() { "v4" } else { "v6" };
    let flags = [(SYN, "-syn"), (FIN, "-fin"), (RST, "-rst"), (ACK, "-ack")];
    let transport = match packet.l4 {
        L4::Tcp { flags: set } => {
            let set = flags.into_iter().filter(|(flag, _)| set & flag != 0).map(|(_, name)| name);
            format!("tcp{}", set.collect::<String>())
        }
        L4::Udp => "udp".to_owned(),
        L4::EchoRequest => "ping".to_owned(),
        L4::EchoReply => "pong".to_owned(),
        L4::IcmpError => "icmp-error".to_owned(),
        L4::Icmp => "icmp".to_owned(),
        _ => "other".to_owned(),
    };
    let part = match packet.fragment {
        Fragment::Whole => "",
        Fragment::First => "-first-fragment",
        Fragment::Later => "-later-fragment",
    };
    Some(format!("{family}-{transport}{part}"))
}

/// The sum of RFC 1071, the slow and obvious way.
pub fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0)));
    let mut sum: u64 = words.sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// An ICMP or ICMPv6 message as etherparse reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Type and code.
    pub kind: (u8, u8),
    /// The second word: an MTU, or an identifier and a sequence number.
    pub word: u32,
    /// What follows: the quoted packet of an error.
    pub body: Vec<u8>,
}

/// An ICMP or ICMPv6 packet; panics where a checksum is wrong.
pub fn verified_icmp(packet: &[u8]) -> Message {
    let sliced = SlicedPacket::from_ip(packet).unwrap_or_else(|error| unreachable!("{error}: {packet:02x?}"));
    let (src, dst): (IpAddr, IpAddr) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header checksum");
            (header.source.into(), header.destination.into())
        }
        Some(NetSlice::Ipv6(ip)) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        other => unreachable!("neither IPv4 nor IPv6: {other:?}"),
    };
    let bytes = match &sliced.transport {
        Some(TransportSlice::Icmpv4(icmp)) => {
            assert_eq!(ones_complement_sum(icmp.slice()), 0xffff, "ICMP checksum");
            icmp.slice()
        }
        Some(TransportSlice::Icmpv6(icmp)) => {
            let (IpAddr::V6(src), IpAddr::V6(dst)) = (src, dst) else { unreachable!("ICMPv6 over IPv4") };
            assert!(icmp.is_checksum_valid(src.octets(), dst.octets()), "ICMPv6 checksum");
            icmp.slice()
        }
        other => unreachable!("no ICMP: {other:?}"),
    };
    let word = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    Message { src, dst, kind: (bytes[0], bytes[1]), word, body: bytes[8..].to_vec() }
}
