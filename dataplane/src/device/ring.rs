//! An overlay device over a pair of rings of whole IP packets, as Wintun has them.
//!
//! Copies that this makes of a packet's content: none when it is received, where it stays in the ring, is translated
//! there and leaves through the socket from there, its VXLAN headers beside it; one when it is sent, into the ring, where
//! its checksum is finished and a superpacket's segments are built.
//!
//! A packet that is allocated and not sent stalls the ring, so whatever becomes of its content, it is sent.

pub mod memory;
mod packet;

use std::io;

pub use packet::RingPacket;

use super::segments::{self, Superpacket};
use super::{OverlayDevice, SendReport};
use crate::packet::{Checksum, PacketBatch, PacketBuf, PacketPool};

/// Two rings: the system's packets to us, and ours to the system.
pub trait Ring: Send {
    /// The next packet, which keeps its place in the ring until it is dropped; `None` when there is none.
    ///
    /// # Errors
    /// When the rings have ended or are damaged.
    fn receive(&self) -> io::Result<Option<RingPacket>>;

    /// Sends a packet of `len` bytes, whose content `build` writes into the ring.
    ///
    /// # Errors
    /// [`Refused::Full`] without calling `build`; [`Refused::Ended`].
    fn send(&self, len: u16, build: impl FnOnce(&mut [u8])) -> Result<(), Refused>;
}

/// Why a ring does not take a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no room for it.
    Full,
    /// The rings have ended.
    Ended,
}

/// An overlay device over rings.
#[derive(Debug)]
pub struct RingDevice<R>(pub R);

impl<R: Ring> OverlayDevice for RingDevice<R> {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        while batch.packets.len() < batch.pool.receive_slabs() {
            match self.0.receive() {
                Ok(Some(packet)) => {
                    batch.receive_lent(packet);
                }
                Ok(None) => break,
                Err(_) if !batch.packets.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        for packet in packets {
            match packet.segment_len {
                0 => self.send_packet(pool.bytes(packet), packet.checksum, &mut report),
                segment_len => self.send_segments(pool.bytes(packet), segment_len, &mut report),
            }
        }
        report
    }
}

impl<R: Ring> RingDevice<R> {
    fn send_packet(&self, bytes: &[u8], checksum: Checksum, report: &mut SendReport) {
        self.send(bytes.len(), report, |slot| {
            slot.copy_from_slice(bytes);
            match checksum {
                Checksum::Complete => true,
                Checksum::Partial { start, offset } => segments::complete_checksum(slot, start, offset),
            }
        });
    }

    fn send_segments(&self, bytes: &[u8], segment_len: u16, report: &mut SendReport) {
        let Some(superpacket) = Superpacket::parse(bytes, 0, segment_len) else {
            report.refused += 1;
            return;
        };
        for index in 0..superpacket.count() {
            let len = superpacket.len(index);
            self.send(len, report, |slot| superpacket.write(index, slot) == Some(len));
        }
    }

    /// Sends a packet of `len` bytes that `build` writes into the ring; `build` says whether it could.
    fn send(&self, len: usize, report: &mut SendReport, build: impl FnOnce(&mut [u8]) -> bool) {
        let Ok(ring_len) = u16::try_from(len) else {
            report.too_long += 1;
            return;
        };
        let mut is_built = false;
        let taken = self.0.send(ring_len, |slot| {
            is_built = build(slot);
            if !is_built {
                // It must leave the ring all the same; Windows drops a packet of IP version 0.
                slot.fill(0);
            }
        });
        match taken {
            Ok(()) if is_built => {
                report.sent += 1;
                report.sent_bytes += len as u64;
            }
            Err(Refused::Full) => report.queue_full += 1,
            Ok(()) | Err(Refused::Ended) => report.refused += 1,
        }
    }
}

#[cfg(test)]
mod tests;
