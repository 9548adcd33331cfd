use std::net::UdpSocket;

use super::sys;
use super::testing::{
    eventually, in_namespace, ip, receiving_pool, run, tcp_checksum_is_right, tcp_packet, tun, two_tuns,
    with_peer,
};
use super::udp::UdpPool;
use crate::device::{OverlayDevice, UnderlaySocket};
use crate::packet::{Checksum, DatagramBatch, PacketBatch};
use crate::wire::checksum;
use crate::wire::flow::Protocol;

/// A kernel vxlan peer that forwards one TCP superpacket of 10 x 1400 bytes, and then one of UDP of 10 x 1000.
fn kernel_peer() {
    let mut pods = tun("pods");
    for name in ["peer1", "pods"] {
        run("sysctl", &format!("-qw net.ipv6.conf.{name}.disable_ipv6=1"));
    }
    run("sysctl", "-qw net.ipv4.ip_forward=1");
    ip("address add 192.0.2.2/24 dev peer1");
    ip("link set peer1 up");
    ip("address add 10.1.0.1/24 dev pods");
    ip("link set pods up");
    ip("link add vx0 type vxlan id 7 dstport 4789 local 192.0.2.2 remote 192.0.2.1 nolearning");
    run("sysctl", "-qw net.ipv6.conf.vx0.disable_ipv6=1");
    ip("link set vx0 up");
    ip("route add 10.2.0.0/16 dev vx0");
    ip("neighbor add 10.2.0.2 lladdr 02:00:00:00:00:01 dev vx0");
    let (bytes, checksum) = tcp_packet(14_000);
    let mut batch = PacketBatch::new(1, 0);
    assert!(batch.receive_copy(&bytes));
    (batch.packets[0].segment_len, batch.packets[0].checksum) = (1400, checksum);
    assert_eq!(pods.send_batch(&batch.pool, &batch.packets).sent, 10);
    let socket = UdpSocket::bind("10.1.0.1:0").unwrap();
    sys::set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 1000).unwrap();
    socket.send_to(&[7; 10_000], "10.2.0.2:9").unwrap();
}

#[test]
fn c11_superpackets_of_a_kernel_peer_are_received_and_written_whole() {
    in_namespace("kernel peer", || superpackets_of_a_kernel_peer(false));
}

#[test]
fn c11_with_udp_gro_superpackets_of_a_kernel_peer_come_with_the_inner_size() {
    in_namespace("kernel peer, UDP_GRO", || superpackets_of_a_kernel_peer(true));
}

fn superpackets_of_a_kernel_peer(gro: bool) {
    ip("link add peer0 type veth peer name peer1");
    run("sysctl", "-qw net.ipv6.conf.peer0.disable_ipv6=1");
    ip("address add 192.0.2.1/24 dev peer0");
    ip("link set peer0 up");
    let (mut from, mut to) = two_tuns();
    let mut socket = receiving_pool("192.0.2.1", gro);
    with_peer("peer1", kernel_peer, || {
        let mut received = DatagramBatch::new(1, 0);
        assert_eq!(eventually(|| socket.recv_batch(&mut received).unwrap()), 1);
        assert_eq!(received.datagrams[0].remote.ip().to_string(), "192.0.2.2");
        let mut packet = received.datagrams[0].packet;
        assert_eq!((packet.len(), packet.segment_len), (22 + 40 + 14_000, 0));
        packet.pop(22);
        assert!(!tcp_checksum_is_right(received.pool.bytes(&packet)));
        (packet.segment_len, packet.checksum) = (1400, Checksum::Partial { start: 20, offset: 16 });
        assert_eq!(from.send_batch(&received.pool, &[packet]).sent, 10);
        let mut forwarded = PacketBatch::new(16, 0);
        assert_eq!(eventually(|| to.recv_batch(&mut forwarded).unwrap()), 1);
        assert_eq!((forwarded.packets[0].len(), forwarded.packets[0].segment_len), (14_040, 1400));
        if gro {
            assert_eq!(eventually(|| socket.recv_batch(&mut received).unwrap()), 1);
            let packet = received.datagrams[0].packet;
            assert_eq!((packet.len(), packet.segment_len), (22 + 28 + 10_000, 1000));
        } else {
            expect_ten_datagrams(&mut socket);
        }
    });
}

/// With UDP_GRO off the kernel splits UDP superpackets before they reach the socket.
fn expect_ten_datagrams(socket: &mut UdpPool) {
    let (mut received, mut datagrams) = (DatagramBatch::new(1, 0), 0);
    while datagrams < 10 && eventually(|| socket.recv_batch(&mut received).unwrap()) == 1 {
        let ip = &received.pool.bytes(&received.datagrams[0].packet)[22..];
        assert_eq!(ip.len(), 28 + 1000);
        let (src, dst) = ("10.1.0.1".parse().unwrap(), "10.2.0.2".parse().unwrap());
        assert!(checksum::verify(src, dst, Protocol::UDP, &ip[20..]));
        datagrams += 1;
    }
    assert_eq!(datagrams, 10);
}
