//! What must hold under every schedule.

use alloc::sync::Arc;

use crate::cluster::{Worker, backend, flow, tables};
use crate::drop_reason::DropReason;
use crate::lb::conntrack::Conntrack;
use crate::packets::{Tcp, tcp, udp};
use crate::tables::Writer;
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol};
use shuttle::thread;

const NOW: Instant = Instant::from_nanos(5_000_000_000);

/// Longer than UDP connections and unanswered TCP ones are kept.
const LATER: Instant = Instant::from_nanos(400_000_000_000);

const MANY: [&str; 4] = ["10.2.0.5:8080", "10.2.0.6:8080", "10.2.0.7:8080", "10.2.0.8:8080"];

/// A model, and what it is called.
pub(crate) const MODELS: [(&str, fn()); 6] = [
    ("d10_first_packets_on_three_workers_make_one_connection", first_packets),
    ("d3_flows_that_want_one_translated_tuple_never_share_it", clash),
    ("d9_a_reply_carries_its_vip_whatever_happens_beside_it", replies),
    ("f6_no_connection_outlives_its_backend", backend_goes),
    ("d11_a_full_table_refuses_and_counts_and_recovers", full_table),
    ("d14_expiry_beside_traffic_leaves_no_half_of_a_connection", expiry),
];

/// A connection table that is quickly made: there is one for every schedule.
fn table(capacity: usize, workers: usize) -> Arc<Conntrack> {
    Arc::new(Conntrack::with_direct_buckets(capacity, workers, 64))
}

fn to_vip(protocol: Protocol) -> FlowKey {
    flow(protocol, "10.1.0.9:40000", "10.9.0.1:80")
}

/// The loser of the race for the original key adopts the winner's connection.
fn first_packets() {
    let writer = Writer::new(tables(&[("10.9.0.1:80", Protocol::TCP, &MANY)]));
    let connections = table(10, 3);
    let packet = tcp(&to_vip(Protocol::TCP), Tcp::Syn, b"");
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let (mut worker, packet) = (Worker::new(&writer, &connections, number), packet.clone());
            thread::spawn(move || worker.encap(&packet, NOW))
        })
        .collect();
    let sent: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(sent[0].is_some(), "none is lost: {sent:?}");
    assert!(sent.iter().all(|flow| *flow == sent[0]), "all translate alike: {sent:?}");
    assert_eq!(connections.len(), 1);
}

/// Two clients' flows of one port toward VIPs of one backend: whoever comes second to the reply key takes back its
/// original key and tries another port.
fn clash() {
    let one = ["10.2.0.5:8080"];
    let services: [(&str, Protocol, &[&str]); 2] =
        [("10.9.0.1:80", Protocol::UDP, &one), ("10.9.0.2:80", Protocol::UDP, &one)];
    let writer = Writer::new(tables(&services));
    let connections = table(10, 2);
    let threads: Vec<_> = ["10.9.0.1:80", "10.9.0.2:80"]
        .into_iter()
        .enumerate()
        .map(|(number, vip)| {
            let mut worker = Worker::new(&writer, &connections, number);
            let packet = udp(&flow(Protocol::UDP, "10.1.0.9:40000", vip), b"?");
            thread::spawn(move || worker.encap(&packet, NOW).expect("none is lost"))
        })
        .collect();
    let sent: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_ne!(sent[0], sent[1]);
    assert_eq!(connections.len(), 2);
    for (sent, vip) in sent.iter().zip(["10.9.0.1:80", "10.9.0.2:80"]) {
        let (connection, _) = connections.lookup(&sent.reversed()).expect("its reply key leads to it");
        assert_eq!(connection.original, flow(Protocol::UDP, "10.1.0.9:40000", vip));
    }
}

/// A reply on one worker, more of the client's packets on another, and tables that change.
fn replies() {
    let services: [(&str, Protocol, &[&str]); 1] = [("10.9.0.1:80", Protocol::TCP, &MANY)];
    let mut writer = Writer::new(tables(&services));
    let connections = table(10, 2);
    let mut one = Worker::new(&writer, &connections, 0);
    let mut other = Worker::new(&writer, &connections, 1);
    let client = to_vip(Protocol::TCP);
    let forward = one.encap(&tcp(&client, Tcp::Syn, b""), NOW).expect("it is sent");
    let publisher = thread::spawn(move || {
        writer.publish(tables(&[("10.9.0.1:80", Protocol::TCP, &["10.2.0.200:8080"])]));
        writer.publish(tables(&[]));
    });
    let more = thread::spawn(move || {
        for kind in [Tcp::Ack, Tcp::Ack, Tcp::Fin] {
            assert_eq!(one.encap(&tcp(&client, kind, b"more"), NOW), Some(forward), "TCP keeps its backend");
        }
    });
    for kind in [Tcp::SynAck, Tcp::Ack, Tcp::Ack] {
        let reply = other.decap(&tcp(&forward.reversed(), kind, b"answer"), NOW);
        assert_eq!(reply, Some(client.reversed()));
    }
    more.join().unwrap();
    publisher.join().unwrap();
}

/// Tables without the backend are published and its connections purged, while two workers open them. Whoever was too
/// early for the tables and too late for the purge is seen to by its next packet.
fn backend_goes() {
    let mut writer = Writer::new(tables(&[("10.9.0.1:80", Protocol::UDP, &["10.2.0.5:53"])]));
    let connections = table(10, 2);
    let packet = udp(&to_vip(Protocol::UDP), b"?");
    let workers: Vec<_> = (0..2)
        .map(|number| {
            let (mut worker, packet) = (Worker::new(&writer, &connections, number), packet.clone());
            thread::spawn(move || {
                worker.encap(&packet, NOW).expect("none is lost");
                worker.encap(&packet, NOW).expect("none is lost");
                worker
            })
        })
        .collect();
    let after = writer.publish(tables(&[("10.9.0.1:80", Protocol::UDP, &["10.2.0.6:53"])]));
    connections.purge(|connection| after.strands(connection));
    for thread in workers {
        let sent = thread.join().unwrap().encap(&packet, NOW).expect("none is lost");
        assert_eq!(backend(sent), backend(flow(Protocol::UDP, "10.1.0.9:40000", "10.2.0.6:53")));
    }
    assert_eq!(connections.len(), 1);
    connections.purge(|_| true);
    assert_eq!(connections.len(), 0);
    for backend in ["10.2.0.5:53", "10.2.0.6:53"] {
        let reply = flow(Protocol::UDP, backend, "10.1.0.9:40000");
        assert!(!connections.is_taken(&reply), "{reply} is left behind");
    }
    assert!(!connections.is_taken(&to_vip(Protocol::UDP)));
}

fn full_table() {
    let writer = Writer::new(tables(&[("10.9.0.1:80", Protocol::UDP, &MANY)]));
    let connections = table(1, 2);
    let packets = ["10.1.0.9:40000", "10.1.0.9:40001"]
        .map(|client| udp(&flow(Protocol::UDP, client, "10.9.0.1:80"), b"?"));
    let threads: Vec<_> = packets
        .clone()
        .into_iter()
        .enumerate()
        .map(|(number, packet)| {
            let mut worker = Worker::new(&writer, &connections, number);
            thread::spawn(move || (worker.encap(&packet, NOW), worker))
        })
        .collect();
    let mut ended: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let sent = ended.iter().filter(|(sent, _)| sent.is_some()).count() as u64;
    let refused: u64 = ended.iter().map(|(_, worker)| worker.dropped(DropReason::ConnectionTableFull)).sum();
    assert_eq!(sent + refused, 2);
    assert_eq!(connections.len() as u64, sent);
    assert!(sent >= 1, "a table with room for one took none");
    for ((_, worker), packet) in ended.iter_mut().zip(&packets) {
        worker.expire(LATER);
        assert!(connections.len() <= 1);
        let _ = worker.encap(packet, LATER);
    }
    assert_eq!(connections.len(), 1, "it recovers by itself");
}

/// A connection times out on one worker while the client speaks on another.
fn expiry() {
    let writer = Writer::new(tables(&[("10.9.0.1:80", Protocol::UDP, &MANY)]));
    let connections = table(10, 2);
    let (mut one, mut other) = (Worker::new(&writer, &connections, 0), Worker::new(&writer, &connections, 1));
    let client = to_vip(Protocol::UDP);
    let packet = udp(&client, b"?");
    let forward = one.encap(&packet, NOW).expect("it is sent");
    let sweeper = thread::spawn(move || one.expire(LATER));
    let sent = other.encap(&packet, LATER).expect("it is sent");
    assert_eq!(backend(sent), backend(forward), "the fixed hash leads to the same backend");
    sweeper.join().unwrap();
    let forward = other.encap(&packet, LATER).expect("it is sent");
    assert_eq!(forward, sent);
    assert_eq!(connections.len(), 1, "what is translated is remembered");
    let reply = other.decap(&udp(&forward.reversed(), b"!"), LATER);
    assert_eq!(reply, Some(client.reversed()), "the next reply is the VIP's");
}
