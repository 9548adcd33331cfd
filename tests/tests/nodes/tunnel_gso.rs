//! The tunnel-GSO lane: superpackets leave whole, content stays right, nothing stays behind.

use anyhow::{Result, ensure};
use windlass_tests::node::{Hindrance, WindlassNode, run_refused};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::topology::{FAMILIES, Family, Host, Topology};
use windlass_tests::traffic::{PORT, Traffic};

use crate::{TCP_BYTES, traffic};

const TAP: &str = "windlass0-gso";

/// Less than a transfer, and far more than acknowledgements.
const BULK: u64 = TCP_BYTES as u64 / 2;

#[test]
fn superpackets_leave_whole_toward_a_stock_node() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    if !is_on(&node)? {
        return Ok(());
    }
    for family in FAMILIES {
        expect_bulk(&traffic(), ours, near.pod(0)?, far.pod(0)?, family, true)?;
    }
    node.stop()
}

#[test]
fn superpackets_leave_whole_between_two_nodes_of_two_workers() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (first, second) = (topology.host(0)?, topology.host(1)?);
    let (near, far) = (Pods::with_pods(first, 1)?, Pods::with_pods(second, 1)?);
    let objects = Objects::cluster(&topology.specs());
    let one = WindlassNode::start(first, &objects, &["--workers", "2"])?;
    let two = WindlassNode::start(second, &objects, &["--workers", "2"])?;
    if !is_on(&one)? {
        return Ok(());
    }
    for family in FAMILIES {
        expect_bulk(&traffic(), first, near.pod(0)?, far.pod(0)?, family, true)?;
        expect_bulk(&traffic(), second, far.pod(0)?, near.pod(0)?, family, true)?;
    }
    one.stop()?;
    two.stop()
}

/// Cards without the offload: `auto` sees it at start; what is on stays right when the kernel has to cut.
#[test]
fn an_uplink_that_cannot_cut_gets_superpackets_only_when_forced() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let objects = Objects::cluster(&topology.specs());
    let node = WindlassNode::start(ours, &objects, &[])?;
    let has_lane = is_on(&node)?;
    node.stop()?;
    if !has_lane {
        return Ok(());
    }
    ours.netns.exec("ethtool -K eth0 tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off")?;
    for (setting, whole) in [("auto", false), ("on", true)] {
        let node = WindlassNode::start(ours, &objects, &["--tunnel-gso", setting])?;
        let expected = if whole { "the kernel cuts" } else { "lane off: eth0 cannot cut" };
        ensure!(node.log().contains(expected), "{expected:?} is not in {}", node.log());
        for family in FAMILIES {
            expect_bulk(&traffic(), ours, near.pod(0)?, far.pod(0)?, family, whole)?;
        }
        node.stop()?;
    }
    Ok(())
}

#[test]
fn off_makes_no_device_and_says_so() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &["--tunnel-gso", "off"])?;
    ensure!(!has_tap(ours)?);
    let shown = node.ask(&["show", "device"])?.said;
    ensure!(shown.contains("tunnel-GSO lane off: by setting"), "{shown}");
    node.stop()
}

#[test]
fn on_where_it_cannot_work_refuses_and_auto_does_without() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs());
    let forced = ["--tunnel-gso", "on"];
    let ended = run_refused(ours, &objects, &forced, Hindrance::NoNetRaw)?;
    let told = ended.said.contains("CAP_NET_RAW") || ended.said.contains("takes no tunnelled superpackets");
    ensure!(ended.code == 1 && told, "code {}: {}", ended.code, ended.said);
    ours.netns.ip(&format!("link add {TAP} type bridge"))?;
    let ended = run_refused(ours, &objects, &forced, Hindrance::None)?;
    let remedy = format!("ip link delete {TAP}");
    ensure!(ended.code == 1 && ended.said.contains(&remedy), "code {}: {}", ended.code, ended.said);
    let node = WindlassNode::start(ours, &objects, &[])?;
    ensure!(node.log().contains("tunnel-GSO lane off: "), "{}", node.log());
    node.stop()
}

#[test]
fn a_lane_that_breaks_loses_nothing_and_is_told_once() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    if !is_on(&node)? {
        return Ok(());
    }
    ours.netns.ip(&format!("link set {TAP} down"))?;
    expect_bulk(&traffic(), ours, near.pod(0)?, far.pod(0)?, Family::V4, false)?;
    ours.netns.ip(&format!("link delete {TAP}"))?;
    expect_bulk(&traffic(), ours, near.pod(0)?, far.pod(0)?, Family::V4, false)?;
    let told = node.log().matches("refuses superpackets").count();
    ensure!(told == 1, "told {told} times: {}", node.log());
    node.stop()
}

#[test]
fn a_killed_run_leaves_nothing_of_the_lane() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let mut node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    if !is_on(&node)? {
        return Ok(());
    }
    node.crash()?;
    ensure!(!has_tap(ours)?, "{TAP} outlives a killed run");
    node.start_again()?;
    expect_bulk(&traffic(), ours, near.pod(0)?, far.pod(0)?, Family::V4, true)?;
    node.stop()
}

/// TCP with contents compared, and whether most of it went through the lane.
fn expect_bulk(
    traffic: &Traffic,
    from: &Host,
    client: &Pod,
    server: &Pod,
    family: Family,
    by_lane: bool,
) -> Result<()> {
    let _server = traffic.serve(&server.netns, server.ip(family), PORT)?;
    let before = written(from)?;
    traffic.exchange(&client.netns, server.ip(family), PORT, TCP_BYTES)?;
    let written = written(from)?.saturating_sub(before);
    ensure!((written > BULK) == by_lane, "{written} bytes through {TAP} of {TCP_BYTES}, {family:?}");
    Ok(())
}

fn written(host: &Host) -> Result<u64> {
    if !has_tap(host)? {
        return Ok(0);
    }
    Ok(host.netns.exec(&format!("cat /sys/class/net/{TAP}/statistics/rx_bytes"))?.trim().parse()?)
}

fn has_tap(host: &Host) -> Result<bool> {
    Ok(host.netns.ip("-o link show")?.contains(TAP))
}

/// Whether the node has the lane; where the kernel is too old for it, that is said.
fn is_on(node: &WindlassNode<'_>) -> Result<bool> {
    let log = node.log();
    if log.contains("takes no tunnelled superpackets") {
        windlass_tests::skipped("tunnel GSO needs Linux 6.17");
        return Ok(false);
    }
    ensure!(log.contains("tunnel-GSO lane on: "), "{log}");
    Ok(true)
}
