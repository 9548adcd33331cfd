//! A running node tells what it has and what would become of a packet.

use anyhow::{Result, bail};
use serde_json::Value;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::topology::{Family, Topology};
use windlass_tests::traffic::{PORT, ping};

use crate::services::WEB;
use crate::{TCP_BYTES, traffic};

#[test]
fn a_running_node_shows_its_state_and_traces_without_committing() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (client, server) = (near.pod(0)?, far.pod(0)?);
    let family = Family::V4;
    let backends = [(server.ip(family), stock.spec.name)];
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
    let node = WindlassNode::start(ours, &objects, &[])?;

    let flow = format!("tcp {}:41000 > {}:{}", client.ip(family), WEB.vip(family), WEB.port);
    let traced = json(&node, &["trace", &flow, "-o", "json"])?;
    assert_eq!(traced["forward"]["end"], "sent", "{traced:#}");
    assert_eq!(traced["reply"]["end"], "sent", "{traced:#}");
    let outer = traced["forward"]["steps"].as_array().and_then(|steps| steps.last()).cloned();
    let outer = outer.unwrap_or_default()["text"].to_string();
    assert!(outer.contains(&stock.spec.underlay(family).to_string()), "{outer}");
    assert_eq!(json(&node, &["show", "connections", "-o", "json"])?["total"], 0);

    let _server = traffic.serve(&server.netns, server.ip(family), PORT)?;
    traffic.tcp(&client.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
    ping(&client.netns, server.ip(family))?;
    let found = json(&node, &["show", "connections", "--service", "web", "-o", "json"])?;
    assert_eq!((&found["total"], found["rows"].as_array().map(Vec::len)), (&1.into(), Some(1)), "{found:#}");
    assert_eq!(found["rows"][0]["backend"], format!("{}:{}", server.ip(family), WEB.backend_port));
    assert_eq!(
        json(&node, &["show", "connections", "--state", "opening", "-o", "json"])?["rows"],
        Value::Array(vec![])
    );

    traffic.refused(&client.netns, WEB.vip(family), WEB.port + 1)?;
    let drops = said(&node, &["show", "drops"])?;
    assert!(drops.contains("unserved_port") && drops.contains("does not have"), "{drops}");
    for (what, expected) in [
        ("fdb", stock.spec.vtep_mac),
        ("neighbors", stock.spec.vtep_mac),
        ("routes", "VTEP of"),
        ("services", "ready"),
        ("counters", "windlass_sent_packets_total"),
        ("device", "windlass0"),
    ] {
        let text = said(&node, &["show", what])?;
        assert!(text.contains(expected), "{what}: {text}");
    }
    node.stop()
}

#[test]
fn what_is_captured_of_a_running_node_is_replayed_with_the_same_verdicts() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (client, server) = (near.pod(0)?, far.pod(0)?);
    let family = Family::V4;
    let backends = [(server.ip(family), stock.spec.name)];
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
    let node = WindlassNode::start(ours, &objects, &[])?;
    let _server = traffic.serve(&server.netns, server.ip(family), PORT)?;

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("captured.pcapng").display().to_string();
    // Enough that it ends by itself, also on a slow machine: a connection of its own is in it many times over.
    let captured = std::thread::scope(|scope| -> Result<String> {
        let capture = scope.spawn(|| said(&node, &["capture", "--out", &file, "--count", "60", "tcp"]));
        while !capture.is_finished() {
            traffic.tcp(&client.netns, WEB.vip(family), WEB.port, 4_096)?;
            traffic.refused(&client.netns, WEB.vip(family), WEB.port + 1)?;
        }
        capture.join().unwrap_or_else(|_| bail!("the capture panicked"))
    })?;
    assert!(captured.contains("60 packets written, 0 lost"), "{captured}");

    let manifests = node.manifests().display().to_string();
    let replay = ["replay", &file, "--manifests", &manifests, "--node", ours.spec.name];
    let replayed = node.ask(&replay)?;
    assert_eq!(replayed.code, 1, "{}", replayed.said);
    assert!(replayed.said.contains("REJECTED unserved_port"), "{}", replayed.said);
    let allowed = node.ask(&[&replay[..], &["--allow", "unserved_port"]].concat())?;
    assert_eq!(allowed.code, 0, "{}", allowed.said);
    node.stop()
}

fn said(node: &WindlassNode<'_>, arguments: &[&str]) -> Result<String> {
    let ended = node.ask(arguments)?;
    assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.said);
    Ok(ended.said)
}

fn json(node: &WindlassNode<'_>, arguments: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&said(node, arguments)?)?)
}
