//! What became of reloads, for metrics and health.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use windlass_control::admin::{Programming, STUCK_AFTER};

/// What became of reloads, for metrics.
#[derive(Debug)]
pub(super) struct Record(Mutex<Figures>);

/// The figures of a [`Record`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Reloads that were applied.
    pub(super) successes: u64,
    /// Reloads that left the last good state standing.
    pub(super) failures: u64,
    /// When manifests were applied last, at start or by a reload.
    pub(super) last_success: SystemTime,
    /// How long reading, compiling and publishing took then; zero before the first reload.
    pub(super) took: Duration,
    /// How long ago the API server was last heard of, where there is one.
    pub(super) staleness: Option<Duration>,
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
            staleness: None,
            up_to_date: (Instant::now(), last_success),
            is_behind: false,
        }))
    }
}

impl Record {
    /// The figures as they are.
    pub(super) fn figures(&self) -> Figures {
        *self.lock()
    }

    /// A change was applied, which took that long.
    pub(super) fn succeeded(&self, took: Duration) {
        let mut figures = self.lock();
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
    pub(super) fn looked(&self, staleness: Option<Duration>) {
        let mut figures = self.lock();
        figures.staleness = staleness;
        if !figures.is_behind {
            figures.up_to_date = (Instant::now(), SystemTime::now());
        }
    }

    /// How changes come through: a change that cannot be applied waits, and so does everything when nobody looks.
    pub(super) fn programming(&self) -> Programming {
        let (since, applied_at) = self.figures().up_to_date;
        Programming { applied_at, is_stuck: since.elapsed() > STUCK_AFTER }
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
