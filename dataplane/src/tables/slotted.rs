//! A table whose entries keep their places.

use std::hash::Hash;

use foldhash::HashMap;

/// An entry's number in its table, the same in every snapshot as long as the entry is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot(pub(super) u32);

impl Slot {
    /// That of this node's own entry, which has a table of its own.
    pub const LOCAL: Self = Self(0);
}

/// Key to value and [`Slot`]: whoever finds an entry knows by what to depend on it, without a second look. A copy goes
/// on counting where the original stood. Tables with equal entries are equal, whatever their slots.
#[derive(Clone, Debug)]
pub(super) struct Slotted<K, V> {
    entries: HashMap<K, (Slot, V)>,
    /// Of entries that have gone. One that comes back stands where it stood, also when it was taken out only to be decided
    /// again.
    vacated: HashMap<K, Slot>,
    free: Vec<Slot>,
    /// The first number that has never been given.
    next: u32,
}

impl<K, V> Default for Slotted<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), vacated: HashMap::default(), free: Vec::new(), next: 0 }
    }
}

impl<K: Copy + Eq + Hash, V> Slotted<K, V> {
    /// Adds an entry, or replaces its value; returns what stood there.
    pub(super) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some((_, known)) = self.entries.get_mut(&key) {
            return Some(std::mem::replace(known, value));
        }
        let slot = self.slot_for(&key);
        self.entries.insert(key, (slot, value));
        None
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let (slot, value) = self.entries.remove(key)?;
        self.vacated.insert(*key, slot);
        Some(value)
    }

    #[inline]
    pub(super) fn find(&self, key: &K) -> Option<(Slot, &V)> {
        self.entries.get(key).map(|(slot, value)| (*slot, value))
    }

    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(_, value)| value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, (_, value))| (key, value))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Slots up to here may be in use.
    pub(super) fn slots(&self) -> u32 {
        self.next
    }

    /// Whether the entries that both tables have stand in the same slots.
    pub(super) fn agrees_with(&self, before: &Self) -> bool {
        self.entries.iter().all(|(key, (slot, _))| before.find(key).is_none_or(|(known, _)| known == *slot))
    }

    /// Gives the entries that `before` has too the slots that they have there.
    pub(super) fn follow(&mut self, before: &Self) {
        if self.agrees_with(before) {
            self.next = self.next.max(before.next);
            return;
        }
        (self.vacated, self.free) = (before.vacated.clone(), before.free.clone());
        self.next = before.next;
        let mut entries = std::mem::take(&mut self.entries);
        for (key, (slot, _)) in &mut entries {
            *slot = before.find(key).map_or_else(|| self.slot_for(key), |(known, _)| known);
        }
        let gone = before.entries.iter().filter(|(key, _)| !entries.contains_key(key));
        self.vacated.extend(gone.map(|(key, (slot, _))| (*key, *slot)));
        self.entries = entries;
    }

    fn slot_for(&mut self, key: &K) -> Slot {
        if let Some(slot) = self.vacated.remove(key) {
            return slot;
        }
        if self.free.is_empty() && self.vacated.len() > self.entries.len() + VACATED {
            self.free.extend(self.vacated.drain().map(|(_, slot)| slot));
        }
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            Slot(self.next - 1)
        })
    }
}

/// So many more slots than entries may be kept for entries that have gone.
const VACATED: usize = 1_024;

impl<K: Copy + Eq + Hash, V: PartialEq> PartialEq for Slotted<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<K: Copy + Eq + Hash, V: Eq> Eq for Slotted<K, V> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(keys: &[u8]) -> Slotted<u8, ()> {
        let mut table = Slotted::default();
        keys.iter().for_each(|key| assert_eq!(table.insert(*key, ()), None));
        table
    }

    fn slots(table: &Slotted<u8, ()>, keys: &[u8]) -> Vec<Option<u32>> {
        keys.iter().map(|key| table.find(key).map(|(slot, ())| slot.0)).collect()
    }

    #[test]
    fn an_entry_keeps_its_slot_until_it_goes() {
        let mut table = table(b"abc");
        table.remove(&b'b');
        assert_eq!(table.insert(b'a', ()), Some(()));
        assert_eq!(slots(&table, b"abc"), [Some(0), None, Some(2)]);
        table.insert(b'd', ());
        assert_eq!(slots(&table, b"acd"), [Some(0), Some(2), Some(3)]);
        table.remove(&b'a');
        table.insert(b'b', ());
        table.insert(b'a', ());
        assert_eq!(slots(&table, b"abcd"), [Some(0), Some(1), Some(2), Some(3)], "as before they went");
    }

    #[test]
    fn g13_slots_of_entries_that_have_gone_are_given_again() {
        let mut table = Slotted::default();
        for number in 0..10 * VACATED {
            table.insert(number, ());
            table.remove(&number);
        }
        assert!(table.slots() as usize <= 2 * VACATED, "{}", table.slots());
    }

    #[test]
    fn a_table_made_anew_takes_over_the_slots_of_the_one_before() {
        let before = table(b"abc");
        let mut after = table(b"dcae");
        assert!(!after.agrees_with(&before));
        after.follow(&before);
        assert!(after.agrees_with(&before));
        assert_eq!(slots(&after, b"ac"), [Some(0), Some(2)]);
        let mut all: Vec<_> = slots(&after, b"acde").into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, [0, 2, 3, 4]);
        after.insert(b'b', ());
        assert_eq!(slots(&after, b"b"), [Some(1)], "as before it went");
    }
}
