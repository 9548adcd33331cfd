//! The steady state allocates nothing, whatever becomes of a packet.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::alloc::System;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use etherparse::PacketBuilder;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use windlass_dataplane::counters::Counters;
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::{Engine, Outbox, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::packet::{DatagramBatch, PacketBatch};
use windlass_dataplane::tables::{LocalVtep, NextHop, RemoteVtep, Service, TableSet, Vip, Writer};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const BATCH: usize = 32;

/// Pods here are 10.1.0.0/24 and fd00:1::/64, on the peer 10.2.0.0/24 and fd00:2::/64; services 10.9.0.1:80
/// and fd00:9::1 port 80 (UDP) lead to the peer, 10.9.0.2:80 to nobody.
fn tables() -> TableSet {
    let vni = Vni::new(1).unwrap();
    let mut set = TableSet::default();
    let mut vtep = RemoteVtep::new("peer", "192.0.2.2:4789".parse().unwrap());
    vtep.prefixes = vec!["10.2.0.0/24".parse().unwrap(), "fd00:2::/64".parse().unwrap()];
    Arc::make_mut(&mut set.fdb).insert(vni, PEER_MAC, Arc::new(vtep));
    for (own, peer, gateway) in
        [("10.1.0.0/24", "10.2.0.0/24", "10.2.0.0"), ("fd00:1::/64", "fd00:2::/64", "fd00:2::")]
    {
        let gateway = gateway.parse().unwrap();
        Arc::make_mut(&mut set.neighbors).insert(vni, gateway, PEER_MAC);
        Arc::make_mut(&mut set.routes).insert(peer.parse().unwrap(), NextHop::Remote { vni, gateway });
        Arc::make_mut(&mut set.routes).insert(own.parse().unwrap(), NextHop::Overlay);
        Arc::make_mut(&mut set.local).cluster_cidrs.push(own.parse().unwrap());
    }
    Arc::make_mut(&mut set.local)
        .vteps
        .insert(vni, LocalVtep { mac_v4: Some(OUR_MAC), mac_v6: Some(OUR_MAC) });
    for (vip, backend) in [
        ("10.9.0.1:80", Some("10.2.0.5:8080")),
        ("[fd00:9::1]:80", Some("[fd00:2::5]:8080")),
        ("10.9.0.2:80", None),
    ] {
        let vip: SocketAddr = vip.parse().unwrap();
        let vip = Vip { addr: vip.ip(), port: vip.port(), protocol: Protocol::UDP };
        let backends = backend.into_iter().map(|backend| backend.parse().unwrap()).collect();
        Arc::make_mut(&mut set.services).insert(Arc::new(Service::new("s", vip, backends)));
    }
    set
}

fn udp(src: &str, dst: &str) -> Vec<u8> {
    let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut out = Vec::new();
    let (payload, ports) = ([7; 100], (src.port(), dst.port()));
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => PacketBuilder::ipv4(src.octets(), dst.octets(), 64)
            .udp(ports.0, ports.1)
            .write(&mut out, &payload),
        (IpAddr::V6(src), IpAddr::V6(dst)) => PacketBuilder::ipv6(src.octets(), dst.octets(), 64)
            .udp(ports.0, ports.1)
            .write(&mut out, &payload),
        _ => unreachable!("two families"),
    }
    .unwrap();
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

#[test]
fn the_steady_state_allocates_nothing() {
    let writer = Writer::new(tables());
    let counters = Arc::<Counters>::default();
    let connections = Arc::new(Conntrack::new(1_000, 1));
    let settings = Settings::default();
    let mut engine = Engine::new(writer.reader(), connections, Arc::clone(&counters), settings, 0);
    let (mut packets, mut datagrams) = (PacketBatch::new(BATCH, 2), DatagramBatch::new(BATCH, 2));
    let mut out = Outbox::default();
    let peer: SocketAddr = "192.0.2.2:5000".parse().unwrap();
    let from_device = [
        udp("10.1.0.5:1000", "10.2.0.5:80"),
        udp("[fd00:1::5]:1000", "[fd00:2::5]:80"),
        udp("10.1.0.5:1000", "10.9.0.1:80"),
        udp("[fd00:1::5]:1000", "[fd00:9::1]:80"),
        // Refused with an answer, then dropped: outside, multicast, malformed.
        udp("10.1.0.5:1000", "10.9.0.2:80"),
        udp("10.1.0.5:1000", "198.51.100.1:80"),
        udp("10.1.0.5:1000", "224.0.0.1:80"),
        vec![0x45; 19],
    ];
    let good = udp("10.2.0.5:80", "10.1.0.5:1000");
    let from_peer = [
        vxlan(&good),
        vxlan(&udp("[fd00:2::5]:80", "[fd00:1::5]:1000")),
        vxlan(&udp("10.2.0.5:8080", "10.1.0.5:1000")),
        vxlan(&udp("[fd00:2::5]:8080", "[fd00:1::5]:1000")),
        // Spoofed, cut, without a VNI.
        vxlan(&udp("10.3.0.5:80", "10.1.0.5:1000")),
        vxlan(&good)[..60].to_vec(),
        vec![0; 60],
    ];
    let mut round = |now: Instant| {
        packets.clear();
        for packet in from_device.iter().cycle().take(BATCH) {
            assert!(packets.receive_copy(packet));
        }
        engine.encap(&mut packets, now, &mut out);
        out.clear();
        datagrams.clear();
        for payload in from_peer.iter().cycle().take(BATCH) {
            assert!(datagrams.receive_copy(payload, peer, 0));
        }
        engine.decap(&mut datagrams, now, &mut out);
        out.clear();
        engine.expire(now);
    };
    // Lists find their length and flows their connections; then ten batches in each direction and second.
    for _ in 0..3 {
        round(Instant::ZERO);
    }
    let region = Region::new(ALLOCATOR);
    for millis in 0..100_u64 {
        round(Instant::from_nanos(millis * 100_000_000));
    }
    let change = region.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
    for reason in
        [DropReason::NoEndpoint, DropReason::NoRoute, DropReason::SourceSpoofed, DropReason::Malformed]
    {
        assert!(counters.dropped(reason) > 100, "{reason:?} was meant to happen");
    }
    assert!(counters.cache_hits.get() > 3_000 && counters.generated.get() > 100);
}
