//! The per-worker cache of decided flows: one lookup answers everything.
//!
//! Exact match, two groups of four ways, a fixed number of entries. What a packet needs fills one cache line (IPv4) or two
//! (IPv6); what only a revalidation needs lies apart. An entry that was decided or revalidated under the
//! current snapshot costs one comparison. Under a newer snapshot its dependencies are looked at once: a change
//! makes stale only the flows that depend on it.
//!
//! [`FlowCache::prefetch`] for a whole batch lets its entries arrive from memory side by side.

use std::sync::Arc;

use crate::device::hints;
use crate::lb::conntrack::{Connection, Conntrack, FlowDirection};
use crate::lb::rewrite::{Replacement, Rewrite};
use crate::tables::{Dependency, ForwardingTables};
use crate::wire::flow::{Addresses, FlowKey, Protocol};

/// Where a packet came in: 0 is the overlay device, anything else an interned (VNI, outer source, inner
/// destination MAC) that has passed every admission check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngressId(pub u32);

impl IngressId {
    /// The overlay device.
    pub const OVERLAY: Self = Self(0);
    const EMPTY: Self = Self(u32::MAX);
}

/// What is cached for a flow: its translation, if it has one, and where it goes. What is alike in both families comes
/// first, so that it is read without a look at which one it is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CachedAction<A> {
    /// Index of the encapsulation template; [`TO_OVERLAY`] for the overlay device.
    pub template: u16,
    /// Which socket of the source-port pool.
    pub source_port: u16,
    rewrites: bool,
    replacement: Replacement<A>,
}

/// The template index that means "into the overlay device, without encapsulation".
pub const TO_OVERLAY: u16 = u16::MAX;

impl<A: Addresses> CachedAction<A> {
    /// The action in the form that a cache line holds.
    pub fn new(rewrite: Option<&Rewrite>, template: u16, source_port: u16) -> Self {
        let replacement = rewrite.map(Replacement::new).unwrap_or_default();
        Self { replacement, template, source_port, rewrites: rewrite.is_some() }
    }

    /// The new addresses and ports, if the flow is translated.
    #[inline]
    pub fn replacement(&self) -> Option<&Replacement<A>> {
        self.rewrites.then_some(&self.replacement)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key<A> {
    addresses: A,
    src_port: u16,
    dst_port: u16,
    ingress: IngressId,
    protocol: Protocol,
}

impl<A: Addresses> Key<A> {
    #[inline]
    fn new(flow: &FlowKey, ingress: IngressId) -> Self {
        Self {
            addresses: A::of(flow),
            src_port: flow.src_port,
            dst_port: flow.dst_port,
            ingress,
            protocol: flow.protocol,
        }
    }
}

/// Keyed, so that nobody can aim at a slot. Every packet pays for it: two multiplications for IPv4, five for IPv6.
/// The way in is left out: it is not yet known when the entry begins to be fetched.
#[inline]
fn hash<A: Addresses>(flow: &FlowKey, seed: u64) -> u64 {
    let ports = u64::from(flow.src_port) << 24 | u64::from(flow.dst_port) << 8;
    let rest = ports | u64::from(flow.protocol.0);
    let mut hash = seed;
    for word in A::of(flow).as_ref().as_chunks().0 {
        hash = folded_multiply(hash ^ u64::from_ne_bytes(*word), WORD_KEY);
    }
    folded_multiply(hash ^ rest, seed.rotate_left(17) ^ WORD_KEY)
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
    /// The tick after that of the last look; 0 where nothing stands.
    seen: u32,
    action: CachedAction<A>,
}

const _: () = assert!(size_of::<Hot<[u8; 8]>>() == 64 && size_of::<Hot<[u8; 32]>>() == 128);

/// What an entry must have been decided or revalidated under to be good without a further look: the snapshot's number and
/// the connections' epoch of untranslated flows. Both only grow, so that their sum changes with either. To be read before
/// what is decided.
#[inline]
pub fn generation(tables: &ForwardingTables, connections: &Conntrack) -> u32 {
    tables.generation().wrapping_add(connections.direct_epoch())
}

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
    pub fn push(&mut self, dependency: Dependency) {
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

/// What a revalidation needs besides.
#[derive(Clone)]
#[repr(align(64))]
struct Cold {
    dependencies: Dependencies,
    connection: Option<Arc<Connection>>,
    /// Which way of the connection the flow is.
    direction: FlowDirection,
}

const _: () = assert!(size_of::<Cold>() == 64);

impl Cold {
    fn new(dependencies: Dependencies, connection: Option<(Arc<Connection>, FlowDirection)>) -> Self {
        let (connection, direction) = connection.unzip();
        Self { dependencies, connection, direction: direction.unwrap_or(FlowDirection::Original) }
    }

    fn empty() -> Self {
        Self::new(Dependencies::default(), None)
    }
}

/// Entries that one flow may stand in: two groups that have nothing to do with each other. When as many flows as half
/// the entries take turns, one packet in a thousand finds its flow displaced. With one group of four it would be one in 16,
/// and the slow path would take more time than all the hits.
const WAYS: usize = 8;
const GROUP: usize = 4;

/// Decided flows of one address family.
pub struct FlowCache<A> {
    hot: Box<[Hot<A>]>,
    cold: Box<[Cold]>,
    seed: u64,
    /// Connections of flows that gave way.
    displaced: Vec<Arc<Connection>>,
}

/// As many as a batch has new flows.
const DISPLACED: usize = 64;

impl<A: Addresses> FlowCache<A> {
    /// A cache of at least `entries` flows (rounded up to a power of two). `seed` keys its hash.
    pub fn new(entries: usize, seed: u64) -> Self {
        let entries = entries.max(WAYS).next_power_of_two();
        Self {
            hot: in_huge_pages(Self::empty(), entries),
            cold: in_huge_pages(Cold::empty(), entries),
            seed: folded_multiply(seed ^ WORD_KEY, !WORD_KEY),
            displaced: Vec::with_capacity(DISPLACED),
        }
    }

    /// Begins to fetch what is remembered of `flow`, and returns the hash by which it is looked up.
    #[inline(always)]
    pub fn prefetch(&self, flow: &FlowKey) -> u64 {
        let hash = hash::<A>(flow, self.seed);
        // Nine tenths of the flows of a half-full cache stand in the first two ways.
        let first = self.slot(hash);
        hints::prefetch(&self.hot[first]);
        hints::prefetch(&self.hot[first ^ 1]);
        hash
    }

    /// Begins to fetch the other places too: for a flow that is probably in none of them.
    #[inline]
    pub fn prefetch_all(&self, hash: u64) {
        self.ways(hash).into_iter().for_each(|way| hints::prefetch(&self.hot[way]));
    }

    /// Where the action of `flow`, whose hash [`prefetch`](Self::prefetch) has told, stands, if it was decided under tables
    /// that still say the same: 40 bytes that were handed on by value would be written and read back for every packet.
    ///
    /// A flow that was cached as untranslated and has become a connection's since is looked at anew: [`generation`]
    /// changes with it.
    #[inline(always)]
    pub fn lookup(
        &mut self,
        flow: &FlowKey,
        hash: u64,
        ingress: IngressId,
        tables: &ForwardingTables,
        connections: &Conntrack,
        tick: u32,
    ) -> Option<usize> {
        let key = Key::new(flow, ingress);
        let first = self.slot(hash);
        let index = if self.hot[first].key == key { first } else { self.find(&key, hash)? };
        let hot = &self.hot[index];
        let looked_at = hot.generation == generation(tables, connections) && hot.seen == tick.wrapping_add(1);
        (looked_at || self.look_again(index, flow, tables, connections, tick)).then_some(index)
    }

    /// Apart from [`lookup`](Self::lookup), which finds three quarters of the flows in their first way.
    #[inline(never)]
    fn find(&self, key: &Key<A>, hash: u64) -> Option<usize> {
        self.ways(hash).into_iter().find(|way| self.hot[*way].key == *key)
    }

    /// What stands there.
    #[inline]
    pub fn action(&self, index: usize) -> &CachedAction<A> {
        &self.hot[index].action
    }

    /// Once per entry and snapshot, and once per second. An entry that does not hold any more is forgotten.
    #[cold]
    fn look_again(
        &mut self,
        index: usize,
        flow: &FlowKey,
        tables: &ForwardingTables,
        connections: &Conntrack,
        tick: u32,
    ) -> bool {
        let generation = generation(tables, connections);
        let untracked = self.cold[index].connection.is_none();
        let taken = untracked && !connections.stays_direct(flow, tick);
        let holds = !taken && self.refresh(index, tables, (generation, tick));
        if !holds {
            self.clear_entry(index);
        }
        holds
    }

    /// Are the tables still the same for it, and its connection alive?
    fn refresh(&mut self, index: usize, tables: &ForwardingTables, (generation, tick): (u32, u32)) -> bool {
        let (hot, cold) = (&mut self.hot[index], &self.cold[index]);
        if hot.generation != generation && !cold.dependencies.are_current(tables) {
            return false;
        }
        if let Some(connection) = &cold.connection {
            connection.touch(cold.direction, tick);
            if !connection.is_live() {
                return false;
            }
        }
        hot.generation = generation;
        hot.seen = last_seen(cold.connection.as_ref(), tick);
        true
    }

    /// Where an action of a flow of this hash is to stand: where it stood, if it is `known` to have stood anywhere; in a
    /// free place; or in that of the entry that was looked at longest ago. What stands there begins to be fetched.
    pub fn make_room(&self, hash: u64, known: Option<(&FlowKey, IngressId)>) -> usize {
        let stood = known.and_then(|(flow, ingress)| self.find(&Key::new(flow, ingress), hash));
        let oldest = || self.ways(hash).into_iter().min_by_key(|way| self.hot[*way].seen);
        let place = stood.or_else(oldest).unwrap_or(self.slot(hash));
        hints::prefetch(&self.cold[place]);
        place
    }

    /// Remembers an action where there [is room](Self::make_room) for it.
    pub fn install(
        &mut self,
        place: usize,
        (flow, ingress): (&FlowKey, IngressId),
        action: CachedAction<A>,
        dependencies: Dependencies,
        connection: Option<(Arc<Connection>, FlowDirection)>,
        (generation, tick): (u32, u32),
    ) {
        let cold = Cold::new(dependencies, connection);
        let seen = last_seen(cold.connection.as_ref(), tick);
        self.hot[place] = Hot { key: Key::new(flow, ingress), generation, seen, action };
        if let Some(displaced) = std::mem::replace(&mut self.cold[place], cold).connection {
            self.displace(displaced);
        }
    }

    /// A connection that was not needed for long has to come from memory just to be let go of: later, at the latest when
    /// there are [`DISPLACED`].
    fn displace(&mut self, connection: Arc<Connection>) {
        hints::prefetch(&*connection);
        if self.displaced.len() == DISPLACED {
            self.displaced.clear();
        }
        self.displaced.push(connection);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.hot.fill(Self::empty());
        self.cold.fill(Cold::empty());
        self.displaced.clear();
    }

    fn clear_entry(&mut self, index: usize) {
        self.hot[index] = Self::empty();
        self.cold[index] = Cold::empty();
    }

    /// All places where a flow of this hash may stand, the first one first.
    #[inline]
    fn ways(&self, hash: u64) -> [usize; WAYS] {
        std::array::from_fn(|way| self.slot(if way < GROUP { hash } else { hash >> 32 }) ^ (way % GROUP))
    }

    #[inline]
    fn slot(&self, hash: u64) -> usize {
        hash as usize & (self.hot.len() - 1)
    }

    fn empty() -> Hot<A> {
        let action = CachedAction::new(None, TO_OVERLAY, 0);
        Hot { key: Key::new(&FlowKey::default(), IngressId::EMPTY), generation: 0, seen: 0, action }
    }
}

fn in_huge_pages<T: Clone>(value: T, count: usize) -> Box<[T]> {
    let mut entries = Vec::with_capacity(count);
    hints::advise_huge(entries.spare_capacity_mut());
    entries.resize(count, value);
    entries.into_boxed_slice()
}

/// What an entry is stamped with that was looked at in this tick: another one, as long as its connection must see every
/// packet.
fn last_seen(connection: Option<&Arc<Connection>>, tick: u32) -> u32 {
    if connection.is_none_or(|connection| connection.is_settled()) { tick.wrapping_add(1) } else { tick }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::time::Instant;

    fn flow(number: u32) -> FlowKey {
        let src = std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into();
        FlowKey { src, protocol: Protocol::UDP, src_port: 1_024, dst_port: 80, ..FlowKey::default() }
    }

    fn connection(number: u32) -> Option<(Arc<Connection>, FlowDirection)> {
        let opened = Connection::new(flow(number), flow(number).reversed(), Instant::ZERO);
        Some((Arc::new(opened), FlowDirection::Original))
    }

    struct Cache {
        flows: FlowCache<[u8; 8]>,
        tables: ForwardingTables,
        connections: Conntrack,
    }

    impl Cache {
        fn new(entries: usize) -> Self {
            let (tables, connections) = (ForwardingTables::default(), Conntrack::new(1, 1));
            Self { flows: FlowCache::new(entries, 7), tables, connections }
        }

        fn install(&mut self, number: u32, connection: Option<(Arc<Connection>, FlowDirection)>) {
            let (flow, action) = (flow(number), CachedAction::new(None, number as u16, 0));
            let of_whom = (&flow, IngressId::OVERLAY);
            let place = self.flows.make_room(self.flows.prefetch(&flow), Some(of_whom));
            self.flows.install(place, of_whom, action, Dependencies::default(), connection, (0, 0));
        }

        fn lookup(&mut self, number: u32) -> Option<u16> {
            let flow = flow(number);
            let hash = self.flows.prefetch(&flow);
            let way_in = IngressId::OVERLAY;
            let place = self.flows.lookup(&flow, hash, way_in, &self.tables, &self.connections, 0)?;
            Some(self.flows.action(place).template)
        }
    }

    #[test]
    fn a_half_full_cache_keeps_nearly_every_flow() {
        let mut cache = Cache::new(1 << 14);
        (0..1 << 13).for_each(|number| cache.install(number, None));
        let misses = (0..1 << 13).filter(|number| cache.lookup(*number).is_none()).count();
        assert!(misses < 1 << 6, "{misses} of {} flows found no place", 1 << 13);
        assert_eq!(cache.lookup(5), Some(5));
    }

    #[test]
    fn g13_connections_of_displaced_flows_are_let_go_of() {
        let mut cache = Cache::new(WAYS);
        let opened = connection(0);
        let first = opened.as_ref().map(|(connection, _)| Arc::downgrade(connection)).unwrap();
        cache.install(0, opened);
        (1..1 << 10).for_each(|number| cache.install(number, connection(number)));
        assert!(first.upgrade().is_none());
    }

    #[test]
    fn d12_tuples_that_collide_under_one_seed_spread_under_another() {
        let [one, other] = [1, 2].map(|seed| FlowCache::<[u8; 8]>::new(1_024, seed));
        let set = |cache: &FlowCache<[u8; 8]>, flow: &FlowKey| {
            cache.slot(hash::<[u8; 8]>(flow, cache.seed)) / GROUP
        };
        let dst = IpAddr::from([10, 96, 0, 10]);
        let crafted = (0..100_000_u32).map(|index| {
            let src = IpAddr::from((0x0af4_0000 + index / 50_000).to_be_bytes());
            FlowKey { src, dst, protocol: Protocol::UDP, src_port: index as u16, dst_port: 53 }
        });
        let colliding: Vec<_> = crafted.filter(|flow| set(&one, flow) == 0).collect();
        assert!(colliding.len() > 200, "{}", colliding.len());
        let mut counts = [0; 1_024 / GROUP];
        colliding.iter().for_each(|flow| counts[set(&other, flow)] += 1);
        assert!(counts.into_iter().max() < Some(20), "they would fill one set of four");
    }
}
