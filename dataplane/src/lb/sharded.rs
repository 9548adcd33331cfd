//! A hash table in shards, each under a lock of its own: what workers share.
//!
//! The table began on `dashmap` 6.2 with its default hash. `cargo bench -p windlass-bench --bench connection_index` compares:
//! a new flow and its end (six operations, 1,000 connections, one thread, lower bounds of three runs on a busy two-core EPYC)
//! took 240 to 275 ns here, 205 to 560 ns with `dashmap` and this hash, 600 to 1,200 ns with `dashmap` and SipHash, 1,300 ns
//! and more with `papaya` 0.2. Time does not tell the first two apart on such a machine. Memory does: 24 bytes an entry
//! here, 56 there, two entries a connection; and a shard that grows moves a 256th of the table while others wait for it.

use std::hash::{BuildHasher, Hash};
use std::sync::{Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Enough that two workers rarely meet, and that the shard which grows keeps nobody waiting for long.
const SHARDS: usize = 256;

/// A line of its own, so that a lock that is taken does not slow its neighbours.
#[derive(Debug)]
#[repr(align(64))]
struct Shard<T>(Mutex<HashTable<T>>);

/// The shards, and the key of their hash: nobody outside can aim at one.
#[derive(Debug)]
pub struct Sharded<T> {
    shards: Box<[Shard<T>]>,
    hasher: RandomState,
}

impl<T> Default for Sharded<T> {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Shard(Mutex::new(HashTable::new()))).collect();
        Self { shards, hasher: RandomState::default() }
    }
}

impl<T> Sharded<T> {
    /// The hash of a key.
    #[inline]
    pub fn hash(&self, key: &impl Hash) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Shows every entry to `see`, one shard after the other. No shard must be asked for meanwhile.
    pub fn visit(&self, mut see: impl FnMut(&T)) {
        for shard in &self.shards {
            shard.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(&mut see);
        }
    }

    /// Does something to the shard that holds what has this hash. Another shard must not be asked for meanwhile.
    ///
    /// A panicking worker leaves at most an entry out of place behind: the shard is used on.
    #[inline]
    pub fn with<R>(&self, hash: u64, act: impl FnOnce(&mut HashTable<T>) -> R) -> R {
        // The table itself goes by the lowest and the highest seven bits.
        let shard = (hash >> 32) as usize % SHARDS;
        act(&mut self.shards[shard].0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::wire::flow::{FlowKey, Protocol};

    /// Flows whose words all sum up, and are exclusive-ored, to the same.
    fn crafted(index: u32) -> FlowKey {
        let [a, b] = [0x0a00_0000 + index, 0x0a00_0000 + (0x00ff_ffff - index)];
        let port = index as u16;
        let [src, dst] = [a, b].map(|addr| IpAddr::from(addr.to_be_bytes()));
        FlowKey { src, dst, protocol: Protocol::TCP, src_port: port, dst_port: !port }
    }

    #[test]
    fn d12_tuples_that_are_crafted_or_collide_under_another_key_spread_over_the_shards() {
        const TUPLES: usize = 100_000;
        let [one, other] = [Sharded::<()>::default(), Sharded::default()];
        let shard = |sharded: &Sharded<()>, flow: &FlowKey| (sharded.hash(flow) >> 32) as usize % SHARDS;
        let fullest = |sharded: &Sharded<()>, flows: &[FlowKey]| {
            let mut counts = [0; SHARDS];
            flows.iter().for_each(|flow| counts[shard(sharded, flow)] += 1);
            counts.into_iter().max().unwrap_or_default()
        };
        let flows: Vec<_> = (0..TUPLES as u32).map(crafted).collect();
        assert!(fullest(&one, &flows) < 2 * TUPLES / SHARDS, "crafted against sums");
        let colliding: Vec<_> = flows.into_iter().filter(|flow| shard(&one, flow) == 0).collect();
        assert_eq!(fullest(&one, &colliding), colliding.len());
        assert!(fullest(&other, &colliding) < 20, "{} crafted against another key", colliding.len());
    }
}
