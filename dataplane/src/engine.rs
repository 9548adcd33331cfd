//! The packet engine: sans-IO, batch in, batch out, the clock an argument.
//!
//! `encap` and `decap` hold the two journeys, each one function from top to bottom. Both ask the flow cache
//! first and the slow path (`decide`, then `commit`) on a miss. Each goes over a batch twice: `stage` says why.
//! [`bridge`] has the same two journeys for the frames of L2 segments.

pub mod bridge;
pub mod commit;
pub mod decap;
pub mod decide;
mod encap;
mod flows;
mod held;
mod mss;
pub mod observe;
pub mod path_mtu;
mod rate_limit;
mod respond;
mod stage;
mod templates;
pub mod verdict;

use std::sync::Arc;

use crate::counters::Counters;
use crate::flow_cache::{Dependencies, IngressId, TO_OVERLAY, generation};
use crate::lb::conntrack::{Connection, Conntrack, FlowDirection, Unscheduled};
use crate::lb::fragment::{FragmentKey, FragmentTable, NotFollowed, Piece};
use crate::lb::icmp_error::ErrorTranslation;
use crate::lb::rewrite::Rewrite;
use crate::offload::segment;
use crate::packet::{Datagram, PacketBuf, PacketPool};
use crate::tables::{ForwardingTables, Reader};
use crate::time::Instant;
use crate::wire::flow::FlowKey;
use crate::wire::inner::{Fragment, InnerPacket, fragment_header};
use crate::wire::protocol::L4;
use crate::wire::quoted::quoted;

use commit::NotCommitted;
use decide::{Arrived, Decision, Related, ReplyFlow};
use flows::{Action, Flows, Place};
use held::{HeldFragments, Side};
use observe::Silent;
use stage::{Stage, Staged};
use templates::Templates;
use verdict::{DropReason, Egress, Verdict};

/// How the outer DSCP is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dscp {
    /// The inner packet's (uniform model of RFC 2983).
    #[default]
    Copy,
    /// Always this one, 0 to 63 (pipe model).
    Fixed(u8),
}

/// What a deployment may choose about the engine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Drop packets whose reserved VXLAN bits are set, instead of counting them.
    pub strict_reserved_bits: bool,
    /// Deliver what inner frames with an 802.1Q tag carry, without the tag, instead of dropping them.
    pub accept_inner_vlan: bool,
    /// Accept VXLAN from underlay addresses that are no known VTEP.
    pub allow_unknown_vteps: bool,
    /// Outer DSCP.
    pub dscp: Dscp,
    /// Flows per worker and address family that the cache holds.
    pub flow_cache_entries: usize,
    /// Keys every hash that an adversary could aim at.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            strict_reserved_bits: false,
            accept_inner_vlan: false,
            allow_unknown_vteps: false,
            dscp: Dscp::Copy,
            flow_cache_entries: 16_384,
            seed: 0,
        }
    }
}

/// What the engine wants sent. All of it lies in the pool of the batch it was made from.
#[derive(Debug, Default)]
pub struct Outbox {
    /// For the overlay device.
    pub packets: Vec<PacketBuf>,
    /// For the underlay.
    pub datagrams: Vec<Datagram>,
}

impl Outbox {
    /// Forgets everything; the room stays.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.datagrams.clear();
    }
}

/// One worker's engine.
pub struct Engine {
    reader: Reader,
    connections: Arc<Conntrack>,
    unscheduled: Unscheduled,
    counters: Arc<Counters>,
    settings: Settings,
    worker: usize,
    flows: Flows,
    templates: Templates,
    fragments: FragmentTable,
    held: HeldFragments,
    limit: rate_limit::RateLimit,
    from_overlay: Stage<()>,
    from_underlay: Stage<decap::Came>,
}

/// What is left to do with a packet once it is decided.
enum Resolved {
    Forward(Action),
    ForwardError(ErrorTranslation, Action),
    EchoReply,
    Reject(DropReason),
    Drop(DropReason),
}

/// Expired entries looked at per call of [`Engine::expire`]: some 20 us of work.
const EXPIRY_BUDGET: usize = 256;

/// Workers that race for one flow decide again; more rounds than there are workers mean a fault.
const COMMIT_ROUNDS: usize = 64;

impl Engine {
    /// An engine for worker number `worker`.
    pub fn new(
        reader: Reader,
        connections: Arc<Conntrack>,
        counters: Arc<Counters>,
        settings: Settings,
        worker: usize,
    ) -> Self {
        Self {
            flows: Flows::new(settings.flow_cache_entries, settings.seed),
            reader,
            connections,
            unscheduled: Unscheduled::default(),
            counters,
            settings,
            worker,
            templates: Templates::default(),
            fragments: FragmentTable::default(),
            held: HeldFragments::default(),
            limit: rate_limit::RateLimit::default(),
            from_overlay: Stage::new(),
            from_underlay: Stage::new(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Forgets connections that have timed out, within a budget, and fragments that wait in vain; to be called once per
    /// wake-up.
    pub fn expire(&mut self, now: Instant) {
        while let Some(side) = self.held.expire_next(now) {
            self.give_up(side);
        }
        self.connections.expire(self.worker, now, EXPIRY_BUDGET);
    }

    /// When [`expire`](Self::expire) wants to be called next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expiries = [self.connections.next_expiry(self.worker), self.held.next_expiry()];
        expiries.into_iter().flatten().min()
    }

    /// The flow cache's answer.
    #[inline(always)]
    fn cached<T>(
        &mut self,
        tables: &ForwardingTables,
        staged: &Staged<T>,
        id: IngressId,
        now: Instant,
    ) -> Option<Place> {
        let Staged { inner, hash, .. } = staged;
        let place = self.flows.lookup(inner, *hash, id, tables, &self.connections, now.tick());
        self.counters.cache_hits.add(u64::from(place.is_some()));
        place
    }

    /// What else than its own flow tells where a packet belongs.
    fn related(&mut self, bytes: &[u8], inner: &InnerPacket, now: Instant) -> Result<Related, DropReason> {
        if inner.l4 == L4::IcmpError {
            return Ok(quoted(bytes).map_or(Related::Nothing, Related::Quotes));
        }
        let Some((key, piece)) = fragment(bytes, inner) else { return Ok(Related::Nothing) };
        if inner.fragment == Fragment::First {
            return Ok(Related::Begins(key, piece));
        }
        match self.fragments.follow(&key, piece, now) {
            Ok(Some((connection, direction))) => Ok(Related::PartOf(connection, direction)),
            Ok(None) => Ok(Related::Nothing),
            Err(NotFollowed::Unknown) => Err(DropReason::FragmentAlone),
            Err(NotFollowed::Overlap) => Err(DropReason::FragmentOverlap),
        }
    }

    /// Holds a later fragment that has overtaken its first one; `bytes` is what is wanted back when that comes. A held
    /// fragment counts as received when it is let go or given up.
    fn holds(&mut self, inner: &InnerPacket, packet: &[u8], side: Side, bytes: &[u8], now: Instant) -> bool {
        match fragment(packet, inner) {
            Some((key, piece)) if piece.start > 0 && !self.fragments.knows(&key, now) => {
                if let Some(side) = self.held.hold(key, side, bytes, now) {
                    self.give_up(side);
                }
                true
            }
            _ => false,
        }
    }

    fn give_up(&self, side: Side) {
        match side {
            Side::Overlay => self.counters.overlay.received.add(1),
            Side::Underlay(_) => self.counters.underlay.received.add(1),
        }
        self.counters.count_drop(DropReason::FragmentAlone, 1);
    }

    /// The next fragment that was held and waits no longer, in room of its own.
    fn next_released(&mut self, pool: &mut PacketPool) -> Option<(Side, PacketBuf)> {
        loop {
            let (side, bytes) = self.held.next_ready()?;
            let room = pool.generate(bytes.len());
            if let Some(packet) = &room {
                pool.bytes_mut(packet).copy_from_slice(&bytes);
            }
            self.held.give_back(bytes);
            match room {
                Some(packet) => return Some((side, packet)),
                None => self.give_up(side),
            }
        }
    }

    /// The tables' answer, remembered in the flow cache under the hash of the flow and the way in.
    #[cold]
    fn resolve(
        &mut self,
        tables: &ForwardingTables,
        arrived: &Arrived<'_>,
        key: Option<(u64, IngressId)>,
    ) -> Resolved {
        let Arrived { packet, related, now, .. } = *arrived;
        self.counters.cache_misses.add(1);
        let room = key.and_then(|(hash, id)| Some((self.flows.make_room(packet, hash, id)?, id)));
        let decision = self.decide_and_commit(tables, arrived);
        if let (Related::Begins(key, piece), Verdict::Forward { .. }) = (related, &decision.verdict) {
            let owner = decision.connection();
            let owner = owner.map(|(connection, direction)| (Arc::clone(connection), direction));
            self.fragments.begin(*key, owner, *piece, now);
            self.held.release(key);
        }
        match &decision.verdict {
            Verdict::Forward { rewrite, egress } => {
                let Some(action) = self.action(packet, rewrite.as_ref(), egress) else {
                    return Resolved::Drop(DropReason::NoBuffer);
                };
                if let Some((place, id)) = room.filter(|_| decision.dependencies.is_complete()) {
                    let basis = (&decision.dependencies, decision.tracked.into_connection());
                    self.remember(tables, (place, &packet.flow, id), action, basis, now);
                }
                Resolved::Forward(action)
            }
            Verdict::ForwardError { translation, egress } => match self.action(packet, None, egress) {
                Some(action) => Resolved::ForwardError(*translation, action),
                None => Resolved::Drop(DropReason::NoBuffer),
            },
            Verdict::EchoReply => Resolved::EchoReply,
            Verdict::Reject(reason) => Resolved::Reject(*reason),
            Verdict::Drop(reason) => Resolved::Drop(*reason),
        }
    }

    /// Caches what was decided, unless a flow decided as untranslated has become a connection's meanwhile.
    fn remember(
        &mut self,
        tables: &ForwardingTables,
        (place, flow, id): (Place, &FlowKey, IngressId),
        action: Action,
        (dependencies, connection): (&Dependencies, Option<(Arc<Connection>, FlowDirection)>),
        now: Instant,
    ) {
        let decided_at = (generation(tables, &self.connections), now.tick());
        if connection.is_some() || self.connections.stays_direct(flow, now.tick()) {
            self.flows.install(place, (flow, id), action, (dependencies, connection), decided_at);
        }
    }

    fn decide_and_commit<'t>(&mut self, tables: &'t ForwardingTables, arrived: &Arrived<'_>) -> Decision<'t> {
        let Arrived { packet, now, .. } = *arrived;
        let mut reply_flow = ReplyFlow::PresumedFree;
        for _ in 0..COMMIT_ROUNDS {
            let decision = decide::decide(tables, &self.connections, arrived, reply_flow, &mut Silent);
            let (connections, unscheduled) = (&self.connections, &mut self.unscheduled);
            match commit::commit(connections, &decision, packet, now, self.worker, unscheduled) {
                Ok(()) => return decision,
                Err(NotCommitted::DecideAgain) => reply_flow = ReplyFlow::LookedUp,
                Err(NotCommitted::Drop(reason)) => return Decision::drop(reason),
            }
        }
        Decision::drop(DropReason::NoSourcePort)
    }

    /// `None` when there are more templates than an entry can name.
    fn action(
        &mut self,
        packet: &InnerPacket,
        rewrite: Option<&Rewrite>,
        egress: &Egress<'_>,
    ) -> Option<Action> {
        let (template, source_port) = match egress {
            Egress::Overlay => (TO_OVERLAY, 0),
            Egress::Remote(encapsulation) => {
                let flow = rewrite.map_or(&packet.flow, |rewrite| &rewrite.to);
                (self.template(encapsulation)?, source_port(flow, packet.fragment))
            }
        };
        Some(Action::new(&packet.flow, rewrite, template, source_port))
    }

    /// Templates of VTEPs that are gone are forgotten, with all flows, when the numbers run out.
    fn template(&mut self, encapsulation: &verdict::Encapsulation<'_>) -> Option<u16> {
        self.templates.intern(encapsulation).or_else(|| {
            self.forget_flows();
            self.templates.intern(encapsulation)
        })
    }

    fn forget_flows(&mut self) {
        self.templates.clear();
        self.flows.clear();
    }
}

/// Which packet a fragment belongs to, and which part of it it is; `None` for a whole packet.
fn fragment(bytes: &[u8], inner: &InnerPacket) -> Option<(FragmentKey, Piece)> {
    if inner.fragment == Fragment::Whole {
        return None;
    }
    let header = fragment_header(bytes)?;
    let start = header.offset as u32;
    let end = start + inner.total_len - u32::from(inner.l4_offset);
    let piece = Piece { start, end, is_last: !header.more };
    Some((FragmentKey::new(&inner.flow, header.ident), piece))
}

fn translate_error(
    pool: &mut PacketPool,
    packet: &PacketBuf,
    inner: &InnerPacket,
    related: &Related,
    translation: &ErrorTranslation,
) {
    if let Related::Quotes(quoted) = related {
        translation.apply(pool.bytes_mut(packet), usize::from(inner.l4_offset), quoted);
    }
}

/// The outer source port's number in the pool: the same for both directions, and for all fragments of a packet.
pub fn source_port(flow: &FlowKey, fragment: Fragment) -> u16 {
    let hash = match fragment {
        Fragment::Whole => flow.symmetric_hash(),
        Fragment::First | Fragment::Later => FlowKey { src_port: 0, dst_port: 0, ..*flow }.symmetric_hash(),
    };
    (hash ^ (hash >> 16)) as u16
}

/// The outer TOS byte: ECN is copied (RFC 6040 section 4.1, normal mode); DSCP by setting (RFC 2983).
#[inline]
fn outer_tos(dscp: Dscp, inner: u8) -> u8 {
    match dscp {
        Dscp::Copy => inner,
        Dscp::Fixed(dscp) => dscp << 2 | inner & 0b11,
    }
}

/// Wire-size segments that `packet` stands for.
#[inline]
fn segments(packet: &PacketBuf, inner: &InnerPacket) -> u64 {
    if packet.segment_len == 0 {
        return 1;
    }
    let headers_len = usize::from(inner.l4_offset) + usize::from(inner.l4_header_len);
    segment::count(inner.total_len as usize, headers_len, packet.segment_len) as u64
}
