//! The encap journey: from a pod or the host, through the overlay device, to a remote VTEP (or back into the
//! device, when a service's backend is here).

use super::decide::{Arrived, Ingress};
use super::flows::Action;
use super::held::Side;
use super::respond::Answer;
use super::stage::{AHEAD, STAGED, Stage, Staged};
use super::templates::Template;
use super::verdict::DropReason;
use super::{Engine, Outbox, Resolved, mss, outer_tos, segments, translate_error};
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
        let mut stage = std::mem::take(&mut self.from_overlay);
        for packets in packets.chunks(STAGED) {
            for packet in packets {
                self.counters.overlay.received_bytes.add(packet.len() as u64);
                self.encap_read(pool, packet, &mut stage);
            }
            self.encap_staged(&tables, pool, &mut stage, now, out);
        }
        if self.held.is_any_ready() {
            self.encap_released(&tables, pool, &mut stage, now, out);
        }
        self.connections.schedule_all(self.worker, &mut self.unscheduled);
        self.from_overlay = stage;
    }

    /// 1. Every length is checked once; what follows cannot run off the end.
    #[inline]
    fn encap_read(&self, pool: &PacketPool, packet: &PacketBuf, stage: &mut Stage<()>) {
        let Some(staged) = stage.next() else { return };
        if staged.inner.read(pool.bytes(packet)).is_err() {
            self.counters.overlay.received.add(1);
            return self.counters.count_drop(DropReason::Malformed, 1);
        }
        staged.packet = *packet;
        staged.packet.truncate(staged.inner.total_len as usize);
        staged.hash = self.flows.prefetch(&staged.inner.flow);
        stage.keep();
    }

    /// Fragments that were held, whose first one has come with this batch.
    #[cold]
    fn encap_released(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        stage: &mut Stage<()>,
        now: Instant,
        out: &mut Outbox,
    ) {
        while let Some((Side::Overlay, packet)) = self.next_released(pool) {
            self.encap_read(pool, &packet, stage);
            self.encap_staged(tables, pool, stage, now, out);
        }
    }

    fn encap_staged(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        stage: &mut Stage<()>,
        now: Instant,
        out: &mut Outbox,
    ) {
        let packets = stage.packets();
        for (place, staged) in packets.iter().enumerate() {
            let ahead = packets.get(place + AHEAD);
            self.encap_packet(tables, pool, (staged, ahead), now, out);
        }
        stage.clear();
    }

    #[inline]
    fn encap_packet(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        (staged, ahead): (&Staged<()>, Option<&Staged<()>>),
        now: Instant,
        out: &mut Outbox,
    ) {
        let Staged { packet, inner, .. } = staged;
        let segments = segments(packet, inner);
        self.counters.overlay.received.add(segments);

        // 2. The flow cache, else connections, service, backend and route.
        let decided;
        let action = match self.cached(tables, staged, IngressId::OVERLAY, now) {
            Some(place) => self.flows.at(place),
            None => {
                ahead.into_iter().for_each(|ahead| self.flows.prefetch_all(&ahead.inner.flow, ahead.hash));
                match self.encap_undecided(tables, pool, staged, now, out) {
                    Some(action) => {
                        decided = action;
                        decided.as_ref()
                    }
                    None => return,
                }
            }
        };
        if action.template() == TO_OVERLAY {
            action.translate(pool, packet, inner);
            return out.packets.push(*packet);
        }
        let Some(template) = self.templates.get(action.template()) else {
            return self.counters.count_drop(DropReason::NoRoute, segments);
        };

        // 3. Too long for the path: the sender is told while the packet is still as it sent it.
        if let Some(mtu) = exceeded_mtu(tables, template, packet, inner, now) {
            let source = tables.local().source_vip(inner.flow.src);
            self.respond(pool, packet, inner, Answer::TooBig { source, mtu }, now, out);
            let told = inner.dont_fragment;
            let reason = if told { DropReason::TooBig } else { DropReason::TooBigMayFragment };
            return self.counters.count_drop(reason, segments);
        }

        // 4. Translate in place, and push the headers.
        action.translate(pool, packet, inner);
        out.datagrams.push(Datagram {
            packet: template.encapsulate(pool, *packet, inner),
            remote: template.remote,
            tos: outer_tos(self.settings.dscp, inner.tos),
            source_port: action.source_port(),
        });
    }

    /// The slow path: what the tables say, done here and now unless the packet is to be forwarded.
    #[cold]
    fn encap_undecided(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        staged: &Staged<()>,
        now: Instant,
        out: &mut Outbox,
    ) -> Option<Action> {
        let Staged { packet, inner, hash, .. } = staged;
        let bytes = pool.bytes(packet);
        if self.holds(inner, bytes, Side::Overlay, bytes, now) {
            self.counters.overlay.received.take_back(segments(packet, inner));
            return None;
        }
        let place = Some((*hash, IngressId::OVERLAY));
        let arrived = |related| Arrived { packet: inner, related, ingress: Ingress::Overlay, now };
        let reason = match self.related(pool.bytes(packet), inner, now) {
            Err(reason) => reason,
            Ok(related) => match self.resolve(tables, &arrived(&related), place) {
                Resolved::Forward(action) => {
                    if let Some(template) = self.templates.get(action.as_ref().template()) {
                        let mtu = template.inner_mtu(tables.local().overlay_mtu, now);
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
    let mtu = template.inner_mtu(tables.local().overlay_mtu, now);
    let headers_len = u32::from(inner.l4_offset) + u32::from(inner.l4_header_len);
    let wire_len = match packet.segment_len {
        0 => inner.total_len,
        segment_len => inner.total_len.min(headers_len + u32::from(segment_len)),
    };
    (wire_len > mtu).then_some(mtu)
}
