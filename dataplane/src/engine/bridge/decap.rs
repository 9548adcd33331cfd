//! The decap journey of a frame: from a VTEP of a segment to the segment's L2 device, and nowhere else.

use super::Bridge;
use super::forward;
use super::frame::{Frame, PAYLOAD_OFFSET};
use super::learned::Heard;
use crate::drop_reason::DropReason;
use crate::engine::Outbox;
use crate::engine::decap::{decap_ecn, gro_parts, mend_superpacket};
use crate::packet::{Datagram, DatagramBatch, PacketBuf, PacketPool};
use crate::tables::ForwardingTables;
use crate::time::Instant;
use crate::wire::ip::set_ecn;

impl Bridge {
    /// Processes what the underlay socket has received; frames for the L2 devices are added to `out`, each with its
    /// VXLAN header, by which the device knows the segment.
    pub fn decap(&mut self, batch: &mut DatagramBatch, now: Instant, out: &mut Outbox) {
        let tables = std::sync::Arc::clone(self.reader.load());
        let DatagramBatch { pool, datagrams } = batch;
        for datagram in datagrams.iter() {
            self.counters.underlay.received_bytes.add(datagram.packet.len() as u64);
            for packet in gro_parts(pool, &datagram.packet) {
                self.decap_frame(&tables, pool, packet, datagram, now, out);
            }
        }
    }

    fn decap_frame(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        outer: &Datagram,
        now: Instant,
        out: &mut Outbox,
    ) {
        // 1. VXLAN header, frame, and the lengths of what it carries.
        let frame = match Frame::parse(pool.bytes(&packet)) {
            Ok(frame) => frame,
            Err(reason) => {
                self.counters.underlay.received.add(1);
                return self.counters.count_drop(reason, 1);
            }
        };
        frame.trim(pool, &mut packet);
        mend(pool, &mut packet, &frame, tables.local().overlay_mtu);
        let segments = frame.segments(&packet);
        self.counters.underlay.received.add(segments);
        if let Some(reason) = frame.refusal(&self.settings) {
            return self.counters.count_drop(reason, segments);
        }
        self.counters.reserved_bits.add(if frame.reserved_bits { segments } else { 0 });

        // 2. A known segment and sender, a source that may be there, a destination that may be here.
        if let Err(reason) = self.admit(tables, pool.bytes(&packet), &frame, outer, segments, now) {
            return self.counters.count_drop(reason, segments);
        }

        // 3. ECN (RFC 6040 section 4.2), and to the device as it is: neither MACs nor TTL change.
        if let Some(ip) = &frame.ip {
            match decap_ecn(outer.tos, ip.tos) {
                Some(ecn) if ecn == ip.tos & 0b11 => {}
                Some(ecn) => set_ecn(&mut pool.bytes_mut(&packet)[PAYLOAD_OFFSET..], ecn),
                None => return self.counters.count_drop(DropReason::EcnIllegal, segments),
            }
        }
        out.packets.push(packet);
    }

    fn admit(
        &self,
        tables: &ForwardingTables,
        bytes: &[u8],
        frame: &Frame,
        outer: &Datagram,
        segments: u64,
        now: Instant,
    ) -> Result<(), DropReason> {
        let segment = tables.segments().lookup(frame.vni).ok_or(DropReason::UnknownVni)?;
        let source = outer.remote.ip();
        let sender = forward::from_vtep(segment, &self.learned, &self.settings, source, frame, bytes, now)?;
        if sender.is_some() {
            self.learn(segment, frame, Heard::Vtep(source), segments, now);
        }
        Ok(())
    }
}

/// A superpacket of a kernel peer on the same host, or one with a partial checksum, stays one (C11).
fn mend(pool: &PacketPool, packet: &mut PacketBuf, frame: &Frame, mtu: u32) {
    if let Some(inner) = &frame.ip {
        let mut ip = *packet;
        ip.pop(PAYLOAD_OFFSET);
        mend_superpacket(pool, &mut ip, inner, mtu);
        (packet.segment_len, packet.checksum) = (ip.segment_len, ip.checksum);
    }
}
