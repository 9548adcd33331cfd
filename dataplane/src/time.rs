//! The engine's clock: a monotonic instant that the caller passes in.
//!
//! The engine never asks what time it is. Workers pass the monotonic clock, simulations a virtual one.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since an origin that the caller chooses, on a clock that never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin itself.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// What a clock that stood at zero at `origin` shows.
    pub fn since_origin(origin: std::time::Instant) -> Self {
        Self(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole seconds since the origin: the coarse tick of the connection table. Wraps after 136 years.
    pub const fn tick(self) -> u32 {
        (self.0 / 1_000_000_000) as u32
    }

    /// Time since `earlier`, zero if `earlier` lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}
