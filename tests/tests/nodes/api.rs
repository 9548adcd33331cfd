//! Nodes that read their cluster from an API server, and register there as flannel does.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use windlass_tests::api_server::{ApiServer, Fault};
use windlass_tests::netns::on_path;
use windlass_tests::node::{WindlassNode, ask_with_api, join_refused};
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::{run, wait_until};
use windlass_tests::topology::{FAMILIES, Family, NodeSpec, OVERLAY_MTU, Topology};
use windlass_tests::traffic::{PORT, lossless_pings, ping};

use crate::services::WEB;
use crate::{TCP_BYTES, traffic};

const LIMIT: Duration = Duration::from_secs(30);
const PREFIX: &str = "flannel.alpha.coreos.com";

const EXTRA: ServiceSpec =
    ServiceSpec { name: "extra", vip: Ipv4Addr::new(10, 106, 7, 7), port: 80, backend_port: PORT };

/// The cluster as it is before our node has registered.
fn unregistered(topology: &Topology) -> Result<Objects> {
    let mut objects = Objects::cluster(&topology.specs());
    let node = objects.node_mut(NodeSpec::first().name)?;
    node["metadata"]["annotations"] = json!({});
    node["status"]["conditions"] = json!([{ "type": "NetworkUnavailable", "status": "True" }]);
    Ok(objects)
}

fn apply(server: &ApiServer, objects: &Objects) -> Result<()> {
    objects.iter().try_for_each(|object| server.apply(object.clone()))
}

/// Makes the Service and its slices in the cluster.
fn apply_service(
    server: &ApiServer,
    spec: &ServiceSpec,
    backends: &[(std::net::IpAddr, &'static str)],
) -> Result<()> {
    apply(server, &Objects::default().with_service(spec, backends))
}

fn own_node(server: &ApiServer) -> Result<Value> {
    server.object("nodes", "", NodeSpec::first().name).context("our Node has gone")
}

fn annotation(node: &Value, name: &str) -> String {
    node["metadata"]["annotations"][format!("{PREFIX}/{name}")].as_str().unwrap_or_default().to_owned()
}

/// Our node with the MACs that it has registered; they live as long as the test process, as other specs' do.
fn registered(server: &ApiServer) -> Result<NodeSpec> {
    let node = own_node(server)?;
    let mac = |name: &str| -> Result<&'static str> {
        let data: Value = serde_json::from_str(&annotation(&node, name))?;
        let mac = data["VtepMAC"].as_str().context("no VtepMAC")?.to_owned();
        Ok(Box::leak(mac.into_boxed_str()))
    };
    Ok(NodeSpec { vtep_mac: mac("backend-data")?, vtep_mac_v6: mac("backend-v6-data")?, ..NodeSpec::first() })
}

fn said(node: &WindlassNode<'_>, words: &[&str]) -> Result<()> {
    wait_until(&format!("the log to say {words:?}"), LIMIT, || {
        Ok(node.log().lines().any(|line| words.iter().all(|word| line.contains(word))))
    })
}

#[test]
fn a_node_joins_registers_as_flannel_does_and_forwards() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let node = WindlassNode::join(ours, &server, &[])?;

    wait_until("NetworkUnavailable=False", LIMIT, || {
        let condition = &own_node(&server)?["status"]["conditions"][0];
        Ok(condition["status"] == "False" && condition["reason"] == "FlannelIsUp")
    })?;
    let spec = registered(&server)?;
    let object = own_node(&server)?;
    assert_eq!(
        annotation(&object, "backend-data"),
        format!(r#"{{"VNI":4096,"VtepMAC":"{}"}}"#, spec.vtep_mac)
    );
    assert_eq!(annotation(&object, "public-ip"), spec.address.to_string());
    assert_eq!(annotation(&object, "public-ipv6"), spec.address_v6.to_string());
    assert_eq!(annotation(&object, "backend-type"), "vxlan");
    assert_eq!(annotation(&object, "kube-subnet-manager"), "true");
    let health = ours.netns.exec("cat /proc/net/tcp")?;
    ensure!(health.contains(":2810 "), "nobody listens on 10256: {health}");
    let env = node.subnet_env();
    for line in ["FLANNEL_NETWORK=10.244.0.0/16", "FLANNEL_SUBNET=10.244.0.1/24", "FLANNEL_IPMASQ=true"] {
        ensure!(env.lines().any(|found| found == line), "{env}");
    }
    ensure!(!env.contains(&format!("FLANNEL_MTU={OVERLAY_MTU}")), "IPv6 outside takes 20 bytes more: {env}");

    // The stock node programs what the annotations say, and nothing else.
    let _peer = KernelPeer::new(stock, &[spec, stock.spec.clone()])?;
    let traffic = traffic();
    for family in FAMILIES {
        let _server = traffic.serve(&far.netns, far.ip(family), PORT)?;
        ping(&far.netns, near.ip(family))?;
        traffic.tcp(&near.netns, far.ip(family), PORT, TCP_BYTES)?;
        apply_service(&server, &WEB, &FAMILIES.map(|family| (far.ip(family), stock.spec.name)))?;
        wait_until("the service to be reached", LIMIT, || {
            Ok(traffic.tcp(&near.netns, WEB.vip(family), WEB.port, 1000).is_ok())
        })?;
        apply_service(&server, &WEB, &[])?;
        wait_until("the service to be refused", LIMIT, || {
            Ok(traffic.refused(&near.netns, WEB.vip(family), WEB.port).is_ok())
        })?;
    }
    node.stop()
}

#[test]
fn g4_g6_an_api_server_that_goes_comes_and_forgets_costs_no_packet() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let node = WindlassNode::join(ours, &server, &[])?;
    let _peer = KernelPeer::new(stock, &[registered(&server)?, stock.spec.clone()])?;
    ping(&near.netns, far.ip(Family::V4))?;
    let before = node.log().len();
    std::thread::scope(|scope| -> Result<()> {
        let pings = scope.spawn(|| lossless_pings(&near.netns, far.ip(Family::V4), 400));
        for round in 0..4 {
            server.fail(if round % 2 == 0 { Fault::Away } else { Fault::ClosedWatches });
            std::thread::sleep(Duration::from_millis(800));
            server.recover();
            server.compact();
            std::thread::sleep(Duration::from_millis(700));
        }
        pings.join().map_err(|_| anyhow::anyhow!("the pings panicked"))?
    })?;
    let log = node.log();
    let since = &log[before..];
    ensure!(!since.contains("removed") && !since.contains("added"), "objects flapped: {since}");
    let backends = FAMILIES.map(|family| (far.ip(family), stock.spec.name));
    apply_service(&server, &EXTRA, &backends)?;
    self::said(&node, &["service default/extra", "added"])?;
    node.stop()
}

#[test]
fn the_vtep_mac_outlives_crashes_and_lost_annotations_but_not_the_node() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let name = ours.spec.name;
    let mut node = WindlassNode::join(ours, &server, &[])?;
    let first = registered(&server)?;
    node.crash()?;
    node.start_again()?;
    assert_eq!(registered(&server)?.vtep_mac, first.vtep_mac, "the annotation keeps it");

    node.crash()?;
    server.patch("nodes", "", name, &json!({ "metadata": { "annotations": null } }))?;
    node.start_again()?;
    assert_eq!(registered(&server)?.vtep_mac, first.vtep_mac, "the state dir keeps it");

    node.crash()?;
    server.delete("nodes", "", name)?;
    apply(&server, &unregistered(&topology)?)?;
    node.start_again()?;
    assert_ne!(registered(&server)?.vtep_mac, first.vtep_mac, "another node of the name is another node");
    said(&node, &["node.json", "discarded"])?;
    node.stop()
}

#[test]
fn a_node_says_what_it_waits_for() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let name = ours.spec.name;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let whole = own_node(&server)?;
    server.delete("nodes", "", name)?;
    let mut node = WindlassNode::begin_to_join(ours, &server, &["--wait", "100"])?;
    said(&node, &[name, "not in the cluster", "--node", "waiting"])?;
    let mut bare = whole.clone();
    bare["spec"] = json!({});
    server.apply(bare)?;
    said(&node, &[name, "podCIDR", "--allocate-node-cidrs", "at most 100 s"])?;
    server.apply(whole)?;
    node.wait_until_up()?;
    node.stop()
}

#[test]
fn what_others_undo_of_our_node_is_written_again_and_the_rest_goes_on() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let name = ours.spec.name;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let node = WindlassNode::join(ours, &server, &[])?;
    let first = registered(&server)?;
    server.patch("nodes", "", name, &json!({ "metadata": { "annotations": null } }))?;
    wait_until("the annotations to be back", LIMIT, || {
        Ok(registered(&server).is_ok_and(|again| again.vtep_mac == first.vtep_mac))
    })?;
    said(&node, &[name, "written again", "flanneld"])?;

    server.delete("nodes", "", name)?;
    said(&node, &[name, "gone from the cluster"])?;
    apply_service(&server, &EXTRA, &[])?;
    said(&node, &["service default/extra", "added"])?;

    let mut rejoined = unregistered(&topology)?;
    rejoined.node_mut(name)?["spec"] = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    apply(&server, &rejoined)?;
    said(&node, &["needs a restart", "podCIDR", "10.244.9.0/24"])?;
    node.stop()
}

#[test]
fn what_keeps_a_node_from_the_api_is_named_with_the_remedy() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let cases: [(Fault, &[&str]); 4] = [
        (Fault::Refuse("services", 403), &["Services", "403", "ClusterRole", "list, watch"]),
        (Fault::Refuse("nodes", 401), &["401", "expired", "kubeconfig"]),
        (Fault::Refuse("endpointslices", 404), &["EndpointSlices", "404"]),
        (Fault::Away, &["192.168.1.2:6443", "cannot be reached", "KUBERNETES_SERVICE_HOST"]),
    ];
    for (fault, words) in cases {
        server.fail(fault);
        let ended = join_refused(ours, &server, &["--wait", "2"])?;
        server.recover();
        ensure!(ended.code == 1, "{fault:?}: exit code {}", ended.code);
        let last = ended.said.lines().last().unwrap_or_default();
        ensure!(words.iter().all(|word| last.contains(word)), "{fault:?}: {}", ended.said);
    }
    Ok(())
}

#[test]
fn tables_and_check_read_the_api_and_register_nothing() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let server = topology.serve_api(&unregistered(&topology)?.with_service(&WEB, &[]))?;
    let tables = ask_with_api(ours, &server, "tables", &[])?;
    for word in ["default/web", topology.host(1)?.spec.vtep_mac, "not registered yet"] {
        ensure!(tables.code == 0 && tables.said.contains(word), "{word}: {}", tables.said);
    }
    let check = ask_with_api(ours, &server, "check", &[])?;
    ensure!(check.code == 0 && check.said.contains("windlass run would run"), "{}", check.said);
    ensure!(server.count("PATCH", "nodes") == 0);
    Ok(())
}

#[test]
fn kubectl_talks_to_the_stand_in_as_to_a_server() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !on_path("kubectl") {
        windlass_tests::skipped("`kubectl` is not installed (Debian: kubernetes-client)");
        return Ok(());
    }
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    let node = WindlassNode::join(ours, &server, &[])?;
    let folder = tempfile::tempdir()?;
    let config = server.kubeconfig(folder.path(), "secret")?;
    let kubectl = |words: &str| {
        let mut command: Command = ours.netns.command("kubectl");
        command.env("HOME", folder.path()).arg("--kubeconfig").arg(&config);
        run(command.args(words.split_whitespace()))
    };
    let nodes = kubectl("get nodes -o name")?;
    assert_eq!(nodes.lines().collect::<Vec<_>>(), ["node/node-40", "node/node-51"]);
    let file = folder.path().join("service.json");
    for object in Objects::default().with_service(&EXTRA, &[]).iter() {
        std::fs::write(&file, object.to_string())?;
        kubectl(&format!("create --validate=false -f {}", file.display()))?;
    }
    said(&node, &["service default/extra", "added"])?;
    kubectl(
        r#"patch service extra --type merge -p {"spec":{"ports":[{"name":"tcp","protocol":"TCP","port":81}]}}"#,
    )?;
    said(&node, &["service default/extra", "10.106.7.7:81"])?;
    kubectl("annotate node node-51 note=seen")?;
    kubectl("delete service extra --wait=false")?;
    said(&node, &["service default/extra", "removed"])?;
    node.stop()
}

#[test]
fn a_node_that_waits_can_be_stopped() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let server = topology.serve_api(&unregistered(&topology)?)?;
    server.fail(Fault::Away);
    let node = WindlassNode::begin_to_join(ours, &server, &[])?;
    said(&node, &["cannot be reached"])?;
    node.stop()?;
    server.recover();
    server.delete("nodes", "", ours.spec.name)?;
    let node = WindlassNode::begin_to_join(ours, &server, &[])?;
    said(&node, &["not in the cluster"])?;
    node.stop()
}
