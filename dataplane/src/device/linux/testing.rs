//! Privileged tests run in a network namespace of their own thread, which vanishes with the thread.
#![allow(unsafe_code)]

use std::io::Write as _;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use super::port::NamespaceLock;
use super::socket;
use super::source_ports::SourcePorts;
use super::tun::{Tun, TunConfig};
use super::udp::UdpPool;
use crate::device::config::DeviceConfig;
use crate::packet::Checksum;
use crate::wire::checksum;
use crate::wire::flow::Protocol;

/// A program that one test starts holds, between fork and exec, the descriptors of all others: what they close
/// would live on for a moment.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` in a new network namespace with its loopback up, or says why it cannot.
pub(super) fn in_namespace(name: &str, test: impl FnOnce() + Send + 'static) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let thread = std::thread::spawn(move || {
        // SAFETY: takes an integer, and changes only the calling thread.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return false;
        }
        ip("link set lo up");
        test();
        true
    });
    match thread.join() {
        Ok(true) => {}
        Ok(false) => {
            // Past libtest, which captures what the print macros write.
            let line = format!("SKIPPED: {name} needs root to make a network namespace\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `peer` in a namespace of its own, into which the interface `link` of this thread's namespace is moved, and
/// keeps that namespace until `test` has ended.
pub(super) fn with_peer(link: &str, peer: impl FnOnce() + Send + 'static, test: impl FnOnce()) {
    let (ready, is_ready) = mpsc::channel();
    let (moved, is_moved) = mpsc::channel::<()>();
    let (end, is_end) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: takes an integer, and changes only the calling thread.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
        // SAFETY: takes nothing.
        ready.send(unsafe { libc::gettid() }).unwrap();
        is_moved.recv().unwrap();
        peer();
        let _ = is_end.recv();
    });
    ip(&format!("link set {link} netns {}", is_ready.recv().unwrap()));
    moved.send(()).unwrap();
    test();
    drop(end);
    thread.join().unwrap();
}

/// Asks until something has come, for at most some 10 s: the kernel may deliver later than a send returns.
pub(super) fn eventually(mut receive: impl FnMut() -> usize) -> usize {
    for _ in 0..10_000 {
        match receive() {
            0 => std::thread::sleep(Duration::from_millis(1)),
            received => return received,
        }
    }
    0
}

/// A device of one queue that takes superpackets.
pub(super) fn tun(name: &str) -> Tun {
    let config =
        TunConfig { name: name.to_owned(), queues: 1, mtu: 1450, superpackets: true, persist: false };
    Tun::create(&config).unwrap().remove(0)
}

/// Two devices with the host forwarding between them.
pub(super) fn two_tuns() -> (Tun, Tun) {
    let tuns = (tun("tun-a"), tun("tun-b"));
    for (name, address) in [("tun-a", "10.1.0.1/24"), ("tun-b", "10.2.0.1/24")] {
        run("sysctl", &format!("-qw net.ipv6.conf.{name}.disable_ipv6=1"));
        ip(&format!("address add {address} dev {name}"));
        ip(&format!("link set {name} up"));
    }
    run("sysctl", "-qw net.ipv4.ip_forward=1");
    tuns
}

/// The sockets of a worker on that address, with UDP_GRO where wanted.
pub(super) fn receiving_pool(address: &str, gro: bool) -> UdpPool {
    let config = DeviceConfig::new("unused", 1450, address.parse().unwrap(), 4789);
    let lock = Arc::new(NamespaceLock::take(address).unwrap());
    let config = config.udp().next().unwrap();
    let receiver = socket::receiving(&config, false).unwrap();
    if gro {
        socket::join_received(&receiver).unwrap();
    }
    UdpPool::new(receiver, SourcePorts::bind(&config).unwrap(), true, None, lock)
}

/// Runs `ip` with these words and returns what it prints.
pub(super) fn ip(words: &str) -> String {
    run("ip", words)
}

pub(super) fn run(program: &str, words: &str) -> String {
    let output = Command::new(program).args(words.split_whitespace()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {words}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A TCP packet of `payload_len` bytes from 10.1.0.2 to 10.2.0.2 with a partial checksum, and that checksum's state.
pub(super) fn tcp_packet(payload_len: usize) -> (Vec<u8>, Checksum) {
    let total = 40 + payload_len;
    let mut packet = vec![0; total];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(total as u16).to_be_bytes());
    packet[6] = 0x40;
    (packet[8], packet[9]) = (64, 6);
    packet[12..20].copy_from_slice(&[10, 1, 0, 2, 10, 2, 0, 2]);
    let header = checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&header.to_be_bytes());
    packet[20..24].copy_from_slice(&[0x30, 0x39, 0, 80]);
    (packet[32], packet[33]) = (0x50, 0x10);
    for (index, byte) in packet[40..].iter_mut().enumerate() {
        *byte = index as u8;
    }
    let (src, dst) = ("10.1.0.2".parse().unwrap(), "10.2.0.2".parse().unwrap());
    let partial = checksum::fold(checksum::pseudo_header(src, dst, Protocol::TCP, (20 + payload_len) as u32));
    packet[36..38].copy_from_slice(&partial.to_be_bytes());
    (packet, Checksum::Partial { start: 20, offset: 16 })
}

/// Whether the TCP checksum of an IPv4 packet without options is right.
pub(super) fn tcp_checksum_is_right(packet: &[u8]) -> bool {
    let (src, dst) = ("10.1.0.2".parse().unwrap(), "10.2.0.2".parse().unwrap());
    checksum::verify(src, dst, Protocol::TCP, &packet[20..])
}
