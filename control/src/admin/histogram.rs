//! How long something took, so often, by powers of two from a millisecond on.

use std::time::Duration;

use super::{Sample, SampleKind};

/// Upper bounds in milliseconds are 1, 2, 4, to 131,072; whatever took longer has a bucket of its own.
const BOUNDS: usize = 18;

/// Durations that were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Those above the bound before and up to the bound at the same place.
    counts: [u64; BOUNDS],
    count: u64,
    sum: Duration,
}

impl Histogram {
    /// Takes note of one.
    pub fn observe(&mut self, took: Duration) {
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
        if let Some(bucket) = (0..BOUNDS).find(|bucket| took <= bound(*bucket)) {
            self.counts[bucket] += 1;
        }
    }

    /// Prometheus' samples of it.
    pub fn samples(&self, name: &'static str, help: &'static str) -> Vec<Sample> {
        let sample = |kind, labels, value| Sample { name, help, kind, labels, value };
        let mut samples = Vec::with_capacity(BOUNDS + 3);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            below += count;
            let le = bound(bucket).as_secs_f64().to_string();
            samples.push(sample(SampleKind::Bucket, vec![("le", le)], below));
        }
        samples.push(sample(SampleKind::Bucket, vec![("le", "+Inf".to_owned())], self.count));
        let sum = u64::try_from(self.sum.as_nanos()).unwrap_or(u64::MAX);
        samples.push(sample(SampleKind::Sum, Vec::new(), sum));
        samples.push(sample(SampleKind::Count, Vec::new(), self.count));
        samples
    }
}

fn bound(bucket: usize) -> Duration {
    Duration::from_millis(1 << bucket)
}

#[cfg(test)]
mod tests {
    use super::super::routes::exposition;
    use super::*;

    #[test]
    fn buckets_count_what_took_no_longer_than_their_bound() {
        let mut histogram = Histogram::default();
        for millis in [1, 3, 3, 200_000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let text = exposition(&histogram.samples("a_seconds", "How long."));
        for line in [
            "# TYPE a_seconds histogram",
            "a_seconds_bucket{le=\"0.001\"} 1",
            "a_seconds_bucket{le=\"0.002\"} 1",
            "a_seconds_bucket{le=\"0.004\"} 3",
            "a_seconds_bucket{le=\"131.072\"} 3",
            "a_seconds_bucket{le=\"+Inf\"} 4",
            "a_seconds_sum 200.007",
            "a_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("# TYPE").count(), 1);
    }
}
