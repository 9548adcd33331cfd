//! The ring code over rings in memory; over Wintun's interface see `windows/wintun/tests.rs`.

use super::memory::{MemoryRing, MemoryRings};
use super::*;
use crate::wire::sample::{self, Transport};

const CAPACITY: usize = 128 << 10;

fn device() -> (RingDevice<MemoryRings>, MemoryRings) {
    let rings = MemoryRings::new(CAPACITY);
    (RingDevice(rings.clone()), rings)
}

fn put(ring: &MemoryRing, bytes: &[u8]) -> bool {
    ring.write(bytes.len() as u16, |slot| slot.copy_from_slice(bytes))
}

fn batch_of(packets: &[Vec<u8>]) -> PacketBatch {
    let mut batch = PacketBatch::new(packets.len(), 0);
    assert!(packets.iter().all(|packet| batch.receive_copy(packet)));
    batch
}

fn taken(ring: &MemoryRing) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| ring.read()).map(|packet| packet.to_vec()).collect()
}

#[test]
fn packets_are_received_where_they_lie_and_given_back_with_the_batch() {
    let (mut device, rings) = device();
    let mut batch = PacketBatch::new(8, 1);
    for round in 0..400_usize {
        let packets: Vec<Vec<u8>> =
            (0..8).map(|n| vec![(round + n) as u8; 1 + (round * 37 + n * 191) % 1500]).collect();
        assert!(packets.iter().all(|packet| put(&rings.received, packet)), "round {round}");
        assert_eq!(device.recv_batch(&mut batch).unwrap(), 8);
        for (descriptor, packet) in batch.packets.iter().zip(&packets) {
            assert_eq!(batch.pool.bytes(descriptor), packet, "round {round}");
        }
    }
    assert_eq!(device.recv_batch(&mut batch).unwrap(), 0);
}

#[test]
fn headers_pushed_before_a_packet_in_the_ring_lie_beside_it() {
    let (mut device, rings) = device();
    let mut batch = PacketBatch::new(2, 1);
    assert!(put(&rings.received, b"a packet") && put(&rings.received, b"another"));
    assert_eq!(device.recv_batch(&mut batch).unwrap(), 2);
    let mut packet = batch.packets[1];
    batch.pool.bytes_mut(&packet)[0] = b'A';
    batch.pool.push(&mut packet, 4).copy_from_slice(b"ther");
    batch.pool.push(&mut packet, 2).copy_from_slice(b"e ");
    assert_eq!(packet.len(), 13);
    assert_eq!(batch.pool.pieces(&packet), [b"e ther".as_slice(), b"Another"]);
    packet.pop(6);
    assert_eq!(batch.pool.bytes(&packet.slice(1, 3)), b"not");
    assert_eq!(batch.pool.bytes(&batch.packets[0]), b"a packet");
}

#[test]
fn a_generated_packet_and_lent_ones_do_not_meet() {
    let (mut device, rings) = device();
    let mut batch = PacketBatch::new(1, 1);
    assert!(put(&rings.received, b"lent") && put(&rings.received, b"for the next batch"));
    assert_eq!(device.recv_batch(&mut batch).unwrap(), 1);
    let answer = batch.pool.generate(6).unwrap();
    batch.pool.bytes_mut(&answer).copy_from_slice(b"answer");
    let report = device.send_batch(&batch.pool, &[batch.packets[0], answer]);
    assert_eq!((report.sent, report.sent_bytes), (2, 10));
    assert_eq!(taken(&rings.sent), [b"lent".to_vec(), b"answer".to_vec()]);
    assert_eq!(device.recv_batch(&mut batch).unwrap(), 1);
    assert_eq!(batch.pool.bytes(&batch.packets[0]), b"for the next batch");
}

#[test]
fn a_full_ring_is_counted_and_recovers() {
    let (mut device, rings) = device();
    let batch = batch_of(&vec![vec![7; 1400]; 120]);
    let report = device.send_batch(&batch.pool, &batch.packets);
    // 128 KiB hold 93 packets of 1,400 bytes and their lengths, with the four bytes that are always free.
    assert_eq!((report.sent, report.queue_full, report.refused), (93, 27, 0));
    assert_eq!(taken(&rings.sent).len(), 93);
    assert_eq!(device.send_batch(&batch.pool, &batch.packets[..8]).sent, 8);
}

#[test]
fn room_is_free_when_all_packets_before_it_are_given_back() {
    let ring = MemoryRing::new(CAPACITY);
    while put(&ring, &[1; 1400]) {}
    let (first, second) = (ring.read().unwrap(), ring.read().unwrap());
    drop(second);
    assert!(!put(&ring, &[1; 1400]));
    drop(first);
    assert!(put(&ring, &[1; 1400]) && put(&ring, &[1; 1400]) && !put(&ring, &[1; 1400]));
}

#[test]
fn the_longest_packet_passes_and_a_longer_one_is_counted() {
    let (mut device, rings) = device();
    let packets = vec![vec![1; 65_535], vec![2; 65_536], vec![3; 20]];
    let batch = batch_of(&packets);
    let report = device.send_batch(&batch.pool, &batch.packets);
    assert_eq!((report.sent, report.too_long, report.sent_bytes), (2, 1, 65_555));
    assert_eq!(taken(&rings.sent), [packets[0].clone(), packets[2].clone()]);
}

#[test]
fn a_superpacket_leaves_as_segments_that_are_built_in_the_ring() {
    let (mut device, rings) = device();
    let tcp = Transport::Tcp { flags: 0x10, option_words: 0 };
    let mut batch = batch_of(&[sample::plain(false, tcp, &[5; 3000]).build()]);
    batch.packets[0].segment_len = 1400;
    assert_eq!(device.send_batch(&batch.pool, &batch.packets).sent, 3);
    let lens: Vec<_> = taken(&rings.sent).iter().map(Vec::len).collect();
    assert_eq!(lens, [1440, 1440, 240]);
}

#[test]
fn a_packet_that_cannot_be_finished_does_not_hold_up_the_ring() {
    let (mut device, rings) = device();
    let mut batch = batch_of(&[vec![1; 40], vec![2; 40]]);
    batch.packets[0].checksum = Checksum::Partial { start: 60, offset: 6 };
    let report = device.send_batch(&batch.pool, &batch.packets);
    assert_eq!((report.sent, report.refused), (1, 1));
    assert_eq!(taken(&rings.sent), [vec![0; 40], vec![2; 40]]);
}
