//! A hash table in shards, each under a lock of its own: what workers share.
//!
//! Against `dashmap` 6.2, with which this table began, and `papaya` 0.2: see `bench/benches/connection_index.rs`.

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
