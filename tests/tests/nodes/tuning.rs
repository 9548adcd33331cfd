//! What is tuned on request: the CPUs that workers stay on, and the veths of pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use windlass_tests::netns::Netns;
use windlass_tests::node::{Hindrance, WindlassNode, run_refused};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::wait_until;
use windlass_tests::topology::{FAMILIES, Topology};
use windlass_tests::traffic::ping;

const LIMIT: Duration = Duration::from_secs(20);

/// What a veth is like that aggregates.
const AGGREGATES: &str = "generic-receive-offload on, rx-udp-gro-forwarding on, 40000 ns, 1 polls";

/// Whether the veth of each pod of a node aggregates, in the order of the veths.
fn veths(netns: &Netns) -> Result<Vec<String>> {
    let links = netns.ip("-o link show master cni0")?;
    let names = links.lines().filter_map(|line| line.split(": ").nth(1)?.split('@').next());
    names.map(|name| veth(netns, name)).collect()
}

fn veth(netns: &Netns, name: &str) -> Result<String> {
    let features = netns.exec(&format!("ethtool -k {name}"))?;
    let feature = |wanted: &str| {
        let state = features.lines().find_map(|line| line.trim().strip_prefix(wanted)?.strip_prefix(": "));
        state.map(str::to_owned).with_context(|| format!("{wanted} of {name}"))
    };
    let file = |file: &str| netns.exec(&format!("cat /sys/class/net/{name}/{file}"));
    Ok(format!(
        "generic-receive-offload {}, rx-udp-gro-forwarding {}, {} ns, {} polls",
        feature("generic-receive-offload")?,
        feature("rx-udp-gro-forwarding")?,
        file("gro_flush_timeout")?.trim(),
        file("napi_defer_hard_irqs")?.trim(),
    ))
}

fn all_aggregate(netns: &Netns, count: usize) -> Result<()> {
    let all = vec![AGGREGATES.to_owned(); count];
    wait_until(&format!("{count} veths to aggregate"), LIMIT, || Ok(veths(netns)? == all))
}

#[test]
fn pods_veths_aggregate_while_tuned_and_are_put_back_even_after_a_kill() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let mut pods = Pods::with_pods(ours, 1)?;
    let untouched = veths(&ours.netns)?;
    ensure!(untouched != [AGGREGATES], "a veth aggregates by itself");
    let mut node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &["--tune-pods"])?;
    all_aggregate(&ours.netns, 1)?;
    pods.add()?;
    all_aggregate(&ours.netns, 2)?;
    for family in FAMILIES {
        ping(&pods.pod(1)?.netns, stock.spec.pod_base(family))?;
    }
    node.crash()?;
    ensure!(veths(&ours.netns)? == [AGGREGATES; 2], "a killed run puts nothing back");
    node.start_again()?;
    all_aggregate(&ours.netns, 2)?;
    node.dismiss();
    let [before] = untouched.as_slice() else { anyhow::bail!("one pod, but veths {untouched:?}") };
    ensure!(veths(&ours.netns)? == [before.clone(), before.clone()], "left: {:?}", veths(&ours.netns)?);
    Ok(())
}

#[test]
fn what_a_killed_run_had_tuned_is_put_back_by_one_that_tunes_nothing() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let _pods = Pods::with_pods(ours, 1)?;
    let untouched = veths(&ours.netns)?;
    let mut node = WindlassNode::start(ours, &Objects::cluster(&topology.specs()), &["--tune-pods"])?;
    all_aggregate(&ours.netns, 1)?;
    node.crash()?;
    node.set_flags(&[]);
    node.start_again()?;
    wait_until("the veth to be as it was", LIMIT, || Ok(veths(&ours.netns)? == untouched))?;
    node.stop()
}

#[test]
fn workers_stay_on_the_cpus_that_are_named_and_one_that_is_not_there_is_refused() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let objects = Objects::cluster(&topology.specs());
    for (flags, says) in [
        (&["--pin", "1023"][..], "there is no CPU 1023"),
        (&["--pin", "0,1023", "--workers", "2"], "there is no CPU 1023"),
        (&["--pin", "first"], "one CPU per worker"),
    ] {
        let ended = run_refused(ours, &objects, flags, Hindrance::None)?;
        ensure!([1, 2].contains(&ended.code) && ended.said.contains(says), "{}: {}", ended.code, ended.said);
    }
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let node = WindlassNode::start(ours, &objects, &["--pin", "auto"])?;
    for family in FAMILIES {
        ping(&ours.netns, stock.spec.pod_base(family))?;
    }
    let shown = node.ask(&["show", "device"])?.said;
    let cpus = shown.lines().find_map(|line| line.strip_prefix("CPUs")).map(str::trim);
    ensure!(cpus.is_some_and(|cpus| cpus.parse::<usize>().is_ok()), "{shown}");
    node.stop()
}
