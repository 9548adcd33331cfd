//! Manifests that change while traffic flows.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::json;
use windlass_tests::netns::scratch_folder;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::process::wait_until;
use windlass_tests::topology::{FAMILIES, Family, Topology, VNI};
use windlass_tests::traffic::{PORT, UDP_WHOLE_SIZES, lossless_pings, ping};

use crate::services::WEB;
use crate::{TCP_BYTES, traffic};

/// A change is applied within a second (two looks of 250 ms) where the machine has time for it.
const LIMIT: Duration = Duration::from_secs(20);

/// Long enough for the manifests to be looked at a few times.
const SEVERAL_LOOKS: Duration = Duration::from_secs(1);

const EXTRA: ServiceSpec =
    ServiceSpec { name: "extra", vip: Ipv4Addr::new(10, 106, 9, 9), port: 80, backend_port: PORT };

/// How a file gets its new content.
#[derive(Clone, Copy, Debug)]
enum Write {
    InPlace,
    Rename,
}

fn write(objects: &Objects, folder: &Path, how: Write) -> Result<()> {
    match how {
        Write::InPlace => objects.write(folder),
        Write::Rename => {
            let aside = scratch_folder("aside")?;
            objects.write(aside.path())?;
            std::fs::copy(aside.path().join("cluster.json"), folder.join(".cluster.json.swp"))?;
            Ok(std::fs::rename(folder.join(".cluster.json.swp"), folder.join("cluster.json"))?)
        }
    }
}

/// Waits until the log says all of `words` on one line that it had not said `before`.
fn said(node: &WindlassNode<'_>, before: usize, words: &[&str]) -> Result<()> {
    wait_until(&format!("the log to say {words:?}"), LIMIT, || {
        let log = node.log();
        let new = log.get(before..).unwrap_or_default();
        Ok(new.lines().any(|line| words.iter().all(|word| line.contains(word))))
    })
}

#[test]
fn g3_manifests_rewritten_fifty_times_under_traffic_lose_nothing() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (pod, far) = (near.pod(0)?, far.pod(0)?);
    let backends = FAMILIES.map(|family| (far.ip(family), stock.spec.name));
    let cluster = || Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
    let node = WindlassNode::start(ours, &cluster(), &[])?;
    let _servers = [
        traffic().serve(&far.netns, far.ip(Family::V4), PORT)?,
        traffic().serve(&far.netns, far.ip(Family::V6), PORT)?,
    ];
    ping(&pod.netns, far.ip(Family::V4))?;
    ping(&pod.netns, far.ip(Family::V6))?;

    let over = AtomicBool::new(false);
    let exchanges = thread::scope(|scope| -> Result<usize> {
        let pings =
            FAMILIES.map(|family| scope.spawn(move || lossless_pings(&pod.netns, far.ip(family), 500)));
        let flows = FAMILIES.map(|family| {
            let over = &over;
            scope.spawn(move || exchange_until(pod, family, over))
        });
        for round in 0..50 {
            let how = if round % 2 == 0 { Write::InPlace } else { Write::Rename };
            let objects = if round % 4 < 2 { cluster().with_service(&EXTRA, &backends) } else { cluster() };
            write(&objects, &node.manifests(), how)?;
            thread::sleep(Duration::from_millis(200));
        }
        over.store(true, Ordering::Relaxed);
        for ping in pings {
            ping.join().map_err(|_| anyhow!("a ping thread panicked"))??;
        }
        let mut exchanges = 0;
        for flow in flows {
            exchanges += flow.join().map_err(|_| anyhow!("a traffic thread panicked"))??;
        }
        Ok(exchanges)
    })?;
    let applied = node.log().matches("service default/extra").count();
    println!("{exchanges} exchanges, {applied} lines about the service that came and went");
    ensure!(exchanges > 4 && applied >= 8, "{exchanges} exchanges, {applied} lines");
    node.stop()
}

fn exchange_until(from: &Pod, family: Family, over: &AtomicBool) -> Result<usize> {
    let mut exchanges = 0;
    while !over.load(Ordering::Relaxed) {
        traffic().tcp(&from.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
        traffic().udp(&from.netns, WEB.vip(family), WEB.port, &UDP_WHOLE_SIZES)?;
        exchanges += 1;
    }
    Ok(exchanges)
}

#[test]
fn a_broken_file_leaves_the_last_good_state_and_is_named_with_its_line() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (pod, far) = (near.pod(0)?, far.pod(0)?);
    let family = Family::V4;
    let objects =
        Objects::cluster(&topology.specs()).with_service(&WEB, &[(far.ip(family), stock.spec.name)]);
    let node = WindlassNode::start(ours, &objects, &[])?;
    let _server = traffic().serve(&far.netns, far.ip(family), PORT)?;

    let more = node.manifests().join("more.yaml");
    std::fs::write(&more, "apiVersion: v1\nkind: Service\nmetadata: {name: [\n")?;
    said(&node, 0, &["more.yaml:", "everything stays as it was"])?;
    let line = node.log().lines().find(|line| line.contains("more.yaml:")).map(str::to_owned);
    println!("{}", line.unwrap_or_default());
    traffic().tcp(&pod.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
    thread::sleep(SEVERAL_LOOKS);
    assert_eq!(node.log().matches("more.yaml:").count(), 1, "said once a change, not once a look");

    // F10: one malformed object, and the rest goes on.
    std::fs::write(
        &more,
        "apiVersion: v1\nkind: Service\nmetadata: {name: web2}\nspec: {clusterIP: 10.106.7.7, ports: [{port: 81}]}\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: 10.106.7.8, ports: [{port: 99999}]}\n",
    )?;
    said(&node, 0, &["service default/web2:81", "added with no backend"])?;
    said(&node, 0, &["more.yaml:5: Service default/bad", "99999"])?;
    traffic().refused(&pod.netns, Ipv4Addr::new(10, 106, 7, 7).into(), 81)?;

    std::fs::remove_file(&more)?;
    said(&node, 0, &["service default/web2:81", "removed"])?;
    node.stop()
}

#[test]
fn f6_a_removed_endpoint_gets_no_new_flow_and_keeps_its_tcp_connections() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 2)?);
    let (pod, family) = (near.pod(0)?, Family::V4);
    let (gone, stays) = (far.pod(0)?, far.pod(1)?);
    let with = |pods: &[&Pod]| {
        let backends: Vec<_> = pods.iter().map(|pod| (pod.ip(family), stock.spec.name)).collect();
        Objects::cluster(&topology.specs()).with_service(&WEB, &backends)
    };
    let node = WindlassNode::start(ours, &with(&[gone]), &[])?;
    let _servers = [
        traffic().serve(&gone.netns, gone.ip(family), PORT)?,
        traffic().serve(&stays.netns, stays.ip(family), PORT)?,
    ];
    ping(&pod.netns, gone.ip(family))?;
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        traffic().tcp(&pod.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
        fastest = fastest.min(started.elapsed());
    }
    let long = (TCP_BYTES as f64 / fastest.as_secs_f64() * 6.0) as usize;

    thread::scope(|scope| -> Result<()> {
        let download = scope.spawn(|| traffic().tcp(&pod.netns, WEB.vip(family), WEB.port, long));
        thread::sleep(Duration::from_millis(300));
        let before = node.log().len();
        write(&with(&[stays]), &node.manifests(), Write::Rename)?;
        let removed = format!("backend {}:{PORT} removed", gone.ip(family));
        said(&node, before, &["service default/web:tcp", &removed])?;
        said(&node, before, &["service default/web:udp", &removed])?;
        for _ in 0..10 {
            let seen = traffic().udp(&pod.netns, WEB.vip(family), WEB.port, &[64])?;
            assert_eq!(seen.server.ip(), stays.ip(family), "a removed backend gets no new flow");
        }
        let seen = traffic().tcp(&pod.netns, WEB.vip(family), WEB.port, 1000)?;
        assert_eq!(seen.server.ip(), stays.ip(family));
        let is_under_way = !download.is_finished();
        let seen = download.join().map_err(|_| anyhow!("the download panicked"))??;
        ensure!(is_under_way, "the download of {long} bytes ended before the endpoint went");
        assert_eq!(seen.server.ip(), gone.ip(family), "TCP stays with its backend");
        Ok(())
    })?;
    node.stop()
}

#[test]
fn f12_f13_a_vtep_or_pod_cidr_that_changes_is_replaced_whole() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (pod, far, family) = (near.pod(0)?, far.pod(0)?, Family::V4);
    let right = Objects::cluster(&topology.specs());
    let name = stock.spec.name;
    let edited = |edit: fn(&mut serde_json::Value)| -> Result<Objects> {
        let mut objects = right.clone();
        edit(objects.node_mut(name)?);
        Ok(objects)
    };
    let no_annotations = edited(|node| node["metadata"]["annotations"] = json!({}))?;
    let node = WindlassNode::start(ours, &no_annotations, &[])?;
    let asks =
        |seconds: u32| pod.netns.exec(&format!("ping -n -c 1 -W {seconds} {}", far.ip(family))).is_ok();
    let (is_reached, is_not_reached) = (|| asks(10), || !asks(1));
    ensure!(is_not_reached(), "there is no way to a node without annotations");

    let change = |objects: &Objects, how: Write, words: &[&str]| -> Result<()> {
        let before = node.log().len();
        write(objects, &node.manifests(), how)?;
        said(&node, before, words).context("after a change")
    };
    change(&right, Write::InPlace, &["node node-51: added"])?;
    ensure!(is_reached(), "its annotations have come");

    let other_mac = edited(|node| {
        let data = format!(r#"{{"VNI":{VNI},"VtepMAC":"02:00:00:00:00:99"}}"#);
        node["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"] = json!(data);
    })?;
    change(&other_mac, Write::Rename, &["node node-51: VTEP moved", "to", "02:00:00:00:00:99"])?;
    ensure!(is_not_reached(), "the kernel there does not own that MAC");

    change(&right, Write::Rename, &["node node-51: VTEP moved", "02:00:00:00:00:99"])?;
    ensure!(is_reached(), "the MAC is back");

    let other_cidr = edited(|node| {
        node["spec"] = json!({"podCIDR": "10.244.77.0/24", "podCIDRs": ["10.244.77.0/24"]});
    })?;
    change(&other_cidr, Write::InPlace, &["node node-51:", "podCIDRs changed", "10.244.77.0/24"])?;
    ensure!(is_not_reached(), "its old podCIDR leads nowhere");

    change(&right, Write::InPlace, &["node node-51:", "podCIDRs changed"])?;
    ensure!(is_reached(), "its podCIDR is back");

    // What cannot change under way is named, and the rest is applied.
    let mut restart = right.clone().with_service(&EXTRA, &[(far.ip(family), name)]);
    restart.node_mut(ours.spec.name)?["spec"] =
        json!({"podCIDR": "10.244.88.0/24", "podCIDRs": ["10.244.88.0/24"]});
    change(&restart, Write::Rename, &["needs a restart: this node's podCIDR changed", "10.244.88.0/24"])?;
    said(&node, 0, &["service default/extra:tcp"]).context("the service beside it")?;
    ensure!(is_reached(), "the node goes on");
    node.stop()
}

/// VIPs outside the service CIDR, and the service CIDR itself, need routes of the host.
#[test]
fn the_hosts_routes_follow_the_vips() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (pod, far, family) = (near.pod(0)?, far.pod(0)?, Family::V4);
    let outside = ServiceSpec { vip: Ipv4Addr::new(172, 31, 9, 9), ..EXTRA };
    let plain = Objects::cluster(&topology.specs());
    let node = WindlassNode::start(ours, &plain, &[])?;
    let _server = traffic().serve(&far.netns, far.ip(family), PORT)?;
    let routes = || ours.netns.ip("-4 route show dev windlass0");
    for how in [Write::InPlace, Write::Rename] {
        write(
            &plain.clone().with_service(&outside, &[(far.ip(family), stock.spec.name)]),
            &node.manifests(),
            how,
        )?;
        wait_until("the route to the VIP", LIMIT, || Ok(routes()?.contains("172.31.9.9")))?;
        traffic().tcp(&pod.netns, outside.vip(family), outside.port, 1000)?;
        write(&plain, &node.manifests(), how)?;
        wait_until("the route to the VIP to go", LIMIT, || Ok(!routes()?.contains("172.31.9.9")))?;
    }
    node.stop()
}
