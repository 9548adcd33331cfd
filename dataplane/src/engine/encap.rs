//! The encap journey: from a pod or the host, through the overlay device, to a remote VTEP (or back into the
//! device, when a service's backend is here).

use super::decide::Ingress;
use super::respond::Answer;
use super::verdict::DropReason;
use super::{Action, Dscp, Engine, Outbox, Resolved, segments, translate_error};
use crate::flow_cache::{IngressId, TO_OVERLAY};
use crate::packet::{Datagram, PacketBatch, PacketBuf, PacketPool};
use crate::tables::ForwardingTables;
use crate::time::Instant;
use crate::wire::answer::echo;
use crate::wire::inner::InnerPacket;
use crate::wire::{ethernet, vxlan};

impl Engine {
    /// Processes what an overlay device has received; what is to be sent is added to `out`.
    pub fn encap(&mut self, batch: &mut PacketBatch, now: Instant, out: &mut Outbox) {
        let tables = std::sync::Arc::clone(self.reader.load());
        for index in 0..batch.packets.len() {
            let packet = batch.packets[index];
            self.encap_packet(&tables, &mut batch.pool, packet, now, out);
        }
    }

    fn encap_packet(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        now: Instant,
        out: &mut Outbox,
    ) {
        // 1. Every length is checked once; what follows cannot run off the end.
        self.counters.overlay.received_bytes.add(packet.len() as u64);
        let Ok(inner) = InnerPacket::parse(pool.bytes(&packet)) else {
            self.counters.overlay.received.add(1);
            return self.counters.count_drop(DropReason::Malformed, 1);
        };
        packet.truncate(inner.total_len as usize);
        let segments = segments(&packet, &inner);
        self.counters.overlay.received.add(segments);

        // 2. The flow cache, else connections, service, backend and route.
        let action = match self.cached(tables, &inner, IngressId::OVERLAY, now) {
            Some(action) => action,
            None => match self.encap_undecided(tables, pool, &packet, &inner, now, out) {
                Some(action) => action,
                None => return,
            },
        };

        // 3. Too long for the path: the sender is told while the packet is still as it sent it.
        if let Some(mtu) = self.exceeded_mtu(tables, &packet, &inner, &action) {
            let source = tables.local().source_vip(inner.flow.src);
            self.respond(pool, &packet, &inner, Answer::TooBig { source, mtu }, now, out);
            let told = inner.dont_fragment;
            let reason = if told { DropReason::TooBig } else { DropReason::TooBigMayFragment };
            return self.counters.count_drop(reason, segments);
        }

        // 4. Translate in place, and push the headers.
        action.translate(pool, &packet, &inner);
        if action.template() == TO_OVERLAY {
            out.packets.push(packet);
        } else {
            self.encapsulate(pool, packet, &inner, &action, out);
        }
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
        let related = self.related(pool.bytes(packet), inner, now);
        let reason =
            match self.resolve(tables, inner, &related, Ingress::Overlay, Some(IngressId::OVERLAY), now) {
                Resolved::Forward(action) => return Some(action),
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
            };
        self.counters.count_drop(reason, segments(packet, inner));
        None
    }

    /// The overlay MTU toward the action's VTEP, if the packet is longer.
    fn exceeded_mtu(
        &self,
        tables: &ForwardingTables,
        packet: &PacketBuf,
        inner: &InnerPacket,
        action: &Action,
    ) -> Option<u32> {
        let encapsulation = self.templates.encapsulation(action.template())?;
        let mtu = encapsulation.inner_mtu(tables.local().overlay_mtu);
        let headers_len = u32::from(inner.l4_offset) + u32::from(inner.l4_header_len);
        let wire_len = match packet.segment_len {
            0 => inner.total_len,
            segment_len => inner.total_len.min(headers_len + u32::from(segment_len)),
        };
        (wire_len > mtu).then_some(mtu)
    }

    fn encapsulate(
        &self,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        inner: &InnerPacket,
        action: &Action,
        out: &mut Outbox,
    ) {
        let Some(encapsulation) = self.templates.encapsulation(action.template()) else {
            return self.counters.count_drop(DropReason::NoRoute, segments(&packet, inner));
        };
        let ethertype = if inner.flow.src.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        let head = pool.push(&mut packet, vxlan::HEADER_LEN + ethernet::HEADER_LEN);
        vxlan::emit(head, encapsulation.vni);
        ethernet::emit(
            &mut head[vxlan::HEADER_LEN..],
            encapsulation.dst_mac,
            encapsulation.src_mac,
            ethertype,
        );
        out.datagrams.push(Datagram {
            packet,
            remote: encapsulation.remote,
            tos: self.outer_tos(inner.tos),
            source_port: action.source_port(),
        });
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
