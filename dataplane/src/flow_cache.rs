//! The per-worker cache of decided flows: one lookup answers everything.
//!
//! Exact match, two ways, a fixed number of entries. What a packet needs fills one cache line (IPv4) or two
//! (IPv6); what only a revalidation needs lies apart. An entry that was decided or revalidated under the
//! current snapshot costs one comparison. Under a newer snapshot its dependencies are looked at once: a change
//! makes stale only the flows that depend on it.

use std::net::IpAddr;
use std::sync::Arc;

use crate::lb::conntrack::{Connection, Conntrack, FlowDirection};
use crate::lb::rewrite::{Deltas, Replacement, Rewrite};
use crate::tables::{Dependency, ForwardingTables};
use crate::wire::flow::{FlowKey, Protocol};

/// An address as a cache line holds it: 4 or 16 bytes.
pub trait Octets: Copy + Eq + Default + AsRef<[u8]> {
    /// The octets of an address of this family; zeros for the other family.
    fn of(addr: IpAddr) -> Self;

    /// Both ends of a flow as words, for hashing.
    fn words(src: Self, dst: Self) -> [u64; 2];
}

impl Octets for [u8; 4] {
    fn of(addr: IpAddr) -> Self {
        if let IpAddr::V4(addr) = addr { addr.octets() } else { [0; 4] }
    }

    #[inline]
    fn words(src: Self, dst: Self) -> [u64; 2] {
        [u64::from(u32::from_ne_bytes(src)), u64::from(u32::from_ne_bytes(dst))]
    }
}

impl Octets for [u8; 16] {
    fn of(addr: IpAddr) -> Self {
        if let IpAddr::V6(addr) = addr { addr.octets() } else { [0; 16] }
    }

    #[inline]
    fn words(src: Self, dst: Self) -> [u64; 2] {
        let fold = |octets: Self, key: u64| {
            let bits = u128::from_ne_bytes(octets);
            folded_multiply(bits as u64 ^ key, (bits >> 64) as u64 ^ WORD_KEY)
        };
        [fold(src, 0), fold(dst, !WORD_KEY)]
    }
}

/// Where a packet came in: 0 is the overlay device, anything else an interned (VNI, outer source, inner
/// destination MAC) that has passed every admission check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressId(pub u32);

impl IngressId {
    /// The overlay device.
    pub const OVERLAY: Self = Self(0);
    const EMPTY: Self = Self(u32::MAX);
}

/// What is cached for a flow: its translation, if it has one, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct CachedAction<A> {
    src: A,
    dst: A,
    src_port: u16,
    dst_port: u16,
    /// The translation's checksum deltas.
    pub deltas: Deltas,
    /// Index of the encapsulation template; [`TO_OVERLAY`] for the overlay device.
    pub template: u16,
    /// Which socket of the source-port pool.
    pub source_port: u16,
    rewrites: bool,
}

/// The template index that means "into the overlay device, without encapsulation".
pub const TO_OVERLAY: u16 = u16::MAX;

impl<A: Octets> CachedAction<A> {
    /// The action in the form that a cache line holds.
    pub fn new(rewrite: Option<&Rewrite>, template: u16, source_port: u16) -> Self {
        let mut action = Self {
            src: A::default(),
            dst: A::default(),
            src_port: 0,
            dst_port: 0,
            deltas: Deltas::default(),
            template,
            source_port,
            rewrites: false,
        };
        if let Some(rewrite) = rewrite {
            action.src = A::of(rewrite.to.src);
            action.dst = A::of(rewrite.to.dst);
            action.src_port = rewrite.to.src_port;
            action.dst_port = rewrite.to.dst_port;
            action.deltas = rewrite.deltas;
            action.rewrites = true;
        }
        action
    }

    /// The new addresses and ports, if the flow is translated.
    pub fn replacement(&self) -> Option<Replacement<'_>> {
        self.rewrites.then(|| Replacement {
            src: self.src.as_ref(),
            dst: self.dst.as_ref(),
            src_port: self.src_port,
            dst_port: self.dst_port,
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key<A> {
    src: A,
    dst: A,
    src_port: u16,
    dst_port: u16,
    ingress: IngressId,
    protocol: Protocol,
}

impl<A: Octets> Key<A> {
    fn new(flow: &FlowKey, ingress: IngressId) -> Self {
        Self {
            src: A::of(flow.src),
            dst: A::of(flow.dst),
            src_port: flow.src_port,
            dst_port: flow.dst_port,
            ingress,
            protocol: flow.protocol,
        }
    }

    /// Keyed, so that nobody can aim at a slot; two multiplications, because every packet pays for it.
    #[inline]
    fn hash(&self, seed: u64) -> u64 {
        let [src, dst] = A::words(self.src, self.dst);
        let ports = u64::from(self.src_port) << 48
            | u64::from(self.dst_port) << 32
            | u64::from(self.protocol.0) << 24
            | u64::from(self.ingress.0 & 0xff_ffff);
        let addresses = folded_multiply(src ^ seed, dst.rotate_left(32) ^ ports ^ WORD_KEY);
        folded_multiply(addresses ^ ports, seed.rotate_left(17) ^ WORD_KEY)
    }
}

/// Both halves of the 128-bit product (as in wyhash, Wang Yi, and foldhash, Orson Peters).
#[inline]
fn folded_multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The fraction of the square root of 5: no factor may be zero for a whole class of keys.
const WORD_KEY: u64 = 0x3c6e_f372_fe94_f82b;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Hot<A> {
    key: Key<A>,
    generation: u32,
    tick: u32,
    action: CachedAction<A>,
}

const _: () = assert!(size_of::<Hot<[u8; 4]>>() == 64 && size_of::<Hot<[u8; 16]>>() == 128);

/// The most table entries one decision can rest on: this node, service, two routes, neighbor, FDB or source.
pub const MAX_DEPENDENCIES: usize = 6;

/// The table entries a decision rests on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dependencies {
    list: [Dependency; MAX_DEPENDENCIES],
    len: u8,
    overflowed: bool,
}

impl Dependencies {
    /// Adds one. More than there is room for makes the decision uncacheable.
    pub fn push(&mut self, dependency: Option<Dependency>) {
        let Some(dependency) = dependency else { return };
        match self.list.get_mut(usize::from(self.len)) {
            Some(place) => {
                *place = dependency;
                self.len += 1;
            }
            None => self.overflowed = true,
        }
    }

    /// Whether all of them fit.
    pub fn is_complete(&self) -> bool {
        !self.overflowed
    }

    fn are_current(&self, tables: &ForwardingTables) -> bool {
        self.list[..usize::from(self.len)].iter().all(|dependency| tables.epochs().is_current(*dependency))
    }
}

#[derive(Clone, Default)]
struct Cold {
    dependencies: Dependencies,
    connection: Option<(Arc<Connection>, FlowDirection)>,
}

/// Decided flows of one address family.
pub struct FlowCache<A> {
    hot: Box<[Hot<A>]>,
    cold: Box<[Cold]>,
    seed: u64,
}

impl<A: Octets> FlowCache<A> {
    /// A cache of at least `entries` flows (rounded up to a power of two). `seed` keys its hash.
    pub fn new(entries: usize, seed: u64) -> Self {
        let entries = entries.max(2).next_power_of_two();
        Self {
            hot: vec![Self::empty(); entries].into_boxed_slice(),
            cold: vec![Cold::default(); entries].into_boxed_slice(),
            seed: folded_multiply(seed ^ WORD_KEY, !WORD_KEY),
        }
    }

    /// The action of `flow`, if it was decided under tables that still say the same.
    ///
    /// A flow that was cached as untranslated may have become a connection's reply since (a client used one
    /// source port toward a pod first, and toward a VIP that leads to the same pod later): also looked at once
    /// a second.
    #[inline]
    pub fn lookup(
        &mut self,
        flow: &FlowKey,
        ingress: IngressId,
        tables: &ForwardingTables,
        connections: &Conntrack,
        tick: u32,
    ) -> Option<CachedAction<A>> {
        let key = Key::new(flow, ingress);
        let first = self.slot(&key);
        let index = [first, first ^ 1].into_iter().find(|index| self.hot[*index].key == key)?;
        let hot = &self.hot[index];
        if hot.generation != tables.generation() || hot.tick != tick {
            let untracked = self.cold[index].connection.is_none();
            if untracked && connections.is_taken(flow) || !self.refresh(index, tables, tick) {
                self.clear_entry(index);
                return None;
            }
        }
        Some(self.hot[index].action)
    }

    /// Once per entry and snapshot, and once per second: are the tables still the same for it, and its
    /// connection alive?
    #[cold]
    fn refresh(&mut self, index: usize, tables: &ForwardingTables, tick: u32) -> bool {
        let (hot, cold) = (&mut self.hot[index], &self.cold[index]);
        if hot.generation != tables.generation() && !cold.dependencies.are_current(tables) {
            return false;
        }
        if let Some((connection, direction)) = &cold.connection {
            if !connection.is_live() {
                return false;
            }
            connection.touch(*direction, tick);
        }
        hot.generation = tables.generation();
        hot.tick = last_seen(cold.connection.as_ref(), tick);
        true
    }

    /// Remembers an action, in the place of an entry of an older snapshot or an older second if need be.
    pub fn install(
        &mut self,
        flow: &FlowKey,
        ingress: IngressId,
        action: CachedAction<A>,
        dependencies: Dependencies,
        connection: Option<(Arc<Connection>, FlowDirection)>,
        decided_at: (u32, u32),
    ) {
        let key = Key::new(flow, ingress);
        let first = self.slot(&key);
        let (generation, tick) = decided_at;
        let taken = |index: usize| self.hot[index].key.ingress != IngressId::EMPTY;
        let index = [first, first ^ 1]
            .into_iter()
            .find(|index| self.hot[*index].key == key)
            .or_else(|| [first, first ^ 1].into_iter().find(|index| !taken(*index)))
            .unwrap_or_else(
                || if self.hot[first].tick <= self.hot[first ^ 1].tick { first } else { first ^ 1 },
            );
        let tick = last_seen(connection.as_ref(), tick);
        self.hot[index] = Hot { key, generation, tick, action };
        self.cold[index] = Cold { dependencies, connection };
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.hot.fill(Self::empty());
        self.cold.fill(Cold::default());
    }

    fn clear_entry(&mut self, index: usize) {
        self.hot[index] = Self::empty();
        self.cold[index] = Cold::default();
    }

    #[inline]
    fn slot(&self, key: &Key<A>) -> usize {
        key.hash(self.seed) as usize & (self.hot.len() - 1)
    }

    fn empty() -> Hot<A> {
        let flow = (A::default(), A::default());
        Hot {
            key: Key {
                src: flow.0,
                dst: flow.1,
                src_port: 0,
                dst_port: 0,
                ingress: IngressId::EMPTY,
                protocol: Protocol(0),
            },
            generation: 0,
            tick: 0,
            action: CachedAction::new(None, TO_OVERLAY, 0),
        }
    }
}

/// The tick an entry is stamped with: one that has passed, as long as its connection must see every packet.
fn last_seen(connection: Option<&(Arc<Connection>, FlowDirection)>, tick: u32) -> u32 {
    if connection.is_none_or(|(connection, _)| connection.is_settled()) { tick } else { tick.wrapping_sub(1) }
}
