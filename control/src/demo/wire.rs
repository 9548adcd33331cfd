//! The cable between the two nodes: one UDP socket of 127.0.0.1 each, on a port the system chooses.
//!
//! The tables name the underlay addresses of the manifests. They are on no interface here, so the cable knows
//! which loopback socket stands for which of them; datagrams from any other socket keep their address, which is
//! no known VTEP's. `std` tells no TOS byte: outer DSCP and ECN end at the cable.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use windlass_dataplane::device::{Ready, SendReport, UnderlaySocket, Wait};
use windlass_dataplane::packet::{Checksum, Datagram, DatagramBatch, PacketPool};

use super::bell::Bell;
use super::bridge::Bridge;

/// Asked of the system, which may give less (Linux: net.core.rmem_max).
const SOCKET_BUFFER_LEN: usize = 4 << 20;

/// One end of the cable.
pub(super) struct Plug {
    socket: Arc<UdpSocket>,
    bell: Arc<Bell>,
    /// The loopback socket.
    pub(super) local: SocketAddr,
}

/// An underlay address and the loopback socket that stands for it.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) underlay: SocketAddr,
    pub(super) socket: SocketAddr,
}

impl Plug {
    /// Binds a socket.
    pub(super) fn new() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // A smaller buffer than asked for only means that the windows of the pods fill it sooner.
        let sizes = SockRef::from(&socket);
        let _ = sizes.set_recv_buffer_size(SOCKET_BUFFER_LEN);
        let _ = sizes.set_send_buffer_size(SOCKET_BUFFER_LEN);
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let bell = Arc::new(Bell::new(local)?);
        Ok(Self { socket: Arc::new(socket), bell, local })
    }

    /// What ends the sleep of this end's worker.
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// The worker's socket, with these other ends.
    pub(super) fn underlay(&self, peers: Vec<Peer>) -> LoopbackSocket {
        LoopbackSocket { socket: Arc::clone(&self.socket), bell: self.bell.addr, peers }
    }

    /// The worker's sleep, which packets on `bridge` end too.
    pub(super) fn wait(&self, bridge: Arc<Bridge>) -> LoopbackWait {
        LoopbackWait { socket: Arc::clone(&self.socket), bell: self.bell(), bridge, timeout: None }
    }
}

/// The UDP socket of a node.
pub(super) struct LoopbackSocket {
    socket: Arc<UdpSocket>,
    bell: SocketAddr,
    peers: Vec<Peer>,
}

impl UnderlaySocket for LoopbackSocket {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        while batch.datagrams.len() < batch.pool.receive_slabs() {
            let index = batch.datagrams.len();
            let (len, from) = match self.socket.recv_from(batch.pool.receive_area(index)) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if concerns_one_datagram(&error) => continue,
                Err(error) => return Err(error),
            };
            if from == self.bell {
                continue;
            }
            let remote =
                self.peers.iter().find(|peer| peer.socket == from).map_or(from, |peer| peer.underlay);
            let packet = batch.pool.received(index, 0, len);
            batch.datagrams.push(Datagram { packet, remote, tos: 0, source_port: 0 });
        }
        Ok(batch.datagrams.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        let mut report = SendReport::default();
        for datagram in datagrams {
            let packet = &datagram.packet;
            let peer = self.peers.iter().find(|peer| peer.underlay == datagram.remote);
            // Pods compute whole checksums and hand over no superpackets, so there is nothing to finish here.
            let whole = packet.segment_len == 0 && packet.checksum == Checksum::Complete;
            let Some(peer) = peer.filter(|_| whole) else {
                report.refused += 1;
                continue;
            };
            match self.socket.send_to(pool.bytes(packet), peer.socket) {
                Ok(len) => {
                    report.sent += 1;
                    report.sent_bytes += len as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => report.queue_full += 1,
                Err(_) => report.refused += 1,
            }
        }
        report
    }
}

/// Windows reports an ICMP answer to an earlier datagram as an error of the next receive.
fn concerns_one_datagram(error: &io::Error) -> bool {
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::ConnectionRefused, ErrorKind::Interrupted];
    kinds.contains(&error.kind())
}

/// Sleeps in the UDP socket.
pub(super) struct LoopbackWait {
    socket: Arc<UdpSocket>,
    bell: Arc<Bell>,
    bridge: Arc<Bridge>,
    timeout: Option<Duration>,
}

impl Wait for LoopbackWait {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Ready> {
        self.bell.set_asleep(true);
        // Whoever sends a packet after this look sees that the worker sleeps, and rings.
        let only_looks = timeout == Some(Duration::ZERO) || self.bridge.has_work();
        let result = if only_looks { Ok(()) } else { self.sleep(timeout) };
        self.bell.set_asleep(false);
        result.map(|()| Ready::ALL)
    }
}

impl LoopbackWait {
    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        // Zero is no timeout to a socket.
        let timeout = timeout.map(|timeout| timeout.max(Duration::from_millis(1)));
        if timeout != self.timeout {
            self.socket.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        self.socket.set_nonblocking(false)?;
        // Windows wants room for the whole datagram even to look at it.
        let looked = self.socket.peek_from(&mut [0; 2048]);
        self.socket.set_nonblocking(true)?;
        match looked {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(()),
            Err(error) if concerns_one_datagram(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
