//! The connection table: what every worker must agree on about translated flows.
//!
//! A connection is one shared record under two index entries, the original flow and the reply's. It is looked
//! up on a flow-cache miss only. No two shard locks are held together. Expiry goes by queues of due ticks, one
//! per worker, so that a sweep costs what is due and not what is there.

mod saved;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hashbrown::hash_table::Entry;

use super::flow_index::{FlowIndex, Indexed};
use super::sharded::Sharded;
use super::tcp_state::TcpState;
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol, Vip};
use crate::wire::tcp::ACK;

pub use self::saved::{SavedAffinity, SavedConnection};
pub use super::tcp_state::FlowDirection;

/// RFC 4787 REQ-5 recommends 5 minutes.
pub const UDP_TIMEOUT: Duration = Duration::from_secs(300);

/// One translated flow.
#[derive(Debug)]
pub struct Connection {
    /// Client to VIP, as the client sends it.
    pub original: FlowKey,
    /// Backend to (translated) client, as the backend sends it.
    pub reply: FlowKey,
    /// The service it was opened to.
    pub vip: Vip,
    tcp_state: AtomicU8,
    replied: AtomicBool,
    last_seen: AtomicU32,
    /// The tick under which it stands in a due queue; another entry of it is stale.
    due: AtomicU32,
    stage: AtomicU8,
    opened: u32,
}

const CLAIMED: u8 = 0;
const LIVE: u8 = 1;
const GONE: u8 = 2;

impl Connection {
    /// A connection that is not in a table yet.
    pub fn new(original: FlowKey, reply: FlowKey, now: Instant) -> Self {
        let vip = Vip { addr: original.dst, port: original.dst_port, protocol: original.protocol };
        Self {
            original,
            reply,
            vip,
            tcp_state: AtomicU8::new(TcpState::Opening as u8),
            replied: AtomicBool::new(false),
            last_seen: AtomicU32::new(now.tick()),
            due: AtomicU32::new(0),
            stage: AtomicU8::new(CLAIMED),
            opened: now.tick(),
        }
    }

    /// The backend it goes to.
    pub fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.reply.src, self.reply.src_port)
    }

    /// The flow that a packet of `direction` becomes.
    pub fn translated(&self, direction: FlowDirection) -> FlowKey {
        match direction {
            FlowDirection::Original => self.reply.reversed(),
            FlowDirection::Reply => self.original.reversed(),
        }
    }

    /// How far TCP has come; meaningless for UDP.
    pub fn tcp_state(&self) -> TcpState {
        TcpState::from_u8(self.tcp_state.load(Ordering::Relaxed))
    }

    /// Whether the backend has ever answered.
    pub fn is_replied(&self) -> bool {
        self.replied.load(Ordering::Relaxed)
    }

    /// Whether it still stands in the table.
    pub fn is_live(&self) -> bool {
        self.stage.load(Ordering::Acquire) == LIVE
    }

    /// The tick of its last packet.
    pub fn last_seen_tick(&self) -> u32 {
        self.last_seen.load(Ordering::Relaxed)
    }

    /// The tick of its first packet.
    pub fn opened_tick(&self) -> u32 {
        self.opened
    }

    /// The tick at which it is forgotten unless another packet comes.
    pub fn expires_tick(&self) -> u32 {
        self.due_tick()
    }

    /// Whether plain traffic can change nothing but the timer. The first packets of a TCP connection decide
    /// how long it is remembered, so each of them must be seen.
    pub fn is_settled(&self) -> bool {
        self.original.protocol != Protocol::TCP
            || !matches!(self.tcp_state(), TcpState::Opening | TcpState::Replied | TcpState::Reset)
    }

    /// Traffic without a flag that matters: refreshes the timer.
    pub fn touch(&self, direction: FlowDirection, tick: u32) {
        self.last_seen.store(tick, Ordering::Relaxed);
        if direction == FlowDirection::Reply {
            self.replied.store(true, Ordering::Relaxed);
        }
        if self.original.protocol == Protocol::TCP {
            let state = self.tcp_state();
            let after = state.after(direction, ACK);
            if after != state {
                self.tcp_state.store(after as u8, Ordering::Relaxed);
            }
        }
    }

    fn timeout(&self) -> Duration {
        if self.original.protocol == Protocol::TCP { self.tcp_state().timeout() } else { UDP_TIMEOUT }
    }

    fn due_tick(&self) -> u32 {
        self.last_seen_tick().saturating_add(self.timeout().as_secs() as u32).saturating_add(1)
    }
}

/// How many due entries there may be for each connection that the table may hold: affinities, shortened timers
/// and connections that are gone have theirs too.
const REMINDERS_PER_CONNECTION: usize = 3;

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

/// A client of a service.
type Client = (IpAddr, Vip);

/// A client's stay with one backend (sessionAffinity ClientIP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Affinity {
    backend: SocketAddr,
    expires_at: Instant,
}

type DueQueue = Mutex<BTreeMap<u32, Vec<Due>>>;

#[derive(Debug)]
enum Due {
    Connection(Arc<Connection>),
    Affinity(Box<Client>),
}

/// The shared store of connections and affinities.
#[derive(Debug)]
pub struct Conntrack {
    index: FlowIndex,
    affinities: Sharded<(Client, Affinity)>,
    affinity_count: AtomicUsize,
    due: Box<[DueQueue]>,
    connections: AtomicUsize,
    /// Entries in the due queues, stale ones too: each holds its connection in memory.
    reminders: AtomicUsize,
    capacity: usize,
}

impl Conntrack {
    /// A store for at most `capacity` connections (and as many affinities), swept by `workers` workers.
    pub fn new(capacity: usize, workers: usize) -> Self {
        Self {
            index: FlowIndex::default(),
            affinities: Sharded::default(),
            affinity_count: AtomicUsize::new(0),
            due: (0..workers.max(1)).map(|_| DueQueue::default()).collect(),
            connections: AtomicUsize::new(0),
            reminders: AtomicUsize::new(0),
            capacity,
        }
    }

    /// Connections in the table.
    pub fn len(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
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
        self.index.contains(flow)
    }

    /// Shows every live connection to `see` until that says no. Only the due queues are locked, and only while
    /// a few entries are copied, so that workers go on; one that moves meanwhile may be shown twice.
    pub fn visit(&self, mut see: impl FnMut(&Arc<Connection>) -> bool) {
        let mut some = Vec::with_capacity(VISITED_AT_ONCE);
        for queue in &self.due {
            let mut from = (0, 0);
            while let Some(next) = copy_due(queue, from, &mut some) {
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

    /// Inserts both directions, or none.
    ///
    /// # Errors
    /// See [`InsertError`].
    pub fn insert(&self, connection: &Arc<Connection>, worker: usize) -> Result<(), InsertError> {
        // A client that opens and resets over and over leaves a record behind each time, until it is due.
        if self.reminders.load(Ordering::Relaxed) >= self.capacity.saturating_mul(REMINDERS_PER_CONNECTION) {
            return Err(InsertError::Full);
        }
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(InsertError::Full);
        }
        let result = self.claim(connection);
        match result {
            Ok(()) => {
                connection.stage.store(LIVE, Ordering::Release);
                self.schedule(worker, connection);
            }
            Err(_) => {
                connection.stage.store(GONE, Ordering::Release);
                self.unindex(&connection.original, connection);
                self.connections.fetch_sub(1, Ordering::Relaxed);
            }
        }
        result
    }

    fn claim(&self, connection: &Arc<Connection>) -> Result<(), InsertError> {
        // The place of a connection that is gone counts as free: whoever removes it may have been interrupted.
        let take_place = |direction| {
            let indexed = Indexed { connection: Arc::clone(connection), direction };
            self.index.insert(indexed, |known| known.stage.load(Ordering::Acquire) == GONE)
        };
        if !take_place(FlowDirection::Original) {
            return Err(InsertError::Exists);
        }
        if !take_place(FlowDirection::Reply) {
            return Err(InsertError::ReplyTaken);
        }
        Ok(())
    }

    /// Forgets a connection.
    pub fn remove(&self, connection: &Arc<Connection>) {
        if connection.stage.swap(GONE, Ordering::AcqRel) != LIVE {
            return;
        }
        self.unindex(&connection.original, connection);
        self.unindex(&connection.reply, connection);
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    fn unindex(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        self.index.remove(flow, connection);
    }

    /// A packet with TCP `flags` (0 for UDP): advances the state and the timer.
    pub fn advance(
        &self,
        connection: &Arc<Connection>,
        direction: FlowDirection,
        flags: u8,
        now: Instant,
        worker: usize,
    ) {
        let before = connection.timeout();
        connection.last_seen.store(now.tick(), Ordering::Relaxed);
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
        let affinity = self.stay(&(client, vip))?;
        (affinity.expires_at > now).then_some(affinity.backend)
    }

    fn stay(&self, client: &Client) -> Option<Affinity> {
        let hash = self.affinities.hash(client);
        self.affinities
            .with(hash, |shard| shard.find(hash, |(known, _)| known == client).map(|(_, affinity)| *affinity))
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
        let hash = self.affinities.hash(&client);
        let rehash = |(client, _): &(Client, Affinity)| self.affinities.hash(client);
        let full = self.affinity_count.load(Ordering::Relaxed) >= self.capacity;
        let is_new = self.affinities.with(hash, |shard| {
            match shard.entry(hash, |(known, _)| *known == client, rehash) {
                Entry::Occupied(mut known) => {
                    known.get_mut().1 = affinity;
                    false
                }
                Entry::Vacant(_) if full => false,
                Entry::Vacant(vacant) => {
                    vacant.insert((client, affinity));
                    true
                }
            }
        });
        if is_new {
            self.affinity_count.fetch_add(1, Ordering::Relaxed);
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
        let first = lock(self.queue(worker)).first_key_value().map(|(tick, _)| *tick);
        first.map(|tick| Instant::from_nanos(u64::from(tick) * 1_000_000_000))
    }

    fn expire_connection(&self, worker: usize, tick: u32, connection: &Arc<Connection>, now: Instant) {
        if !connection.is_live() || connection.due.load(Ordering::Relaxed) != tick {
            return;
        }
        if connection.due_tick() <= now.tick() {
            self.remove(connection);
        } else {
            self.schedule(worker, connection);
        }
    }

    fn expire_affinity(&self, worker: usize, client: Box<Client>, now: Instant) {
        let hash = self.affinities.hash(&*client);
        let ended = self.affinities.with(hash, |shard| {
            let ended =
                |(known, affinity): &(Client, Affinity)| known == &*client && affinity.expires_at <= now;
            shard.find_entry(hash, ended).map(|entry| entry.remove()).is_ok()
        });
        if ended {
            self.affinity_count.fetch_sub(1, Ordering::Relaxed);
        } else if let Some(affinity) = self.stay(&client) {
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
        self.reminders.fetch_add(1, Ordering::Relaxed);
        lock(self.queue(worker)).entry(tick).or_default().push(due);
    }

    fn pop_due(&self, worker: usize, now_tick: u32) -> Option<(u32, Due)> {
        let mut queue = lock(self.queue(worker));
        loop {
            let mut first = queue.first_entry()?;
            let tick = *first.key();
            if tick > now_tick {
                return None;
            }
            match first.get_mut().pop() {
                Some(due) => {
                    self.reminders.fetch_sub(1, Ordering::Relaxed);
                    return Some((tick, due));
                }
                None => first.remove(),
            };
        }
    }

    fn queue(&self, worker: usize) -> &DueQueue {
        &self.due[worker % self.due.len()]
    }
}

/// A few hundred nanoseconds under a queue's lock.
const VISITED_AT_ONCE: usize = 64;

/// Copies the next connections of a queue, starting at that tick and place, and says where the ones after them
/// stand. Workers take from the end of a tick's list and put what lives on under a later tick.
fn copy_due(
    queue: &DueQueue,
    (tick, place): (u32, usize),
    copies: &mut Vec<(u32, Arc<Connection>)>,
) -> Option<(u32, usize)> {
    let queue = lock(queue);
    let (&found, list) = queue.range(tick..).next()?;
    let place = if found == tick { place } else { 0 };
    let rest = list.get(place..).unwrap_or_default();
    copies.extend(rest.iter().take(VISITED_AT_ONCE).filter_map(|due| match due {
        Due::Connection(connection) => Some((found, Arc::clone(connection))),
        Due::Affinity(..) => None,
    }));
    if rest.len() > VISITED_AT_ONCE {
        return Some((found, place + VISITED_AT_ONCE));
    }
    found.checked_add(1).map(|next| (next, 0))
}

/// A queue is a list of reminders: one that a panicking worker left behind is still sound.
fn lock(queue: &DueQueue) -> std::sync::MutexGuard<'_, BTreeMap<u32, Vec<Due>>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        assert_eq!(refused, 1_000 - 10 * REMINDERS_PER_CONNECTION as u32);
        connections.expire(0, Instant::ZERO + Duration::from_secs(300), 1_000);
        assert!(connections.insert(&connection("10.244.2.1:80"), 0).is_ok(), "recovers by itself");
    }
}
