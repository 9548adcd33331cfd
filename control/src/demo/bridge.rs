//! A node's host between its pods and Windlass: the overlay device, and the bridge the pods hang on.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_dataplane::device::{OverlayDevice, SendReport};
use windlass_dataplane::offload::segment;
use windlass_dataplane::packet::{Checksum, PacketBatch, PacketBuf, PacketPool};
use windlass_dataplane::wire::checksum;
use windlass_dataplane::wire::inner::InnerPacket;

use super::bell::Bell;

/// Where UDP's checksum lies in its header; TCP's lies at 16.
const UDP_CHECKSUM_OFFSET: usize = 6;

/// An IP packet.
pub(super) type Packet = Vec<u8>;

/// The overlay device, as both its sides see it. What is in flight is bounded by the windows of the pods, so
/// the queues need no bound of their own.
pub(super) struct Bridge {
    to_worker: Mutex<VecDeque<Packet>>,
    to_pods: Mutex<ToPods>,
    arrived: Condvar,
    bell: Arc<Bell>,
}

#[derive(Default)]
struct ToPods {
    packets: Vec<Packet>,
    asleep: bool,
}

impl Bridge {
    /// A device whose worker hears `bell`.
    pub(super) fn new(bell: Arc<Bell>) -> Self {
        Self { to_worker: Mutex::default(), to_pods: Mutex::default(), arrived: Condvar::new(), bell }
    }

    /// Whether packets wait for the worker.
    pub(super) fn has_work(&self) -> bool {
        !lock(&self.to_worker).is_empty()
    }

    /// Pods to worker; `packets` is left empty.
    pub(super) fn send(&self, packets: &mut Vec<Packet>) {
        if !packets.is_empty() {
            lock(&self.to_worker).extend(packets.drain(..));
            self.bell.ring();
        }
    }

    /// Worker to pods: adds what waits to `inbox`, after a sleep of at most `timeout` when nothing does.
    pub(super) fn receive(&self, inbox: &mut Vec<Packet>, timeout: Duration) {
        let mut queue = lock(&self.to_pods);
        if queue.packets.is_empty() && !timeout.is_zero() {
            queue.asleep = true;
            let waited = self.arrived.wait_timeout_while(queue, timeout, |queue| queue.packets.is_empty());
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.asleep = false;
        }
        inbox.append(&mut queue.packets);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker's side of a [`Bridge`].
pub(super) struct BridgeDevice(pub(super) Arc<Bridge>);

impl OverlayDevice for BridgeDevice {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        let mut queue = lock(&self.0.to_worker);
        while batch.packets.len() < batch.pool.receive_slabs() {
            let Some(packet) = queue.pop_front() else { break };
            // smoltcp makes no packet longer than the MTU, so each fits.
            batch.receive_copy(&packet);
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        let mut queue = lock(&self.0.to_pods);
        for packet in packets {
            let Some(segments) = wire_packets(pool.bytes(packet), packet) else {
                report.refused += 1;
                continue;
            };
            report.sent += segments.len() as u64;
            report.sent_bytes += packet.len() as u64;
            queue.packets.extend(segments);
        }
        if std::mem::take(&mut queue.asleep) {
            self.0.arrived.notify_one();
        }
        report
    }
}

/// What a network card would put on the wire: pods take neither superpackets nor partial checksums. A whole
/// checksum that happens to equal the sum of its pseudo-header comes as a partial one, too.
fn wire_packets(ip: &[u8], packet: &PacketBuf) -> Option<Vec<Packet>> {
    if packet.segment_len != 0 {
        let inner = InnerPacket::parse(ip).ok()?;
        let count = segment::count(ip.len(), inner.headers_len(), packet.segment_len);
        let one = |index| {
            let mut bytes = vec![0; ip.len()];
            let len = segment::segment(ip, &inner, packet.segment_len, index, &mut bytes)?;
            bytes.truncate(len);
            Some(bytes)
        };
        return (0..count).map(one).collect();
    }
    let mut bytes = ip.to_vec();
    if let Checksum::Partial { start, offset } = packet.checksum {
        let (start, offset) = (usize::from(start), usize::from(offset));
        if start + offset + 2 > bytes.len() {
            return None;
        }
        checksum::complete(&mut bytes, start, offset, offset == UDP_CHECKSUM_OFFSET);
    }
    Some(vec![bytes])
}
