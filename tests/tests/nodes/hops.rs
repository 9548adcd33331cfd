//! What a sender learns of the way: hop limits that run out (B5), and TCP where it learns nothing at all (C6).

use anyhow::{Context, Result};
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::process::run_with_input;
use windlass_tests::topology::{FAMILIES, Family, Host, Topology};
use windlass_tests::traffic::PORT;

use crate::traffic;

/// Who answers pings from `from` that may pass 1, 2 and 3 routers.
fn hops(from: &Pod, to: &Pod, family: Family) -> Result<Vec<String>> {
    (1..=3)
        .map(|hops| {
            let told = from
                .netns
                .command("ping")
                .args(["-n", "-c", "1", "-W", "10", "-t", &hops.to_string(), &to.ip(family).to_string()])
                .output()?;
            let told = String::from_utf8_lossy(&told.stdout).into_owned();
            let line = told.lines().nth(1).with_context(|| format!("nobody answers {hops} hops: {told}"))?;
            let words: Vec<_> = line.split_whitespace().filter(|word| !word.contains("time")).collect();
            Ok(words.join(" "))
        })
        .collect()
}

#[test]
fn b5_traceroute_through_windlass_equals_a_stock_nodes() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (first, second) = (topology.host(0)?, topology.host(1)?);
    let (near, far) = (Pods::with_pods(first, 1)?, Pods::with_pods(second, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let both_ways = || -> Result<Vec<Vec<String>>> {
        let there = FAMILIES.iter().map(|family| hops(near, far, *family));
        there.chain(FAMILIES.iter().map(|family| hops(far, near, *family))).collect()
    };
    let _peer = KernelPeer::new(second, &topology.specs())?;
    let stock = {
        let own = KernelPeer::new(first, &topology.specs())?;
        let told = both_ways()?;
        for device in own.devices() {
            first.netns.ip(&format!("link del {device}"))?;
        }
        told
    };
    let node = WindlassNode::start(first, &Objects::cluster(&topology.specs()), &[])?;
    assert_eq!(both_ways()?, stock);
    node.stop()
}

/// Lets the pods of a node send 1,500 bytes, and nobody tell them that this is too much.
fn mislead(host: &Host, pod: &Pod) -> Result<()> {
    let ports = host.netns.ip("-o link show master cni0")?;
    let names = ports.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    for name in names.chain(["cni0"]) {
        host.netns.ip(&format!("link set {name} mtu 1500"))?;
    }
    pod.netns.ip("link set eth0 mtu 1500")?;
    let drops = "icmp type destination-unreachable drop
        icmpv6 type packet-too-big drop";
    let chain = |hook: &str| format!("chain {hook} {{ type filter hook {hook} priority 0;\n{drops}\n}}\n");
    let rules = format!("table inet silent {{\n{}{}{}}}", chain("input"), chain("output"), chain("forward"));
    for netns in [&host.netns, &pod.netns] {
        run_with_input(netns.command("nft").args(["-f", "-"]), &rules)?;
    }
    Ok(())
}

#[test]
fn c6_with_all_icmp_filtered_60_kb_are_carried_both_ways() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &[])?;
    mislead(ours, near)?;
    mislead(stock, far)?;
    for family in FAMILIES {
        let _near_server = traffic.serve(&near.netns, near.ip(family), PORT)?;
        let _far_server = traffic.serve(&far.netns, far.ip(family), PORT)?;
        traffic.tcp(&near.netns, far.ip(family), PORT, 60_000)?;
        traffic.tcp(&far.netns, near.ip(family), PORT, 60_000)?;
    }
    // What this test itself has changed of the host is no leftover.
    node.dismiss();
    Ok(())
}
