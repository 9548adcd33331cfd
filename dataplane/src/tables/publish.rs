//! Publication of snapshots: one writer, any number of readers, no lock on the reader's side.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use ipnet::IpNet;

use super::epochs::{Entry, Epochs};
use super::service::Service;
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

    /// Replaces the snapshot. Tables that are equal to the ones before stay shared; entries that changed,
    /// appeared or went get a new epoch.
    pub fn publish(&mut self, mut set: TableSet) -> Arc<ForwardingTables> {
        let before = self.current();
        carry_over(&before.set, &mut set);
        let mut epochs = before.epochs.clone();
        advance(&mut epochs, &before.set, &set);
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
    /// Whether a connection is to be forgotten because its backend, its port or its service has gone: UDP alone,
    /// since TCP ends by itself (F6).
    pub fn strands(&self, connection: &Connection) -> bool {
        let serves = |service: &Arc<Service>| service.serves(connection.backend());
        connection.original.protocol == Protocol::UDP
            && !self.services().lookup(connection.vip).is_some_and(serves)
    }
}

fn empty() -> ForwardingTables {
    let mut tables = ForwardingTables::default();
    tables.epochs.add(Entry::Local);
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

fn advance(epochs: &mut Epochs, before: &TableSet, after: &TableSet) {
    if before.local != after.local {
        epochs.bump(Entry::Local);
    }
    if !Arc::ptr_eq(&before.neighbors, &after.neighbors) {
        let entry = |(vni, addr, mac)| (Entry::Neighbor(vni, addr), mac);
        diff(epochs, before.neighbors.iter().map(entry), after.neighbors.iter().map(entry));
    }
    if !Arc::ptr_eq(&before.fdb, &after.fdb) {
        let (old, new) = (&before.fdb, &after.fdb);
        diff(
            epochs,
            old.iter().map(|(vni, mac, vtep)| (Entry::Fdb(vni, mac), vtep)),
            new.iter().map(|(vni, mac, vtep)| (Entry::Fdb(vni, mac), vtep)),
        );
        diff(
            epochs,
            old.iter_sources().map(|(vni, addr, vteps)| (Entry::Source(vni, addr), vteps)),
            new.iter_sources().map(|(vni, addr, vteps)| (Entry::Source(vni, addr), vteps)),
        );
    }
    if !Arc::ptr_eq(&before.services, &after.services) {
        let entry = |service| -> (Entry, _) {
            let service: &Arc<Service> = service;
            (Entry::Service(service.vip), Arc::as_ptr(service))
        };
        diff(epochs, before.services.iter().map(entry), after.services.iter().map(entry));
    }
    if !Arc::ptr_eq(&before.routes, &after.routes) {
        let entry = |(prefix, hop)| (Entry::Route(prefix), hop);
        let changed = diff(epochs, before.routes.iter().map(entry), after.routes.iter().map(entry));
        for entry in changed {
            if let Entry::Route(prefix) = entry {
                bump_covering(epochs, after, prefix);
            }
        }
    }
    if !Arc::ptr_eq(&before.services, &after.services) {
        let old: HashSet<IpAddr> = before.services.addresses().collect();
        let new: HashSet<IpAddr> = after.services.addresses().collect();
        for addr in old.symmetric_difference(&new) {
            if let Some((prefix, _)) = after.routes.lookup(*addr) {
                epochs.bump(Entry::Route(prefix));
            }
        }
    }
}

/// A flow that used the next shorter prefix may now belong to `prefix`.
fn bump_covering(epochs: &mut Epochs, set: &TableSet, prefix: IpNet) {
    if let Some(shorter) = prefix.supernet()
        && let Some((covering, _)) = set.routes.covering(shorter)
    {
        epochs.bump(Entry::Route(covering));
    }
}

/// Gives each entry that changed, appeared or went a new epoch, and returns them.
fn diff<V: PartialEq>(
    epochs: &mut Epochs,
    before: impl Iterator<Item = (Entry, V)>,
    after: impl Iterator<Item = (Entry, V)>,
) -> Vec<Entry> {
    let mut before: std::collections::HashMap<Entry, V> = before.collect();
    let mut changed = Vec::new();
    for (entry, value) in after {
        match before.remove(&entry) {
            Some(old) if old == value => {}
            Some(_) => {
                epochs.bump(entry);
                changed.push(entry);
            }
            None => {
                epochs.add(entry);
                changed.push(entry);
            }
        }
    }
    for entry in before.into_keys() {
        epochs.remove(entry);
        changed.push(entry);
    }
    changed
}
