//! The decap journey: from a remote VTEP to a pod of this node, or to the host.

use std::net::{IpAddr, Ipv4Addr};

use super::decide::{self, Arrived, Ingress};
use super::flows::Action;
use super::held::Side;
use super::observe::{Observer, Silent, Step};
use super::stage::{Stage, Staged};
use super::templates::WayIn;
use super::verdict::DropReason;
use super::{Engine, Outbox, Resolved, Settings, mss, segments, translate_error};
use crate::flow_cache::TO_OVERLAY;
use crate::packet::{Checksum, DatagramBatch, PacketBuf, PacketPool};
use crate::tables::ForwardingTables;
use crate::time::Instant;
use crate::wire::checksum;
use crate::wire::ethernet::{self, Ethernet, Mac};
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::ip::set_ecn;
use crate::wire::protocol::Protocol;
use crate::wire::vxlan::{self, Vni, Vxlan};

/// The bytes before the inner IP header.
const FRAME_OFFSET: usize = vxlan::HEADER_LEN + ethernet::HEADER_LEN;

impl Engine {
    /// Processes what the underlay socket has received; what is to be sent is added to `out`.
    pub fn decap(&mut self, batch: &mut DatagramBatch, now: Instant, out: &mut Outbox) {
        let tables = std::sync::Arc::clone(self.reader.load());
        let DatagramBatch { pool, datagrams } = batch;
        let mut stage = std::mem::take(&mut self.from_underlay);
        for datagram in datagrams {
            self.counters.underlay.received_bytes.add(datagram.packet.len() as u64);
            let outer = OuterHeader { source: datagram.remote.ip(), tos: datagram.tos };
            if datagram.packet.segment_len == 0 {
                // Not copied first: where it begins would be read back while it is still being written.
                self.decap_read(pool, &datagram.packet, &outer, &mut stage);
            } else {
                for packet in gro_parts(pool, &datagram.packet) {
                    self.decap_read(pool, &packet, &outer, &mut stage);
                    if stage.is_full() {
                        self.decap_staged(&tables, pool, &mut stage, now, out);
                    }
                }
            }
            if stage.is_full() {
                self.decap_staged(&tables, pool, &mut stage, now, out);
            }
        }
        self.decap_staged(&tables, pool, &mut stage, now, out);
        if self.held.is_any_ready() {
            self.decap_released(&tables, pool, &mut stage, now, out);
        }
        self.from_underlay = stage;
    }

    /// 1. VXLAN and Ethernet headers, and the lengths of what they carry. Not part of the loop around it, which would leave
    ///    it too few registers.
    #[inline(never)]
    fn decap_read(
        &self,
        pool: &PacketPool,
        packet: &PacketBuf,
        outer: &OuterHeader,
        stage: &mut Stage<Came>,
    ) {
        let Some(staged) = stage.next() else { return };
        let frame = match Frame::parse(pool.bytes(packet)) {
            Ok(frame) => frame,
            Err(reason) => return self.drop_received(reason),
        };
        staged.packet = *packet;
        staged.packet.pop(frame.ip_offset);
        if let Err(reason) = frame.read_inner(pool.bytes(&staged.packet), &mut staged.inner) {
            return self.drop_received(reason);
        }
        staged.packet.truncate(staged.inner.total_len as usize);
        staged.hash = self.flows.prefetch(&staged.inner.flow);
        staged.came = Came { frame, outer: *outer };
        stage.keep();
    }

    fn decap_staged(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        stage: &mut Stage<Came>,
        now: Instant,
        out: &mut Outbox,
    ) {
        stage.packets().iter_mut().for_each(|staged| self.decap_packet(tables, pool, staged, now, out));
        stage.clear();
    }

    /// Fragments that were held, whose first one has come with this batch.
    #[cold]
    fn decap_released(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        stage: &mut Stage<Came>,
        now: Instant,
        out: &mut Outbox,
    ) {
        while let Some((Side::Underlay(outer), packet)) = self.next_released(pool) {
            self.decap_read(pool, &packet, &outer, stage);
            self.decap_staged(tables, pool, stage, now, out);
        }
    }

    #[inline]
    fn decap_packet(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        staged: &mut Staged<Came>,
        now: Instant,
        out: &mut Outbox,
    ) {
        mend_superpacket(pool, &mut staged.packet, &staged.inner, tables.local().overlay_mtu);
        let Staged { packet, inner, came: Came { frame, outer }, .. } = &*staged;
        let segments = segments(packet, inner);
        self.counters.underlay.received.add(segments);
        if frame.is_odd() {
            if let Some(reason) = frame.refusal(&self.settings) {
                return self.counters.count_drop(reason, segments);
            }
            self.counters.reserved_bits.add(if frame.reserved_bits { segments } else { 0 });
        }

        // 2. Is it for us, and from whom it claims to be? A way in that passed before is known by number; the
        //    rest of the check, the inner source, is what a cached flow has passed. Else every check, connections
        //    (a reply gets its VIP back) and the route.
        let known = self.templates.ingress(frame.way_in(outer));
        let decided;
        let action = match known.and_then(|id| self.cached(tables, staged, id, now)) {
            Some(place) => self.flows.at(place),
            None => match self.decap_undecided(tables, pool, staged, now) {
                Ok(Some(action)) => {
                    decided = action;
                    decided.as_ref()
                }
                Ok(None) => return,
                Err(reason) => return self.counters.count_drop(reason, segments),
            },
        };
        if action.template() != TO_OVERLAY {
            return self.counters.count_drop(DropReason::DestinationNotLocal, segments);
        }

        // 3. ECN (RFC 6040 section 4.2), then translate in place.
        match decap_ecn(outer.tos, inner.tos) {
            Some(ecn) if ecn == inner.tos & 0b11 => {}
            Some(ecn) => set_ecn(pool.bytes_mut(packet), ecn),
            None => return self.counters.count_drop(DropReason::EcnIllegal, segments),
        }
        action.translate(pool, packet, inner);
        out.packets.push(*packet);
    }

    /// The slow path: every check of where the packet comes from, and what the tables say; `None` for a packet that is
    /// held.
    #[cold]
    fn decap_undecided(
        &mut self,
        tables: &ForwardingTables,
        pool: &mut PacketPool,
        staged: &Staged<Came>,
        now: Instant,
    ) -> Result<Option<Action>, DropReason> {
        let Staged { packet, inner, hash, came: Came { frame, outer } } = staged;
        admit(tables, &self.settings, frame, outer, inner, &mut Silent)?;
        // A VTEP that is merely tolerated has no entry whose change would make its flows stale.
        let is_known = !tables.fdb().sources(frame.vni, outer.source).is_empty();
        let place = is_known.then(|| (*hash, self.templates.intern_ingress(frame.way_in(outer))));
        let ingress = Ingress::Underlay { vni: frame.vni, source: outer.source };
        let mut payload = *packet;
        pool.push(&mut payload, frame.ip_offset);
        let side = Side::Underlay(*outer);
        if self.holds(inner, pool.bytes(packet), side, pool.bytes(&payload), now) {
            self.counters.underlay.received.take_back(segments(packet, inner));
            self.counters.reserved_bits.take_back(u64::from(frame.reserved_bits));
            return Ok(None);
        }
        let related = self.related(pool.bytes(packet), inner, now)?;
        let arrived = Arrived { packet: inner, related: &related, ingress, now };
        match self.resolve(tables, &arrived, place) {
            Resolved::Forward(action) => {
                mss::clamp(pool, packet, inner, mtu_back(tables, frame.vni, outer.source, now));
                Ok(Some(action))
            }
            Resolved::ForwardError(translation, action) => {
                if action.as_ref().template() == TO_OVERLAY {
                    translate_error(pool, packet, inner, &related, &translation);
                }
                Ok(Some(action))
            }
            Resolved::Drop(reason) => Err(reason),
            Resolved::EchoReply | Resolved::Reject(_) => Err(DropReason::DestinationNotLocal),
        }
    }

    #[cold]
    fn drop_received(&self, reason: DropReason) {
        self.counters.underlay.received.add(1);
        self.counters.count_drop(reason, 1);
    }
}

/// What is known of the outer headers of a received datagram.
#[derive(Clone, Copy, Debug)]
pub struct OuterHeader {
    /// The sender's underlay address.
    pub source: IpAddr,
    /// TOS byte or traffic class.
    pub tos: u8,
}

/// Nobody's.
impl Default for OuterHeader {
    fn default() -> Self {
        Self { source: Ipv4Addr::UNSPECIFIED.into(), tos: 0 }
    }
}

/// How a packet came: all headers before its own.
#[derive(Clone, Copy, Default)]
pub(super) struct Came {
    frame: Frame,
    outer: OuterHeader,
}

/// A VXLAN header and the inner Ethernet header behind it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    /// Network.
    pub vni: Vni,
    /// Whether any of the 39 reserved bits is set.
    pub reserved_bits: bool,
    /// Inner Ethernet destination.
    pub dst_mac: Mac,
    is_v4: bool,
    /// Where the inner IP header begins, behind an 802.1Q tag if there is one.
    pub ip_offset: usize,
}

impl Frame {
    /// Parses a UDP payload.
    ///
    /// # Errors
    /// Truncated, without a VNI, or with something other than IP inside.
    pub fn parse(payload: &[u8]) -> Result<Self, DropReason> {
        let vxlan = Vxlan::new_checked(payload).map_err(|_| DropReason::VxlanTruncated)?;
        let frame = Ethernet::new_checked(vxlan.payload()).map_err(|_| DropReason::VxlanTruncated)?;
        if !vxlan.has_vni() {
            return Err(DropReason::VxlanNoVni);
        }
        let (ethertype, ip_offset) = match frame.ethertype() {
            ethernet::VLAN => match frame.payload() {
                [_, _, high, low, ..] => {
                    (u16::from_be_bytes([*high, *low]), FRAME_OFFSET + ethernet::VLAN_TAG_LEN)
                }
                _ => return Err(DropReason::VxlanTruncated),
            },
            ethertype => (ethertype, FRAME_OFFSET),
        };
        let is_v4 = match ethertype {
            ethernet::IPV4 => true,
            ethernet::IPV6 => false,
            _ => return Err(DropReason::InnerEthertype),
        };
        let (vni, reserved_bits) = (vxlan.vni(), vxlan.reserved_bits());
        Ok(Self { vni, reserved_bits, dst_mac: frame.dst(), is_v4, ip_offset })
    }

    /// Whether it has anything that a sender should not put into it, and a deployment may refuse.
    #[inline]
    fn is_odd(&self) -> bool {
        self.reserved_bits || self.ip_offset != FRAME_OFFSET
    }

    /// Why a deployment wants no such frames: reserved bits, if the setting is strict (RFC 7348 section 5 says to ignore
    /// them), and an inner VLAN tag (section 6.1), unless tags are to be passed over.
    pub fn refusal(&self, settings: &Settings) -> Option<DropReason> {
        if self.reserved_bits && settings.strict_reserved_bits {
            Some(DropReason::VxlanReservedBits)
        } else if self.ip_offset != FRAME_OFFSET && !settings.accept_inner_vlan {
            Some(DropReason::InnerVlan)
        } else {
            None
        }
    }

    fn way_in(&self, outer: &OuterHeader) -> WayIn {
        WayIn { vni: self.vni, source: outer.source, dst_mac: self.dst_mac }
    }

    /// Parses the inner packet.
    ///
    /// # Errors
    /// Malformed, or of another version than the EtherType says.
    pub fn inner(&self, bytes: &[u8]) -> Result<InnerPacket, DropReason> {
        let mut inner = InnerPacket::default();
        self.read_inner(bytes, &mut inner).map(|()| inner)
    }

    #[inline]
    fn read_inner(&self, bytes: &[u8], inner: &mut InnerPacket) -> Result<(), DropReason> {
        let read = inner.read(bytes).is_ok() && inner.flow.src.is_ipv4() == self.is_v4;
        read.then_some(()).ok_or(DropReason::Malformed)
    }
}

/// The longest inner packet that fits on the way back to a sender.
fn mtu_back(tables: &ForwardingTables, vni: Vni, source: IpAddr, now: Instant) -> u32 {
    let overlay_mtu = tables.local().overlay_mtu;
    let vteps = tables.fdb().sources(vni, source).iter();
    vteps.map(|vtep| vtep.inner_mtu(overlay_mtu, now)).min().unwrap_or(overlay_mtu)
}

/// Every check of a packet from the underlay that looks at addresses: network, sender, inner MAC, inner source
/// and destination.
///
/// # Errors
/// The reason to drop it.
pub fn admit<O: Observer>(
    tables: &ForwardingTables,
    settings: &Settings,
    frame: &Frame,
    outer: &OuterHeader,
    inner: &InnerPacket,
    observer: &mut O,
) -> Result<(), DropReason> {
    let Some(own) = tables.local().vteps.get(&frame.vni) else {
        return Err(DropReason::UnknownVni);
    };
    let senders = tables.fdb().sources(frame.vni, outer.source);
    let tolerated = senders.is_empty() && settings.allow_unknown_vteps;
    if senders.is_empty() && !tolerated {
        return Err(DropReason::UnknownVtep);
    }
    if !own.owns(frame.dst_mac) {
        return Err(DropReason::InnerMacNotOurs);
    }
    if let Some(reason) = decide::inner_addresses(tables, &inner.flow) {
        return Err(reason);
    }
    if !tolerated && !senders.iter().any(|vtep| vtep.may_send_from(inner.flow.src)) {
        return Err(DropReason::SourceSpoofed);
    }
    observer.observe(Step::Admitted(frame.vni, senders));
    Ok(())
}

/// The inner ECN field of a decapsulated packet, `None` when it must be dropped: RFC 6040 figure 4.
pub fn decap_ecn(outer_tos: u8, inner_tos: u8) -> Option<u8> {
    const NOT_ECT: u8 = 0b00;
    const ECT_1: u8 = 0b01;
    const CE: u8 = 0b11;
    match (outer_tos & 0b11, inner_tos & 0b11) {
        (CE, NOT_ECT) => None,
        (_, NOT_ECT) => Some(NOT_ECT),
        (CE, _) | (_, CE) => Some(CE),
        (ECT_1, _) => Some(ECT_1),
        (_, inner) => Some(inner),
    }
}

/// The VXLAN packets in one received buffer. With UDP_GRO the kernel joins datagrams of one size and says the
/// size; but for an inner UDP superpacket of a local kernel peer the size it says is the inner one (C11).
#[inline]
pub(crate) fn gro_parts(pool: &PacketPool, packet: &PacketBuf) -> impl Iterator<Item = PacketBuf> + use<> {
    let (packet, len) = (*packet, packet.len());
    let stride = match usize::from(packet.segment_len) {
        0 => len.max(1),
        stride if first_datagram_len(pool.bytes(&packet)).is_some_and(|first| first > stride) => len.max(1),
        stride => stride,
    };
    std::iter::successors(Some(0), move |at| Some(at + stride).filter(|next| *next < len))
        .map(move |at| if stride >= len { packet } else { packet.slice(at, stride.min(len - at)) })
}

fn first_datagram_len(payload: &[u8]) -> Option<usize> {
    let frame = Frame::parse(payload).ok()?;
    let inner = InnerPacket::parse(&payload[frame.ip_offset..]).ok()?;
    Some(frame.ip_offset + inner.total_len as usize)
}

/// A kernel peer on the same host hands over what it would give to a network card: a partial checksum, and
/// several segments as one packet (C11). Both are passed on to the device as such.
#[inline]
pub fn mend_superpacket(pool: &PacketPool, packet: &mut PacketBuf, inner: &InnerPacket, mtu: u32) {
    let told = packet.segment_len;
    if told > 0 {
        packet.segment_len = 0;
    }
    let checksum_offset = match inner.flow.protocol {
        Protocol::TCP => 16_u16,
        Protocol::UDP => 6,
        _ => return,
    };
    if inner.fragment != Fragment::Whole {
        return;
    }
    let bytes = pool.bytes(packet);
    let at = usize::from(inner.l4_offset + checksum_offset);
    let Some(field) = bytes.get(at..at + 2) else { return };
    let l4_len = inner.total_len - u32::from(inner.l4_offset);
    let pseudo = checksum::pseudo_header(inner.flow.src, inner.flow.dst, inner.flow.protocol, l4_len);
    if field != checksum::fold(pseudo).to_be_bytes() {
        return;
    }
    packet.checksum = Checksum::Partial { start: inner.l4_offset, offset: checksum_offset };
    let headers_len = inner.l4_offset + inner.l4_header_len;
    let from_mtu = (mtu.min(u32::from(u16::MAX)) as u16).saturating_sub(headers_len);
    // Small datagrams that were told to be several are several, even where one packet could hold them all.
    let segment_len = match told {
        0 if inner.total_len > mtu => from_mtu,
        told => told,
    };
    if segment_len > 0 && inner.total_len > u32::from(headers_len) + u32::from(segment_len) {
        packet.segment_len = segment_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b2_ecn_follows_rfc_6040_figure_4() {
        // Rows: inner Not-ECT, ECT(0), ECT(1), CE. Columns: outer Not-ECT, ECT(0), ECT(1), CE.
        let table: [(u8, [Option<u8>; 4]); 4] = [
            (0b00, [Some(0b00), Some(0b00), Some(0b00), None]),
            (0b10, [Some(0b10), Some(0b10), Some(0b01), Some(0b11)]),
            (0b01, [Some(0b01), Some(0b01), Some(0b01), Some(0b11)]),
            (0b11, [Some(0b11), Some(0b11), Some(0b11), Some(0b11)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in [0b00, 0b10, 0b01, 0b11].into_iter().zip(row) {
                assert_eq!(decap_ecn(outer, inner), expected, "outer {outer:02b}, inner {inner:02b}");
            }
        }
    }
}
