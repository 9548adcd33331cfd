//! The per-worker cache of decided flows: one lookup answers everything.
//!
//! Exact match, four ways, a fixed number of entries. What a packet needs fills one cache line (IPv4) or two
//! (IPv6); what only a revalidation needs lies apart. An entry that was decided or revalidated under the
//! current snapshot costs one comparison. Under a newer snapshot its dependencies are looked at once: a change
//! makes stale only the flows that depend on it.
//!
//! [`FlowCache::prefetch`] for packets that come a little later lets their entries arrive from memory side by side.

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

/// What is cached for a flow: its translation, if it has one, and where it goes.
#[derive(Clone, Copy, Debug)]
pub struct CachedAction<A> {
    replacement: Replacement<A>,
    /// Index of the encapsulation template; [`TO_OVERLAY`] for the overlay device.
    pub template: u16,
    /// Which socket of the source-port pool.
    pub source_port: u16,
    rewrites: bool,
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

/// Keyed, so that nobody can aim at a slot. Every packet pays for it twice: two multiplications for IPv4, five for IPv6.
/// The way in is left out: it is not yet known when the entry begins to be fetched.
#[inline]
fn hash<A: Addresses>(addresses: A, (src_port, dst_port): (u16, u16), protocol: Protocol, seed: u64) -> u64 {
    let rest = u64::from(src_port) << 24 | u64::from(dst_port) << 8 | u64::from(protocol.0);
    let mut hash = seed;
    for word in addresses.as_ref().as_chunks().0 {
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
    tick: u32,
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

/// Entries that one flow may stand in. With two, a tenth of the flows would find no place in a half-full cache.
const WAYS: usize = 4;

/// Decided flows of one address family.
pub struct FlowCache<A> {
    hot: Box<[Hot<A>]>,
    cold: Box<[Cold]>,
    seed: u64,
}

impl<A: Addresses> FlowCache<A> {
    /// A cache of at least `entries` flows (rounded up to a power of two). `seed` keys its hash.
    pub fn new(entries: usize, seed: u64) -> Self {
        let entries = entries.max(WAYS).next_power_of_two();
        Self {
            hot: in_huge_pages(Self::empty(), entries),
            cold: in_huge_pages(Cold::default(), entries),
            seed: folded_multiply(seed ^ WORD_KEY, !WORD_KEY),
        }
    }

    /// Begins to fetch what is remembered of the flow of `packet`, as far as the `header_len` bytes of its IP header and
    /// the ports behind them look like one: it has not been parsed yet, and a wrong guess costs nothing.
    #[inline]
    pub fn prefetch(&self, packet: &[u8], header_len: usize, protocol: Protocol) {
        let Some(addresses) = A::peek(packet) else { return };
        let Some([a, b, c, d]) = packet.get(header_len..).and_then(<[u8]>::first_chunk) else { return };
        let ports = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        let first = self.first_way(addresses, ports, protocol);
        // Three quarters of the flows of a half-full cache stand in their first way, nearly all in their first two.
        hints::prefetch(&self.hot[first]);
        hints::prefetch(&self.hot[first ^ 1]);
    }

    /// Where the action of `flow` stands, if it was decided under tables that still say the same: 40 bytes that were
    /// handed on by value would be written and read back for every packet.
    ///
    /// A flow that was cached as untranslated and has become a connection's since is looked at anew: [`generation`]
    /// changes with it.
    #[inline]
    pub fn lookup(
        &mut self,
        flow: &FlowKey,
        ingress: IngressId,
        tables: &ForwardingTables,
        connections: &Conntrack,
        tick: u32,
    ) -> Option<usize> {
        let key = Key::new(flow, ingress);
        let index = self.ways(&key).into_iter().find(|index| self.hot[*index].key == key)?;
        let hot = &self.hot[index];
        let generation = generation(tables, connections);
        if hot.generation != generation || hot.tick != tick {
            let untracked = self.cold[index].connection.is_none();
            let taken = untracked && !connections.stays_direct(flow, tick);
            if taken || !self.refresh(index, tables, (generation, tick)) {
                self.clear_entry(index);
                return None;
            }
        }
        Some(index)
    }

    /// What stands there.
    #[inline]
    pub fn action(&self, index: usize) -> &CachedAction<A> {
        &self.hot[index].action
    }

    /// Once per entry and snapshot, and once per second: are the tables still the same for it, and its
    /// connection alive?
    #[cold]
    fn refresh(&mut self, index: usize, tables: &ForwardingTables, (generation, tick): (u32, u32)) -> bool {
        let (hot, cold) = (&mut self.hot[index], &self.cold[index]);
        if hot.generation != generation && !cold.dependencies.are_current(tables) {
            return false;
        }
        if let Some((connection, direction)) = &cold.connection {
            connection.touch(*direction, tick);
            if !connection.is_live() {
                return false;
            }
        }
        hot.generation = generation;
        hot.tick = last_seen(cold.connection.as_ref(), tick);
        true
    }

    /// Remembers an action, in the place of the entry that was looked at longest ago if need be.
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
        let (generation, tick) = decided_at;
        let ways = self.ways(&key);
        let find = |wanted: &dyn Fn(&Hot<A>) -> bool| ways.into_iter().find(|way| wanted(&self.hot[*way]));
        let index = find(&|hot| hot.key == key)
            .or_else(|| find(&|hot| hot.key.ingress == IngressId::EMPTY))
            .or_else(|| ways.into_iter().min_by_key(|way| self.hot[*way].tick))
            .unwrap_or(ways[0]);
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
    fn ways(&self, key: &Key<A>) -> [usize; WAYS] {
        let first = self.first_way(key.addresses, (key.src_port, key.dst_port), key.protocol);
        std::array::from_fn(|way| first ^ way)
    }

    #[inline]
    fn first_way(&self, addresses: A, ports: (u16, u16), protocol: Protocol) -> usize {
        hash(addresses, ports, protocol, self.seed) as usize & (self.hot.len() - 1)
    }

    fn empty() -> Hot<A> {
        let action = CachedAction::new(None, TO_OVERLAY, 0);
        Hot { key: Key::new(&FlowKey::default(), IngressId::EMPTY), generation: 0, tick: 0, action }
    }
}

fn in_huge_pages<T: Clone>(value: T, count: usize) -> Box<[T]> {
    let mut entries = Vec::with_capacity(count);
    hints::advise_huge(entries.spare_capacity_mut());
    entries.resize(count, value);
    entries.into_boxed_slice()
}

/// The tick an entry is stamped with: one that has passed, as long as its connection must see every packet.
fn last_seen(connection: Option<&(Arc<Connection>, FlowDirection)>, tick: u32) -> u32 {
    if connection.is_none_or(|(connection, _)| connection.is_settled()) { tick } else { tick.wrapping_sub(1) }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn d12_tuples_that_collide_under_one_seed_spread_under_another() {
        let [one, other] = [1, 2].map(|seed| FlowCache::<[u8; 8]>::new(1_024, seed));
        let set = |cache: &FlowCache<[u8; 8]>, flow: &FlowKey| {
            let key = Key::new(flow, IngressId::OVERLAY);
            cache.first_way(key.addresses, (key.src_port, key.dst_port), key.protocol) / WAYS
        };
        let dst = IpAddr::from([10, 96, 0, 10]);
        let crafted = (0..100_000_u32).map(|index| {
            let src = IpAddr::from((0x0af4_0000 + index / 50_000).to_be_bytes());
            FlowKey { src, dst, protocol: Protocol::UDP, src_port: index as u16, dst_port: 53 }
        });
        let colliding: Vec<_> = crafted.filter(|flow| set(&one, flow) == 0).collect();
        assert!(colliding.len() > 200, "{}", colliding.len());
        let mut counts = [0; 1_024 / WAYS];
        colliding.iter().for_each(|flow| counts[set(&other, flow)] += 1);
        assert!(counts.into_iter().max() < Some(20), "they would fill one set of four");
    }
}
