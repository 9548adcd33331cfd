//! Devices and sockets that are queues in this process, for tests and simulations.
//!
//! Each is a handle: its clones share the queues, so that a test injects and takes through one clone what a
//! worker receives and sends through another.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::segments::{self, ENCAPSULATION_LEN, Superpacket, segment_count};
use super::{OverlayDevice, Ready, SendReport, UnderlaySocket, Wait, Waker, WorkerIo};
use crate::packet::{Checksum, Datagram, DatagramBatch, PacketBatch, PacketBuf, PacketPool};

/// A packet outside any pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPacket {
    /// The packet from its IP header on.
    pub bytes: Vec<u8>,
    /// Transport payload bytes per wire-size segment; 0 for an ordinary packet.
    pub segment_len: u16,
    /// State of its transport checksum.
    pub checksum: Checksum,
}

impl From<Vec<u8>> for MemoryPacket {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// A datagram outside any pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDatagram {
    /// VXLAN header and frame.
    pub payload: Vec<u8>,
    /// Received: where it came from. Sent: where it goes.
    pub remote: SocketAddr,
    /// The outer TOS byte or traffic class.
    pub tos: u8,
    /// Sent: which socket of the source-port pool.
    pub source_port: u16,
}

/// What waits to be received and what was sent.
#[derive(Debug)]
struct Queues<T> {
    waiting: VecDeque<T>,
    sent: VecDeque<T>,
    /// Sent items kept until taken; one more counts as a full queue.
    capacity: usize,
    waker: Option<Arc<MemoryWaker>>,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), sent: VecDeque::new(), capacity: usize::MAX, waker: None }
    }
}

#[derive(Debug)]
struct Shared<T>(Arc<Mutex<Queues<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Queues<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inject(&self, item: T) {
        let mut queues = self.lock();
        queues.waiting.push_back(item);
        if let Some(waker) = &queues.waker {
            waker.wake();
        }
    }
}

/// An overlay device in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryDevice {
    queues: Shared<MemoryPacket>,
}

impl MemoryDevice {
    /// Puts a packet where the worker receives it.
    pub fn inject(&self, packet: impl Into<MemoryPacket>) {
        self.queues.inject(packet.into());
    }

    /// Takes the oldest packet that was sent.
    pub fn take(&self) -> Option<MemoryPacket> {
        self.queues.lock().sent.pop_front()
    }

    /// Takes all packets that were sent, the oldest first.
    pub fn take_all(&self) -> Vec<MemoryPacket> {
        self.queues.lock().sent.drain(..).collect()
    }

    /// From how many untaken packets on the device counts as full.
    pub fn limit(&self, capacity: usize) {
        self.queues.lock().capacity = capacity;
    }
}

impl OverlayDevice for MemoryDevice {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        let mut queues = self.queues.lock();
        while batch.packets.len() < batch.pool.receive_slabs() {
            let Some(packet) = queues.waiting.pop_front() else { break };
            if !batch.receive_copy(&packet.bytes) {
                return Err(too_long(packet.bytes.len()));
            }
            if let Some(received) = batch.packets.last_mut() {
                received.segment_len = packet.segment_len;
                received.checksum = packet.checksum;
            }
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        let mut queues = self.queues.lock();
        for packet in packets {
            let bytes = pool.bytes(packet);
            let segments = segment_count(bytes, packet);
            if queues.sent.len() >= queues.capacity {
                report.queue_full += segments;
                continue;
            }
            report.sent += segments;
            report.sent_bytes += bytes.len() as u64;
            queues.sent.push_back(MemoryPacket {
                bytes: bytes.to_vec(),
                segment_len: packet.segment_len,
                checksum: packet.checksum,
            });
        }
        report
    }
}

/// Underlay sockets in memory.
#[derive(Clone, Debug, Default)]
pub struct MemorySocket {
    queues: Shared<MemoryDatagram>,
}

impl MemorySocket {
    /// Puts a datagram from `remote` where the worker receives it.
    pub fn inject(&self, payload: Vec<u8>, remote: SocketAddr, tos: u8) {
        self.queues.inject(MemoryDatagram { payload, remote, tos, source_port: 0 });
    }

    /// Takes the oldest datagram that was sent.
    pub fn take(&self) -> Option<MemoryDatagram> {
        self.queues.lock().sent.pop_front()
    }

    /// Takes all datagrams that were sent, the oldest first.
    pub fn take_all(&self) -> Vec<MemoryDatagram> {
        self.queues.lock().sent.drain(..).collect()
    }

    /// From how many untaken datagrams on the socket counts as full.
    pub fn limit(&self, capacity: usize) {
        self.queues.lock().capacity = capacity;
    }
}

impl UnderlaySocket for MemorySocket {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        let mut queues = self.queues.lock();
        while batch.datagrams.len() < batch.pool.receive_slabs() {
            let Some(datagram) = queues.waiting.pop_front() else { break };
            if !batch.receive_copy(&datagram.payload, datagram.remote, datagram.tos) {
                return Err(too_long(datagram.payload.len()));
            }
        }
        Ok(batch.datagrams.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        let mut report = SendReport::default();
        let mut queues = self.queues.lock();
        for datagram in datagrams {
            let Some(payloads) = wire_payloads(pool.pieces(&datagram.packet).concat(), &datagram.packet)
            else {
                report.refused += 1;
                continue;
            };
            for payload in payloads {
                if queues.sent.len() >= queues.capacity {
                    report.queue_full += 1;
                    continue;
                }
                report.sent += 1;
                report.sent_bytes += payload.len() as u64;
                queues.sent.push_back(MemoryDatagram {
                    payload,
                    remote: datagram.remote,
                    tos: datagram.tos,
                    source_port: datagram.source_port,
                });
            }
        }
        report
    }
}

/// The payloads a datagram leaves as.
fn wire_payloads(mut payload: Vec<u8>, packet: &PacketBuf) -> Option<Vec<Vec<u8>>> {
    if packet.segment_len != 0 {
        let superpacket = Superpacket::parse(&payload, ENCAPSULATION_LEN, packet.segment_len)?;
        let segment = |index| {
            let mut out = vec![0; superpacket.longest()];
            let len = superpacket.write(index, &mut out)?;
            out.truncate(len);
            Some(out)
        };
        return (0..superpacket.count()).map(segment).collect();
    }
    if let Checksum::Partial { start, offset } = packet.checksum
        && !segments::complete_checksum(payload.get_mut(ENCAPSULATION_LEN..)?, start, offset)
    {
        return None;
    }
    Some(vec![payload])
}

fn too_long(len: usize) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("a packet of {len} bytes was injected"))
}

/// Wakes a [`MemoryWait`].
#[derive(Debug, Default)]
pub struct MemoryWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Waker for MemoryWaker {
    fn wake(&self) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Sleeps until something is injected or its waker is called.
#[derive(Debug)]
pub struct MemoryWait(Arc<MemoryWaker>);

impl Wait for MemoryWait {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Ready> {
        let woken = self.0.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut woken = match timeout {
            Some(timeout) => {
                let waited = self.0.changed.wait_timeout_while(woken, timeout, |woken| !*woken);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.0.changed.wait_while(woken, |woken| !*woken);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        *woken = false;
        Ok(Ready::ALL)
    }
}

/// What one worker runs on in memory, and the handles of the other side.
pub fn worker_io() -> (WorkerIo, MemoryDevice, MemorySocket, Arc<MemoryWaker>) {
    let (device, socket) = (MemoryDevice::default(), MemorySocket::default());
    let waker = Arc::new(MemoryWaker::default());
    device.queues.lock().waker = Some(Arc::clone(&waker));
    socket.queues.lock().waker = Some(Arc::clone(&waker));
    let io = WorkerIo {
        overlay: Box::new(device.clone()),
        underlay: Box::new(socket.clone()),
        wait: Box::new(MemoryWait(Arc::clone(&waker))),
    };
    (io, device, socket, waker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_injected_is_received_and_what_is_sent_is_taken() {
        let (mut io, device, socket, _waker) = worker_io();
        device.inject(MemoryPacket {
            bytes: vec![1; 2000],
            segment_len: 500,
            checksum: Checksum::Partial { start: 20, offset: 16 },
        });
        let mut batch = PacketBatch::new(4, 1);
        assert_eq!(io.overlay.recv_batch(&mut batch).unwrap(), 1);
        assert_eq!(batch.packets[0].segment_len, 500);
        let remote = "192.0.2.1:4789".parse().unwrap();
        let mut packet = batch.packets[0];
        packet.segment_len = 0;
        packet.checksum = Checksum::Complete;
        let datagram = Datagram { packet, remote, tos: 3, source_port: 7 };
        let report = io.underlay.send_batch(&batch.pool, &[datagram]);
        assert_eq!((report.sent, report.sent_bytes), (1, 2000));
        let sent = socket.take().unwrap();
        assert_eq!((sent.payload.len(), sent.remote, sent.tos, sent.source_port), (2000, remote, 3, 7));
        assert!(socket.take().is_none());
    }

    #[test]
    fn a_full_device_counts_what_it_drops() {
        let (mut io, device, _socket, _waker) = worker_io();
        device.limit(1);
        let mut batch = PacketBatch::new(2, 0);
        assert!(batch.receive_copy(b"first") && batch.receive_copy(b"second"));
        let report = io.overlay.send_batch(&batch.pool, &batch.packets);
        assert_eq!((report.sent, report.queue_full), (1, 1));
        assert_eq!(device.take_all().len(), 1);
    }

    #[test]
    fn injecting_and_waking_end_the_sleep() {
        let (mut io, device, _socket, waker) = worker_io();
        io.wait.wait(Some(Duration::from_millis(1))).unwrap();
        device.inject(vec![0; 20]);
        io.wait.wait(None).unwrap();
        waker.wake();
        io.wait.wait(None).unwrap();
    }
}
