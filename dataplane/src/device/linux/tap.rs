//! TAP devices, one for each L2 segment: the queue of a worker is one queue of each of them.
//!
//! Frames are read and written with a VXLAN header before them that names the segment. Superpackets are taken from the
//! kernel and given to it as they are; what comes as single frames is written so.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use super::netlink::Netlink;
use super::patience::Patience;
use super::tun::{self, TunOffload};
use super::{BATCH_LEN, links, routes, sys, virtio};
use crate::device::config::{DeviceError, SegmentDevice};
use crate::device::segments::{ENCAPSULATION_LEN, Superpacket, segment_count};
use crate::device::{OverlayDevice, SendReport};
use crate::packet::{Checksum, MAX_PACKET_LEN, PacketBatch, PacketBuf, PacketPool};
use crate::wire::bytes::u16_at;
use crate::wire::ethernet;
use crate::wire::vxlan::{self, Vni, Vxlan};

/// Frames that may wait for a device.
const QUEUE_LEN: u32 = 1_000;

/// One worker's queues.
#[derive(Debug)]
pub(super) struct Taps {
    /// By VNI.
    queues: Vec<Queue>,
    /// Which queue the next batch begins with.
    first: usize,
    /// Which queues have had nothing more for the batch being received.
    drained: Vec<bool>,
    /// Where a refused superpacket is split.
    segment: Box<[u8]>,
    /// Of the batch being sent.
    patience: Patience,
}

#[derive(Debug)]
struct Queue {
    vni: Vni,
    file: File,
}

impl Taps {
    /// Creates a device for each segment, up and without addresses, and opens `workers` queues of each.
    ///
    /// # Errors
    /// Without the driver or the privilege, or when a name is bad or taken.
    pub(super) fn create(
        segments: &[SegmentDevice],
        mtu: u16,
        workers: usize,
        superpackets: bool,
    ) -> Result<(Vec<Self>, TunOffload), DeviceError> {
        let mut offload = TunOffload::Off;
        let mut workers: Vec<Self> = (0..workers.max(1)).map(|_| Self::empty()).collect();
        let several = if workers.len() > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | several;
        for SegmentDevice { vni, name } in segments {
            let mut exclusive = libc::IFF_TUN_EXCL;
            for worker in &mut workers {
                let (file, agreed) = tun::attach(name, flags | exclusive, superpackets)?;
                (exclusive, offload) = (0, agreed);
                worker.queues.push(Queue { vni: *vni, file });
            }
            bring_up(name, mtu)?;
        }
        workers.iter_mut().for_each(|worker| worker.queues.sort_by_key(|queue| queue.vni));
        Ok((workers, offload))
    }

    fn empty() -> Self {
        Self {
            queues: Vec::new(),
            first: 0,
            drained: Vec::new(),
            segment: vec![0; MAX_PACKET_LEN].into_boxed_slice(),
            patience: Patience::default(),
        }
    }

    /// What to wait for.
    pub(super) fn descriptors(&self) -> Vec<RawFd> {
        self.queues.iter().map(|queue| queue.file.as_raw_fd()).collect()
    }

    /// Writes one frame, as it is or, where the kernel refuses a superpacket (G11), as its segments.
    fn send(&mut self, bytes: &[u8], packet: &PacketBuf, report: &mut SendReport) {
        let ip = bytes.get(ENCAPSULATION_LEN..).unwrap_or_default();
        let segments = segment_count(ip, packet);
        let Some((index, frame)) = self.queue_of(bytes) else {
            report.refused += segments;
            return;
        };
        let written = match header(ip, packet) {
            Some(header) => tun::write(&self.queues[index].file, &mut self.patience, &header, frame),
            None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        match written {
            Ok(()) => {
                report.sent += segments;
                report.sent_bytes += frame.len() as u64;
            }
            Err(error) if packet.segment_len != 0 && tun::superpacket_refused(&error) => {
                self.send_segments(index, bytes, packet.segment_len, segments, report);
            }
            Err(error) => tun::count_failure(&error, segments, report),
        }
    }

    fn send_segments(
        &mut self,
        index: usize,
        bytes: &[u8],
        segment_len: u16,
        segments: u64,
        report: &mut SendReport,
    ) {
        let Some(superpacket) = Superpacket::parse(bytes, ENCAPSULATION_LEN, segment_len) else {
            report.refused += segments;
            return;
        };
        for number in 0..superpacket.count() {
            let len = superpacket.write(number, &mut self.segment);
            let Some(frame) = len.and_then(|len| self.segment.get(vxlan::HEADER_LEN..len)) else {
                report.refused += 1;
                continue;
            };
            let file = &self.queues[index].file;
            match tun::write(file, &mut self.patience, &[0; virtio::HEADER_LEN], frame) {
                Ok(()) => {
                    report.sent += 1;
                    report.sent_bytes += frame.len() as u64;
                }
                Err(error) => tun::count_failure(&error, 1, report),
            }
        }
    }

    /// The queue of the segment that the header names, and the frame behind it.
    fn queue_of<'a>(&self, bytes: &'a [u8]) -> Option<(usize, &'a [u8])> {
        let vni = Vxlan::new_checked(bytes).ok()?.vni();
        let index = self.queues.binary_search_by_key(&vni, |queue| queue.vni).ok()?;
        Some((index, bytes.get(vxlan::HEADER_LEN..)?))
    }
}

impl OverlayDevice for Taps {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        let (count, mut received_len) = (self.queues.len(), 0);
        let mut waiting = count;
        self.drained.clear();
        self.drained.resize(count, false);
        // One frame of each segment in turn: a busy one keeps none of the others waiting.
        while waiting > 0 && batch.packets.len() < batch.pool.receive_slabs() && received_len < BATCH_LEN {
            let at = self.first % count;
            self.first = at + 1;
            if self.drained[at] {
                continue;
            }
            match read(&self.queues[at], batch) {
                Ok(Some(len)) => received_len += len,
                Ok(None) => {
                    self.drained[at] = true;
                    waiting -= 1;
                }
                // What was read before a device broke is still good; the next call reports it.
                Err(_) if !batch.packets.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        self.patience = Patience::default();
        for packet in packets {
            self.send(pool.bytes(packet), packet, &mut report);
        }
        report
    }
}

/// Reads one frame; `None` when there is none.
fn read(queue: &Queue, batch: &mut PacketBatch) -> io::Result<Option<usize>> {
    let index = batch.packets.len();
    let area = batch.pool.receive_area(index);
    let len = loop {
        match sys::read(queue.file.as_raw_fd(), area) {
            Ok(len) => break len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    };
    let frame = area.get(virtio::HEADER_LEN..len).unwrap_or_default();
    let described = area.first_chunk().and_then(virtio::decode).and_then(|(segment_len, checksum)| {
        Some((segment_len, counted_from_ip(checksum, network_offset(frame)?)?))
    });
    let mut packet = match described {
        Some((segment_len, checksum)) => {
            let mut packet = batch.pool.received(index, virtio::HEADER_LEN, len - virtio::HEADER_LEN);
            (packet.segment_len, packet.checksum) = (segment_len, checksum);
            packet
        }
        // An empty frame, for the engine to count.
        None => batch.pool.received(index, virtio::HEADER_LEN, 0),
    };
    vxlan::emit(batch.pool.push(&mut packet, vxlan::HEADER_LEN), queue.vni);
    batch.packets.push(packet);
    Ok(Some(len))
}

/// Where a frame's payload begins, tags passed; `None` when it ends before.
fn network_offset(frame: &[u8]) -> Option<usize> {
    let mut offset = ethernet::HEADER_LEN;
    while frame.len() >= offset {
        if !matches!(u16_at(frame, offset - 2), ethernet::VLAN | ethernet::QINQ) {
            return Some(offset);
        }
        offset += ethernet::VLAN_TAG_LEN;
    }
    None
}

/// A partial checksum as packets have it: its offsets count from the IP header.
fn counted_from_ip(checksum: Checksum, network_offset: usize) -> Option<Checksum> {
    Some(match checksum {
        Checksum::Complete => Checksum::Complete,
        Checksum::Partial { start, offset } => {
            let start = usize::from(start).checked_sub(network_offset)?;
            Checksum::Partial { start: start as u16, offset }
        }
    })
}

/// The virtio header of a frame that carries `ip`.
fn header(ip: &[u8], packet: &PacketBuf) -> Option<[u8; virtio::HEADER_LEN]> {
    let header = virtio::encode(ip, packet.segment_len, packet.checksum)?;
    virtio::counted_from(header, ethernet::HEADER_LEN)
}

fn bring_up(name: &str, mtu: u16) -> Result<(), DeviceError> {
    let failed = |error| DeviceError::system(format!("bringing {name} up"), error);
    let netlink = Netlink::open().map_err(failed)?;
    let all = links::links(&netlink).map_err(failed)?;
    let link = all.into_iter().find(|link| link.name == name);
    let index = link.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?.index;
    routes::bring_up(&netlink, index, u32::from(mtu), QUEUE_LEN).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frames_payload_begins_behind_its_tags() {
        let frame = |tags: &[u8]| [&[0; 12], tags, &[8, 0, 1, 2, 3, 4]].concat();
        assert_eq!(network_offset(&frame(&[])), Some(14));
        assert_eq!(network_offset(&frame(&[0x81, 0, 0, 1])), Some(18));
        assert_eq!(network_offset(&frame(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2])), Some(22));
        assert_eq!(network_offset(&[0; 13]), None);
        assert_eq!(network_offset(&frame(&[0x81, 0, 0, 1])[..17]), None);
    }

    #[test]
    fn checksum_offsets_count_from_the_ip_header_in_packets_and_from_the_frame_in_the_device() {
        let partial = Checksum::Partial { start: 34, offset: 16 };
        let of_ip = Checksum::Partial { start: 20, offset: 16 };
        assert_eq!(counted_from_ip(partial, 14), Some(of_ip));
        assert_eq!(counted_from_ip(partial, 35), None);
        let mut ip = vec![0; 2_000];
        (ip[0], ip[32]) = (0x45, 0x50);
        let mut packet = PacketBuf::default();
        packet.checksum = of_ip;
        assert_eq!(virtio::decode(&header(&ip, &packet).unwrap()), Some((0, partial)));
        packet.segment_len = 500;
        let header = header(&ip, &packet).unwrap();
        assert_eq!(virtio::decode(&header), Some((500, partial)));
        assert_eq!(u16::from_ne_bytes([header[2], header[3]]), 14 + 40);
    }
}
