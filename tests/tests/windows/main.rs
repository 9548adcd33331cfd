//! windlass.exe under wine, with stand-ins for Wintun and IP Helper, beside a stock node: see `windlass_tests::windows`.

mod service;

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use serde_json::json;
use windlass_tests::dns::{self, KUBE_DNS, NAME, serve_dns};
use windlass_tests::node::{SOURCE_VIP, WindlassNode};
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::topology::{FAMILIES, Family, Topology};
use windlass_tests::traffic::{PORT, Traffic, Transport, UDP_WHOLE_SIZES, ping, ping_sizes_again};
use windlass_tests::windows::{self, WindowsNode};
use windlass_tests::{Permit, skipped};

const BRIDGE: &str = env!("CARGO_BIN_EXE_windlass-tun-bridge");

/// Enough for TCP to leave slow start.
const TCP_BYTES: usize = 1 << 20;

/// In one packet, and in fragments.
const UDP_RELAYED_SIZES: [usize; 3] = [1, 1_400, 9_000];

const REMOTE: ServiceSpec = at("remote", [10, 106, 228, 152], 80, PORT);
const LOCAL: ServiceSpec = at("local", [10, 106, 1, 1], 80, PORT);
const HAIRPIN: ServiceSpec = at("hairpin", [10, 106, 1, 2], 80, PORT);
const KUBERNETES: ServiceSpec = at("kubernetes", [10, 96, 0, 1], 443, 6443);
const KEEPS_CLIENT: ServiceSpec = at("keeps", [10, 106, 1, 4], 80, PORT);
const EMPTY: ServiceSpec = at("empty", [10, 106, 1, 3], 80, PORT);

const fn at(name: &'static str, vip: [u8; 4], port: u16, backend_port: u16) -> ServiceSpec {
    let [a, b, c, d] = vip;
    ServiceSpec { name, vip: Ipv4Addr::new(a, b, c, d), port, backend_port }
}

fn traffic() -> Traffic {
    Traffic::new(env!("CARGO_BIN_EXE_windlass-traffic"))
}

/// `None`, said as `SKIPPED: ...`, where these tests cannot run.
fn start() -> Result<Option<Permit>> {
    if let Some(why) = windows::missing_ability() {
        skipped(&why);
        return Ok(None);
    }
    windlass_tests::start()
}

#[test]
fn pods_and_hosts_of_a_windows_node_and_of_a_stock_node_talk() -> Result<()> {
    let Some(_permit) = start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let node = WindowsNode::start(ours, &Objects::cluster(&topology.specs()), BRIDGE, &[])?;
    for family in FAMILIES {
        let _servers = [
            traffic().serve(&near.netns, near.ip(family), PORT)?,
            traffic().serve(&far.netns, far.ip(family), PORT)?,
            traffic().serve(&stock.netns, stock.spec.pod_base(family), PORT)?,
            traffic().serve(&ours.netns, ours.spec.pod_base(family), PORT)?,
        ];
        ping_sizes_again(&near.netns, far.ip(family))?;
        ping_sizes_again(&far.netns, near.ip(family))?;
        for (from, to) in [
            (&near.netns, far.ip(family)),
            (&far.netns, near.ip(family)),
            (&ours.netns, far.ip(family)),
            (&near.netns, stock.spec.pod_base(family)),
            (&far.netns, ours.spec.pod_base(family)),
        ] {
            traffic().udp(from, to, PORT, &UDP_WHOLE_SIZES)?;
            traffic().tcp(from, to, PORT, TCP_BYTES)?;
        }
    }
    let calls = node.stop()?;
    assert_eq!(calls, APPLIED.iter().chain(&UNDONE).copied().collect::<Vec<_>>());
    Ok(())
}

const APPLIED: [&str; 12] = [
    "SetIpInterfaceEntry IPv4 mtu 1430 metric 5 forwarding",
    "SetIpInterfaceEntry IPv6 mtu 1430 metric 5 forwarding",
    "CreateUnicastIpAddressEntry 10.244.0.0/32",
    "CreateUnicastIpAddressEntry fd00:244::/128",
    "CreateIpForwardEntry2 10.96.0.0/12",
    "CreateIpForwardEntry2 10.244.0.0/16",
    "CreateIpForwardEntry2 fd00:96::/112",
    "CreateIpForwardEntry2 fd00:244::/48",
    "CreateIpForwardEntry2 169.254.77.1/32",
    "CreateIpForwardEntry2 fd77:6e64:6c61:7373::1/128",
    "CreateIpForwardEntry2 169.254.77.2/32",
    "CreateIpForwardEntry2 fd77:6e64:6c61:7373::2/128",
];

const UNDONE: [&str; 10] = [
    "DeleteIpForwardEntry2 fd77:6e64:6c61:7373::2/128",
    "DeleteIpForwardEntry2 169.254.77.2/32",
    "DeleteIpForwardEntry2 fd77:6e64:6c61:7373::1/128",
    "DeleteIpForwardEntry2 169.254.77.1/32",
    "DeleteIpForwardEntry2 fd00:244::/48",
    "DeleteIpForwardEntry2 fd00:96::/112",
    "DeleteIpForwardEntry2 10.244.0.0/16",
    "DeleteIpForwardEntry2 10.96.0.0/12",
    "DeleteUnicastIpAddressEntry fd00:244::/128",
    "DeleteUnicastIpAddressEntry 10.244.0.0/32",
];

#[test]
fn vips_are_reached_from_pod_and_host_of_a_windows_node() -> Result<()> {
    let Some(_permit) = start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 1)?);
    let (pod, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let (here, there) = (ours.spec.name, stock.spec.name);
    let placed = |ip: &dyn Fn(Family) -> IpAddr, node| FAMILIES.map(|family| (ip(family), node));
    let objects = Objects::cluster(&topology.specs())
        .with_service(&REMOTE, &placed(&|family| far.ip(family), there))
        .with_service(&LOCAL, &placed(&|family| near.ip(family), here))
        .with_service(&HAIRPIN, &placed(&|family| pod.ip(family), here))
        .with_service(&KUBERNETES, &placed(&|family| ours.spec.underlay(family), here))
        .with_service(&EMPTY, &[]);
    let node = WindowsNode::start(ours, &objects, BRIDGE, &[])?;
    for family in FAMILIES {
        let _servers = [
            traffic().serve(&far.netns, far.ip(family), PORT)?,
            traffic().serve(&near.netns, near.ip(family), PORT)?,
            traffic().serve(&pod.netns, pod.ip(family), PORT)?,
            traffic().serve(&ours.netns, ours.spec.underlay(family), KUBERNETES.backend_port)?,
        ];
        let cases = [
            (&REMOTE, far.ip(family), false),
            (&LOCAL, near.ip(family), true),
            (&HAIRPIN, pod.ip(family), true),
            (&KUBERNETES, ours.spec.underlay(family), true),
        ];
        for (service, backend, translated) in cases {
            for client in [&pod.netns, &ours.netns] {
                ping(client, service.vip(family))?;
                traffic().udp(client, service.vip(family), service.port, &UDP_WHOLE_SIZES)?;
                let seen = traffic().tcp(client, service.vip(family), service.port, TCP_BYTES)?;
                assert_eq!(seen.server, (backend, service.backend_port).into(), "{}", service.name);
                if family == Family::V4 {
                    assert_eq!(seen.client.ip().to_string() == SOURCE_VIP, translated, "{seen:?}");
                }
            }
        }
        for client in [&pod.netns, &ours.netns] {
            traffic().refused(client, EMPTY.vip(family), EMPTY.port)?;
            // F8: a port that the VIP does not serve.
            traffic().refused(client, REMOTE.vip(family), REMOTE.port + 1)?;
        }
    }
    node.stop().map(drop)
}

/// Node ports are sockets of windlass.exe, which relay into the overlay.
#[test]
fn node_ports_of_a_windows_node_lead_to_pods_here_and_there() -> Result<()> {
    let Some(_permit) = start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let at = |pod: &Pod, node| FAMILIES.map(|family| (pod.ip(family), node));
    let mut objects = Objects::cluster(&topology.specs())
        .with_service(&REMOTE, &at(far, stock.spec.name))
        .with_service(&LOCAL, &at(near, ours.spec.name))
        .with_service(&KEEPS_CLIENT, &at(near, ours.spec.name));
    let (remote_port, local_port, keeps_port) = (30_080, 30_081, 30_082);
    objects.expose(REMOTE.name, json!({}), remote_port, &[])?;
    objects.expose(LOCAL.name, json!({}), local_port, &[])?;
    objects.expose(KEEPS_CLIENT.name, json!({ "externalTrafficPolicy": "Local" }), keeps_port, &[])?;
    let mut node = WindowsNode::start(ours, &objects, BRIDGE, &[])?;
    node.wait_for(": tcp node port 30082 is not served on this node")?;
    for family in FAMILIES {
        let _servers = [
            traffic().serve(&far.netns, far.ip(family), PORT)?,
            traffic().serve(&near.netns, near.ip(family), PORT)?,
        ];
        let address = ours.spec.underlay(family);
        for (port, backend) in [(remote_port, far), (local_port, near)] {
            // The stock node is the client from outside, on the wire beside ours.
            for client in [&stock.netns, &ours.netns] {
                let seen = traffic().tcp(client, address, port, TCP_BYTES)?;
                assert_eq!(seen.server, (backend.ip(family), PORT).into());
                traffic().udp(client, address, port, &UDP_RELAYED_SIZES)?;
            }
        }
        traffic().refused(&stock.netns, address, keeps_port)?;
    }
    node.stop().map(drop)
}

#[test]
fn a_windows_and_a_linux_windlass_node_serve_dns_and_follow_changes() -> Result<()> {
    let Some(_permit) = start()? else { return Ok(()) };
    if let Some(why) = dns::missing_ability() {
        skipped(&why);
        return Ok(());
    }
    let topology = Topology::pair()?;
    let (ours, linux) = (topology.host(0)?, topology.host(1)?);
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(linux, 2)?);
    let (client, first, second) = (near.pod(0)?, far.pod(0)?, far.pod(1)?);
    let backends = |pod: &Pod| FAMILIES.map(|family| (pod.ip(family), linux.spec.name));
    let objects = |web: &Pod| {
        Objects::cluster(&topology.specs())
            .with_service(&KUBE_DNS, &backends(first))
            .with_service(&REMOTE, &backends(web))
    };
    let _server = serve_dns(first, &traffic(), (NAME, REMOTE.vip))?;
    let linux_node = WindlassNode::start(linux, &objects(first), &[])?;
    let mut node = WindowsNode::start(ours, &objects(first), BRIDGE, &[])?;
    let _servers = [
        traffic().serve(&first.netns, first.ip(Family::V4), PORT)?,
        traffic().serve(&second.netns, second.ip(Family::V4), PORT)?,
    ];
    for family in FAMILIES {
        ping(&client.netns, first.ip(family))?;
        for transport in [Transport::Udp, Transport::Tcp] {
            let answer = traffic().dns(&client.netns, KUBE_DNS.vip(family), NAME, transport)?;
            assert_eq!(answer, REMOTE.vip(Family::V4));
        }
    }
    let vip = REMOTE.vip(Family::V4);
    let backend = || Ok::<_, anyhow::Error>(traffic().tcp(&client.netns, vip, 80, TCP_BYTES)?.server.ip());
    assert_eq!(backend()?, first.ip(Family::V4));
    objects(second).write(&node.manifests())?;
    node.wait_for(&format!("backend {}:{PORT} added", second.ip(Family::V4)))?;
    assert_eq!(backend()?, second.ip(Family::V4));

    // The pipe answers: tables, and drops, of which there is none that should not be.
    assert!(node.ask(&["show", "services"])?.contains(&vip.to_string()));
    let counters = node.ask(&["show", "counters", "-o", "json"])?;
    assert!(counters.contains("underlay"), "{counters}");
    let traced = node.ask(&["trace", &format!("tcp {}:4000 > {vip}:80", client.address)])?;
    assert!(traced.contains(&second.ip(Family::V4).to_string()), "{traced}");
    node.stop()?;
    linux_node.stop()
}
