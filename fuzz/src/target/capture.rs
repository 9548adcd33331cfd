//! Any bytes as a capture file, and a file that is written and read again.
//!
//! Input: the file.

use std::time::Duration;

use windlass_control::capture::write::{Direction, PcapngWriter, Record};
use windlass_control::capture::{Captured, RAW_IP, packets};
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::flow;
use windlass_tests::packets::udp;

use crate::Seed;

const MAX_PACKETS: usize = 100;

/// A file is refused, or what is read of it is the same after it was written and read again.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let Ok(read) = packets(data, MAX_PACKETS) else { return };
    let representable = Duration::from_nanos(u64::MAX);
    let read: Vec<_> = read
        .into_iter()
        .map(|captured| Captured {
            link: RAW_IP,
            at: captured.at.min(representable),
            comment: captured.comment.filter(|text| !text.is_empty()),
            ..captured
        })
        .collect();
    let file = written(&read);
    assert_eq!(packets(&file, MAX_PACKETS).as_deref(), Ok(&read[..]));
    for captured in &read {
        let _ = captured.ip_packet();
    }
}

fn written(read: &[Captured<'_>]) -> Vec<u8> {
    let writer = PcapngWriter::new(Vec::new(), &["any"]);
    let mut writer = writer.unwrap_or_else(|error| unreachable!("{error}"));
    for captured in read {
        let record = Record {
            interface: 0,
            at: captured.at,
            bytes: captured.bytes,
            original_len: captured.original_len,
            direction: Direction::Inbound,
            comment: captured.comment.unwrap_or_default(),
        };
        writer.packet(&record).unwrap_or_else(|error| unreachable!("{error}"));
    }
    writer.finish().unwrap_or_else(|error| unreachable!("{error}"))
}

/// Both formats, both byte orders, and files that end too early.
pub fn seeds() -> Vec<Seed> {
    let packet = udp(&flow(Protocol::UDP, "10.244.0.14:1", "10.244.2.15:2"), b"data");
    let len = packet.len() as u32;
    let captured = |comment| Captured {
        link: RAW_IP,
        at: Duration::new(1_760_000_000, 5),
        bytes: &packet,
        original_len: len,
        comment,
    };
    let newer = written(&[captured(None), captured(Some("dropped: no_route"))]);
    let classic = |big: bool, magic: u32| {
        let number = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let head = [magic, 0x0004_0002, 0, 0, 65_535, RAW_IP, 1_760_000_000, 9, len, len].map(number);
        [head.concat(), packet.clone()].concat()
    };
    vec![
        ("pcapng-cut-off", newer[..newer.len() - 9].to_vec()),
        ("pcapng", newer),
        ("pcap-little-endian", classic(false, 0xa1b2_c3d4)),
        ("pcap-big-endian", classic(true, 0xa1b2_c3d4)),
        ("pcap-nanoseconds", classic(false, 0xa1b2_3c4d)),
        ("no-capture", b"hello".to_vec()),
    ]
}
