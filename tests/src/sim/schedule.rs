//! Virtual time: what happens when.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_dataplane::time::Instant;

/// Events in the order of their time; those of one instant in the order in which they were put here.
#[derive(Debug)]
pub struct Schedule<E> {
    events: BTreeMap<(Instant, u64), E>,
    put: u64,
    now: Instant,
}

impl<E> Default for Schedule<E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), put: 0, now: Instant::ZERO }
    }
}

impl<E> Schedule<E> {
    /// The time of the event that was taken last.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Lets `event` happen after `delay`.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.put += 1;
        self.events.insert((self.now + delay, self.put), event);
    }

    /// Takes the next event that happens until `end`, and lets time pass until then; without one, until `end`.
    pub fn next(&mut self, end: Instant) -> Option<E> {
        let next = self.events.first_entry().filter(|first| first.key().0 <= end);
        match next {
            Some(first) => {
                self.now = first.key().0;
                Some(first.remove())
            }
            None => {
                self.now = self.now.max(end);
                None
            }
        }
    }
}
