#![allow(clippy::unwrap_used)]

use super::write::{Direction, PcapngWriter, Record};
use super::*;

const IP: [u8; 28] =
    [0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 53, 0, 8, 0, 0];

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
        assert_eq!(ip_packet(&classic(big, 1, &[&[0; 14], &frame]), 2).unwrap(), IP);
        assert_eq!(ip_packet(&classic(big, 101, &[&IP]), 1).unwrap(), IP);
    }
    let datagram = UdpDatagram::in_packet(&IP).unwrap();
    assert_eq!((datagram.source, datagram.payload), ("10.0.0.1".parse().unwrap(), &[][..]));
}

#[test]
fn pcapng_files_are_read() {
    let frame = frame();
    let mut enhanced =
        [[0_u32; 3].map(u32::to_le_bytes).concat(), (frame.len() as u32).to_le_bytes().repeat(2)].concat();
    enhanced.extend_from_slice(&frame);
    let section = [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255];
    let simple = [&(frame.len() as u32).to_le_bytes()[..], &frame].concat();
    let blocks = [
        block(pcapng::SECTION, &section),
        block(pcapng::INTERFACE, &[1, 0, 0, 0, 0, 0, 0, 0]),
        block(5, &[0; 8]),
        block(pcapng::ENHANCED_PACKET, &enhanced),
        block(pcapng::SIMPLE_PACKET, &simple),
    ];
    let file = blocks.concat();
    assert_eq!(ip_packet(&file, 1).unwrap(), IP);
    assert_eq!(ip_packet(&file, 2).unwrap(), IP);
    for end in 0..file.len() {
        let _ = ip_packet(&file[..end], 2);
    }
}

#[test]
fn what_is_wrong_with_a_capture_is_said() {
    let says = |file: &[u8], number| format!("{}", ip_packet(file, number).unwrap_err());
    assert!(says(b"hello world", 1).contains("neither a pcap nor a pcapng"));
    assert!(says(&classic(false, 1, &[&frame()]), 2).contains("it has 1 packets"));
    assert!(says(&classic(false, 113, &[&frame()]), 1).contains("link type 113"));
    assert!(says(&classic(false, 1, &[&[0; 20]]), 1).contains("ethertype 0x0000"));
}

#[test]
fn what_is_written_is_read_again() {
    let mut writer = PcapngWriter::new(Vec::new(), &["overlay", "underlay"]).unwrap();
    let at = Duration::new(1_760_000_000, 123_456_789);
    for (interface, comment) in [(0, ""), (1, "dropped: no_route")] {
        let record = Record {
            interface,
            at,
            bytes: &IP[..27],
            original_len: 28,
            direction: Direction::Inbound,
            comment,
        };
        writer.packet(&record).unwrap();
    }
    let file = writer.finish().unwrap();
    let expected = |comment| Captured { link: RAW_IP, at, bytes: &IP[..27], original_len: 28, comment };
    assert_eq!(packets(&file, 9).unwrap(), [expected(None), expected(Some("dropped: no_route"))]);
}

#[test]
fn time_stamps_are_read_in_every_unit() {
    let mut file = classic(true, RAW_IP, &[&IP]);
    file[24..32].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(packets(&file, 1).unwrap()[0].at, Duration::new(1, 2_000));
    file[..4].copy_from_slice(&[0xa1, 0xb2, 0x3c, 0x4d]);
    assert_eq!(packets(&file, 1).unwrap()[0].at, Duration::new(1, 2));
}
