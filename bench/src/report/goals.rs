//! Goals that one contestant is to reach beside another: G14, that whoever reads metrics, log or captures slowly or with
//! bad intent at most doubles the other flows' p99.

use serde::Serialize;

use super::Row;
use crate::contestants::UNBESET;
use crate::measure::Measure;
use crate::stats::Summary;

const P99: &str = "p99_us";
const MOST: f64 = 2.0;

/// A ratio that is not to exceed a limit.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What it is.
    pub title: String,
    /// The rounds' ratios.
    pub ratio: Summary,
    /// What the median may be at most.
    pub most: f64,
    /// Whether it is not more.
    pub reached: bool,
}

impl Goal {
    /// Whether it was reached, in words.
    #[must_use]
    pub fn verdict(&self) -> String {
        let verdict = if self.reached { "reached" } else { "MISSED" };
        format!("{}x, goal {}x at most: {verdict}", super::range(&self.ratio), self.most)
    }
}

/// The goals whose contestants were both measured.
#[must_use]
pub fn reckon(measures: &[Measure], rows: &[Row]) -> Vec<Goal> {
    let Some(unbeset) = rows.iter().find(|row| row.contestant.key == UNBESET) else { return Vec::new() };
    let goals = rows.iter().flat_map(|row| measures.iter().filter_map(|measure| goal(measure, row, unbeset)));
    goals.collect()
}

fn goal(measure: &Measure, row: &Row, unbeset: &Row) -> Option<Goal> {
    let nuisance = row.contestant.nuisance?;
    let key = format!("{}/{P99}", measure.key);
    let ratio = Summary::of_ratios(row.values.get(&key)?, unbeset.values.get(&key)?)?;
    let title = format!("G14, {}, p99 with {} to p99 without", measure.title, nuisance.title());
    Some(Goal { title, ratio, most: MOST, reached: ratio.median <= MOST })
}

#[cfg(test)]
mod tests {
    use super::{P99, UNBESET, reckon};
    use crate::contestants;
    use crate::measure::MEASURES;
    use crate::report::Row;

    #[test]
    fn a_doubled_p99_is_the_most_that_reaches_the_goal() -> anyhow::Result<()> {
        let measure = MEASURES.into_iter().find(|measure| measure.key == "udp-rr");
        let measure = measure.ok_or_else(|| anyhow::anyhow!("no udp-rr"))?;
        let verdict = |p99: f64| {
            let rows =
                [(UNBESET, 100.0), ("windlass-log-stalled", p99)].into_iter().filter_map(|(key, value)| {
                    let mut row = Row::new(contestants::all().find(|it| it.key == key)?, 1);
                    row.record(&measure, 0, &[(P99.to_owned(), value)].into());
                    Some(row)
                });
            reckon(&[measure], &rows.collect::<Vec<_>>()).first().map(|goal| goal.reached)
        };
        assert_eq!([verdict(200.0), verdict(201.0)], [Some(true), Some(false)]);
        assert!(reckon(&MEASURES, &[]).is_empty());
        Ok(())
    }
}
