//! What ends the sleep of a node's worker.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use windlass_dataplane::device::Waker;

/// Wakes a worker that sleeps in its UDP socket: with an empty datagram, which every system can send.
pub(super) struct Bell {
    socket: UdpSocket,
    /// Where its datagrams come from.
    pub(super) addr: SocketAddr,
    target: SocketAddr,
    asleep: AtomicBool,
}

impl Bell {
    /// One that wakes the worker whose socket is `target`.
    pub(super) fn new(target: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let addr = socket.local_addr()?;
        Ok(Self { socket, addr, target, asleep: AtomicBool::new(false) })
    }

    /// Says whether the worker is about to sleep: whoever has work for it then rings.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::SeqCst);
    }

    /// Ends the sleep, if the worker sleeps.
    pub(super) fn ring(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

impl Waker for Bell {
    fn wake(&self) {
        // When the target's buffer is full, its worker has enough to wake up for.
        let _ = self.socket.send_to(&[], self.target);
    }
}
