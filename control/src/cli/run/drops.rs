//! Tells of drops: at once when they begin, and once a minute as long as they go on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use windlass_dataplane::drop_reason::DropReason;

/// How long a reason that was told of is not told of again.
const QUIET: Duration = Duration::from_secs(60);

/// What was told last, by reason.
#[derive(Debug, Default)]
pub(super) struct DropLog(BTreeMap<DropReason, (Instant, u64)>);

impl DropLog {
    /// Logs a line for each reason whose count has grown and that was not told of within a minute.
    pub(super) fn look(&mut self, now: Instant, count: impl Fn(DropReason) -> u64) {
        for (reason, more) in self.news(now, count) {
            let (name, meaning) = (reason.name(), reason.meaning().trim().trim_end_matches('.'));
            match reason {
                // A Linux host's own multicast on the device: every host has some.
                DropReason::DestinationInvalid => {
                    tracing::debug!("dropped {more} packets, {name}: {meaning}")
                }
                _ => tracing::info!("dropped {more} packets, {name}: {meaning}"),
            }
        }
    }

    fn news(&mut self, now: Instant, count: impl Fn(DropReason) -> u64) -> Vec<(DropReason, u64)> {
        let mut news = Vec::new();
        for reason in DropReason::ALL.iter().copied() {
            let (count, known) = (count(reason), self.0.get(&reason).copied());
            let told = known.map_or(0, |(_, told)| told);
            let is_quiet = known.is_some_and(|(at, _)| now.duration_since(at) < QUIET);
            if count > told && !is_quiet {
                news.push((reason, count - told));
                self.0.insert(reason, (now, count));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_told_when_they_begin_and_once_a_minute_while_they_grow() {
        let mut log = DropLog::default();
        let start = Instant::now();
        let no_route = |value: u64| move |reason| if reason == DropReason::NoRoute { value } else { 0 };
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(log.news(at(0), no_route(0)), []);
        assert_eq!(log.news(at(1), no_route(2)), [(DropReason::NoRoute, 2)]);
        assert_eq!(log.news(at(30), no_route(1_000)), []);
        assert_eq!(log.news(at(61), no_route(1_500)), [(DropReason::NoRoute, 1_498)]);
        assert_eq!(log.news(at(200), no_route(1_500)), []);
    }
}
