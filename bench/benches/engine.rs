//! The engine alone, without devices: nanoseconds per packet, named direction / family / size / fast or slow path.
//!
//! `hit` is the steady state. It is measured with one service and with ten thousand: it must not depend on how
//! many there are. `miss` is a first packet's way through tables and connections.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use etherparse::PacketBuilder;
use windlass_dataplane::counters::Counters;
use windlass_dataplane::engine::{Engine, Outbox, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::packet::{DatagramBatch, PacketBatch};
use windlass_dataplane::tables::{LocalVtep, NextHop, RemoteVtep, Service, TableSet, Vip, Writer};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

const BATCH: usize = 32;
const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const POD: &str = "10.1.0.5:1000";
const POD6: &str = "[fd00:1::5]:1000";
const REMOTE: &str = "10.2.0.5:8080";
const REMOTE6: &str = "[fd00:2::5]:8080";
const VIP: &str = "10.96.0.1:80";

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| unreachable!("{text:?}: {error:?}"))
}

/// Pods here are 10.1.0.0/24 and fd00:1::/64, on the peer 10.2.0.0/24 and fd00:2::/64. `services` VIPs from
/// 10.96.0.1:80 on lead to one pod of the peer each.
fn tables(services: u32) -> TableSet {
    let vni = Vni::new(1).unwrap_or_else(|| unreachable!("24 bits"));
    let mut set = TableSet::default();
    let mut vtep = RemoteVtep::new("peer", parsed("192.0.2.2:4789"));
    vtep.prefixes = vec![parsed("10.2.0.0/24"), parsed("fd00:2::/64")];
    Arc::make_mut(&mut set.fdb).insert(vni, PEER_MAC, Arc::new(vtep));
    for (own, peer, gateway) in
        [("10.1.0.0/24", "10.2.0.0/24", "10.2.0.0"), ("fd00:1::/64", "fd00:2::/64", "fd00:2::")]
    {
        let gateway = parsed(gateway);
        Arc::make_mut(&mut set.neighbors).insert(vni, gateway, PEER_MAC);
        let routes = Arc::make_mut(&mut set.routes);
        routes.insert(parsed(peer), NextHop::Remote { vni, gateway });
        routes.insert(parsed(own), NextHop::Overlay);
        Arc::make_mut(&mut set.local).cluster_cidrs.push(parsed(own));
    }
    let local = Arc::make_mut(&mut set.local);
    local.vteps.insert(vni, LocalVtep { mac_v4: Some(OUR_MAC), mac_v6: Some(OUR_MAC) });
    let table = Arc::make_mut(&mut set.services);
    for i in 0..services {
        let addr = IpAddr::from((0x0a60_0001 + i).to_be_bytes());
        let vip = Vip { addr, port: 80, protocol: Protocol::UDP };
        table.insert(Arc::new(Service::new(format!("default/s{i}:http"), vip, vec![parsed(REMOTE)])));
    }
    set
}

fn udp(src: &str, dst: &str, total_len: usize) -> Vec<u8> {
    let (src, dst): (SocketAddr, SocketAddr) = (parsed(src), parsed(dst));
    let headers_len = if src.is_ipv4() { 28 } else { 48 };
    let (payload, mut out) = (vec![7; total_len - headers_len], Vec::new());
    let written = match (src.ip(), dst.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            .udp(src.port(), dst.port())
            .write(&mut out, &payload),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64)
            .udp(src.port(), dst.port())
            .write(&mut out, &payload),
        _ => unreachable!("two families"),
    };
    written.unwrap_or_else(|error| unreachable!("{error}"));
    out
}

fn vxlan(inner: &[u8]) -> Vec<u8> {
    let mut out = vec![8, 0, 0, 0, 0, 0, 1, 0];
    out.extend(OUR_MAC.0);
    out.extend(PEER_MAC.0);
    out.extend(if inner[0] >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] });
    out.extend(inner);
    out
}

fn engine(services: u32, settings: Settings) -> Engine {
    let connections = Arc::new(Conntrack::new(1_000_000, 1));
    Engine::new(Writer::new(tables(services)).reader(), connections, Arc::<Counters>::default(), settings, 0)
}

/// Benchmarks what `batch` says one batch took.
fn timed(c: &mut Criterion, name: &str, mut batch: impl FnMut() -> Duration) {
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(name, |bencher| bencher.iter_custom(|rounds| (0..rounds).map(|_| batch()).sum()));
}

/// Batches of 32 packets from the device, through one engine. Translation and headers are written in place, so that
/// each batch is copied in first, outside the measurement.
fn encap(c: &mut Criterion, name: &str, services: u32, packet: &[u8]) {
    let mut engine = engine(services, Settings::default());
    let (mut batch, mut out) = (PacketBatch::new(BATCH, 2), Outbox::default());
    let fill = |batch: &mut PacketBatch| {
        batch.clear();
        while batch.receive_copy(packet) {}
    };
    fill(&mut batch);
    engine.encap(&mut batch, Instant::ZERO, &mut out);
    assert_eq!(out.datagrams.len(), BATCH, "{name}: all are sent");
    timed(c, name, || {
        fill(&mut batch);
        out.clear();
        let started = std::time::Instant::now();
        engine.encap(&mut batch, Instant::ZERO, &mut out);
        let spent = started.elapsed();
        black_box(&out);
        spent
    });
}

fn decap(c: &mut Criterion, name: &str, packet: &[u8]) {
    let mut engine = engine(1, Settings::default());
    let (mut batch, mut out) = (DatagramBatch::new(BATCH, 2), Outbox::default());
    let (payload, peer) = (vxlan(packet), parsed("192.0.2.2:5000"));
    let fill = |batch: &mut DatagramBatch| {
        batch.clear();
        while batch.receive_copy(&payload, peer, 0) {}
    };
    fill(&mut batch);
    engine.decap(&mut batch, Instant::ZERO, &mut out);
    assert_eq!(out.packets.len(), BATCH, "{name}: all are delivered");
    timed(c, name, || {
        fill(&mut batch);
        out.clear();
        let started = std::time::Instant::now();
        engine.decap(&mut batch, Instant::ZERO, &mut out);
        let spent = started.elapsed();
        black_box(&out);
        spent
    });
}

/// First packets: a new engine for every batch, and 32 flows that it has not seen.
fn encap_miss(c: &mut Criterion, name: &str, dst: &str) {
    let packets: Vec<_> = (0..BATCH).map(|i| udp(&format!("10.1.0.5:{}", 2_000 + i), dst, 64)).collect();
    let settings = Settings { flow_cache_entries: 64, ..Settings::default() };
    let (mut batch, mut out) = (PacketBatch::new(BATCH, 2), Outbox::default());
    let mut group = c.benchmark_group("engine");
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function(name, |bencher| {
        bencher.iter_batched_ref(
            || engine(1, settings.clone()),
            |engine| {
                batch.clear();
                out.clear();
                for packet in &packets {
                    batch.receive_copy(packet);
                }
                engine.encap(&mut batch, Instant::ZERO, &mut out);
                black_box(&out);
            },
            BatchSize::SmallInput,
        );
    });
}

fn benches(c: &mut Criterion) {
    encap(c, "encap/v4/64B/hit", 1, &udp(POD, REMOTE, 64));
    encap(c, "encap/v4/1400B/hit", 1, &udp(POD, REMOTE, 1_400));
    encap(c, "encap/v6/64B/hit", 1, &udp(POD6, REMOTE6, 64));
    encap(c, "encap/vip/v4/64B/hit/1-service", 1, &udp(POD, VIP, 64));
    encap(c, "encap/vip/v4/64B/hit/10000-services", 10_000, &udp(POD, VIP, 64));
    decap(c, "decap/v4/64B/hit", &udp(REMOTE, POD, 64));
    decap(c, "decap/v4/1400B/hit", &udp(REMOTE, POD, 1_400));
    decap(c, "decap/v6/64B/hit", &udp(REMOTE6, POD6, 64));
    encap_miss(c, "encap/v4/64B/miss", REMOTE);
    encap_miss(c, "encap/vip/v4/64B/miss", VIP);
}

criterion_group! {
    name = engine_benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .without_plots();
    targets = benches
}
criterion_main!(engine_benches);
