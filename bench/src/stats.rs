//! Medians with their range, percentiles, and ratios of what was measured in the same round.

use serde::Serialize;

/// A median with the smallest and the largest value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Summary {
    /// Of at least one finite value; `None` without.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(*sorted.get(middle - 1)?, upper),
            _ => upper,
        };
        Some(Self { median, min: *sorted.first()?, max: *sorted.last()? })
    }

    /// Of `values[i] / base[i]`, round by round; rounds that either lacks, or whose base is 0, are left out.
    #[must_use]
    pub fn of_ratios(values: &[Option<f64>], base: &[Option<f64>]) -> Option<Self> {
        let pairs = values.iter().zip(base).filter_map(|(value, base)| value.zip(*base));
        let ratios: Vec<f64> =
            pairs.filter(|(_, base)| *base != 0.0).map(|(value, base)| value / base).collect();
        Self::of(&ratios)
    }
}

/// The value below which `share` (0 to 1) of the sorted values lie, by nearest rank; `None` without values.
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn percentile(sorted: &[u64], share: f64) -> Option<u64> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::{Summary, percentile};

    #[test]
    fn median_of_an_even_number_is_the_mean_of_the_middle_two() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!(summary, Some(Summary { median: 2.5, min: 1.0, max: 4.0 }));
    }

    #[test]
    fn one_outlier_moves_the_range_and_not_the_median() {
        let summary = Summary::of(&[5.0, 5.0, 500.0]);
        assert_eq!(summary, Some(Summary { median: 5.0, min: 5.0, max: 500.0 }));
        assert_eq!(Summary::of(&[f64::NAN]), None);
    }

    #[test]
    fn ratios_pair_the_values_of_one_round() {
        let base = [Some(10.0), Some(20.0), None, Some(0.0)];
        let values = [Some(20.0), Some(40.0), Some(1.0), Some(1.0)];
        assert_eq!(Summary::of_ratios(&values, &base), Some(Summary { median: 2.0, min: 2.0, max: 2.0 }));
        assert_eq!(Summary::of_ratios(&[None], &[Some(1.0)]), None);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let sorted: Vec<u64> = (1..=1000).collect();
        assert_eq!(percentile(&sorted, 0.5), Some(500));
        assert_eq!(percentile(&sorted, 0.99), Some(990));
        assert_eq!(percentile(&sorted, 0.999), Some(999));
        assert_eq!(percentile(&[7], 0.999), Some(7));
        assert_eq!(percentile(&[], 0.5), None);
    }
}
