//! Service VIPs, from a pod and from the host of a Windlass node, beside a stock node.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use windlass_tests::netns::Netns;
use windlass_tests::node::{SOURCE_VIP, WindlassNode};
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{FAMILIES, Family, Topology};
use windlass_tests::traffic::{PORT, Seen, Traffic, UDP_SIZES, UDP_WHOLE_SIZES, ping};

use crate::{TCP_BYTES, traffic};

/// The worked example's web service.
pub(crate) const WEB: ServiceSpec = at("web", [10, 106, 228, 152], 80, PORT);
const LOCAL: ServiceSpec = at("local", [10, 106, 1, 1], 80, PORT);
const HAIRPIN: ServiceSpec = at("hairpin", [10, 106, 1, 2], 80, PORT);
const KUBERNETES: ServiceSpec = at("kubernetes", [10, 96, 0, 1], 443, 6443);
const STOCK_HOST: ServiceSpec = at("stock-host", [10, 96, 0, 2], 443, 6443);
const EMPTY: ServiceSpec = at("empty", [10, 106, 1, 3], 80, PORT);

pub(crate) const fn at(name: &'static str, vip: [u8; 4], port: u16, backend_port: u16) -> ServiceSpec {
    let [a, b, c, d] = vip;
    ServiceSpec { name, vip: Ipv4Addr::new(a, b, c, d), port, backend_port }
}

#[test]
fn vips_are_reached_from_pod_and_host_over_ipv4() -> Result<()> {
    vips_are_reached(Family::V4)
}

#[test]
fn vips_are_reached_from_pod_and_host_over_ipv6() -> Result<()> {
    vips_are_reached(Family::V6)
}

fn vips_are_reached(family: Family) -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 1)?);
    let (pod, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let (here, there) = (ours.spec.name, stock.spec.name);
    let objects = Objects::cluster(&topology.specs())
        .with_service(&WEB, &[(far.ip(family), there)])
        .with_service(&LOCAL, &[(near.ip(family), here)])
        .with_service(&HAIRPIN, &[(pod.ip(family), here)])
        .with_service(&KUBERNETES, &[(ours.spec.underlay(family), here)])
        .with_service(&STOCK_HOST, &[(stock.spec.underlay(family), there)])
        .with_service(&EMPTY, &[]);
    let node = WindlassNode::start(ours, &objects, &[])?;

    let _servers = [
        traffic.serve(&far.netns, far.ip(family), PORT)?,
        traffic.serve(&near.netns, near.ip(family), PORT)?,
        traffic.serve(&pod.netns, pod.ip(family), PORT)?,
        traffic.serve(&ours.netns, ours.spec.underlay(family), KUBERNETES.backend_port)?,
        traffic.serve(&stock.netns, stock.spec.underlay(family), STOCK_HOST.backend_port)?,
    ];
    let cases = [
        (&WEB, far.ip(family), Source::Kept),
        (&LOCAL, near.ip(family), Source::Translated),
        (&HAIRPIN, pod.ip(family), Source::Translated),
        (&KUBERNETES, ours.spec.underlay(family), Source::Translated),
        (&STOCK_HOST, stock.spec.underlay(family), Source::NodeAddress),
    ];
    let clients = [(&pod.netns, pod.ip(family)), (&ours.netns, ours.spec.pod_base(family))];
    for (service, backend, source) in cases {
        for (client, own_address) in clients {
            let seen = reach(&traffic, client, service, family)?;
            let who = format!("{} from {}: {seen:?}", service.name, client.name());
            assert_eq!(seen.server, (backend, service.backend_port).into(), "{who}");
            match source {
                Source::Kept => assert_eq!(seen.client.ip(), own_address, "{who}"),
                Source::Translated => assert_source_vip(seen.client.ip(), own_address, &who),
                Source::NodeAddress => assert_eq!(seen.client.ip(), ours.spec.underlay(family), "{who}"),
            }
        }
    }
    for (client, _) in clients {
        traffic.refused(client, EMPTY.vip(family), EMPTY.port)?;
        // F8: a port that the VIP does not serve.
        traffic.refused(client, WEB.vip(family), WEB.port + 1)?;
    }
    node.stop()
}

/// D8: only the first fragment carries ports, and the others must reach the same backend.
#[test]
fn datagrams_in_fragments_reach_one_backend_of_a_vip() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 1)?);
    let (client, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    for family in FAMILIES {
        let backends = [(near.ip(family), ours.spec.name), (far.ip(family), stock.spec.name)];
        let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
        let node = WindlassNode::start(ours, &objects, &[])?;
        let _near_server = traffic.serve(&near.netns, near.ip(family), PORT)?;
        let _far_server = traffic.serve(&far.netns, far.ip(family), PORT)?;
        for _ in 0..4 {
            traffic.udp(&client.netns, WEB.vip(family), WEB.port, &UDP_SIZES)?;
        }
        node.stop()?;
    }
    Ok(())
}

/// The client's address as the backend sees it.
#[derive(Clone, Copy)]
enum Source {
    /// The client's own.
    Kept,
    /// The source VIP, so that the answer comes back to us.
    Translated,
    /// The host masquerades what leaves it from the source VIP.
    NodeAddress,
}

fn reach(traffic: &Traffic, from: &Netns, service: &ServiceSpec, family: Family) -> Result<Seen> {
    let vip = service.vip(family);
    ping(from, vip)?;
    traffic.udp(from, vip, service.port, &UDP_WHOLE_SIZES)?;
    traffic.tcp(from, vip, service.port, TCP_BYTES)
}

fn assert_source_vip(client: IpAddr, own_address: IpAddr, who: &str) {
    match client {
        IpAddr::V4(client) => assert_eq!(client.to_string(), SOURCE_VIP, "{who}"),
        IpAddr::V6(client) => assert_ne!(IpAddr::from(client), own_address, "{who}"),
    }
}
