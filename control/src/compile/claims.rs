//! Who wants the same thing as somebody else.

use std::collections::HashMap;
use std::hash::Hash;

/// The names that want each thing, the first in their order first.
#[derive(Clone, Debug)]
pub(super) struct Claims<K, N>(HashMap<K, Vec<N>>);

impl<K, N> Default for Claims<K, N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash, N: Ord> Claims<K, N> {
    pub(super) fn add(&mut self, thing: K, name: N) {
        let names = self.0.entry(thing).or_default();
        if let Err(place) = names.binary_search(&name) {
            names.insert(place, name);
        }
    }

    pub(super) fn remove(&mut self, thing: &K, name: &N) {
        if let Some(names) = self.0.get_mut(thing) {
            names.retain(|known| known != name);
            if names.is_empty() {
                self.0.remove(thing);
            }
        }
    }

    pub(super) fn of(&self, thing: &K) -> &[N] {
        self.0.get(thing).map_or(&[], Vec::as_slice)
    }
}
