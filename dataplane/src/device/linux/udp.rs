//! VXLAN over UDP: one receiving socket per worker, and the shared pool of source ports to send from.
//!
//! Receive areas hold 64 KB because a kernel peer on the same machine hands over whole superpackets as one
//! datagram (C11), and because with UDP_GRO it joins what one peer has sent. The segment size it then tells is handed
//! on as it is: for a UDP superpacket of such a kernel peer it is the inner one, which the engine finds out.

#![allow(unsafe_code)]

use std::io;
use std::sync::Arc;

use socket2::Socket;

use super::BATCH_LEN;
use super::messages::Messages;
use super::port::NamespaceLock;
use super::send::Sender;
use super::source_ports::SourcePorts;
use super::tunnel_gso::Lane;
use crate::device::{SendReport, TooLong, UnderlaySocket};
use crate::packet::{Datagram, DatagramBatch, PacketPool};

/// Most datagrams one recvmmsg takes.
const RECEIVE_MESSAGES: usize = 64;

/// The sockets of one worker.
pub(super) struct UdpPool {
    receiver: Socket,
    source_ports: Arc<SourcePorts>,
    receive: Messages,
    /// How many messages the next batch asks for: what costs little to ask for in vain, and no more than a batch holds
    /// if they are as long as the last ones.
    wanted: usize,
    sender: Sender,
    /// Held for as long as any worker lives.
    _lock: Arc<NamespaceLock>,
}

impl UdpPool {
    /// Receives on `receiver` and sends from `source_ports`, with `joins` several datagrams per message, superpackets
    /// through `lane`.
    pub(super) fn new(
        receiver: Socket,
        source_ports: Arc<SourcePorts>,
        joins: bool,
        lane: Option<Lane>,
        lock: Arc<NamespaceLock>,
    ) -> Self {
        let (receive, sender) = (Messages::new(RECEIVE_MESSAGES), Sender::new(joins, lane));
        Self { receiver, source_ports, receive, wanted: RECEIVE_MESSAGES, sender, _lock: lock }
    }
}

impl UnderlaySocket for UdpPool {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        let wanted = batch.pool.receive_slabs().min(self.wanted);
        let pool = &mut batch.pool;
        let area = |index| {
            let area: *mut [u8] = pool.receive_area(index);
            // SAFETY: each index names another slab, so the areas do not overlap, and the pool outlives the call.
            unsafe { &mut *area }
        };
        let count = match self.receive.receive(&self.receiver, wanted, area) {
            Ok(count) => count,
            Err(error) if is_quiet(&error) => 0,
            Err(error) => return Err(error),
        };
        let mut received_len = 0;
        for index in 0..count {
            let Some(received) = self.receive.received(index) else { continue };
            received_len += received.len;
            let mut packet = batch.pool.received(index, 0, received.len);
            packet.segment_len = received.segment_len;
            let (remote, tos) = (received.remote, received.tos);
            batch.datagrams.push(Datagram { packet, remote, tos, source_port: 0 });
        }
        if count > 0 {
            let fit = BATCH_LEN * count / received_len.max(1);
            self.wanted = fit.min(2 * count).clamp(1, RECEIVE_MESSAGES);
        }
        Ok(batch.datagrams.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        self.sender.send_batch(&self.source_ports, pool, datagrams)
    }

    fn next_too_long(&mut self) -> Option<TooLong> {
        self.sender.next_too_long()
    }
}

/// Nothing waits, or an error that says nothing of the receiving socket itself.
fn is_quiet(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECONNREFUSED))
}
