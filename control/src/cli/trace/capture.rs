//! One packet of a pcap or pcapng file, as far as a trace needs them.
//!
//! Read first: draft-ietf-opsawg-pcap sections 4 and 5, draft-ietf-opsawg-pcapng sections 3 and 4.

use std::net::IpAddr;

use anyhow::{Context, bail};
use windlass_dataplane::wire::ethernet::{self, Ethernet};
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::wire::protocol::L4;
use windlass_dataplane::wire::udp;

/// Link types: Ethernet, and raw IP under its four numbers.
const ETHERNET: u32 = 1;
const RAW: [u32; 3] = [101, 228, 229];
const RAW_BSD: u32 = 12;

/// The IP packet in the file's packet number `number`, counted from 1.
pub(super) fn packet(file: &[u8], number: usize) -> anyhow::Result<Vec<u8>> {
    let mut packets = Vec::new();
    let magic = file.get(..4).context("it is too short for a capture")?;
    match magic {
        [0x0a, 0x0d, 0x0d, 0x0a] => pcapng(file, number, &mut packets)?,
        _ => pcap(file, number, &mut packets)?,
    }
    let count = packets.len();
    let (link, frame) = packets.into_iter().nth(number - 1).with_context(|| {
        format!("it has {count} packets, and number {number} is asked for: give a smaller N in FILE:N")
    })?;
    ip_packet(link, frame)
}

/// The sender and the payload of a UDP datagram.
pub(super) fn datagram(packet: &[u8]) -> Option<(IpAddr, Vec<u8>)> {
    let outer = InnerPacket::parse(packet).ok()?;
    let at = usize::from(outer.l4_offset) + udp::HEADER_LEN;
    (outer.l4 == L4::Udp).then(|| (outer.flow.src, packet[at..outer.total_len as usize].to_vec()))
}

fn ip_packet(link: u32, frame: &[u8]) -> anyhow::Result<Vec<u8>> {
    if RAW.contains(&link) || link == RAW_BSD {
        return Ok(frame.to_vec());
    }
    if link != ETHERNET {
        bail!(
            "its link type {link} is neither Ethernet (1) nor raw IP (101); capture on one interface, not on \"any\""
        );
    }
    let view = Ethernet::new_checked(frame).ok().context("the frame is shorter than an Ethernet header")?;
    let (ethertype, payload) = match (view.ethertype(), view.payload()) {
        (ethernet::VLAN, [_, _, high, low, rest @ ..]) => (u16::from_be_bytes([*high, *low]), rest),
        other => other,
    };
    match ethertype {
        ethernet::IPV4 | ethernet::IPV6 => Ok(payload.to_vec()),
        other => bail!("the frame carries ethertype 0x{other:04x}, not IP; choose another with FILE:N"),
    }
}

/// Numbers in the byte order of the machine that captured.
#[derive(Clone, Copy)]
struct Order {
    big: bool,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes: [u8; 2] = bytes.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if self.big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }
}

fn pcap<'a>(file: &'a [u8], wanted: usize, packets: &mut Vec<(u32, &'a [u8])>) -> anyhow::Result<()> {
    let order = match file {
        [0xa1, 0xb2, 0xc3, 0xd4, ..] | [0xa1, 0xb2, 0x3c, 0x4d, ..] => Order { big: true },
        [0xd4, 0xc3, 0xb2, 0xa1, ..] | [0x4d, 0x3c, 0xb2, 0xa1, ..] => Order { big: false },
        _ => bail!("it is neither a pcap nor a pcapng file"),
    };
    let link = order.u32(file, 20).context("its header is cut off")? & 0xffff;
    let mut at = 24;
    while at < file.len() && packets.len() < wanted {
        let len = order.u32(file, at + 8).context("its last packet is cut off")? as usize;
        let end = (at + 16).checked_add(len).context("a packet's length cannot be")?;
        packets.push((link, file.get(at + 16..end).context("its last packet is cut off")?));
        at = end;
    }
    Ok(())
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

fn pcapng<'a>(file: &'a [u8], wanted: usize, packets: &mut Vec<(u32, &'a [u8])>) -> anyhow::Result<()> {
    let cut = "a block is cut off";
    let mut order = Order { big: false };
    let mut links = Vec::new();
    let mut at = 0;
    while at < file.len() && packets.len() < wanted {
        let kind = order.u32(file, at).context(cut)?;
        if kind == SECTION {
            order = Order { big: file.get(at + 8..at + 12).context(cut)? == [0x1a, 0x2b, 0x3c, 0x4d] };
            links.clear();
        }
        let len = order.u32(file, at + 4).context(cut)? as usize;
        let end = at.checked_add(len).filter(|_| len >= 12).context("a block's length cannot be")?;
        let block = file.get(at..end).context(cut)?;
        match kind {
            INTERFACE => links.push(u32::from(order.u16(block, 8).context(cut)?)),
            ENHANCED_PACKET => {
                let interface = order.u32(block, 8).context(cut)? as usize;
                let link =
                    *links.get(interface).context("a packet names an interface that is not described")?;
                let captured = order.u32(block, 20).context(cut)? as usize;
                packets.push((link, block.get(28..28 + captured.min(len)).context(cut)?));
            }
            SIMPLE_PACKET => {
                let link = *links.first().context("a packet comes before any interface")?;
                let original = order.u32(block, 8).context(cut)? as usize;
                packets.push((link, &block[12..len - 4][..original.min(len - 16)]));
            }
            _ => {}
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IP: [u8; 28] = [
        0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 53, 0, 8, 0, 0,
    ];

    fn frame() -> Vec<u8> {
        [&[0; 12][..], &[0x08, 0x00], &IP].concat()
    }

    fn classic(big: bool, link: u32, frames: &[&[u8]]) -> Vec<u8> {
        let number = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let mut file =
            [number(0xa1b2_c3d4), number(0), number(0), number(0), number(65535), number(link)].concat();
        for frame in frames {
            let len = number(frame.len() as u32);
            file.extend([number(1), number(2), len, len].concat());
            file.extend_from_slice(frame);
        }
        file
    }

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = (body.len() as u32 + 12).to_le_bytes();
        [&kind.to_le_bytes()[..], &len, &body, &len].concat()
    }

    #[test]
    fn pcap_files_of_both_byte_orders_and_link_types_are_read() {
        for big in [false, true] {
            let frame = frame();
            assert_eq!(packet(&classic(big, 1, &[&[0; 14], &frame]), 2).unwrap(), IP);
            assert_eq!(packet(&classic(big, 101, &[&IP]), 1).unwrap(), IP);
        }
        assert_eq!(datagram(&IP).unwrap(), ("10.0.0.1".parse().unwrap(), Vec::new()));
    }

    #[test]
    fn pcapng_files_are_read() {
        let frame = frame();
        let mut enhanced =
            [[0_u32; 3].map(u32::to_le_bytes).concat(), (frame.len() as u32).to_le_bytes().repeat(2)]
                .concat();
        enhanced.extend_from_slice(&frame);
        let section = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
        let simple = [&(frame.len() as u32).to_le_bytes()[..], &frame].concat();
        let blocks = [
            block(SECTION, &section),
            block(INTERFACE, &[1, 0, 0, 0, 0, 0, 0, 0]),
            block(5, &[0; 8]),
            block(ENHANCED_PACKET, &enhanced),
            block(SIMPLE_PACKET, &simple),
        ];
        let file = blocks.concat();
        assert_eq!(packet(&file, 1).unwrap(), IP);
        assert_eq!(packet(&file, 2).unwrap(), IP);
        for end in 0..file.len() {
            let _ = packet(&file[..end], 2);
        }
    }

    #[test]
    fn what_is_wrong_with_a_capture_is_said() {
        let says = |file: &[u8], number| format!("{:#}", packet(file, number).unwrap_err());
        assert!(says(b"hello world", 1).contains("neither a pcap nor a pcapng"));
        assert!(says(&classic(false, 1, &[&frame()]), 2).contains("it has 1 packets"));
        assert!(says(&classic(false, 113, &[&frame()]), 1).contains("link type 113"));
        assert!(says(&classic(false, 1, &[&[0; 20]]), 1).contains("ethertype 0x0000"));
    }
}
