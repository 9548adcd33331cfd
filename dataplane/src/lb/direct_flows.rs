//! Which flows workers remember as untranslated, so that a connection which makes one of them its reply is noticed at
//! once (REQUIREMENTS D9).
//!
//! A client may use one source port toward a pod and, a moment later, toward a VIP that leads to the same pod: what
//! comes back was cached as untranslated, on whatever worker, and has become a reply. Whoever caches a flow as untranslated
//! *first* marks its bucket and *then* asks whether a connection has it; whoever makes a connection *first* inserts it and
//! *then* looks for the mark. Both go through the lock of the flow's shard, so that one of them sees the other.

use std::sync::atomic::{AtomicU32, Ordering};

/// For how many ticks a mark counts. A cached flow in use is marked again each second; the rest is for a worker that was
/// kept from running in the middle of a batch.
const MARKED_FOR: i32 = 4;

/// When flows were last remembered as untranslated, and how often that has ended.
#[derive(Debug)]
pub(super) struct DirectFlows {
    /// The tick after that of the last mark; 0 for none.
    marked: Box<[AtomicU32]>,
    epoch: Epoch,
}

/// A cache line of its own: each packet reads it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Epoch(AtomicU32);

impl DirectFlows {
    /// None is remembered. Flows are told apart by so many buckets, a power of two.
    pub(super) fn new(buckets: usize) -> Self {
        Self { marked: (0..buckets).map(|_| AtomicU32::new(0)).collect(), epoch: Epoch::default() }
    }

    /// Changes whenever a flow that may be cached as untranslated has become a connection's.
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        self.epoch.0.load(Ordering::Acquire)
    }

    /// Notes that a flow of this hash is about to be remembered as untranslated.
    pub(super) fn mark(&self, hash: u64, tick: u32) {
        let (bucket, mark) = (self.bucket(hash), tick.wrapping_add(1));
        if bucket.load(Ordering::Relaxed) != mark {
            bucket.store(mark, Ordering::Relaxed);
        }
    }

    /// Makes everybody look again if a flow of this hash, which now belongs to a connection, may be remembered.
    pub(super) fn end(&self, hash: u64, tick: u32) {
        let mark = self.bucket(hash).load(Ordering::Relaxed);
        let age = tick.wrapping_add(1).wrapping_sub(mark) as i32;
        if mark != 0 && age <= MARKED_FOR {
            self.epoch.0.fetch_add(1, Ordering::Release);
        }
    }

    fn bucket(&self, hash: u64) -> &AtomicU32 {
        &self.marked[(hash >> 40) as usize & (self.marked.len() - 1)]
    }
}
