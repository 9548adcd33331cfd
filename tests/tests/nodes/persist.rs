//! Restarts that the traffic hardly notices, and starts while the API server is away.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use windlass_tests::api_server::{ApiServer, Fault};
use windlass_tests::node::{DEVICE, WindlassNode};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::wait_until;
use windlass_tests::topology::{Family, Topology};
use windlass_tests::traffic::{PORT, ping};

use crate::services::WEB;
use crate::traffic;

const LIMIT: Duration = Duration::from_secs(30);

fn said(node: &WindlassNode<'_>, words: &[&str]) -> Result<()> {
    wait_until(&format!("the log to say {words:?}"), LIMIT, || {
        Ok(node.log().lines().any(|line| words.iter().all(|word| line.contains(word))))
    })
}

fn device_index(node: &WindlassNode<'_>) -> Result<String> {
    node.host().netns.exec(&format!("cat /sys/class/net/{DEVICE}/ifindex"))
}

/// A thousand connections to a service with backends on both nodes live through `restart`.
fn a_thousand_connections_live_through(restart: impl Fn(&mut WindlassNode<'_>) -> Result<()>) -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(stock, 2)?);
    let client = near.pod(0)?;
    let family = Family::V4;
    let backends = [(far.pod(0)?, stock), (far.pod(1)?, stock), (near.pod(1)?, ours)];
    let mut servers = Vec::new();
    for (pod, _) in backends {
        servers.push(traffic.echo(&pod.netns, pod.ip(family), PORT)?);
    }
    let placed = backends.map(|(pod, host)| (pod.ip(family), host.spec.name));
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &placed);
    let mut node = WindlassNode::start(ours, &objects, &["--persist"])?;
    let index = device_index(&node)?;
    let folder = tempfile::tempdir()?;
    let go_on = folder.path().join("go on");
    let to = SocketAddr::new(WEB.vip(family), WEB.port);
    let mut held = traffic.hold(&client.netns, to, 1000, &go_on)?;
    wait_until("the connections to be written down", LIMIT, || {
        let file = node.state_dir().join("connections.snapshot");
        Ok(fs::metadata(file).is_ok_and(|metadata| metadata.len() > 1000 * 30))
    })?;

    restart(&mut node)?;
    ensure!(device_index(&node)? == index, "the device is another one");
    said(&node, &["connections of the run before go on", " 0 are forgotten"])?;
    fs::write(&go_on, "")?;
    let code = held.wait(LIMIT)?;
    ensure!(code == 0, "connections were lost");

    ensure!(node.cleanup()?.code == 1, "cleanup touches a node that runs");
    node.pause()?;
    let cleaned = node.cleanup()?;
    ensure!(cleaned.code == 0 && cleaned.said.contains(&format!("device {DEVICE}")), "{}", cleaned.said);
    let again = node.cleanup()?;
    ensure!(again.code == 0 && again.said.contains("nothing to remove"), "{}", again.said);
    node.finish()
}

#[test]
fn g1_a_killed_node_that_starts_again_keeps_every_connection() -> Result<()> {
    a_thousand_connections_live_through(|node| {
        node.crash()?;
        node.start_again()
    })
}

#[test]
fn g2_a_node_that_is_restarted_keeps_every_connection_and_its_routes() -> Result<()> {
    a_thousand_connections_live_through(|node| {
        node.pause()?;
        let routes = node.host().netns.ip(&format!("-4 route show dev {DEVICE}"))?;
        ensure!(routes.contains("10.96.0.0/12"), "the routes are gone: {routes}");
        node.start_again()
    })
}

/// The cluster with a service whose backend is a pod of the stock node.
fn serve<'a>(topology: &'a Topology, far: &Pods<'a>) -> Result<ApiServer> {
    let (pod, stock) = (far.pod(0)?, topology.host(1)?);
    let backends = [(pod.ip(Family::V4), stock.spec.name)];
    topology.serve_api(&Objects::cluster(&topology.specs()).with_service(&WEB, &backends))
}

#[test]
fn g5_a_cold_start_without_the_api_forwards_by_what_is_remembered() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (client, backend) = (near.pod(0)?, far.pod(0)?);
    let _server = traffic.serve(&backend.netns, backend.ip(Family::V4), PORT)?;
    let server = serve(&topology, &far)?;
    let mut node = WindlassNode::join(ours, &server, &[])?;
    traffic.tcp(&client.netns, WEB.vip(Family::V4), WEB.port, 1000)?;
    node.pause()?;

    server.fail(Fault::Away);
    node.start_again()?;
    said(&node, &["until it answers", "as this node last knew it"])?;
    ping(&client.netns, backend.ip(Family::V4))?;
    traffic.tcp(&client.netns, WEB.vip(Family::V4), WEB.port, 1000)?;

    // The API is back, and is followed again.
    server.recover();
    let patches = server.count("PATCH", "nodes");
    for object in Objects::default().with_service(&WEB, &[]).iter() {
        server.apply(object.clone())?;
    }
    wait_until("the service to be refused", LIMIT, || {
        Ok(traffic.refused(&client.netns, WEB.vip(Family::V4), WEB.port).is_ok())
    })?;
    wait_until("the node to be registered", LIMIT, || Ok(server.count("PATCH", "nodes") > patches))?;
    node.stop()
}

#[test]
fn g5_a_torn_or_foreign_memory_is_refused_and_the_api_waited_for() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let far = Pods::with_pods(stock, 1)?;
    let server = serve(&topology, &far)?;
    let mut node = WindlassNode::join(ours, &server, &[])?;
    node.pause()?;

    let file = node.state_dir().join("cluster.snapshot");
    let whole = fs::read(&file)?;
    fs::write(&file, &whole[..whole.len() / 2])?;
    server.fail(Fault::Away);
    node.restart_without_waiting()?;
    said(&node, &["cluster.snapshot", "damaged", "waited for"])?;
    server.recover();
    node.wait_until_up()?;

    // The node leaves the cluster and joins it again while it does not run: its connections are another's.
    node.pause()?;
    let name = ours.spec.name;
    server.delete("nodes", "", name)?;
    let mut again = Objects::cluster(&topology.specs());
    again.node_mut(name)?["metadata"]["uid"] = json!("joined-again");
    again.iter().try_for_each(|object| server.apply(object.clone()))?;
    node.start_again()?;
    said(&node, &["connections.snapshot", "another node"])?;

    // And once more while the API is away: what it remembers is wrong, and it ends to start anew.
    node.pause()?;
    server.delete("nodes", "", name)?;
    again.node_mut(name)?["metadata"]["uid"] = json!("joined-once-more");
    again.iter().try_for_each(|object| server.apply(object.clone()))?;
    server.fail(Fault::Away);
    node.start_again()?;
    server.recover();
    said(&node, &["joined the cluster anew", "discarded"])?;
    node.start_again()?;
    node.stop()
}

#[test]
fn g15_a_state_dir_that_cannot_be_written_is_said_once_and_forwarding_goes_on() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (client, backend) = (near.pod(0)?, far.pod(0)?);
    let placed = [(backend.ip(Family::V4), stock.spec.name)];
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &placed);
    let _server = traffic.serve(&backend.netns, backend.ip(Family::V4), PORT)?;
    let node = WindlassNode::start(ours, &objects, &[])?;
    wait_until("the folder to be made", LIMIT, || Ok(node.state_dir().is_dir()))?;
    fs::remove_dir_all(node.state_dir())?;
    fs::write(node.state_dir(), "in the way")?;
    for _ in 0..4 {
        traffic.tcp(&client.netns, WEB.vip(Family::V4), WEB.port, 1000)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    said(&node, &["cannot be written", "forwarding goes on"])?;
    let told = node.log().lines().filter(|line| line.contains("cannot be written")).count();
    ensure!(told == 1, "said {told} times");
    fs::remove_file(node.state_dir())?;
    said(&node, &["is written again"])?;
    node.stop()
}
