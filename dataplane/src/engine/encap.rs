//! The encap journey: from a pod or the host, through the overlay device, to a remote VTEP (or back into the
//! device, when a service's backend is here).

use super::decide::Ingress;
use super::flows::Action;
use super::held::Side;
use super::respond::Answer;
use super::templates::Template;
use super::verdict::DropReason;
use super::{Dscp, Engine, Outbox, PREFETCH_AHEAD, Resolved, mss, segments, translate_error};
use crate::flow_cache::{IngressId, TO_OVERLAY};
use crate::packet::{Datagram, PacketBatch, PacketBuf, PacketPool};
use crate::tables::ForwardingTables;
use crate::time::Instant;
use crate::wire::answer::echo;
use crate::wire::inner::InnerPacket;

impl Engine {
    /// Processes what an overlay device has received; what is to be sent is added to `out`.
    pub fn encap(&mut self, batch: &mut PacketBatch, now: Instant, out: &mut Outbox) {
        let tables = std::sync::Arc::clone(self.reader.load());
        let PacketBatch { pool, packets } = batch;
        packets.iter().take(PREFETCH_AHEAD).for_each(|packet| self.flows.prefetch(pool.bytes(packet)));
        for (index, packet) in packets.iter().enumerate() {
            if let Some(later) = packets.get(index + PREFETCH_AHEAD) {
                self.flows.prefetch(pool.bytes(later));
            }
            self.counters.overlay.received_bytes.add(packet.len() as u64);
            self.encap_packet(&tables, pool, *packet, now, out);
        }
        if self.held.is_any_ready() {
            self.encap_released(&tables, pool, now, out);
        }
    }

    /// Fragments that were held, whose first one has come with this batch.
    #[cold]
    fn encap_released(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        now: Instant,
        out: &mut Outbox,
    ) {
        while let Some((Side::Overlay, packet)) = self.next_released(pool) {
            self.encap_packet(tables, pool, packet, now, out);
        }
    }

    #[inline(always)]
    fn encap_packet(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        now: Instant,
        out: &mut Outbox,
    ) {
        // 1. Every length is checked once; what follows cannot run off the end.
        let mut inner = InnerPacket::default();
        if inner.read(pool.bytes(&packet)).is_err() {
            self.counters.overlay.received.add(1);
            return self.counters.count_drop(DropReason::Malformed, 1);
        }
        packet.truncate(inner.total_len as usize);
        let segments = segments(&packet, &inner);
        self.counters.overlay.received.add(segments);

        // 2. The flow cache, else connections, service, backend and route.
        let decided;
        let action = match self.cached(tables, &inner, IngressId::OVERLAY, now) {
            Some(place) => self.flows.at(place),
            None => match self.encap_undecided(tables, pool, &packet, &inner, now, out) {
                Some(action) => {
                    decided = action;
                    decided.as_ref()
                }
                None => return,
            },
        };
        if action.template() == TO_OVERLAY {
            action.translate(pool, &packet, &inner);
            return out.packets.push(packet);
        }
        let Some(template) = self.templates.get(action.template()) else {
            return self.counters.count_drop(DropReason::NoRoute, segments);
        };

        // 3. Too long for the path: the sender is told while the packet is still as it sent it.
        if let Some(mtu) = exceeded_mtu(tables, template, &packet, &inner, now) {
            let source = tables.local().source_vip(inner.flow.src);
            self.respond(pool, &packet, &inner, Answer::TooBig { source, mtu }, now, out);
            let told = inner.dont_fragment;
            let reason = if told { DropReason::TooBig } else { DropReason::TooBigMayFragment };
            return self.counters.count_drop(reason, segments);
        }

        // 4. Translate in place, and push the headers.
        action.translate(pool, &packet, &inner);
        out.datagrams.push(Datagram {
            packet: template.encapsulate(pool, packet, &inner),
            remote: template.encapsulation.remote,
            tos: self.outer_tos(inner.tos),
            source_port: action.source_port(),
        });
    }

    /// The slow path: what the tables say, done here and now unless the packet is to be forwarded.
    #[cold]
    fn encap_undecided(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        packet: &PacketBuf,
        inner: &InnerPacket,
        now: Instant,
        out: &mut Outbox,
    ) -> Option<Action> {
        let bytes = pool.bytes(packet);
        if self.holds(inner, bytes, Side::Overlay, bytes, now) {
            self.counters.overlay.received.take_back(1);
            return None;
        }
        let id = Some(IngressId::OVERLAY);
        let reason = match self.related(pool.bytes(packet), inner, now) {
            Err(reason) => reason,
            Ok(related) => match self.resolve(tables, inner, &related, Ingress::Overlay, id, now) {
                Resolved::Forward(action) => {
                    if let Some(template) = self.templates.get(action.as_ref().template()) {
                        let mtu = template.encapsulation.inner_mtu(tables.local().overlay_mtu, now);
                        mss::clamp(pool, packet, inner, mtu);
                    }
                    return Some(action);
                }
                Resolved::ForwardError(translation, action) => {
                    translate_error(pool, packet, inner, &related, &translation);
                    return Some(action);
                }
                Resolved::EchoReply => {
                    self.answer_echo(pool, *packet, out);
                    return None;
                }
                Resolved::Reject(reason) => {
                    let source = inner.flow.dst;
                    self.respond(pool, packet, inner, Answer::Refusal { source }, now, out);
                    reason
                }
                Resolved::Drop(reason) => reason,
            },
        };
        self.counters.count_drop(reason, segments(packet, inner));
        None
    }

    /// ECN is copied (RFC 6040 section 4.1, normal mode); DSCP by setting (RFC 2983).
    fn outer_tos(&self, inner: u8) -> u8 {
        match self.settings.dscp {
            Dscp::Copy => inner,
            Dscp::Fixed(dscp) => dscp << 2 | inner & 0b11,
        }
    }

    /// A VIP answers pings itself: the request becomes its reply.
    fn answer_echo(&self, pool: &mut PacketPool, packet: PacketBuf, out: &mut Outbox) {
        if echo::echo_reply_in_place(pool.bytes_mut(&packet)) {
            out.packets.push(packet);
        } else {
            self.counters.count_drop(DropReason::Malformed, 1);
        }
    }
}

/// The overlay MTU toward the template's VTEP, if the packet is longer.
#[inline]
fn exceeded_mtu(
    tables: &ForwardingTables,
    template: &Template,
    packet: &PacketBuf,
    inner: &InnerPacket,
    now: Instant,
) -> Option<u32> {
    let mtu = template.encapsulation.inner_mtu(tables.local().overlay_mtu, now);
    let headers_len = u32::from(inner.l4_offset) + u32::from(inner.l4_header_len);
    let wire_len = match packet.segment_len {
        0 => inner.total_len,
        segment_len => inner.total_len.min(headers_len + u32::from(segment_len)),
    };
    (wire_len > mtu).then_some(mtu)
}
