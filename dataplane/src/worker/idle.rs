//! When a worker looks for work again, when it lets others run first, and when it sleeps.

use std::time::Duration;

use crate::time::Instant;

/// How a worker looks for work when there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poll {
    /// It looks again and again for 50 to 200 us after the last packet, and then sleeps: an answer that comes at once
    /// finds it awake. Where others want its core it sleeps at once.
    #[default]
    Adaptive,
    /// It sleeps at once.
    Interrupt,
    /// It never sleeps.
    Busy,
}

/// How long an adaptive worker looks for more after the last packet, unless it has seen reason to look for longer.
const SHORT_LOOK: Duration = Duration::from_micros(50);

/// How long at most: longer than a round trip between two nodes of one site and the answer's making, short beside the
/// time slice of anyone it keeps from running. A packet that a worker slept for, but not for as long as this, is what
/// more patience would have found awake.
const LONG_LOOK: Duration = Duration::from_micros(200);

/// Whoever keeps the core for longer than this after a yield is no partner in a conversation but at work. Nobody wakes
/// a worker that has yielded, so it waits as long as the scheduler lets the other run: up to a tick of 4 ms.
const LONG_YIELD: Duration = Duration::from_micros(200);

/// An adaptive worker sleeps at once for so many times what a long yield has cost: at most one part in so many is lost.
const REPENTANCE: u32 = 64;

/// What a worker does after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Looks what is ready.
    Look,
    /// Lets others run, and then looks.
    Yield,
    /// Looks what is ready, and sleeps until something is.
    Sleep,
}

/// How long there has been nothing to do.
#[derive(Debug)]
pub(super) struct Idle {
    poll: Poll,
    /// When the last packet came.
    busy_at: Instant,
    /// How long it looks for the next one.
    look_for: Duration,
    /// Until then the core is wanted by others.
    contended_until: Instant,
}

impl Idle {
    pub(super) fn new(poll: Poll) -> Self {
        Self { poll, busy_at: Instant::ZERO, look_for: SHORT_LOOK, contended_until: Instant::ZERO }
    }

    /// What to do after a turn that began at `now`.
    pub(super) fn after_turn(&mut self, has_received: bool, now: Instant) -> Next {
        if has_received {
            let gap = now.since(self.busy_at);
            if gap > LONG_LOOK {
                self.look_for = SHORT_LOOK;
            } else if gap > self.look_for {
                self.look_for = LONG_LOOK.min(2 * gap);
            }
            self.busy_at = now;
        }
        let sleeps = match self.poll {
            Poll::Adaptive => now < self.contended_until || now.since(self.busy_at) >= self.look_for,
            Poll::Interrupt => true,
            Poll::Busy => false,
        };
        match (sleeps, has_received) {
            (true, _) => Next::Sleep,
            (false, true) => Next::Look,
            // Whoever shares this core may be the one that sends next.
            (false, false) => Next::Yield,
        }
    }

    /// To be told of each [`Next::Yield`].
    pub(super) fn has_yielded(&mut self, from: Instant, to: Instant) {
        let taken = to.since(from);
        if taken >= LONG_YIELD {
            self.contended_until = to + taken * REPENTANCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + micros * 1_000)
    }

    #[test]
    fn an_adaptive_worker_looks_for_50_us_after_a_packet_and_then_sleeps() {
        let mut idle = Idle::new(Poll::Adaptive);
        assert_eq!(idle.after_turn(false, at(0)), Next::Sleep);
        assert_eq!(idle.after_turn(true, at(10)), Next::Look);
        assert_eq!(idle.after_turn(false, at(59)), Next::Yield);
        assert_eq!(idle.after_turn(false, at(60)), Next::Sleep);
    }

    #[test]
    fn an_adaptive_worker_that_slept_a_little_too_early_looks_for_longer_until_there_is_a_pause() {
        let mut idle = Idle::new(Poll::Adaptive);
        idle.after_turn(true, at(0));
        assert_eq!(idle.after_turn(true, at(80)), Next::Look);
        assert_eq!(idle.after_turn(false, at(80 + 159)), Next::Yield);
        assert_eq!(idle.after_turn(false, at(80 + 160)), Next::Sleep);
        idle.after_turn(true, at(80 + 190));
        assert_eq!(idle.after_turn(false, at(270 + 199)), Next::Yield);
        assert_eq!(idle.after_turn(false, at(270 + 200)), Next::Sleep, "never longer");
        idle.after_turn(true, at(1_000));
        assert_eq!(idle.after_turn(false, at(1_050)), Next::Sleep);
    }

    #[test]
    fn an_adaptive_worker_whose_core_is_wanted_by_others_sleeps_at_once_for_a_while() {
        let mut idle = Idle::new(Poll::Adaptive);
        idle.after_turn(true, at(0));
        idle.has_yielded(at(1), at(20));
        assert_eq!(idle.after_turn(false, at(20)), Next::Yield, "a short yield costs nothing");
        idle.has_yielded(at(20), at(220));
        assert_eq!(idle.after_turn(true, at(221)), Next::Sleep);
        assert_eq!(idle.after_turn(true, at(219 + 12_800)), Next::Sleep);
        assert_eq!(idle.after_turn(true, at(220 + 12_800)), Next::Look);
    }

    #[test]
    fn the_other_workers_always_or_never_sleep() {
        let (mut interrupt, mut busy) = (Idle::new(Poll::Interrupt), Idle::new(Poll::Busy));
        assert_eq!(interrupt.after_turn(true, at(0)), Next::Sleep);
        assert_eq!(busy.after_turn(true, at(0)), Next::Look);
        busy.has_yielded(at(0), at(4_000));
        assert_eq!(busy.after_turn(false, at(9_000_000)), Next::Yield);
    }
}
