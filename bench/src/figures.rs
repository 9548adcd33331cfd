//! The words that generators, servers and reports share: what a measure gives, and for how long it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The higher.
    Higher,
    /// The lower.
    Lower,
}

/// One number that a measure gives.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// Its name within the measure.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way it is better.
    pub better: Better,
    /// Whether the printed table shows it; the report shows all.
    pub headline: bool,
}

/// A measure's figures by their keys.
pub type Figures = BTreeMap<String, f64>;

/// How long traffic runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What is not counted, at the beginning.
    pub warm_up: Duration,
    /// What is counted.
    pub duration: Duration,
}

impl Span {
    /// Everything, and a little more, so that the traffic outlasts the counting.
    #[must_use]
    pub fn whole(self) -> Duration {
        self.warm_up + self.duration + Duration::from_millis(20)
    }
}
