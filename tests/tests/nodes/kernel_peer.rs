//! Windlass on one node, a stock flannel node beside it.

use anyhow::Result;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{Family, Topology};
use windlass_tests::traffic::{PORT, ping_sizes};

use crate::{TCP_BYTES, traffic};

#[test]
fn pods_and_hosts_of_windlass_and_of_a_stock_node_talk_over_ipv4() -> Result<()> {
    pods_and_hosts_talk(Family::V4, "1")
}

#[test]
fn pods_and_hosts_of_windlass_and_of_a_stock_node_talk_over_ipv6() -> Result<()> {
    pods_and_hosts_talk(Family::V6, "1")
}

#[test]
fn two_workers_serve_a_stock_node_over_ipv4() -> Result<()> {
    pods_and_hosts_talk(Family::V4, "2")
}

fn pods_and_hosts_talk(family: Family, workers: &str) -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &["--workers", workers])?;

    let _near_server = traffic.serve(&near.netns, near.ip(family), PORT)?;
    let _far_server = traffic.serve(&far.netns, far.ip(family), PORT)?;
    let _far_host_server = traffic.serve(&stock.netns, stock.spec.pod_base(family), PORT)?;
    let _near_host_server = traffic.serve(&ours.netns, ours.spec.pod_base(family), PORT)?;
    let _gateway_server = traffic.serve(&ours.netns, ours.spec.gateway(family), PORT)?;

    // Pod to pod, both ways.
    ping_sizes(&near.netns, far.ip(family))?;
    ping_sizes(&far.netns, near.ip(family))?;
    traffic.exchange(&near.netns, far.ip(family), PORT, TCP_BYTES)?;
    traffic.exchange(&far.netns, near.ip(family), PORT, TCP_BYTES)?;

    // Host to pod, both ways: a host's source address toward the overlay is its podCIDR's base.
    ping_sizes(&ours.netns, far.ip(family))?;
    ping_sizes(&stock.netns, near.ip(family))?;
    let seen = traffic.exchange(&ours.netns, far.ip(family), PORT, TCP_BYTES)?;
    assert_eq!(seen.client.ip(), ours.spec.pod_base(family));
    traffic.exchange(&stock.netns, near.ip(family), PORT, TCP_BYTES)?;

    // Pod to the other host, by its overlay addresses and by its node address (answers come back encapsulated).
    traffic.exchange(&near.netns, stock.spec.pod_base(family), PORT, TCP_BYTES)?;
    traffic.exchange(&far.netns, ours.spec.pod_base(family), PORT, TCP_BYTES)?;
    traffic.exchange(&far.netns, ours.spec.gateway(family), PORT, TCP_BYTES)?;
    ping_sizes(&near.netns, stock.spec.underlay(family))?;
    ping_sizes(&far.netns, ours.spec.underlay(family))?;
    node.stop()
}
