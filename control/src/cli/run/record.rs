//! What became of reloads, for metrics and health.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use windlass_control::admin::histogram::Histogram;
use windlass_control::admin::{Programming, STUCK_AFTER};
use windlass_control::source::Changes;
use windlass_control::source::kube::Kind;

/// What became of reloads, for metrics.
#[derive(Debug)]
pub(super) struct Record(Mutex<Figures>);

/// The figures of a [`Record`].
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// Reloads that were applied.
    pub(super) successes: u64,
    /// Reloads that left the last good state standing.
    pub(super) failures: u64,
    /// When manifests were applied last, at start or by a reload.
    pub(super) last_success: SystemTime,
    /// How long reading, compiling and publishing took then; zero before the first reload.
    pub(super) took: Duration,
    /// How long reading, compiling and publishing took, each time.
    pub(super) syncs: Histogram,
    /// From what EndpointSlices were changed for until that was published.
    pub(super) programming: Histogram,
    /// Changes of Services and of EndpointSlices that were applied.
    pub(super) changes: (u64, u64),
    /// How long ago each kind was last heard of, where there is an API server.
    pub(super) staleness: Vec<(Kind, Duration)>,
    started_at: SystemTime,
    /// When no change was waiting, for clocks and for people.
    up_to_date: (Instant, SystemTime),
    /// Whether the last change could not be applied.
    is_behind: bool,
}

impl Default for Record {
    fn default() -> Self {
        let last_success = SystemTime::now();
        Self(Mutex::new(Figures {
            successes: 0,
            failures: 0,
            last_success,
            took: Duration::ZERO,
            syncs: Histogram::default(),
            programming: Histogram::default(),
            changes: (0, 0),
            staleness: Vec::new(),
            started_at: last_success,
            up_to_date: (Instant::now(), last_success),
            is_behind: false,
        }))
    }
}

impl Record {
    /// The figures as they are.
    pub(super) fn figures(&self) -> Figures {
        self.lock().clone()
    }

    /// A change was applied, with what had come.
    pub(super) fn succeeded(&self, took: Duration, changes: &Changes) {
        let mut figures = self.lock();
        figures.syncs.observe(took);
        figures.changes.0 += changes.services;
        figures.changes.1 += changes.endpoint_slices;
        let now = SystemTime::now();
        // What happened before we ran tells nothing of us.
        let started_at = figures.started_at;
        for at in changes.triggers.iter().filter(|at| **at > started_at) {
            figures.programming.observe(now.duration_since(*at).unwrap_or_default());
        }
        figures.successes += 1;
        (figures.last_success, figures.took) = (SystemTime::now(), took);
        figures.is_behind = false;
    }

    /// A change could not be applied.
    pub(super) fn failed(&self) {
        let mut figures = self.lock();
        figures.failures += 1;
        figures.is_behind = true;
    }

    /// Every change that there is has been looked at.
    pub(super) fn looked(&self, staleness: Vec<(Kind, Duration)>) {
        let mut figures = self.lock();
        figures.staleness = staleness;
        if !figures.is_behind {
            figures.up_to_date = (Instant::now(), SystemTime::now());
        }
    }

    /// How changes come through: a change that cannot be applied waits, and so does everything when nobody looks.
    pub(super) fn programming(&self) -> Programming {
        let (since, applied_at) = self.lock().up_to_date;
        Programming { applied_at, is_stuck: since.elapsed() > STUCK_AFTER }
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programming_latency_counts_from_the_trigger_but_not_from_before_the_start() {
        let record = Record::default();
        let now = SystemTime::now();
        let triggers = vec![now - Duration::from_secs(3600), now + Duration::from_millis(1)];
        std::thread::sleep(Duration::from_millis(5));
        record.succeeded(Duration::from_millis(1), &Changes { services: 2, endpoint_slices: 3, triggers });
        let figures = record.figures();
        let count = |histogram: &Histogram| histogram.samples("a", "a").last().map(|sample| sample.value);
        assert_eq!((count(&figures.programming), count(&figures.syncs)), (Some(1), Some(1)));
        assert_eq!(figures.changes, (2, 3));
    }

    #[test]
    fn a_change_that_cannot_be_applied_makes_the_node_stuck_after_a_minute() {
        let record = Record::default();
        record.failed();
        record.looked(Vec::new());
        assert!(!record.programming().is_stuck);
        record.lock().up_to_date.0 -= STUCK_AFTER + Duration::from_secs(1);
        assert!(record.programming().is_stuck);
        record.looked(Vec::new());
        assert!(record.programming().is_stuck, "it still waits");
        record.succeeded(Duration::ZERO, &Changes::default());
        record.looked(Vec::new());
        assert!(!record.programming().is_stuck);
    }
}
