use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::testing::{
    eventually, in_namespace, ip, receiving_pool, run, tcp_checksum_is_right, tcp_packet, with_peer,
};
use super::udp::UdpPool;
use super::{open, port, sys};
use crate::device::UnderlaySocket;
use crate::device::config::{DeviceConfig, DeviceError};
use crate::packet::{Checksum, Datagram, DatagramBatch};
use crate::wire::checksum;
use crate::wire::flow;

fn pool(address: &str) -> UdpPool {
    receiving_pool(address, false)
}

/// A batch of `count` datagrams of 22 + `bytes` to `remote`.
fn datagrams(count: usize, bytes: &[u8], remote: &str) -> DatagramBatch {
    let remote: SocketAddr = remote.parse().unwrap();
    let mut batch = DatagramBatch::new(64, 1);
    let payload = [&[9; 22], bytes].concat();
    for _ in 0..count {
        assert!(batch.receive_copy(&payload, remote, 0));
    }
    batch
}

#[test]
fn datagrams_arrive_with_their_tos_and_their_source_port() {
    in_namespace("tos", || {
        for (from, to, remote) in
            [("127.0.0.1", "127.0.0.2", "127.0.0.2:4789"), ("::1", "fd00::1", "[fd00::1]:4789")]
        {
            if to == "fd00::1" {
                ip("address add fd00::1/128 dev lo nodad");
                // The kernel makes an IPv6 address's local route later than the address.
                let is_local = || usize::from(ip("-6 route get fd00::1").starts_with("local"));
                assert_eq!(eventually(is_local), 1);
            }
            let (mut a, mut b) = (pool(from), pool(to));
            let mut batch = datagrams(3, b"payload", remote);
            for (index, datagram) in batch.datagrams.iter_mut().enumerate() {
                (datagram.tos, datagram.source_port) = ([0xb9, 0, 0x02][index], 5);
            }
            let report = a.send_batch(&batch.pool, &batch.datagrams);
            assert_eq!((report.sent, report.sent_bytes), (3, 3 * 29));
            let mut received = DatagramBatch::new(64, 1);
            assert_eq!(eventually(|| b.recv_batch(&mut received).unwrap()), 3);
            assert_eq!(
                received.datagrams.iter().map(|datagram| datagram.tos).collect::<Vec<_>>(),
                [0xb9, 0, 2]
            );
            let ports: Vec<u16> = received.datagrams.iter().map(|datagram| datagram.remote.port()).collect();
            assert!(ports[0] >= 49_152 && ports.iter().all(|port| *port == ports[0]));
            assert_eq!(received.datagrams[0].remote.ip(), from.parse::<std::net::IpAddr>().unwrap());
            assert_eq!(received.pool.bytes(&received.datagrams[2].packet)[22..], *b"payload");
        }
    });
}

#[test]
fn superpackets_leave_as_segments_with_complete_checksums() {
    in_namespace("segments", || {
        let (mut a, mut b) = (pool("127.0.0.1"), pool("127.0.0.2"));
        let (bytes, checksum) = tcp_packet(30_000);
        // Eleven of them need more than the arena and more than one sendmmsg take at once.
        let mut batch = datagrams(11, &bytes, "127.0.0.2:4789");
        for datagram in &mut batch.datagrams {
            (datagram.packet.segment_len, datagram.packet.checksum) = (1000, checksum);
        }
        let (single, checksum) = tcp_packet(5);
        assert!(batch.receive_copy(&[&[9; 22], &single[..]].concat(), "127.0.0.2:4789".parse().unwrap(), 0));
        batch.datagrams[11].packet.checksum = checksum;
        assert_eq!(a.send_batch(&batch.pool, &batch.datagrams).sent, 331);
        let mut received = DatagramBatch::new(64, 1);
        let mut lens = Vec::new();
        while lens.len() < 331 && eventually(|| b.recv_batch(&mut received).unwrap()) > 0 {
            for Datagram { packet, .. } in &received.datagrams {
                let bytes = received.pool.bytes(packet);
                assert_eq!(bytes[..22], [9; 22]);
                assert!(tcp_checksum_is_right(&bytes[22..]));
                assert_eq!((packet.segment_len, packet.checksum), (0, Checksum::Complete));
                lens.push(bytes.len());
            }
        }
        assert_eq!(lens.iter().filter(|len| **len == 22 + 1040).count(), 330);
        assert_eq!(lens.last(), Some(&(22 + 45)));
    });
}

#[test]
fn g10_a_dead_peer_and_one_too_long_datagram_keep_nothing_else_back() {
    in_namespace("dead peer", || {
        ip("link set lo mtu 1500");
        let (mut a, mut b) = (pool("127.0.0.1"), pool("127.0.0.2"));
        let mut batch = datagrams(30, b"alive", "127.0.0.2:4789");
        for datagram in batch.datagrams.iter_mut().step_by(3) {
            datagram.remote = "127.0.0.3:4789".parse().unwrap();
        }
        assert!(batch.receive_copy(&[0; 2000], "127.0.0.2:4789".parse().unwrap(), 0));
        assert!(batch.receive_copy(b"last", "127.0.0.2:4789".parse().unwrap(), 0));
        for _ in 0..20 {
            let report = a.send_batch(&batch.pool, &batch.datagrams);
            assert_eq!((report.sent, report.too_long, report.refused, report.queue_full), (31, 1, 0, 0));
            let mut received = DatagramBatch::new(64, 1);
            assert_eq!(eventually(|| b.recv_batch(&mut received).unwrap()), 21);
        }
    });
}

/// A router behind which a link takes 1,300 bytes.
fn narrow_router() {
    run("sysctl", "-qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
    ip("link add narrow mtu 1300 type veth peer name beyond");
    ip("link set beyond up");
    for (link, addresses) in [
        ("near1", ["192.0.2.2/24", "2001:db8::2/64 nodad"]),
        ("narrow", ["198.51.100.1/24", "2001:db8:1::1/64 nodad"]),
    ] {
        addresses.iter().for_each(|address| drop(ip(&format!("address add {address} dev {link}"))));
        ip(&format!("link set {link} up"));
    }
}

#[test]
fn c5_errors_of_routers_and_of_this_host_tell_the_path_mtu_and_what_they_quote() {
    in_namespace("narrow path", || {
        ip("link add near0 type veth peer name near1");
        with_peer("near1", narrow_router, || {
            ip("address add 192.0.2.1/24 dev near0");
            ip("address add 2001:db8::1/64 dev near0 nodad");
            ip("link set near0 up");
            ip("route add 198.51.100.0/24 via 192.0.2.2");
            ip("route add 2001:db8:1::/64 via 2001:db8::2");
            for (own, remote) in [("192.0.2.1", "198.51.100.9:4789"), ("2001:db8::1", "[2001:db8:1::9]:4789")]
            {
                let mut pool = pool(own);
                let long: Vec<u8> = (0..1_400).map(|at| at as u8).collect();
                let batch = datagrams(1, &long, remote);
                let mut told = None;
                eventually(|| {
                    // An error shows with the next send; the first may still have waited for a neighbor's address.
                    pool.send_batch(&batch.pool, &batch.datagrams);
                    told = pool.next_too_long();
                    usize::from(told.is_some())
                });
                let told = told.unwrap();
                assert_eq!((told.remote, told.mtu), (remote.parse().unwrap(), 1_300));
                let quote = told.quote.unwrap();
                assert_eq!(quote.bytes[..quote.len], [&[9; 22][..], &long[..6]].concat(), "{remote}");

                ip("link set near0 mtu 1400");
                let mut own = None;
                eventually(|| {
                    // What the router said before comes first.
                    assert_eq!(pool.send_batch(&batch.pool, &batch.datagrams).too_long, 1);
                    own = std::iter::from_fn(|| pool.next_too_long()).find(|told| told.quote.is_none());
                    usize::from(own.is_some())
                });
                let own = own.unwrap();
                let to: SocketAddr = remote.parse().unwrap();
                assert_eq!((own.remote.ip(), own.mtu), (to.ip(), 1_400));
                ip("link set near0 mtu 1500");
            }
        });
    });
}

/// A loopback whose sends go through a queue of that many bytes and leave it at that rate.
fn slow_loopback(rate: &str, limit: &str) {
    run("tc", &format!("qdisc add dev lo root tbf rate {rate} burst 128kb limit {limit}"));
}

#[test]
fn g10_a_full_queue_of_the_device_is_waited_for() {
    in_namespace("full queue", || {
        slow_loopback("1gbit", "100kb");
        let (mut a, mut b) = (pool("127.0.0.1"), pool("127.0.0.2"));
        let batch = datagrams(60, &[7; 1400], "127.0.0.2:4789");
        let mut received = DatagramBatch::new(64, 1);
        for _ in 0..20 {
            let report = a.send_batch(&batch.pool, &batch.datagrams);
            assert_eq!((report.sent, report.queue_full, report.refused), (60, 0, 0));
            while b.recv_batch(&mut received).unwrap() > 0 {}
        }
    });
}

#[test]
fn g10_a_queue_that_never_has_room_costs_its_own_packets_only() {
    in_namespace("blocked queue", || {
        slow_loopback("1kbit", "4kb");
        let mut a = pool("127.0.0.1");
        let batch = datagrams(60, &[7; 1400], "127.0.0.2:4789");
        let reports: Vec<_> = (0..5).map(|_| a.send_batch(&batch.pool, &batch.datagrams)).collect();
        for report in &reports {
            assert_eq!((report.sent + report.queue_full, report.refused), (60, 0));
        }
        assert_eq!(reports[4].queue_full, 60, "the queue is full and each batch ends: {reports:?}");
    });
}

#[test]
fn a_port_held_by_a_kernel_device_or_a_process_is_refused_with_its_name() {
    in_namespace("port taken", || {
        ip("link add vx0 type vxlan id 42 dstport 4789 remote 127.0.0.9 dev lo");
        ip("link set vx0 up");
        let any = "0.0.0.0".parse().unwrap();
        let message = port::lock(&[any], 4789).unwrap_err().to_string();
        assert!(message.contains("UDP port 4789 is taken by the kernel vxlan device vx0"), "{message}");
        ip("link delete vx0");
        let holder = UdpSocket::bind("127.0.0.1:4789").unwrap();
        let message = port::lock(&[any], 4789).unwrap_err().to_string();
        assert!(message.contains(&format!("process {} (", std::process::id())), "{message}");
        drop(holder);
        let _lock = port::lock(&[any], 4789).unwrap();
        let message = port::lock(&[any], 4789).unwrap_err().to_string();
        assert!(message.contains("windlass"), "{message}");
    });
}

#[test]
fn opening_twice_is_refused_and_dropping_frees_everything() {
    in_namespace("open", || {
        let mut config = DeviceConfig::new("windlass0", 1450, "127.0.0.1".parse().unwrap(), 4789);
        config.workers = 2;
        let opened = open(&config).unwrap();
        assert_eq!((opened.workers.len(), opened.source_ports.len()), (2, 16));
        assert!(ip("link show windlass0").contains("mtu 1450"));
        config.name = "windlass1".to_owned();
        let Err(error) = open(&config) else { panic!("opened twice") };
        assert!(matches!(error, DeviceError::PortTaken { .. }), "{error}");
        drop(opened);
        assert!(!ip("link show").contains("windlass0"));
        open(&config).unwrap();
    });
}

#[test]
fn datagrams_joined_by_the_sender_arrive_joined_and_in_order() {
    in_namespace("joined", || {
        let (mut a, mut b) = (pool("127.0.0.1"), receiving_pool("127.0.0.2", true));
        let mut batch = DatagramBatch::new(64, 0);
        // Of one size but for the last, then of another TOS, then longer.
        let lens_and_tos = [(100, 0), (100, 0), (100, 0), (60, 0), (100, 4), (100, 4), (200, 4)];
        for (index, (len, tos)) in lens_and_tos.into_iter().enumerate() {
            assert!(batch.receive_copy(&vec![index as u8; len], "127.0.0.2:4789".parse().unwrap(), tos));
        }
        let report = a.send_batch(&batch.pool, &batch.datagrams);
        assert_eq!((report.sent, report.sent_bytes), (7, 760));
        let (mut received, mut messages) = (DatagramBatch::new(64, 1), Vec::new());
        while messages.len() < 3 && eventually(|| b.recv_batch(&mut received).unwrap()) > 0 {
            messages.extend(received.datagrams.iter().map(|datagram| {
                let bytes = received.pool.bytes(&datagram.packet);
                (bytes.len(), datagram.packet.segment_len, datagram.tos, bytes[0], bytes[bytes.len() - 1])
            }));
        }
        assert_eq!(messages, [(360, 100, 0, 0, 3), (200, 100, 4, 4, 5), (200, 0, 4, 6, 6)]);
    });
}

/// Frames that arrive in this namespace, as a card would get them.
fn wiretap() -> Socket {
    let all = Protocol::from(i32::from((libc::ETH_P_ALL as u16).to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

#[test]
fn a6_c1_datagrams_leave_with_df_and_a_right_outer_checksum() {
    in_namespace("outer headers", || {
        ip("link add left type veth peer name right");
        run("ethtool", "-K left tx off");
        ip("link set left addrgenmode none up");
        ip("link set right addrgenmode none up");
        ip("address add 192.0.2.1/24 dev left");
        ip("neighbor add 192.0.2.2 lladdr 02:00:00:00:00:02 dev left");
        let tap = wiretap();
        let batch = datagrams(1, b"payload", "192.0.2.2:4789");
        assert_eq!(pool("192.0.2.1").send_batch(&batch.pool, &batch.datagrams).sent, 1);
        let mut frame = [0; 2048];
        let mut read = || sys::read(tap.as_raw_fd(), &mut frame).unwrap_or(0);
        assert_eq!(eventually(&mut read), 14 + 28 + 29);
        let datagram = &frame[14..14 + 28 + 29];
        assert_eq!(datagram[6] & 0x40, 0x40, "DF is set");
        assert_ne!(datagram[26..28], [0, 0], "a UDP checksum");
        let (src, dst) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        assert!(checksum::verify(src, dst, flow::Protocol::UDP, &datagram[20..]));
    });
}

#[test]
fn a6_a_zero_outer_checksum_is_accepted() {
    in_namespace("zero checksum", || {
        let mut to = receiving_pool("127.0.0.1", true);
        let from = UdpSocket::bind("127.0.0.2:0").unwrap();
        sys::set_option(&from, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        from.send_to(b"no checksum", "127.0.0.1:4789").unwrap();
        let mut batch = DatagramBatch::new(1, 0);
        assert_eq!(eventually(|| to.recv_batch(&mut batch).unwrap()), 1);
        assert_eq!(batch.pool.bytes(&batch.datagrams[0].packet), b"no checksum");
    });
}

#[test]
fn g11_where_the_kernel_refuses_joined_datagrams_they_go_singly_and_none_is_lost() {
    in_namespace("refused", || {
        ip("link add narrow0 type veth peer name narrow1");
        for name in ["narrow0", "narrow1"] {
            run("sysctl", &format!("-qw net.ipv6.conf.{name}.disable_ipv6=1"));
        }
        ip("address add 192.0.2.1/24 dev narrow0");
        // Without checksum offload at egress UDP_SEGMENT fails with EIO.
        run("ethtool", "-K narrow0 tx off");
        // No packets of IPv6's own: every packet is counted.
        ip("link set narrow0 addrgenmode none up");
        ip("link set narrow1 addrgenmode none up");
        ip("neighbor add 192.0.2.2 lladdr 02:00:00:00:00:02 dev narrow0");
        let mut socket = pool("192.0.2.1");
        let batch = datagrams(40, b"payload", "192.0.2.2:4789");
        for _ in 0..2 {
            let report = socket.send_batch(&batch.pool, &batch.datagrams);
            assert_eq!((report.sent, report.sent_bytes, report.refused), (40, 40 * 29, 0));
        }
        // The veth's peer takes them in its own time.
        let all = || usize::from(ip("-s link show narrow1").contains(" 80 "));
        assert_eq!(eventually(all), 1, "80 packets: {}", ip("-s link show narrow1"));
    });
}
