//! How long a worker was away from its packets, and what of that it waited for a core.

use std::time::Duration;

use serde::Serialize;

use super::forwarding::RunQueue;
use crate::stats::Summary;

/// The longest a packet may be kept waiting while tables change.
pub const LIMIT: Duration = Duration::from_micros(100);

/// Gaps longer than so many microseconds are counted together.
const BUCKETS: usize = 10_000;

/// After so many short gaps it is read again how long was waited for a core.
const READ_EVERY: u32 = 256;

/// The gaps of one worker.
#[derive(Debug)]
pub struct Gaps {
    /// By whole microseconds, the last bucket for all longer ones.
    counts: Vec<u64>,
    longest: Duration,
    longest_own: Duration,
    over: u64,
    over_own: u64,
    queue: RunQueue,
    waited: Duration,
    since_read: u32,
}

impl Gaps {
    /// Of the calling thread, none so far.
    #[must_use]
    pub fn new(queue: RunQueue) -> Self {
        let waited = queue.waited();
        Self {
            counts: vec![0; BUCKETS + 1],
            longest: Duration::ZERO,
            longest_own: Duration::ZERO,
            over: 0,
            over_own: 0,
            queue,
            waited,
            since_read: 0,
        }
    }

    /// Takes note of one. Only in long ones it is asked for how long the thread had no core.
    pub fn add(&mut self, gap: Duration) {
        let bucket = usize::try_from(gap.as_micros()).unwrap_or(BUCKETS).min(BUCKETS);
        self.counts[bucket] += 1;
        self.longest = self.longest.max(gap);
        self.since_read += 1;
        let is_long = gap > LIMIT;
        if !is_long {
            self.longest_own = self.longest_own.max(gap);
            if self.since_read < READ_EVERY {
                return;
            }
        }
        let waited = self.queue.waited();
        if is_long {
            let own = gap.saturating_sub(waited.saturating_sub(self.waited));
            self.over += 1;
            self.over_own += u64::from(own > LIMIT);
            self.longest_own = self.longest_own.max(own);
        }
        (self.waited, self.since_read) = (waited, 0);
    }

    /// The gap below which `share` of all lie, in microseconds, rounded up.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    fn percentile(&self, share: f64) -> f64 {
        let all: u64 = self.counts.iter().sum();
        let mut seen = 0;
        for (micros, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen as f64 >= share * all as f64 {
                return if micros == BUCKETS { micros_of(self.longest) } else { (micros + 1) as f64 };
            }
        }
        0.0
    }
}

fn micros_of(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// How evenly workers worked: of several, the worst of each.
#[derive(Clone, Debug, Serialize)]
pub struct Evenness {
    /// Millions of packets a second, of all workers together.
    pub mpps: f64,
    /// Of the gaps, in microseconds.
    pub p50_us: f64,
    /// The same.
    pub p99_99_us: f64,
    /// The longest gap, in microseconds.
    pub longest_us: f64,
    /// Gaps longer than [`LIMIT`], of all workers together.
    pub over_limit: u64,
    /// The longest gap without what the thread waited for a core, in microseconds.
    pub longest_own_us: f64,
    /// Those longer than [`LIMIT`] without that.
    pub over_limit_own: u64,
}

impl Evenness {
    /// Of what these workers have seen.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn of(seen: &[super::forwarding::Seen]) -> Self {
        let worst = |of: &dyn Fn(&Gaps) -> f64| {
            let values: Vec<f64> = seen.iter().map(|seen| of(&seen.gaps)).collect();
            Summary::of(&values).map_or(0.0, |summary| summary.max)
        };
        let rate =
            |seen: &super::forwarding::Seen| seen.packets as f64 / seen.lasted.as_secs_f64().max(1e-9) / 1e6;
        Self {
            mpps: seen.iter().map(rate).sum(),
            p50_us: worst(&|gaps| gaps.percentile(0.5)),
            p99_99_us: worst(&|gaps| gaps.percentile(0.9999)),
            longest_us: worst(&|gaps| micros_of(gaps.longest)),
            over_limit: seen.iter().map(|seen| seen.gaps.over).sum(),
            longest_own_us: worst(&|gaps| micros_of(gaps.longest_own)),
            over_limit_own: seen.iter().map(|seen| seen.gaps.over_own).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_counted_by_their_length() -> anyhow::Result<()> {
        let mut gaps = Gaps::new(RunQueue::open()?);
        (0..9_999).for_each(|_| gaps.add(Duration::from_nanos(5_500)));
        gaps.add(Duration::from_millis(20));
        assert_eq!((gaps.percentile(0.5), gaps.percentile(0.9999), gaps.over), (6.0, 6.0, 1));
        assert_eq!((gaps.percentile(1.0), gaps.longest), (20_000.0, Duration::from_millis(20)));
        assert!(gaps.longest_own <= gaps.longest);
        Ok(())
    }
}
