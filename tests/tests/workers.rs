//! Several workers on real threads: one connection table, and workers that start, forward and stop.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use windlass_dataplane::device::memory::worker_io;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{Service, TableSet, Writer};
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::worker::{Workers, WorkersConfig};
use windlass_tests::engine_node::{EngineNode, MAC_A, VNI, addr, flow, mac, socket, vip, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp, verified_flow, vxlan};

/// The worked example with a service of twenty remote backends.
fn many_backends() -> TableSet {
    let mut set = worked_example("a");
    let backends = (10..30).map(|i| socket(&format!("10.244.2.{i}:8080"))).collect();
    let service = Service::new("default/many:http", vip("10.96.0.60:80", Protocol::TCP), backends);
    Arc::make_mut(&mut set.services).insert(Arc::new(service));
    set
}

/// Races between two threads; `WINDLASS_TRIALS=100000` runs as many. Each waits for both threads to be there, which on a
/// loaded machine takes long.
fn trials() -> u32 {
    std::env::var("WINDLASS_TRIALS").ok().and_then(|count| count.parse().ok()).unwrap_or(3_000)
}

fn trial(client: u32) -> FlowKey {
    let source = format!("10.244.0.{}:{}", client % 200 + 1, 1_024 + client / 200);
    flow(Protocol::TCP, &source, "10.96.0.60:80")
}

#[test]
fn d10_two_first_packets_on_two_workers_make_one_connection() {
    let first = EngineNode::new(many_backends(), Settings::default());
    let connections: Arc<Conntrack> = Arc::clone(&first.connections);
    let second = first.sibling(many_backends());
    let barrier = Arc::new(Barrier::new(2));
    let threads: Vec<_> = [first, second]
        .into_iter()
        .map(|mut node| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                for client in 0..trials() {
                    let packet = tcp(&trial(client), Tcp::Syn, b"");
                    barrier.wait();
                    let outcome = node.encap(&packet);
                    assert_eq!(outcome.drops, [], "trial {client}: none lost");
                    seen.push(verified_flow(&outcome.datagrams[0].payload[22..]));
                }
                seen
            })
        })
        .collect();
    let [one, other] = <[Vec<FlowKey>; 2]>::try_from(
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>(),
    )
    .unwrap();
    assert_eq!(one, other, "both translate alike");
    assert_eq!(connections.len(), trials() as usize);
    for (client, translated) in one.iter().enumerate() {
        let (connection, _) = connections.lookup(&trial(client as u32)).unwrap();
        assert_eq!(connection.reply, translated.reversed());
    }
}

/// Ports that both threads open flows from.
const CLASHES: u16 = 3_000;

#[test]
fn d3_d10_clashing_first_packets_on_two_workers_never_cross() {
    // Both workers open flows of one client port toward VIPs that share a backend: each reply tuple may be had once.
    let tables = || {
        let mut set = worked_example("a");
        for i in 0..=1 {
            let vip = vip(&format!("10.96.7.{i}:80"), Protocol::UDP);
            let service = Service::new(format!("default/s{i}"), vip, vec![socket("10.244.2.15:8080")]);
            Arc::make_mut(&mut set.services).insert(Arc::new(service));
        }
        set
    };
    let first = EngineNode::new(tables(), Settings::default());
    let second = first.sibling(tables());
    let barrier = Arc::new(Barrier::new(2));
    let threads: Vec<_> = [first, second]
        .into_iter()
        .enumerate()
        .map(|(worker, mut node)| {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                for port in 20_000..20_000 + CLASHES {
                    let to_vip =
                        flow(Protocol::UDP, &format!("10.244.0.14:{port}"), &format!("10.96.7.{worker}:80"));
                    let packet = udp(&to_vip, b"?");
                    barrier.wait();
                    let outcome = node.encap(&packet);
                    assert_eq!(outcome.drops, []);
                    seen.push(verified_flow(&outcome.datagrams[0].payload[22..]));
                }
                seen
            })
        })
        .collect();
    let mut all: Vec<FlowKey> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), usize::from(CLASHES) * 2);
}

#[test]
fn a_reply_that_arrives_at_the_other_worker_is_translated() {
    let mut one = EngineNode::new(worked_example("a"), Settings::default());
    let mut other = one.sibling(worked_example("a"));
    let to_vip = flow(Protocol::TCP, "10.244.0.14:40000", "10.96.0.21:80");
    let back = flow(Protocol::TCP, "10.244.2.15:8080", "10.244.0.14:40000");
    for (out, reply) in [(Tcp::Syn, Tcp::SynAck), (Tcp::Ack, Tcp::Ack), (Tcp::Ack, Tcp::Ack)] {
        assert_eq!(one.encap(&tcp(&to_vip, out, b"question")).drops, []);
        let restored =
            other.decap(&vxlan(VNI, mac(MAC_A), &tcp(&back, reply, b"answer")), addr("192.168.1.51"), 0);
        assert_eq!(verified_flow(&restored.packets[0].bytes), to_vip.reversed());
    }
    assert!(other.counters().cache_hits.get() > 0);
    assert_eq!(one.connections.len(), 1);
}

#[test]
fn workers_forward_on_two_threads_and_stop_cleanly() {
    let writer = Writer::new(worked_example("a"));
    let (io_0, device_0, socket_0, waker_0) = worker_io();
    let (io_1, device_1, socket_1, waker_1) = worker_io();
    let io: Vec<(_, Arc<dyn windlass_dataplane::device::Waker>)> = vec![(io_0, waker_0), (io_1, waker_1)];
    let workers = Workers::spawn(io, &writer, &WorkersConfig::default()).unwrap();
    let to_vip = flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80");
    let from_backend = flow(Protocol::UDP, "10.244.2.15:8080", "10.244.0.14:40000");
    for _ in 0..200 {
        device_0.inject(udp(&to_vip, b"question"));
    }
    let sent = collect(200, || socket_0.take());
    assert!(sent.iter().all(|sent| verified_flow(&sent.payload[22..]) == from_backend.reversed()));
    let reply = vxlan(VNI, mac(MAC_A), &udp(&from_backend, b"answer"));
    for _ in 0..200 {
        socket_1.inject(reply.clone(), socket("192.168.1.51:50000"), 0);
    }
    let delivered = collect(200, || device_1.take());
    assert!(delivered.iter().all(|packet| verified_flow(&packet.bytes) == to_vip.reversed()));
    assert!(workers.are_running());
    let counters = workers.counters().to_vec();
    assert_eq!(workers.connections().len(), 1);
    workers.stop().unwrap();
    let totals: windlass_dataplane::counters::Totals =
        counters.iter().map(|counters| counters.totals()).sum();
    assert_eq!((totals.received, totals.sent, totals.difference()), (400, 400, 0));
}

#[test]
fn workers_stop_at_any_moment_and_account_for_every_packet() {
    let writer = Writer::new(worked_example("a"));
    let to_vip = flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80");
    for round in 0..100 {
        let (io_0, device_0, _socket_0, waker_0) = worker_io();
        let (io_1, device_1, _socket_1, waker_1) = worker_io();
        let io: Vec<(_, Arc<dyn windlass_dataplane::device::Waker>)> = vec![(io_0, waker_0), (io_1, waker_1)];
        let workers = Workers::spawn(io, &writer, &WorkersConfig::default()).unwrap();
        let counters = workers.counters().to_vec();
        let sender = std::thread::spawn(move || {
            for _ in 0..round {
                device_0.inject(udp(&to_vip, b"question"));
                device_1.inject(udp(&to_vip, b"question"));
            }
        });
        // A worker that is about to sleep must be woken too: else this never returns.
        workers.stop().unwrap();
        sender.join().unwrap();
        let totals: windlass_dataplane::counters::Totals =
            counters.iter().map(|counters| counters.totals()).sum();
        assert_eq!(totals.difference(), 0, "round {round}");
    }
}

fn collect<T>(count: usize, mut take: impl FnMut() -> Option<T>) -> Vec<T> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut taken = Vec::new();
    while taken.len() < count {
        match take() {
            Some(item) => taken.push(item),
            None => {
                assert!(Instant::now() < deadline, "{} of {count} after 20 s", taken.len());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    taken
}
