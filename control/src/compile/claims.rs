//! Who wants the same thing as somebody else.

use std::collections::hash_map::Entry;
use std::hash::Hash;

use foldhash::HashMap;

/// The names that want each thing.
#[derive(Clone, Debug)]
pub(super) struct Claims<K, N>(HashMap<K, Names<N>>);

/// Mostly there is one, which needs no allocation.
#[derive(Clone, Debug)]
struct Names<N> {
    first: N,
    /// In their order.
    others: Vec<N>,
}

impl<K, N> Default for Claims<K, N> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<K: Eq + Hash, N: Ord> Claims<K, N> {
    pub(super) fn add(&mut self, thing: K, name: N) {
        match self.0.entry(thing) {
            Entry::Vacant(vacant) => drop(vacant.insert(Names { first: name, others: Vec::new() })),
            Entry::Occupied(mut known) => known.get_mut().add(name),
        }
    }

    pub(super) fn remove(&mut self, thing: &K, name: &N) {
        let Some(names) = self.0.get_mut(thing) else { return };
        if names.first != *name {
            names.others.retain(|known| known != name);
        } else if names.others.is_empty() {
            self.0.remove(thing);
        } else {
            names.first = names.others.remove(0);
        }
    }

    /// The name that comes before the others.
    pub(super) fn first(&self, thing: &K) -> Option<&N> {
        self.0.get(thing).map(|names| &names.first)
    }

    /// All names, in their order.
    pub(super) fn of<'a>(&'a self, thing: &K) -> impl Iterator<Item = &'a N> + use<'a, K, N> {
        self.0.get(thing).into_iter().flat_map(|names| std::iter::once(&names.first).chain(&names.others))
    }
}

impl<N: Ord> Names<N> {
    fn add(&mut self, mut name: N) {
        if name == self.first {
            return;
        }
        if name < self.first {
            std::mem::swap(&mut name, &mut self.first);
        }
        if let Err(place) = self.others.binary_search(&name) {
            self.others.insert(place, name);
        }
    }
}
