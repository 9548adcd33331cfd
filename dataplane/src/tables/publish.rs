//! Publication of snapshots: one writer, any number of readers, no lock on the reader's side.

use std::hash::Hash;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use ipnet::IpNet;

use super::draft::Draft;
use super::epochs::{Entry, Epochs};
use super::service::{Service, Vip};
use super::slotted::Slotted;
use super::snapshot::{ForwardingTables, TableSet};
use crate::lb::conntrack::Connection;
use crate::wire::protocol::Protocol;

/// Publishes snapshots. Retired ones are freed here, never by a worker.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<ArcSwap<ForwardingTables>>,
    retired: Vec<Arc<ForwardingTables>>,
}

/// Shows the newest snapshot to whoever asks now and then.
#[derive(Clone, Debug)]
pub struct Snapshots(Arc<ArcSwap<ForwardingTables>>);

impl Snapshots {
    /// The newest snapshot; to be let go of soon.
    pub fn current(&self) -> Arc<ForwardingTables> {
        self.0.load_full()
    }
}

/// A worker's view of the newest snapshot.
pub struct Reader {
    cache: Cache<Arc<ArcSwap<ForwardingTables>>, Arc<ForwardingTables>>,
}

impl Reader {
    /// The newest snapshot; to be asked once per batch.
    pub fn load(&mut self) -> &Arc<ForwardingTables> {
        self.cache.load()
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new(TableSet::default())
    }
}

impl Writer {
    /// A writer whose first snapshot is `set`.
    pub fn new(set: TableSet) -> Self {
        let mut writer = Self { shared: Arc::new(ArcSwap::from_pointee(empty())), retired: Vec::new() };
        writer.publish(set);
        writer
    }

    /// A reader for one worker.
    pub fn reader(&self) -> Reader {
        Reader { cache: Cache::new(Arc::clone(&self.shared)) }
    }

    /// For those who ask now and then.
    pub fn snapshots(&self) -> Snapshots {
        Snapshots(Arc::clone(&self.shared))
    }

    /// The newest snapshot.
    pub fn current(&self) -> Arc<ForwardingTables> {
        self.shared.load_full()
    }

    /// Replaces the snapshot by any other. Tables, services and VTEPs that are equal to the ones before stay
    /// shared; entries that changed, appeared or went get a new epoch.
    pub fn publish(&mut self, mut set: TableSet) -> Arc<ForwardingTables> {
        let before = self.current();
        carry_over(&before.set, &mut set);
        follow(&before.set, &mut set);
        let entries = entries(&before.set, &set);
        self.replace(before, set, &entries)
    }

    /// Replaces the snapshot by one that follows it, at the cost of what changed. A draft that does not follow
    /// the newest snapshot is published whole.
    pub fn publish_draft(&mut self, draft: &Draft) -> Arc<ForwardingTables> {
        let before = self.current();
        match draft.before.stands_as(&before.set) {
            true => self.replace(before, draft.set.clone(), &draft.touched),
            false => self.publish(draft.set.clone()),
        }
    }

    /// Only `entries` may differ.
    fn replace(
        &mut self,
        before: Arc<ForwardingTables>,
        set: TableSet,
        entries: &[Entry],
    ) -> Arc<ForwardingTables> {
        let mut epochs = before.epochs.clone();
        make_room(&mut epochs, &set);
        advance(&mut epochs, &before.set, &set, entries);
        let next = Arc::new(ForwardingTables { generation: before.generation.wrapping_add(1), set, epochs });
        self.retired.push(self.shared.swap(Arc::clone(&next)));
        drop(before);
        self.reap();
        next
    }

    /// Frees the snapshots that no worker looks at any more.
    pub fn reap(&mut self) {
        self.retired.retain(|tables| Arc::strong_count(tables) > 1);
    }
}

impl ForwardingTables {
    /// Whether there may be connections to forget that there were not `before`, from which these tables differ in
    /// `touched` entries at most: a UDP service has gone, or a backend of one (F6).
    pub fn may_strand(&self, before: &Self, touched: &[Entry]) -> bool {
        let has_lost = |vip: Vip| match (before.services().lookup(vip), self.services().lookup(vip)) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(old), Some(new)) => [true, false].into_iter().any(|is_inside| {
                let (old, new) = (old.seen_from(|| is_inside), new.seen_from(|| is_inside));
                old.backends.iter().chain(&old.draining).any(|backend| !new.serves(*backend))
            }),
        };
        touched.iter().any(
            |entry| matches!(entry, Entry::Service(vip) if vip.protocol == Protocol::UDP && has_lost(*vip)),
        )
    }

    /// Whether a connection is to be forgotten because its backend, its port or its service has gone: UDP alone,
    /// since TCP ends by itself (F6).
    pub fn strands(&self, connection: &Connection) -> bool {
        let client = connection.original.src;
        let serves = |service: &Arc<Service>| {
            service.seen_from(|| self.local().is_inside(client)).serves(connection.backend())
        };
        connection.original.protocol == Protocol::UDP
            && !self.services().lookup(connection.vip).is_some_and(serves)
    }
}

fn empty() -> ForwardingTables {
    let mut tables = ForwardingTables::default();
    make_room(&mut tables.epochs, &tables.set);
    tables
}

/// Makes equal tables, services and VTEPs the very same ones.
fn carry_over(before: &TableSet, set: &mut TableSet) {
    fn keep<T: PartialEq>(before: &Arc<T>, after: &mut Arc<T>) -> bool {
        let same = before == after;
        if same {
            *after = Arc::clone(before);
        }
        same
    }
    keep(&before.local, &mut set.local);
    keep(&before.neighbors, &mut set.neighbors);
    keep(&before.routes, &mut set.routes);
    keep(&before.segments, &mut set.segments);
    if !keep(&before.services, &mut set.services) {
        let table = Arc::make_mut(&mut set.services);
        let same: Vec<_> = before.services.iter().filter(|old| table.lookup(old.vip) == Some(old)).collect();
        for service in same {
            table.insert(Arc::clone(service));
        }
    }
    if !keep(&before.fdb, &mut set.fdb) {
        let table = Arc::make_mut(&mut set.fdb);
        for (vni, mac, old) in before.fdb.iter() {
            if table.lookup(vni, mac) == Some(old) {
                table.insert(vni, mac, Arc::clone(old));
            }
        }
    }
}

/// Makes entries that were there before stand in the slots in which they stood.
fn follow(before: &TableSet, set: &mut TableSet) {
    fn follow<T: Clone, K: Copy + Eq + Hash, V>(
        before: &Arc<T>,
        after: &mut Arc<T>,
        entries: fn(&T) -> &Slotted<K, V>,
        entries_mut: fn(&mut T) -> &mut Slotted<K, V>,
    ) {
        if !Arc::ptr_eq(before, after) {
            entries_mut(Arc::make_mut(after)).follow(entries(before));
        }
    }
    follow(&before.routes, &mut set.routes, |table| &table.routes, |table| &mut table.routes);
    follow(&before.neighbors, &mut set.neighbors, |table| &table.entries, |table| &mut table.entries);
    follow(&before.fdb, &mut set.fdb, |table| &table.entries, |table| &mut table.entries);
    follow(&before.fdb, &mut set.fdb, |table| &table.sources, |table| &mut table.sources);
    follow(&before.services, &mut set.services, |table| &table.services, |table| &mut table.services);
}

fn make_room(epochs: &mut Epochs, set: &TableSet) {
    set.slots().into_iter().for_each(|(table, slots)| epochs.make_room(table, slots));
}

/// All entries of the tables that are not the very same.
fn entries(before: &TableSet, after: &TableSet) -> Vec<Entry> {
    let mut entries = vec![Entry::Local];
    for set in [before, after] {
        if !Arc::ptr_eq(&before.neighbors, &after.neighbors) {
            entries.extend(set.neighbors.iter().map(|(vni, addr, _)| Entry::Neighbor(vni, addr)));
        }
        if !Arc::ptr_eq(&before.fdb, &after.fdb) {
            entries.extend(set.fdb.iter().map(|(vni, mac, _)| Entry::Fdb(vni, mac)));
            entries.extend(set.fdb.iter_sources().map(|(vni, addr, _)| Entry::Source(vni, addr)));
        }
        if !Arc::ptr_eq(&before.services, &after.services) {
            entries.extend(set.services.iter().map(|service| Entry::Service(service.vip)));
        }
        if !Arc::ptr_eq(&before.routes, &after.routes) {
            entries.extend(set.routes.iter().map(|(prefix, _)| Entry::Route(prefix)));
        }
    }
    entries
}

/// Whether an entry says the same in both, or is in neither.
fn is_same(before: &TableSet, after: &TableSet, entry: Entry) -> bool {
    match entry {
        Entry::Local => before.local == after.local,
        Entry::Route(prefix) => before.routes.get(prefix) == after.routes.get(prefix),
        Entry::Neighbor(vni, addr) => before.neighbors.lookup(vni, addr) == after.neighbors.lookup(vni, addr),
        Entry::Fdb(vni, mac) => before.fdb.lookup(vni, mac) == after.fdb.lookup(vni, mac),
        Entry::Source(vni, addr) => before.fdb.sources(vni, addr) == after.fdb.sources(vni, addr),
        Entry::Service(vip) => before.services.lookup(vip) == after.services.lookup(vip),
    }
}

/// Gives each of `entries` that changed, appeared or went a new epoch: that of the slot where it stood, for who depended
/// on it, and that of the slot where it stands.
fn advance(epochs: &mut Epochs, before: &TableSet, after: &TableSet, entries: &[Entry]) {
    for entry in entries {
        if is_same(before, after, *entry) && before.place(entry) == after.place(entry) {
            continue;
        }
        bump(epochs, before, *entry);
        bump(epochs, after, *entry);
        match *entry {
            Entry::Route(prefix) => bump_covering(epochs, after, prefix),
            Entry::Service(vip) if before.services.is_vip(vip.addr) != after.services.is_vip(vip.addr) => {
                if let Some((prefix, _)) = after.routes.lookup(vip.addr) {
                    bump(epochs, after, Entry::Route(prefix));
                }
            }
            _ => {}
        }
    }
}

fn bump(epochs: &mut Epochs, set: &TableSet, entry: Entry) {
    if let Some((table, slot)) = set.place(&entry) {
        epochs.bump(table, slot);
    }
}

/// A flow that used the next shorter prefix may now belong to `prefix`.
fn bump_covering(epochs: &mut Epochs, set: &TableSet, prefix: IpNet) {
    if let Some(shorter) = prefix.supernet()
        && let Some((covering, _)) = set.routes.covering(shorter)
    {
        bump(epochs, set, Entry::Route(covering));
    }
}
