//! The encap journey of a frame: from a segment's L2 device to one VTEP, or to all of them.

use super::forward::{self, Toward};
use super::frame::{Frame, PAYLOAD_OFFSET};
use super::learned::Heard;
use super::{Bridge, suppress};
use crate::drop_reason::DropReason;
use crate::engine::respond::too_big;
use crate::engine::{Outbox, outer_tos};
use crate::packet::{Datagram, PacketBatch, PacketBuf, PacketPool};
use crate::tables::{ForwardingTables, RemoteVtep, Segment};
use crate::time::Instant;
use crate::wire::answer::may_answer;
use crate::wire::ethernet;
use crate::wire::vxlan;

impl Bridge {
    /// Processes what the L2 devices have received, each frame with a VXLAN header before it that names its segment; what
    /// is to be sent is added to `out`.
    pub fn encap(&mut self, batch: &mut PacketBatch, now: Instant, out: &mut Outbox) {
        let tables = std::sync::Arc::clone(self.reader.load());
        let PacketBatch { pool, packets } = batch;
        for packet in packets.iter() {
            let len = packet.len().saturating_sub(vxlan::HEADER_LEN);
            self.counters.overlay.received_bytes.add(len as u64);
            self.encap_frame(&tables, pool, *packet, now, out);
        }
    }

    fn encap_frame(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        now: Instant,
        out: &mut Outbox,
    ) {
        // 1. Every length is checked once; tags are taken away (RFC 7348 section 6.1).
        let frame = match Frame::parse(pool.bytes(&packet)) {
            Ok(frame) => frame,
            Err(reason) => {
                self.counters.overlay.received.add(1);
                return self.counters.count_drop(reason, 1);
            }
        };
        frame.trim(pool, &mut packet);
        let segments = frame.segments(&packet);
        self.counters.overlay.received.add(segments);

        // 2. Whose it is, who asks and where to.
        let Some(segment) = tables.segments().lookup(frame.vni) else {
            return self.counters.count_drop(DropReason::UnknownVni, segments);
        };
        let toward = forward::from_device(segment, &self.learned, &frame, pool.bytes(&packet), now);
        if !matches!(toward, Err(DropReason::SourceMacInvalid | DropReason::SourceMacSpoofed)) {
            self.learn(segment, &frame, Heard::Device, segments, now);
        }

        // 3. Out, as often as it takes. All copies are one packet: the VXLAN header names the segment, not the VTEP.
        match toward {
            Ok(Toward::Vtep(vtep)) => {
                let mtu = vtep.inner_mtu(tables.local().overlay_mtu, now);
                if frame.payload_len(&packet) > mtu {
                    let reason = self.tell_too_big(pool, &packet, &frame, mtu, now, out);
                    return self.counters.count_drop(reason, segments);
                }
                out.datagrams.push(self.datagram(packet, &frame, &vtep));
            }
            Ok(Toward::Everybody) => self.flood(tables, segment, packet, &frame, now, out),
            Ok(Toward::Answer(addr, mac)) => match suppress::answer(pool, &packet, &frame, addr, mac) {
                // The question has become its answer, as an echo request its reply.
                Some(answer) => {
                    self.counters.neighbors_answered.add(1);
                    out.packets.push(answer);
                }
                None => self.counters.count_drop(DropReason::NoBuffer, segments),
            },
            Err(reason) => self.counters.count_drop(reason, segments),
        }
    }

    /// Head-end replication: a copy to every VTEP of the segment whose path carries it.
    fn flood(
        &self,
        tables: &ForwardingTables,
        segment: &Segment,
        packet: PacketBuf,
        frame: &Frame,
        now: Instant,
        out: &mut Outbox,
    ) {
        let (segments, payload_len) = (frame.segments(&packet), frame.payload_len(&packet));
        let copies = segment.vteps().len() as u64;
        self.counters.generated.add(copies.saturating_sub(1) * segments);
        for vtep in segment.vteps() {
            if payload_len > vtep.inner_mtu(tables.local().overlay_mtu, now) {
                self.counters.count_drop(DropReason::FrameTooLong, segments);
            } else {
                out.datagrams.push(self.datagram(packet, frame, vtep));
            }
        }
    }

    fn datagram(&self, packet: PacketBuf, frame: &Frame, vtep: &RemoteVtep) -> Datagram {
        Datagram {
            packet,
            remote: vtep.addr,
            tos: outer_tos(self.settings.dscp, frame.ip.as_ref().map_or(0, |ip| ip.tos)),
            source_port: frame.source_port(),
        }
    }

    /// Tells the sender of a packet that is too long, in the name of whom it was for: a bridge has no address of its own.
    /// (The kernel's vxlan device does so too: net/ipv4/ip_tunnel_core.c, skb_tunnel_check_pmtu.)
    fn tell_too_big(
        &mut self,
        pool: &mut PacketPool,
        packet: &PacketBuf,
        frame: &Frame,
        mtu: u32,
        now: Instant,
        out: &mut Outbox,
    ) -> DropReason {
        let Some(ip) = &frame.ip else { return DropReason::FrameTooLong };
        if !ip.dont_fragment {
            return DropReason::TooBigMayFragment;
        }
        if may_answer(ip) {
            if !self.limit.allow(now) {
                self.counters.errors_suppressed.add(1);
            } else if let Some(mut error) =
                too_big(pool, &packet.slice(PAYLOAD_OFFSET, ip.total_len as usize), ip.flow.dst, mtu)
            {
                let ethertype = if ip.flow.dst.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
                let headers = pool.push(&mut error, PAYLOAD_OFFSET);
                vxlan::emit(headers, frame.vni);
                ethernet::emit(&mut headers[vxlan::HEADER_LEN..], frame.src, frame.dst, ethertype);
                self.counters.generated.add(1);
                out.packets.push(error);
            }
        }
        DropReason::TooBig
    }
}
