//! The sockets over loopback. USO and URO are off under wine: of them only the choice of what belongs together is tested.

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::*;
use crate::packet::PacketBatch;

fn config(underlay: IpAddr) -> UdpConfig {
    UdpConfig { underlay, port: free_port(underlay), source_ports: 4, seed: 7, socket_buffer_len: 1 << 20 }
}

fn free_port(address: IpAddr) -> u16 {
    UdpSocket::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

fn open(config: &UdpConfig) -> UdpPool {
    UdpPool::open(config, Offloads::default()).unwrap()
}

/// Receives for a second at most.
fn receive(pool: &mut UdpPool, batch: &mut DatagramBatch) -> usize {
    for _ in 0..1000 {
        match pool.recv_batch(batch).unwrap() {
            0 => thread::sleep(Duration::from_millis(1)),
            count => return count,
        }
    }
    0
}

fn batch_of(lens: &[usize]) -> PacketBatch {
    let mut batch = PacketBatch::new(lens.len(), 0);
    assert!(lens.iter().all(|len| batch.receive_copy(&vec![9; *len])));
    batch
}

#[test]
fn datagrams_arrive_whole_from_the_pool_of_source_ports() {
    for underlay in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let config = config(underlay);
        let mut pool = open(&config);
        assert_eq!(pool.ports().len(), 4);
        let packets = batch_of(&[1, 50, 1450, 9000]);
        let remote = SocketAddr::new(underlay, config.port);
        for (source_port, packet) in packets.packets.iter().enumerate() {
            let datagram = Datagram { packet: *packet, remote, tos: 0, source_port: source_port as u16 };
            let report = pool.send_batch(&packets.pool, &[datagram]);
            assert_eq!((report.sent, report.sent_bytes), (1, packet.len() as u64));
            let mut batch = DatagramBatch::new(8, 0);
            assert_eq!(receive(&mut pool, &mut batch), 1);
            let received = batch.datagrams[0];
            assert_eq!(batch.pool.bytes(&received.packet), packets.pool.bytes(packet));
            assert_eq!((received.remote.port(), received.packet.segment_len), (pool.ports()[source_port], 0));
        }
    }
}

#[test]
fn a_tos_that_the_system_does_not_take_loses_no_datagram() {
    let config = config(Ipv4Addr::LOCALHOST.into());
    let mut pool = open(&config);
    for lane in [TosLane::Whole, TosLane::Ecn, TosLane::Off] {
        pool.lanes.sent_tos = lane;
        let packets = batch_of(&[100]);
        let remote = SocketAddr::new(config.underlay, config.port);
        let datagram = Datagram { packet: packets.packets[0], remote, tos: 0x2a, source_port: 0 };
        assert_eq!(pool.send_batch(&packets.pool, &[datagram]).sent, 1);
        assert_eq!(receive(&mut pool, &mut DatagramBatch::new(8, 0)), 1);
    }
}

#[test]
fn g10_a_dead_peer_neither_ends_nor_silences_the_socket() {
    let config = config(Ipv4Addr::LOCALHOST.into());
    let mut pool = open(&config);
    let packets = batch_of(&[100]);
    let to = |port| Datagram {
        packet: packets.packets[0],
        remote: SocketAddr::new(config.underlay, port),
        tos: 0,
        source_port: 0,
    };
    let dead = free_port(config.underlay);
    for _ in 0..4 {
        pool.send_batch(&packets.pool, &[to(dead), to(config.port)]);
        assert_eq!(receive(&mut pool, &mut DatagramBatch::new(8, 0)), 1);
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let config = config(Ipv4Addr::LOCALHOST.into());
    let _first = open(&config);
    let error = UdpPool::open(&config, Offloads::default()).err().unwrap();
    assert!(error.to_string().contains(&format!("UDP port {} is taken", config.port)), "{error}");
}

#[test]
fn only_datagrams_of_one_way_and_size_leave_together() {
    let packets = batch_of(&[100, 100, 100, 60, 100]);
    let remote: SocketAddr = "192.0.2.1:4789".parse().unwrap();
    let run = |change: fn(&mut [Datagram])| {
        let datagram = |packet: &_| Datagram { packet: *packet, remote, tos: 0, source_port: 1 };
        let mut datagrams: Vec<_> = packets.packets.iter().map(datagram).collect();
        change(&mut datagrams);
        run_len(&datagrams)
    };
    // A shorter one is the last.
    assert_eq!(run(|_| {}), 4);
    assert_eq!(run(|all| all[1].tos = 1), 1);
    assert_eq!(run(|all| all[2].source_port = 2), 2);
    assert_eq!(run(|all| all[2].remote.set_port(1)), 2);
    assert_eq!(run(|all| all[2].packet.segment_len = 10), 2);
    assert_eq!(run(|all| all[0].packet.checksum = Checksum::Partial { start: 20, offset: 6 }), 1);
    assert_eq!(run(|all| all.swap(0, 3)), 1);
}

#[test]
fn a_message_is_never_longer_than_udp_allows() {
    let packets = batch_of(&[1450; 60]);
    let remote = "192.0.2.1:4789".parse().unwrap();
    let datagrams: Vec<_> = packets
        .packets
        .iter()
        .map(|packet| Datagram { packet: *packet, remote, tos: 0, source_port: 1 })
        .collect();
    assert_eq!(run_len(&datagrams), MAX_MESSAGE_LEN / 1450);
}
