//! The connection table's index against others: what one new flow costs it.
//!
//! A round is what the engine does for a new flow and later for its end: look for the flow, look whether the reply is
//! free, insert both, and remove both of the flow that is as many rounds old as the table holds connections.

use std::hash::BuildHasher;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant as SystemInstant};

use criterion::{Criterion, criterion_group, criterion_main};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use papaya::HashMap as Papaya;
use windlass_dataplane::lb::conntrack::{Connection, FlowDirection};
use windlass_dataplane::lb::flow_index::{FlowIndex, Indexed};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

/// What the connection table asks of its index.
trait Index: Sync {
    fn get(&self, flow: &FlowKey) -> Option<Indexed>;
    fn contains(&self, flow: &FlowKey) -> bool;
    fn insert(&self, flow: FlowKey, indexed: Indexed) -> bool;
    fn remove(&self, flow: &FlowKey, connection: &Arc<Connection>);
}

impl Index for FlowIndex {
    fn get(&self, flow: &FlowKey) -> Option<Indexed> {
        self.get(flow)
    }

    fn contains(&self, flow: &FlowKey) -> bool {
        self.contains(self.hash(flow), flow)
    }

    fn insert(&self, flow: FlowKey, indexed: Indexed) -> bool {
        self.insert(self.hash(&flow), indexed, |_| false)
    }

    fn remove(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        self.remove(flow, connection);
    }
}

impl<S: BuildHasher + Clone + Sync> Index for DashMap<FlowKey, Indexed, S> {
    fn get(&self, flow: &FlowKey) -> Option<Indexed> {
        self.get(flow).map(|indexed| indexed.clone())
    }

    fn contains(&self, flow: &FlowKey) -> bool {
        self.contains_key(flow)
    }

    fn insert(&self, flow: FlowKey, indexed: Indexed) -> bool {
        match self.entry(flow) {
            Entry::Occupied(_) => false,
            Entry::Vacant(vacant) => {
                drop(vacant.insert(indexed));
                true
            }
        }
    }

    fn remove(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        self.remove_if(flow, |_, indexed| Arc::ptr_eq(&indexed.connection, connection));
    }
}

impl<S: BuildHasher + Sync> Index for Papaya<FlowKey, Indexed, S> {
    fn get(&self, flow: &FlowKey) -> Option<Indexed> {
        self.pin().get(flow).cloned()
    }

    fn contains(&self, flow: &FlowKey) -> bool {
        self.pin().contains_key(flow)
    }

    fn insert(&self, flow: FlowKey, indexed: Indexed) -> bool {
        self.pin().try_insert(flow, indexed).is_ok()
    }

    fn remove(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        let _ = self.pin().remove_if(flow, |_, indexed| Arc::ptr_eq(&indexed.connection, connection));
    }
}

/// One thread's flows, which no other thread has.
struct Flows<'a, I> {
    index: &'a I,
    thread: u32,
    next: u32,
    standing: Vec<Option<Arc<Connection>>>,
}

impl<'a, I: Index> Flows<'a, I> {
    fn new(index: &'a I, thread: u32, connections: usize) -> Self {
        let mut flows = Self { index, thread, next: 0, standing: vec![None; connections] };
        flows.rounds(connections as u64);
        flows
    }

    fn rounds(&mut self, rounds: u64) {
        (0..rounds).for_each(|_| self.round());
    }

    fn round(&mut self) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        let client = SocketAddr::from((
            Ipv4Addr::from_bits(0x0a00_0000 + (self.thread << 16) + (number >> 16)),
            number as u16,
        ));
        let flow = |src: SocketAddr, dst: SocketAddr| FlowKey {
            src: src.ip(),
            dst: dst.ip(),
            protocol: Protocol::UDP,
            src_port: src.port(),
            dst_port: dst.port(),
        };
        let original = flow(client, SocketAddr::from(([10, 96, 0, 1], 80)));
        let reply = flow(SocketAddr::from(([10, 244, 0, 5], 8080)), client);
        let found = self.index.get(&original).is_some() || self.index.contains(&reply);
        let connection = Arc::new(Connection::new(original, reply, Instant::ZERO));
        let indexed = |direction| Indexed { connection: Arc::clone(&connection), direction };
        let inserted = self.index.insert(original, indexed(FlowDirection::Original))
            && self.index.insert(reply, indexed(FlowDirection::Reply));
        assert!(!found && inserted, "every flow is new");
        let place = number as usize % self.standing.len();
        if let Some(old) = self.standing[place].replace(connection) {
            self.index.remove(&old.original, &old);
            self.index.remove(&old.reply, &old);
        }
    }
}

/// How long `rounds` rounds take on each of `threads` threads at once.
fn timed<I: Index>(flows: &mut [Flows<'_, I>], rounds: u64) -> Duration {
    let began = SystemInstant::now();
    thread::scope(|scope| {
        for flows in flows {
            scope.spawn(move || flows.rounds(rounds));
        }
    });
    began.elapsed()
}

fn contestant<I: Index>(c: &mut Criterion, name: &str, new: impl Fn() -> I) {
    let mut group = c.benchmark_group("connection_index");
    for (threads, connections) in [(1, 1_000), (1, 1_000_000), (2, 1_000), (2, 1_000_000)] {
        group.bench_function(format!("{name}/{threads}-threads/{connections}-connections"), |bencher| {
            let index = new();
            let mut flows: Vec<_> =
                (0..threads).map(|thread| Flows::new(&index, thread, connections)).collect();
            bencher.iter_custom(|rounds| timed(&mut flows, rounds));
        });
    }
}

fn contestants(c: &mut Criterion) {
    contestant(c, "sharded-hashbrown", FlowIndex::default);
    contestant(c, "dashmap-foldhash", DashMap::<FlowKey, Indexed, foldhash::fast::RandomState>::default);
    contestant(c, "dashmap-siphash", DashMap::<FlowKey, Indexed>::new);
    contestant(c, "papaya-foldhash", Papaya::<FlowKey, Indexed, foldhash::fast::RandomState>::default);
}

criterion_group! {
    name = connection_index;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(600))
        .sample_size(20)
        .without_plots();
    targets = contestants
}
criterion_main!(connection_index);
