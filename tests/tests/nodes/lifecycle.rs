//! What a run makes goes with it, and a killed one's left-overs go with the next.

use anyhow::{Result, ensure};
use windlass_tests::node::{DEVICE, WindlassNode};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{FAMILIES, Family, Topology};
use windlass_tests::traffic::{PORT, ping};

use crate::traffic;

#[test]
fn sigterm_and_sigint_leave_nothing_behind() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let objects = Objects::cluster(&topology.specs());
    for signal in ["TERM", "INT"] {
        let node = WindlassNode::start(ours, &objects, &[])?;
        for family in FAMILIES {
            ping(&ours.netns, stock.spec.pod_base(family))?;
        }
        node.stop_by(signal)?;
    }
    Ok(())
}

#[test]
fn start_after_kill_sweeps_and_forwards_again() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let _server = traffic.serve(&far.netns, far.ip(Family::V4), PORT)?;
    let mut node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    for _ in 0..2 {
        traffic.tcp(&near.netns, far.ip(Family::V4), PORT, 100_000)?;
        node.crash()?;
        node.start_again()?;
    }
    ping(&near.netns, far.ip(Family::V4))?;
    traffic.tcp(&near.netns, far.ip(Family::V4), PORT, 100_000)?;
    // Nothing remains of the killed runs either.
    node.stop()
}

#[test]
fn a_second_run_is_refused_and_the_first_goes_on() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    ping(&ours.netns, stock.spec.pod_base(Family::V4))?;
    let second = node.run_second()?;
    ensure!([1, 2].contains(&second.code), "the second ended with code {}: {}", second.code, second.said);
    ping(&ours.netns, stock.spec.pod_base(Family::V4))?;
    node.stop()
}

#[test]
fn a_pod_that_has_gone_is_no_loop() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let far = Pods::with_pods(stock, 1)?;
    let far = far.pod(0)?;
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    ping(&ours.netns, far.ip(Family::V4))?;
    // There is no cni0 on our node: nothing but the loop guard routes its podCIDR.
    let absent = ours.spec.gateway(Family::V4);
    let before = packets_written(&ours.netns)?;
    let answered = far.netns.exec(&format!("ping -n -c 3 -i 0.2 -W 1 {absent}"));
    ensure!(answered.is_err(), "{absent} answers");
    let written = packets_written(&ours.netns)? - before;
    ensure!(written < 20, "{written} packets through {DEVICE} for 3 pings");
    node.stop()
}

fn packets_written(netns: &windlass_tests::netns::Netns) -> Result<u64> {
    Ok(netns.exec(&format!("cat /sys/class/net/{DEVICE}/statistics/rx_packets"))?.trim().parse()?)
}
