//! How long to wait before the API server is asked again.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// The first wait at most, and the longest.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Waits that double, each shortened by chance by up to a half: a thousand nodes that lost the same server must
/// not come back to it at the same moment.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let longest = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures += 1;
        // Every RandomState has keys of its own.
        let chance = RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64;
        longest.mul_f64(0.5 + chance / 2.0)
    }

    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_begin_anew_after_success() {
        let mut backoff = Backoff::default();
        for round in 0..40_u32 {
            let longest = FIRST.saturating_mul(1 << round.min(16)).min(LONGEST);
            let wait = backoff.next();
            assert!(wait >= longest / 2 && wait <= longest, "{round}: {wait:?}");
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }

    #[test]
    fn two_nodes_do_not_wait_alike() {
        let waits: std::collections::BTreeSet<_> = (0..20).map(|_| Backoff::default().next()).collect();
        assert!(waits.len() > 15, "{waits:?}");
    }
}
