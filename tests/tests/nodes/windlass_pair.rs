//! Windlass on two nodes, and a stock node beside them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::Result;
use windlass_tests::netns::Netns;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{Family, NodeSpec, Topology};
use windlass_tests::traffic::{PORT, Traffic, ping_sizes};

use crate::services::WEB;
use crate::{TCP_BYTES, traffic};

#[test]
fn two_windlass_nodes_and_a_stock_one_talk_over_ipv4() -> Result<()> {
    two_windlass_nodes_talk(Family::V4)
}

#[test]
fn two_windlass_nodes_and_a_stock_one_talk_over_ipv6() -> Result<()> {
    two_windlass_nodes_talk(Family::V6)
}

fn two_windlass_nodes_talk(family: Family) -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::new([NodeSpec::first(), NodeSpec::second(), NodeSpec::third()])?;
    let (first, second, third) = (topology.host(0)?, topology.host(1)?, topology.host(2)?);
    let _stock = KernelPeer::new(third, &topology.specs())?;
    let (near, far) = (Pods::with_pods(first, 2)?, Pods::with_pods(second, 1)?);
    let (client, near, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let backends = [(near.ip(family), first.spec.name), (far.ip(family), second.spec.name)];
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
    let one = WindlassNode::start(first, &objects, &["--workers", "2"])?;
    let two = WindlassNode::start(second, &objects, &["--workers", "2"])?;

    let _near_server = traffic.serve(&near.netns, near.ip(family), WEB.backend_port)?;
    let _far_server = traffic.serve(&far.netns, far.ip(family), WEB.backend_port)?;
    ping_sizes(&client.netns, far.ip(family))?;
    ping_sizes(&far.netns, client.ip(family))?;
    traffic.exchange(&client.netns, far.ip(family), PORT, TCP_BYTES)?;
    traffic.exchange(&far.netns, near.ip(family), PORT, TCP_BYTES)?;
    traffic.exchange(&first.netns, far.ip(family), PORT, TCP_BYTES)?;
    traffic.exchange(&second.netns, near.ip(family), PORT, TCP_BYTES)?;

    traffic.exchange(&third.netns, near.ip(family), PORT, TCP_BYTES)?;
    traffic.exchange(&third.netns, far.ip(family), PORT, TCP_BYTES)?;

    let all: BTreeSet<_> = backends.iter().map(|(address, _)| *address).collect();
    for netns in [&client.netns, &first.netns, &second.netns] {
        assert_eq!(backends_seen(&traffic, netns, &WEB, family)?, all, "from {}", netns.name());
    }
    one.stop()?;
    two.stop()
}

/// Which backends answer 24 connections: that one of two is never chosen has a chance of one in 8 million.
fn backends_seen(
    traffic: &Traffic,
    from: &Netns,
    service: &ServiceSpec,
    family: Family,
) -> Result<BTreeSet<IpAddr>> {
    (0..24).map(|_| Ok(traffic.tcp(from, service.vip(family), service.port, 1000)?.server.ip())).collect()
}
