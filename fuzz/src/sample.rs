//! Packets out of an input's choices, with right checksums.

use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::addr;
use windlass_tests::packets::{Tcp, ones_complement_sum, partial, ping, tcp, udp, with_tos};

use crate::input::Input;

/// Bytes of a payload: a pattern, so that lengths cost no input.
pub fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

/// The address of a pod by its node and its number.
pub fn pod(ipv6: bool, node_b: bool, host: u8) -> std::net::IpAddr {
    let prefix = match (ipv6, node_b) {
        (false, false) => "10.244.0.",
        (false, true) => "10.244.2.",
        (true, false) => "fd00:10:244::",
        (true, true) => "fd00:10:244:2::",
    };
    addr(&format!("{prefix}{}", host.clamp(1, 250)))
}

const FLAGS: [Tcp; 5] = [Tcp::Ack, Tcp::Syn, Tcp::SynAck, Tcp::Fin, Tcp::Rst];

/// Which packet of a flow an input wants.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    flags: Tcp,
    len: usize,
    tos: u8,
    is_partial: bool,
    no_checksum: bool,
}

impl Shape {
    /// Reads it: flags, length, TOS byte, and what stands in the checksum field.
    pub fn read(input: &mut Input<'_>, max_len: usize) -> Self {
        let flags = input.choose(&FLAGS);
        let len = usize::from(input.number()) % (max_len + 1);
        let tos = input.byte();
        let checksum = input.byte();
        Self { flags, len, tos, is_partial: checksum & 1 == 1, no_checksum: checksum & 2 == 2 }
    }

    /// Whether it resets a connection.
    pub fn is_reset(&self) -> bool {
        self.flags == Tcp::Rst
    }

    /// The TCP or UDP packet of this shape in `flow`.
    pub fn packet(&self, flow: &FlowKey) -> (Vec<u8>, Checksum) {
        let mut packet = match flow.protocol {
            Protocol::TCP => tcp(flow, self.flags, &payload(self.len)),
            _ => udp(flow, &payload(self.len)),
        };
        if self.no_checksum && flow.protocol == Protocol::UDP && flow.src.is_ipv4() {
            packet[26..28].fill(0);
            return (with_tos(packet, self.tos), Checksum::Complete);
        }
        let (packet, state) = if self.is_partial { partial(packet) } else { (packet, Checksum::Complete) };
        (with_tos(packet, self.tos), state)
    }

    /// The packet of this shape that a pod of node a sends to one of node b: TCP, UDP or ping.
    pub fn between_pods(&self, input: &mut Input<'_>) -> (Vec<u8>, Checksum) {
        let (ipv6, kind) = (input.flag(), input.byte() % 3);
        let (src, dst) = (pod(ipv6, false, input.byte()), pod(ipv6, true, input.byte()));
        let protocol = if kind == 0 { Protocol::TCP } else { Protocol::UDP };
        let flow = FlowKey { src, dst, protocol, src_port: input.number(), dst_port: input.number() };
        match kind {
            2 => (with_tos(ping(src, dst, flow.src_port), self.tos), Checksum::Complete),
            _ => self.packet(&flow),
        }
    }
}

/// The part of `packet`'s IP payload from `offset` (a multiple of 8) on, `len` bytes at most, as a fragment.
pub fn fragment(packet: &[u8], offset: usize, len: usize, ident: u16) -> Vec<u8> {
    let ipv6 = packet[0] >> 4 == 6;
    let (header, payload) = packet.split_at(if ipv6 { 40 } else { 20 });
    let end = payload.len().min(offset + len);
    let piece = &payload[offset.min(end)..end];
    let more = u16::from(end < payload.len());
    let mut out = header.to_vec();
    if ipv6 {
        let place = (offset as u16 | more).to_be_bytes();
        let ident = ident.to_be_bytes();
        out.extend([packet[6], 0, place[0], place[1], 0, 0, ident[0], ident[1]]);
        out[6] = 44;
        out[4..6].copy_from_slice(&(piece.len() as u16 + 8).to_be_bytes());
    } else {
        out[2..4].copy_from_slice(&(piece.len() as u16 + 20).to_be_bytes());
        out[4..6].copy_from_slice(&ident.to_be_bytes());
        out[6..8].copy_from_slice(&((offset as u16 / 8) | (more << 13)).to_be_bytes());
        fill_header_checksum(&mut out);
    }
    out.extend(piece);
    out
}

/// An ICMP or ICMPv6 error of `kind` (type and code) with `word` as its second word, quoting `quote`.
pub fn icmp_error(flow: &FlowKey, kind: [u8; 2], word: [u8; 4], quote: &[u8]) -> Vec<u8> {
    // The header is a ping's: addresses, TTL and protocol are right already.
    let ping = ping(flow.src, flow.dst, 0);
    let ipv6 = flow.src.is_ipv6();
    let header_len = if ipv6 { 40 } else { 20 };
    let mut out = ping[..header_len].to_vec();
    out.extend([kind[0], kind[1], 0, 0]);
    out.extend(word);
    out.extend(quote);
    let icmp_len = (out.len() - header_len) as u16;
    let mut summed = Vec::new();
    if ipv6 {
        out[4..6].copy_from_slice(&icmp_len.to_be_bytes());
        summed.extend(&out[8..40]);
        summed.extend([0, 58]);
        summed.extend(icmp_len.to_be_bytes());
    } else {
        out[2..4].copy_from_slice(&(icmp_len + 20).to_be_bytes());
        fill_header_checksum(&mut out);
    }
    summed.extend(&out[header_len..]);
    let sum = !ones_complement_sum(&summed);
    out[header_len + 2..header_len + 4].copy_from_slice(&sum.to_be_bytes());
    out
}

fn fill_header_checksum(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let sum = !ones_complement_sum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}
