use super::testing::{eventually, in_namespace, ip, tcp_checksum_is_right, tcp_packet, tun, two_tuns};
use super::tun::{Tun, TunConfig, TunOffload};
use crate::device::OverlayDevice;
use crate::device::config::DeviceError;
use crate::device::segments::Superpacket;
use crate::packet::PacketBatch;

#[test]
fn a_superpacket_written_to_one_device_is_read_whole_from_another() {
    in_namespace("superpacket", || {
        let (mut from, mut to) = two_tuns();
        assert_eq!(from.offload(), TunOffload::TcpAndUdp);
        let (bytes, checksum) = tcp_packet(14_000);
        let mut batch = PacketBatch::new(4, 1);
        assert!(batch.receive_copy(&bytes));
        batch.packets[0].segment_len = 1400;
        batch.packets[0].checksum = checksum;
        let report = from.send_batch(&batch.pool, &batch.packets);
        assert_eq!((report.sent, report.refused, report.sent_bytes), (10, 0, 14_040));
        let mut received = PacketBatch::new(16, 1);
        assert_eq!(eventually(|| to.recv_batch(&mut received).unwrap()), 1);
        let packet = received.packets[0];
        assert_eq!((packet.len(), packet.segment_len, packet.checksum), (14_040, 1400, checksum));
        assert_eq!(received.pool.bytes(&packet)[20..], bytes[20..]);
    });
}

#[test]
fn g11_a_superpacket_the_device_refuses_goes_as_its_segments() {
    in_namespace("refused superpacket", || {
        let (mut from, mut to) = two_tuns();
        let (bytes, _) = tcp_packet(3000);
        let mut batch = PacketBatch::new(4, 1);
        assert!(batch.receive_copy(&bytes));
        batch.packets[0].segment_len = 1400;
        let report = from.send_batch(&batch.pool, &batch.packets);
        assert_eq!((report.sent, report.refused, report.sent_bytes), (3, 0, 3120));
        let mut received = PacketBatch::new(16, 1);
        assert_eq!(eventually(|| to.recv_batch(&mut received).unwrap()), 3);
        let lens: Vec<usize> = received.packets.iter().map(|packet| packet.len()).collect();
        assert_eq!(lens, [1440, 1440, 240]);
        assert!(received.packets.iter().all(|packet| tcp_checksum_is_right(received.pool.bytes(packet))));
    });
}

#[test]
fn names_that_are_bad_or_taken_are_named_with_the_remedy() {
    in_namespace("device names", || {
        let create = |name: &str| {
            Tun::create(&TunConfig {
                name: name.to_owned(),
                queues: 2,
                mtu: 1450,
                superpackets: true,
                persist: false,
            })
            .map(|queues| queues.len())
        };
        assert!(matches!(create("a-name-that-is-too-long"), Err(DeviceError::BadName { .. })));
        assert!(matches!(create("a b"), Err(DeviceError::BadName { .. })));
        let _held = tun("held");
        assert!(matches!(create("held"), Err(DeviceError::NameTaken { .. })));
        assert!(create("lo").unwrap_err().to_string().contains("ip link delete lo"));
        ip("tuntap add name persistent mode tun multi_queue");
        assert!(matches!(create("persistent"), Err(DeviceError::NameTaken { .. })));
        assert_eq!(create("two-queues").unwrap(), 2);
    });
}

#[test]
fn c10_packets_that_belong_together_are_written_as_one() {
    in_namespace("joined write", || {
        let (mut from, mut to) = two_tuns();
        let (bytes, checksum) = tcp_packet(7000);
        let mut whole = PacketBatch::new(1, 0);
        assert!(whole.receive_copy(&bytes));
        whole.packets[0].checksum = checksum;
        let superpacket = Superpacket::parse(&bytes, 0, 1400).unwrap();
        let mut batch = PacketBatch::new(6, 0);
        for index in 0..5 {
            let mut segment = vec![0; superpacket.longest()];
            let len = superpacket.write(index, &mut segment).unwrap();
            assert!(batch.receive_copy(&segment[..len]));
        }
        let report = from.send_batch(&batch.pool, &batch.packets);
        assert_eq!((report.sent, report.refused, report.sent_bytes), (5, 0, 7040));
        let mut received = PacketBatch::new(16, 1);
        assert_eq!(eventually(|| to.recv_batch(&mut received).unwrap()), 1);
        let packet = received.packets[0];
        assert_eq!((packet.len(), packet.segment_len, packet.checksum), (7040, 1400, checksum));
        assert_eq!(received.pool.bytes(&packet)[20..], bytes[20..]);
    });
}
