//! The decided flows of both address families, and what is done to their packets.

use std::net::IpAddr;
use std::sync::Arc;

use crate::flow_cache::{CachedAction, Dependencies, FlowCache, IngressId};
use crate::lb::conntrack::{Connection, Conntrack, FlowDirection};
use crate::lb::rewrite::{self, Replacement, Rewrite};
use crate::packet::{PacketBuf, PacketPool};
use crate::tables::ForwardingTables;
use crate::wire::flow::{Addresses, FlowKey};
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::L4;
use crate::wire::tcp::{FIN, RST, SYN};

/// One worker's flow caches.
pub(super) struct Flows {
    v4: FlowCache<[u8; 8]>,
    v6: FlowCache<[u8; 32]>,
}

/// An action of either family.
#[derive(Clone, Copy)]
pub(super) enum Action {
    V4(CachedAction<[u8; 8]>),
    V6(CachedAction<[u8; 32]>),
}

/// An action where it stands: in a cache, or just decided.
#[derive(Clone, Copy)]
pub(super) enum ActionRef<'a> {
    V4(&'a CachedAction<[u8; 8]>),
    V6(&'a CachedAction<[u8; 32]>),
}

/// Where an action stands in its family's cache.
#[derive(Clone, Copy)]
pub(super) enum Place {
    V4(usize),
    V6(usize),
}

impl Flows {
    /// Room for `entries` IPv4 flows and a quarter as many IPv6 flows.
    pub(super) fn new(entries: usize, seed: u64) -> Self {
        Self { v4: FlowCache::new(entries, seed), v6: FlowCache::new(entries / 4, seed) }
    }

    /// Begins to fetch what was decided about a flow that is looked up a little later, and says by which hash.
    #[inline(always)]
    pub(super) fn prefetch(&self, flow: &FlowKey) -> u64 {
        match flow.src {
            IpAddr::V4(_) => self.v4.prefetch(flow),
            IpAddr::V6(_) => self.v6.prefetch(flow),
        }
    }

    /// Where that stands which was decided about a packet's flow; `None` for a packet that is always decided anew.
    #[inline(always)]
    pub(super) fn lookup(
        &mut self,
        packet: &InnerPacket,
        hash: u64,
        ingress: IngressId,
        tables: &ForwardingTables,
        connections: &Conntrack,
        tick: u32,
    ) -> Option<Place> {
        if !is_cacheable(packet) {
            return None;
        }
        let flow = &packet.flow;
        match flow.src {
            IpAddr::V4(_) => self.v4.lookup(flow, hash, ingress, tables, connections, tick).map(Place::V4),
            IpAddr::V6(_) => self.v6.lookup(flow, hash, ingress, tables, connections, tick).map(Place::V6),
        }
    }

    /// What stands there.
    #[inline]
    pub(super) fn at(&self, place: Place) -> ActionRef<'_> {
        match place {
            Place::V4(index) => ActionRef::V4(self.v4.action(index)),
            Place::V6(index) => ActionRef::V6(self.v6.action(index)),
        }
    }

    /// Begins to fetch all the places where a flow may stand.
    #[inline]
    pub(super) fn prefetch_all(&self, flow: &FlowKey, hash: u64) {
        match flow.src {
            IpAddr::V4(_) => self.v4.prefetch_all(hash),
            IpAddr::V6(_) => self.v6.prefetch_all(hash),
        }
    }

    /// Where that is to stand which will be decided about a packet's flow, if other packets of it may go by that.
    pub(super) fn make_room(&self, packet: &InnerPacket, hash: u64, ingress: IngressId) -> Option<Place> {
        if packet.fragment != Fragment::Whole || matches!(packet.l4, L4::IcmpError | L4::Icmp) {
            return None;
        }
        // Nothing stands there about a flow that has just been looked up in vain.
        let known = (!is_cacheable(packet)).then_some((&packet.flow, ingress));
        Some(match packet.flow.src {
            IpAddr::V4(_) => Place::V4(self.v4.make_room(hash, known)),
            IpAddr::V6(_) => Place::V6(self.v6.make_room(hash, known)),
        })
    }

    /// Remembers what was decided about a flow.
    pub(super) fn install(
        &mut self,
        place: Place,
        flow: (&FlowKey, IngressId),
        action: Action,
        (dependencies, connection): (&Dependencies, Option<(Arc<Connection>, FlowDirection)>),
        decided_at: (u32, u32),
    ) {
        match (place, action) {
            (Place::V4(place), Action::V4(action)) => {
                self.v4.install(place, flow, action, *dependencies, connection, decided_at);
            }
            (Place::V6(place), Action::V6(action)) => {
                self.v6.install(place, flow, action, *dependencies, connection, decided_at);
            }
            _ => {}
        }
    }

    pub(super) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }
}

/// A TCP packet that opens or ends a connection, every fragment and every ICMP message but echo is decided anew.
#[inline]
fn is_cacheable(packet: &InnerPacket) -> bool {
    packet.fragment == Fragment::Whole
        && match packet.l4 {
            L4::Tcp { flags } => flags & (SYN | FIN | RST) == 0,
            L4::Udp | L4::EchoRequest | L4::EchoReply | L4::Other => true,
            L4::IcmpError | L4::Icmp => false,
        }
}

impl Action {
    /// What is to be done to packets of `flow`.
    pub(super) fn new(flow: &FlowKey, rewrite: Option<&Rewrite>, template: u16, source_port: u16) -> Self {
        match flow.src {
            IpAddr::V4(_) => Self::V4(CachedAction::new(rewrite, template, source_port)),
            IpAddr::V6(_) => Self::V6(CachedAction::new(rewrite, template, source_port)),
        }
    }

    pub(super) fn as_ref(&self) -> ActionRef<'_> {
        match self {
            Self::V4(action) => ActionRef::V4(action),
            Self::V6(action) => ActionRef::V6(action),
        }
    }
}

impl ActionRef<'_> {
    #[inline]
    pub(super) fn template(&self) -> u16 {
        match self {
            Self::V4(action) => action.template,
            Self::V6(action) => action.template,
        }
    }

    #[inline]
    pub(super) fn source_port(&self) -> u16 {
        match self {
            Self::V4(action) => action.source_port,
            Self::V6(action) => action.source_port,
        }
    }

    /// Rewrites the packet if its flow is translated.
    #[inline(always)]
    pub(super) fn translate(&self, pool: &mut PacketPool, packet: &PacketBuf, inner: &InnerPacket) {
        match self {
            Self::V4(action) => {
                if let Some(new) = action.replacement() {
                    translate(new, pool, packet, inner);
                }
            }
            Self::V6(action) => {
                if let Some(new) = action.replacement() {
                    translate(new, pool, packet, inner);
                }
            }
        }
    }
}

fn translate<A: Addresses>(
    new: &Replacement<A>,
    pool: &mut PacketPool,
    packet: &PacketBuf,
    inner: &InnerPacket,
) {
    let place = rewrite::Place {
        protocol: inner.flow.protocol,
        l4_offset: (inner.fragment != Fragment::Later).then_some(usize::from(inner.l4_offset)),
        checksum: packet.checksum,
    };
    rewrite::apply(pool.bytes_mut(packet), place, new);
}
