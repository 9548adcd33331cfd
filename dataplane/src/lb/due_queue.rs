//! Reminders in the order of the tick at which they are due.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What falls due, by tick. Its lock is held for a fixed number of entries at a time.
#[derive(Debug)]
pub(super) struct DueQueue<T>(Mutex<Reminders<T>>);

#[derive(Debug)]
struct Reminders<T> {
    by_tick: BTreeMap<u32, Vec<T>>,
    /// Where [`DueQueue::take`] goes on looking.
    hand: Place,
}

/// A tick, and a place in its list.
pub(super) type Place = (u32, usize);

impl<T> Default for DueQueue<T> {
    fn default() -> Self {
        Self(Mutex::new(Reminders { by_tick: BTreeMap::new(), hand: (0, 0) }))
    }
}

impl<T> DueQueue<T> {
    /// Adds a reminder.
    pub(super) fn push(&self, tick: u32, due: T) {
        self.lock().by_tick.entry(tick).or_default().push(due);
    }

    /// Adds reminders; those of one tick that follow each other are cheap.
    pub(super) fn push_all(&self, reminders: impl Iterator<Item = (u32, T)>) {
        let mut reminders = reminders.peekable();
        let mut queue = self.lock();
        while let Some((tick, due)) = reminders.next() {
            let list = queue.by_tick.entry(tick).or_default();
            list.push(due);
            while let Some((_, due)) = reminders.next_if(|(next, _)| *next == tick) {
                list.push(due);
            }
        }
    }

    /// The next one that is due at `now_tick`, and since when.
    pub(super) fn pop(&self, now_tick: u32) -> Option<(u32, T)> {
        let mut queue = self.lock();
        loop {
            let mut first = queue.by_tick.first_entry()?;
            let tick = *first.key();
            if tick > now_tick {
                return None;
            }
            match first.get_mut().pop() {
                Some(due) => return Some((tick, due)),
                None => first.remove(),
            };
        }
    }

    /// The tick of the first reminder.
    pub(super) fn first_tick(&self) -> Option<u32> {
        self.lock().by_tick.first_key_value().map(|(tick, _)| *tick)
    }

    /// Takes out the first of the next `looks` reminders that is `wanted`. Each call goes on where the last one ended,
    /// round and round, so that every reminder is looked at sooner or later.
    pub(super) fn take(&self, looks: usize, wanted: impl Fn(u32, &T) -> bool) -> Option<(u32, T)> {
        let mut queue = self.lock();
        let Reminders { by_tick, hand } = &mut *queue;
        for _ in 0..looks {
            let Some((&tick, list)) = by_tick.range_mut(hand.0..).next() else {
                *hand = (0, 0);
                continue;
            };
            let place = if tick == hand.0 { hand.1 } else { 0 };
            *hand = match list.get(place) {
                Some(due) if wanted(tick, due) => {
                    *hand = (tick, place);
                    return Some((tick, list.swap_remove(place)));
                }
                Some(_) => (tick, place + 1),
                None => (tick.saturating_add(1), 0),
            };
        }
        None
    }

    /// Shows the next `count` reminders from that place on, and says where the ones after them stand. Workers take from
    /// the end of a tick's list and put what lives on under a later tick.
    pub(super) fn show(
        &self,
        (tick, place): Place,
        count: usize,
        mut see: impl FnMut(u32, &T),
    ) -> Option<Place> {
        let queue = self.lock();
        let (&found, list) = queue.by_tick.range(tick..).next()?;
        let place = if found == tick { place } else { 0 };
        let rest = list.get(place..).unwrap_or_default();
        rest.iter().take(count).for_each(|due| see(found, due));
        if rest.len() > count {
            return Some((found, place + count));
        }
        found.checked_add(1).map(|next| (next, 0))
    }

    /// A list of reminders that a panicking worker left behind is still sound.
    fn lock(&self) -> MutexGuard<'_, Reminders<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_goes_round_and_takes_only_what_is_wanted() {
        let queue = DueQueue::default();
        for number in 0..10_u32 {
            queue.push(number / 4, number);
        }
        let even = |_, number: &u32| number.is_multiple_of(2);
        let mut taken: Vec<u32> =
            (0..10).filter_map(|_| queue.take(8, even)).map(|(_, number)| number).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 2, 4, 6, 8]);
        assert!(queue.take(100, even).is_none());
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop(9)).map(|(_, number)| number % 2).collect();
        assert_eq!(rest, [1; 5]);
    }
}
