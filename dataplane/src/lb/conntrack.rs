//! The connection table: what every worker must agree on about translated flows.
//!
//! A connection is one shared record under two index entries, the original flow and the reply's. It is looked
//! up on a flow-cache miss only. No two shard locks are held together. Expiry goes by queues of due ticks, one
//! per worker, so that a sweep costs what is due and not what is there.

mod saved;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::affinities::{Affinities, Affinity, Client};
use super::connection::{CLAIMED, GONE, LIVE};
use super::direct_flows::DirectFlows;
use super::due_queue::DueQueue;
use super::flow_index::{FlowIndex, Indexed};
use super::occupancy::{Counts, Occupancy};
use super::tcp_state::TcpState;
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol, Vip};

pub use self::saved::{SavedAffinity, SavedConnection};
pub use super::connection::{Connection, UDP_TIMEOUT};
pub use super::tcp_state::FlowDirection;

/// How many due entries there may be for each connection that the table may hold: affinities, shortened timers
/// and connections that are gone have theirs too.
const REMINDERS_PER_CONNECTION: usize = 3;

/// How many reminders of each worker are looked at for a connection that makes room: some 2 us.
const EVICTION_LOOKS: usize = 16;

/// Why a connection could not be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertError {
    /// Another worker has just inserted the same original flow: look it up.
    Exists,
    /// Another connection has this reply flow: another source port is needed.
    ReplyTaken,
    /// The table is full.
    Full,
}

#[derive(Debug)]
enum Due {
    Connection(Arc<Connection>),
    Affinity(Box<Client>),
}

/// New connections of a worker that do not stand in its due queue yet, and when they will be due.
#[derive(Debug, Default)]
pub struct Unscheduled(Vec<(u32, Arc<Connection>)>);

/// The shared store of connections and affinities.
#[derive(Debug)]
pub struct Conntrack {
    index: FlowIndex,
    affinities: Affinities,
    due: Box<[DueQueue<Due>]>,
    direct: DirectFlows,
    occupancy: Occupancy,
    evicted: AtomicU64,
    capacity: usize,
}

impl Conntrack {
    /// A store for at most `capacity` connections (and as many affinities), swept by `workers` workers.
    pub fn new(capacity: usize, workers: usize) -> Self {
        Self::with_direct_buckets(capacity, workers, DIRECT_BUCKETS)
    }

    /// The same, which tells untranslated flows apart by so many buckets only (a power of two).
    pub fn with_direct_buckets(capacity: usize, workers: usize, buckets: usize) -> Self {
        Self {
            index: FlowIndex::default(),
            affinities: Affinities::default(),
            due: (0..workers.max(1)).map(|_| DueQueue::default()).collect(),
            direct: DirectFlows::new(buckets),
            occupancy: Occupancy::default(),
            evicted: AtomicU64::new(0),
            capacity,
        }
    }

    /// Connections in the table.
    pub fn len(&self) -> usize {
        self.occupancy.counts().connections
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The connection that `flow` belongs to, in either direction.
    ///
    /// A connection whose second index entry another worker is about to insert is waited for: it may yet be
    /// rolled back, and a packet translated by it would cross with another flow's.
    pub fn lookup(&self, flow: &FlowKey) -> Option<(Arc<Connection>, FlowDirection)> {
        loop {
            let found = self.index.get(flow)?;
            match found.connection.stage.load(Ordering::Acquire) {
                LIVE => return Some((found.connection, found.direction)),
                CLAIMED => std::thread::yield_now(),
                _ => return None,
            }
        }
    }

    /// Whether a reply of `flow` would be some connection's.
    pub fn is_taken(&self, flow: &FlowKey) -> bool {
        self.index.contains(self.index.hash(flow), flow)
    }

    /// Changes whenever a flow that [`stays_direct`](Self::stays_direct) has said so of became a connection's.
    #[inline]
    pub fn direct_epoch(&self) -> u32 {
        self.direct.epoch()
    }

    /// Whether `flow`, which is about to be remembered as untranslated, is no connection's at `tick`. When that changes,
    /// so does the epoch, which must have been read before.
    pub fn stays_direct(&self, flow: &FlowKey, tick: u32) -> bool {
        let hash = self.index.hash(flow);
        self.direct.mark(hash, tick);
        !self.index.contains(hash, flow)
    }

    /// How many connections had to make room for others before their time.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Shows every live connection but the [`Unscheduled`] to `see` until that says no. Only the due queues are locked, and only while
    /// a few entries are copied, so that workers go on; one that moves meanwhile may be shown twice.
    pub fn visit(&self, mut see: impl FnMut(&Arc<Connection>) -> bool) {
        let mut some = Vec::with_capacity(VISITED_AT_ONCE);
        for queue in &self.due {
            let mut from = (0, 0);
            while let Some(next) = queue.show(from, VISITED_AT_ONCE, |tick, due| {
                if let Due::Connection(connection) = due {
                    some.push((tick, Arc::clone(connection)));
                }
            }) {
                for (tick, connection) in some.drain(..) {
                    let stands_here = connection.due.load(Ordering::Relaxed) == tick;
                    if stands_here && connection.is_live() && !see(&connection) {
                        return;
                    }
                }
                from = next;
            }
        }
    }

    /// Forgets the connections that `is_gone` names, and says how many. As [`visit`](Self::visit), it keeps no
    /// worker waiting.
    pub fn purge(&self, is_gone: impl Fn(&Connection) -> bool) -> usize {
        let mut purged = 0;
        self.visit(|connection| {
            if is_gone(connection) {
                self.remove(connection);
                purged += 1;
            }
            true
        });
        purged
    }

    /// Inserts one connection, as [`insert_of_batch`](Self::insert_of_batch) does.
    ///
    /// # Errors
    /// See [`InsertError`].
    pub fn insert(&self, connection: &Arc<Connection>, worker: usize) -> Result<(), InsertError> {
        let mut unscheduled = Unscheduled::default();
        let result = self.insert_of_batch(connection, worker, &mut unscheduled);
        self.schedule_all(worker, &mut unscheduled);
        result
    }

    /// Inserts both directions, or none; the timer is left to be set for a whole batch together, by
    /// [`schedule_all`](Self::schedule_all). In a full table a connection that nobody has answered, or that is over, makes
    /// room, if one is found at once: a flood of first packets pushes out itself, and no established flow.
    ///
    /// # Errors
    /// See [`InsertError`].
    pub fn insert_of_batch(
        &self,
        connection: &Arc<Connection>,
        worker: usize,
        unscheduled: &mut Unscheduled,
    ) -> Result<(), InsertError> {
        if self.is_full() {
            self.schedule_all(worker, unscheduled);
            self.make_room(worker, connection.opened_tick());
        }
        if self.leaves_no_room(self.occupancy.add_connection()) {
            self.occupancy.take_back_connection();
            return Err(InsertError::Full);
        }
        // Nobody else knows the connection yet.
        let due_tick = connection.due_tick();
        connection.due.store(due_tick, Ordering::Relaxed);
        let result = self.claim(connection);
        match result {
            Ok(()) => {
                connection.stage.store(LIVE, Ordering::Release);
                unscheduled.0.push((due_tick, Arc::clone(connection)));
            }
            Err(_) => {
                connection.stage.store(GONE, Ordering::Release);
                self.unindex(&connection.original, connection);
                self.occupancy.take_back_connection();
            }
        }
        result
    }

    /// Sets the timers of a batch's new connections.
    pub fn schedule_all(&self, worker: usize, unscheduled: &mut Unscheduled) {
        if !unscheduled.0.is_empty() {
            let reminders =
                unscheduled.0.drain(..).map(|(tick, connection)| (tick, Due::Connection(connection)));
            self.queue(worker).push_all(reminders);
        }
    }

    fn is_full(&self) -> bool {
        self.leaves_no_room(self.occupancy.counts())
    }

    /// A client that opens and resets over and over leaves a record behind each time, until it is due.
    fn leaves_no_room(&self, counts: Counts) -> bool {
        counts.connections >= self.capacity
            || counts.reminders >= self.capacity.saturating_mul(REMINDERS_PER_CONNECTION)
    }

    /// Looks at a few connections of each worker, from its own on, for one that gives way, and clears away reminders of
    /// those that are gone.
    fn make_room(&self, worker: usize, tick: u32) {
        for offset in 0..self.due.len() {
            let taken = self.queue(worker + offset).take(EVICTION_LOOKS, |due_tick, due| match due {
                Due::Connection(known) => known.is_stale(due_tick) || known.gives_way(tick),
                Due::Affinity(_) => false,
            });
            let Some((due_tick, Due::Connection(known))) = taken else { continue };
            self.occupancy.remove_reminder();
            if !known.is_stale(due_tick) {
                self.remove(&known);
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            if !self.is_full() {
                return;
            }
        }
    }

    fn claim(&self, connection: &Arc<Connection>) -> Result<(), InsertError> {
        // The place of a connection that is gone counts as free: whoever removes it may have been interrupted.
        let take_place = |hash, direction| {
            let indexed = Indexed { connection: Arc::clone(connection), direction };
            self.index.insert(hash, indexed, |known| known.stage.load(Ordering::Acquire) == GONE)
        };
        if !take_place(self.index.hash(&connection.original), FlowDirection::Original) {
            return Err(InsertError::Exists);
        }
        let reply_hash = self.index.hash(&connection.reply);
        if !take_place(reply_hash, FlowDirection::Reply) {
            return Err(InsertError::ReplyTaken);
        }
        self.direct.end(reply_hash, connection.opened_tick());
        Ok(())
    }

    /// Forgets a connection.
    pub fn remove(&self, connection: &Arc<Connection>) {
        if connection.stage.swap(GONE, Ordering::AcqRel) != LIVE {
            return;
        }
        self.forget(connection);
    }

    fn forget(&self, connection: &Arc<Connection>) {
        self.unindex(&connection.original, connection);
        self.unindex(&connection.reply, connection);
        self.occupancy.remove_connection();
    }

    fn unindex(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        self.index.remove(flow, connection);
    }

    /// A packet with TCP `flags` (0 for UDP): advances the state and the timer. Whether the connection was still live is
    /// to be asked afterwards.
    pub fn advance(
        &self,
        connection: &Arc<Connection>,
        direction: FlowDirection,
        flags: u8,
        now: Instant,
        worker: usize,
    ) {
        let before = connection.timeout();
        connection.last_seen.store(now.tick(), Ordering::SeqCst);
        if direction == FlowDirection::Reply {
            connection.replied.store(true, Ordering::Relaxed);
        }
        if connection.original.protocol == Protocol::TCP {
            let state = connection.tcp_state().after(direction, flags);
            connection.tcp_state.store(state as u8, Ordering::Relaxed);
        }
        if connection.timeout() < before {
            self.schedule(worker, connection);
        }
    }

    /// The backend that `client` stays with, if its stay has not ended.
    pub fn affinity(&self, client: IpAddr, vip: Vip, now: Instant) -> Option<SocketAddr> {
        let affinity = self.affinities.get(&(client, vip))?;
        (affinity.expires_at > now).then_some(affinity.backend)
    }

    /// Makes `client` stay with `backend` for `timeout` from now on. A full store keeps what it has.
    pub fn remember_affinity(
        &self,
        client: IpAddr,
        vip: Vip,
        backend: SocketAddr,
        timeout: Duration,
        now: Instant,
        worker: usize,
    ) {
        let (client, affinity) = ((client, vip), Affinity { backend, expires_at: now + timeout });
        if self.affinities.set(client, affinity, self.capacity) {
            self.push_due(worker, affinity.expires_at.tick() + 1, Due::Affinity(Box::new(client)));
        }
    }

    /// Forgets what has timed out, at most `budget` entries. Worker `worker` sweeps what it scheduled.
    pub fn expire(&self, worker: usize, now: Instant, budget: usize) {
        for _ in 0..budget {
            let Some(due) = self.pop_due(worker, now.tick()) else { return };
            match due {
                (tick, Due::Connection(connection)) => self.expire_connection(worker, tick, &connection, now),
                (_, Due::Affinity(client)) => self.expire_affinity(worker, client, now),
            }
        }
    }

    /// When [`expire`](Self::expire) has work next.
    pub fn next_expiry(&self, worker: usize) -> Option<Instant> {
        self.queue(worker).first_tick().map(|tick| Instant::from_nanos(u64::from(tick) * 1_000_000_000))
    }

    fn expire_connection(&self, worker: usize, tick: u32, connection: &Arc<Connection>, now: Instant) {
        if connection.is_stale(tick) {
            return;
        }
        if connection.due_tick() > now.tick() || !self.retire(connection, now) {
            self.schedule(worker, connection);
        }
    }

    /// Forgets a connection that has timed out, unless a packet of it comes at this very moment: whoever sees a packet
    /// first stores when and then looks whether the connection is live, and here it is the other way round, so that
    /// one of the two notices.
    fn retire(&self, connection: &Arc<Connection>, now: Instant) -> bool {
        let stage = &connection.stage;
        if stage.compare_exchange(LIVE, CLAIMED, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return true;
        }
        let is_needed = connection.due_tick() > now.tick();
        // Removed meanwhile: whoever did so left the rest to us.
        if is_needed && stage.compare_exchange(CLAIMED, LIVE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return false;
        }
        stage.store(GONE, Ordering::Release);
        self.forget(connection);
        true
    }

    fn expire_affinity(&self, worker: usize, client: Box<Client>, now: Instant) {
        if !self.affinities.end(&client, now)
            && let Some(affinity) = self.affinities.get(&client)
        {
            self.push_due(worker, affinity.expires_at.tick() + 1, Due::Affinity(client));
        }
    }

    fn schedule(&self, worker: usize, connection: &Arc<Connection>) {
        let tick = connection.due_tick();
        if connection.due.swap(tick, Ordering::Relaxed) != tick {
            self.push_due(worker, tick, Due::Connection(Arc::clone(connection)));
        }
    }

    fn push_due(&self, worker: usize, tick: u32, due: Due) {
        self.occupancy.add_reminder();
        self.queue(worker).push(tick, due);
    }

    fn pop_due(&self, worker: usize, now_tick: u32) -> Option<(u32, Due)> {
        let due = self.queue(worker).pop(now_tick)?;
        self.occupancy.remove_reminder();
        Some(due)
    }

    fn queue(&self, worker: usize) -> &DueQueue<Due> {
        &self.due[worker % self.due.len()]
    }
}

/// A mark that another flow has set costs each cached flow one revalidation.
const DIRECT_BUCKETS: usize = 1 << 16;

/// A few hundred nanoseconds under a queue's lock.
const VISITED_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str) -> FlowKey {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        let protocol = Protocol::TCP;
        FlowKey { src: src.ip(), dst: dst.ip(), protocol, src_port: src.port(), dst_port: dst.port() }
    }

    fn connection(backend: &str) -> Arc<Connection> {
        let client = "10.244.0.14:40000";
        let (original, reply) = (flow(client, "10.96.0.10:80"), flow(backend, client));
        Arc::new(Connection::new(original, reply, Instant::ZERO))
    }

    #[test]
    fn a_connection_takes_the_place_of_one_that_is_being_removed() {
        let connections = Conntrack::new(10, 1);
        let (old, new) = (connection("10.244.2.1:80"), connection("10.244.2.2:80"));
        connections.insert(&old, 0).unwrap();
        assert_eq!(connections.insert(&new, 0), Err(InsertError::Exists));
        // Between the two steps of `remove`.
        old.stage.store(GONE, Ordering::Release);
        let new = connection("10.244.2.2:80");
        connections.insert(&new, 0).unwrap();
        connections.unindex(&old.original, &old);
        connections.unindex(&old.reply, &old);
        let (found, direction) = connections.lookup(&new.original).unwrap();
        assert!(Arc::ptr_eq(&found, &new) && direction == FlowDirection::Original);
        assert!(connections.lookup(&new.reply).is_some() && connections.lookup(&old.reply).is_none());
    }

    #[test]
    fn d9_traffic_in_the_second_of_a_reset_restores_the_long_timer() {
        use crate::wire::tcp::{ACK, RST, SYN};
        let connections = Conntrack::new(10, 1);
        let live = connection("10.244.2.1:80");
        connections.insert(&live, 0).unwrap();
        let (now, original, reply) = (Instant::ZERO, FlowDirection::Original, FlowDirection::Reply);
        for (direction, flags) in [(original, SYN), (reply, SYN | ACK), (original, ACK), (reply, RST)] {
            connections.advance(&live, direction, flags, now, 0);
        }
        assert!(!live.is_settled(), "the next packet must be seen");
        live.touch(original, now.tick());
        connections.expire(0, now + Duration::from_secs(300), 100);
        assert!(connections.lookup(&live.original).is_some());
    }

    #[test]
    fn d14_a_sweep_forgets_no_more_than_its_budget_at_a_time() {
        const COUNT: usize = 50_000;
        const BUDGET: usize = 256;
        let connections = Conntrack::new(COUNT, 1);
        for number in 0..COUNT {
            let mut original = flow("10.244.0.14:1", "10.96.0.10:80");
            (original.src_port, original.dst_port) = (number as u16, (number >> 16) as u16);
            let reply = FlowKey { src_port: 8080 + original.dst_port, ..original.reversed() };
            connections.insert(&Arc::new(Connection::new(original, reply, Instant::ZERO)), 0).unwrap();
        }
        let now = Instant::ZERO + Duration::from_secs(242);
        for sweep in 1..=COUNT.div_ceil(BUDGET) {
            connections.expire(0, now, BUDGET);
            assert_eq!(connections.len(), COUNT.saturating_sub(sweep * BUDGET));
        }
        assert_eq!(connections.next_expiry(0), None);
    }

    #[test]
    fn g13_opening_and_resetting_over_and_over_leaves_a_bounded_number_of_records() {
        let connections = Conntrack::new(10, 1);
        let mut refused = 0;
        for port in 0..1_000_u16 {
            let mut original = flow("10.244.0.14:1", "10.96.0.10:80");
            original.src_port = port;
            let reply = FlowKey { src_port: 8080, ..original.reversed() };
            let opened = Arc::new(Connection::new(original, reply, Instant::ZERO));
            refused += u32::from(connections.insert(&opened, 0).is_err());
            connections.remove(&opened);
        }
        assert_eq!(refused, 0, "records of connections that are gone make room");
        assert!(connections.occupancy.counts().reminders <= 10 * REMINDERS_PER_CONNECTION);
    }
}
