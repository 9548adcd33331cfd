//! How full the connection table is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Connections and reminders of them, counted together: a new connection brings one of each, and all workers share the
/// count. No more than four thousand million of either.
#[derive(Debug, Default)]
pub(super) struct Occupancy(AtomicU64);

/// What is counted at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections in the table.
    pub(super) connections: usize,
    /// Entries in the due queues, stale ones too: each holds its connection in memory.
    pub(super) reminders: usize,
}

const REMINDER: u64 = 1;
const CONNECTION: u64 = 1 << 32;

impl Occupancy {
    pub(super) fn counts(&self) -> Counts {
        Self::split(self.0.load(Ordering::Relaxed))
    }

    /// One more connection with its first reminder; how it was before.
    pub(super) fn add_connection(&self) -> Counts {
        Self::split(self.0.fetch_add(CONNECTION + REMINDER, Ordering::Relaxed))
    }

    /// A connection that has been added does not come in, and needs no reminder.
    pub(super) fn take_back_connection(&self) {
        self.0.fetch_sub(CONNECTION + REMINDER, Ordering::Relaxed);
    }

    /// A connection has gone; its reminders have not.
    pub(super) fn remove_connection(&self) {
        self.0.fetch_sub(CONNECTION, Ordering::Relaxed);
    }

    pub(super) fn add_reminder(&self) {
        self.0.fetch_add(REMINDER, Ordering::Relaxed);
    }

    pub(super) fn remove_reminder(&self) {
        self.0.fetch_sub(REMINDER, Ordering::Relaxed);
    }

    fn split(counts: u64) -> Counts {
        Counts { connections: (counts >> 32) as usize, reminders: counts as u32 as usize }
    }
}
