//! Per-worker counters. Each has one writer; anybody may read. Nothing is shared on the hot path.
//!
//! The unit is the wire-size segment, and always
//! `received + generated = sent + dropped` ([`Totals::difference`]).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::drop_reason::DropReason;

/// A number that one thread adds to.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owning worker may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Takes `n` back that will be counted later. Only the owning worker may call this.
    pub fn take_back(&self, n: u64) {
        self.add(n.wrapping_neg());
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What went through one side of a worker.
#[derive(Debug, Default)]
pub struct SideCounters {
    /// Segments received.
    pub received: Counter,
    /// Bytes received.
    pub received_bytes: Counter,
    /// Segments sent.
    pub sent: Counter,
    /// Bytes sent.
    pub sent_bytes: Counter,
}

/// Everything one worker counts.
#[derive(Debug)]
pub struct Counters {
    /// The overlay device: inner packets.
    pub overlay: SideCounters,
    /// The underlay: VXLAN payloads.
    pub underlay: SideCounters,
    /// Segments the engine made itself: ICMP errors, resets, copies.
    pub generated: Counter,
    /// Packets decided by the flow cache.
    pub cache_hits: Counter,
    /// Packets decided by the slow path.
    pub cache_misses: Counter,
    /// Packets accepted although reserved VXLAN bits were set.
    pub reserved_bits: Counter,
    /// Errors not sent because of the rate limit.
    pub errors_suppressed: Counter,
    /// ARP and ND questions of an L2 segment that were answered here instead of being flooded.
    pub neighbors_answered: Counter,
    /// Stations of an L2 segment that were not learned because their VTEP has as many as it may (E6).
    pub stations_refused: Counter,
    drops: [Counter; DropReason::COUNT],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            overlay: SideCounters::default(),
            underlay: SideCounters::default(),
            generated: Counter::default(),
            cache_hits: Counter::default(),
            cache_misses: Counter::default(),
            reserved_bits: Counter::default(),
            errors_suppressed: Counter::default(),
            neighbors_answered: Counter::default(),
            stations_refused: Counter::default(),
            drops: [const { Counter(AtomicU64::new(0)) }; DropReason::COUNT],
        }
    }
}

impl Counters {
    /// Counts `segments` dropped.
    #[inline]
    pub fn count_drop(&self, reason: DropReason, segments: u64) {
        self.drops[reason as usize].add(segments);
    }

    /// Segments dropped for `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize].get()
    }

    /// The four sums that must agree.
    pub fn totals(&self) -> Totals {
        Totals {
            received: self.overlay.received.get() + self.underlay.received.get(),
            generated: self.generated.get(),
            sent: self.overlay.sent.get() + self.underlay.sent.get(),
            dropped: self.drops.iter().map(Counter::get).sum(),
        }
    }
}

/// The sums over everything a worker has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Segments received on both sides.
    pub received: u64,
    /// Segments generated.
    pub generated: u64,
    /// Segments sent on both sides.
    pub sent: u64,
    /// Segments dropped, for all reasons.
    pub dropped: u64,
}

impl Totals {
    /// Zero between batches; anything else is a packet that nobody accounted for.
    pub fn difference(&self) -> i64 {
        (self.received + self.generated) as i64 - (self.sent + self.dropped) as i64
    }
}

impl std::iter::Sum for Totals {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            received: sum.received + part.received,
            generated: sum.generated + part.generated,
            sent: sum.sent + part.sent,
            dropped: sum.dropped + part.dropped,
        })
    }
}
