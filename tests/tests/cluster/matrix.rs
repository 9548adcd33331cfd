//! Who reaches whom, by address and by name, across a Windlass node and a stock one.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use windlass_tests::dns;
use windlass_tests::netns::Netns;
use windlass_tests::node::WindlassNode;
use windlass_tests::process::{Guarded, wait_until};
use windlass_tests::real_cluster::{self, ClusterPod, CniNode, OUTSIDE, RealCluster, net_conf};
use windlass_tests::topology::{Host, SERVICE_CIDR, Topology};
use windlass_tests::traffic::{PORT, Transport};

use crate::traffic;

const DNS_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const SERVICE_PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 1 << 20;

/// The services of the matrix, and the label of the pods behind each.
const SERVICES: [(&str, Ipv4Addr, &str); 3] = [
    ("here", Ipv4Addr::new(10, 96, 1, 1), "near"),
    ("there", Ipv4Addr::new(10, 96, 1, 2), "far"),
    ("both", Ipv4Addr::new(10, 96, 1, 3), "web"),
];

/// What kube-flannel.yml brings, and the rights that control/deploy gives.
fn set_up(cluster: &RealCluster<'_>) -> Result<()> {
    for name in ["kube-flannel", "windlass"] {
        cluster.create(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } }))?;
    }
    cluster.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "kube-flannel-cfg", "namespace": "kube-flannel" },
        "data": { "net-conf.json": net_conf().to_string() },
    }))?;
    cluster.kubectl(&["create", "-f", "-"], include_str!("../../../control/deploy/rbac.yaml")).map(drop)
}

fn service(name: &str, vip: Ipv4Addr, selector: &Value, ports: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "clusterIP": vip.to_string(), "selector": selector, "ports": ports },
    })
}

fn both_transports(port: u16, target: u16) -> Value {
    json!([
        { "name": "tcp", "protocol": "TCP", "port": port, "targetPort": target },
        { "name": "udp", "protocol": "UDP", "port": port, "targetPort": target },
    ])
}

/// What stands: two nodes with two pods each, a DNS server on the stock one, and services over them.
struct Scene {
    near: [ClusterPod; 2],
    far: [ClusterPod; 2],
    _names: ClusterPod,
    _servers: Vec<Guarded>,
}

fn web_pods(cluster: &RealCluster<'_>, node: &CniNode<'_>, place: &str) -> Result<[ClusterPod; 2]> {
    let labels = json!({ "place": place, "app": "web" });
    let served = cluster.add_pod(node, &format!("{place}-web"), &labels)?;
    Ok([served, cluster.add_pod(node, &format!("{place}-client"), &json!({}))?])
}

fn scene(cluster: &RealCluster<'_>, ours: &CniNode<'_>, stock: &CniNode<'_>) -> Result<Scene> {
    let near = web_pods(cluster, ours, "near")?;
    let far = web_pods(cluster, stock, "far")?;
    let names = cluster.add_pod(stock, "dns", &json!({ "app": "dns" }))?;
    cluster.create(&service("kube-dns", DNS_VIP, &json!({ "app": "dns" }), &both_transports(53, 53)))?;
    for (name, vip, place) in SERVICES {
        let selector = if place == "web" { json!({ "app": "web" }) } else { json!({ "place": place }) };
        cluster.create(&service(name, vip, &selector, &both_transports(SERVICE_PORT, PORT)))?;
    }
    let mut servers = Vec::new();
    for pod in [&near[0], &far[0]] {
        servers.push(traffic().serve(&pod.netns, pod.address.into(), PORT)?);
    }
    servers.push(serve_names(&names)?);
    Ok(Scene { near, far, _names: names, _servers: servers })
}

/// A DNS server that knows every service by its name.
fn serve_names(pod: &ClusterPod) -> Result<Guarded> {
    let names = SERVICES.map(|(name, vip, _)| (name_of(name), vip));
    dns::serve(&pod.netns, &[pod.address.into()], &names, &traffic())
}

fn name_of(service: &str) -> String {
    format!("{service}.default.svc.cluster.local")
}

/// Asks the cluster's DNS for that service, and exchanges TCP and UDP with what it says.
fn reach_by_name(from: &Netns, service: &str) -> Result<()> {
    for transport in [Transport::Udp, Transport::Tcp] {
        let address = traffic().dns(from, DNS_VIP.into(), &name_of(service), transport)?;
        traffic().tcp(from, address, SERVICE_PORT, BYTES)?;
    }
    Ok(())
}

fn reach_all_services(from: &Netns) -> Result<()> {
    for (name, vip, _) in SERVICES {
        // Each way often enough that both backends of the last are met.
        for _ in 0..4 {
            traffic()
                .exchange(from, vip.into(), SERVICE_PORT, BYTES)
                .with_context(|| format!("service {name}"))?;
        }
        reach_by_name(from, name).with_context(|| format!("service {name} by name"))?;
    }
    Ok(())
}

/// The `kubernetes` service, whose backend is the API server's own address.
fn reach_api_server(cluster: &RealCluster<'_>, from: &Netns) -> Result<()> {
    let config = cluster.admin()?;
    let mut command = from.command("kubectl");
    command.env("HOME", "/nonexistent").arg("--kubeconfig").arg(config);
    // The certificate names the server's address and `kubernetes`, not the VIP that the test goes by.
    command.args([
        "--server=https://10.96.0.1:443",
        "--tls-server-name=kubernetes",
        "get",
        "--raw",
        "/version",
    ]);
    let answer = windlass_tests::process::run(&mut command)?;
    ensure!(answer.contains("gitVersion"), "{answer}");
    Ok(())
}

/// Each service that does not answer yet, with what happens instead.
fn unanswered(from: &Netns) -> Vec<anyhow::Error> {
    let by_address = SERVICES.map(|(_, vip, _)| traffic().tcp(from, vip.into(), SERVICE_PORT, 1).map(drop));
    let by_name = traffic().dns(from, DNS_VIP.into(), &name_of("both"), Transport::Tcp).map(drop);
    by_address.into_iter().chain([by_name]).filter_map(Result::err).collect()
}

fn wait_for_the_services(from: &Netns) -> Result<()> {
    let all_answer = || Ok(unanswered(from).is_empty());
    wait_until("every service to be programmed", LIMIT, all_answer)
        .with_context(|| format!("{:#?}", unanswered(from)))
}

fn check_matrix(cluster: &RealCluster<'_>, scene: &Scene, hosts: [&Host; 2]) -> Result<()> {
    let (near, far) = (&scene.near, &scene.far);
    let pairs = [
        ("a pod of ours to the stock node's", &near[1], &far[0]),
        ("a stock node's pod to ours", &far[1], &near[0]),
        ("a pod of ours to its neighbour", &near[1], &near[0]),
        ("a stock node's pod to its neighbour", &far[1], &far[0]),
    ];
    for (what, from, to) in pairs {
        let to: IpAddr = to.address.into();
        let seen = traffic().exchange(&from.netns, to, PORT, BYTES).context(what)?;
        ensure!(seen.client.ip() == IpAddr::from(from.address), "{what}: the server saw {seen:?}");
    }
    for (what, pod) in [("a pod of ours", &near[1]), ("a stock node's pod", &far[1])] {
        reach_all_services(&pod.netns).context(what)?;
        reach_api_server(cluster, &pod.netns)
            .with_context(|| format!("{what} to the API server's service"))?;
    }
    for (what, host) in [("our node itself", hosts[0]), ("the stock node itself", hosts[1])] {
        for pod in [&near[0], &far[0]] {
            traffic().exchange(&host.netns, pod.address.into(), PORT, BYTES).context(what)?;
        }
        reach_all_services(&host.netns).context(what)?;
    }
    Ok(())
}

/// The far side of the nodes' gateway: it knows no way to a pod, so what reaches it must come from a node's address.
fn check_outside(wire: &Netns, scene: &Scene, hosts: [&Host; 2]) -> Result<()> {
    let _server = traffic().serve(wire, OUTSIDE.into(), PORT)?;
    for (pod, host) in [(&scene.near[1], hosts[0]), (&scene.far[1], hosts[1])] {
        let seen =
            traffic().exchange(&pod.netns, OUTSIDE.into(), PORT, BYTES).context("a pod to the outside")?;
        ensure!(seen.client.ip() == IpAddr::from(host.spec.address), "not masqueraded: {seen:?}");
    }
    Ok(())
}

/// A client outside the cluster, by either node's address, to backends on both nodes (policy Cluster).
fn check_node_ports(
    cluster: &RealCluster<'_>,
    outside: &Netns,
    scene: &Scene,
    hosts: [&Host; 2],
) -> Result<()> {
    let ports = json!([{ "name": "tcp", "port": SERVICE_PORT, "targetPort": PORT, "nodePort": NODE_PORT }]);
    cluster.create(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "ported" },
        "spec": { "type": "NodePort", "selector": { "app": "web" }, "ports": ports },
    }))?;
    for host in hosts {
        let address = IpAddr::from(host.spec.address);
        wait_until("the node port to be programmed", LIMIT, || {
            Ok(traffic().tcp(outside, address, NODE_PORT, 1).is_ok())
        })?;
        let mut met = BTreeSet::new();
        for _ in 0..24 {
            let seen = traffic().tcp(outside, address, NODE_PORT, BYTES);
            met.insert(seen.with_context(|| format!("node port of {}", host.spec.name))?.server.ip());
        }
        let both = BTreeSet::from([scene.near[0].address.into(), scene.far[0].address.into()]);
        ensure!(met == both, "the node port of {} leads to {met:?}", host.spec.name);
        // From the node that hosts a backend, to its own address.
        traffic().tcp(&host.netns, address, NODE_PORT, BYTES).context("a node to its own node port")?;
    }
    Ok(())
}

#[test]
fn a_windlass_node_and_a_stock_node_are_one_cluster() -> Result<()> {
    if let Some(why) = real_cluster::missing_ability().or_else(dns::missing_ability) {
        windlass_tests::skipped(&why);
        return Ok(());
    }
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let mut cluster = RealCluster::start(topology.wire())?;
    let outcome = join_and_check(&mut cluster, topology.wire(), ours, stock);
    outcome.with_context(|| cluster.logs())
}

fn join_and_check(cluster: &mut RealCluster<'_>, wire: &Netns, ours: &Host, stock: &Host) -> Result<()> {
    set_up(cluster)?;
    cluster.add_node(ours)?;
    cluster.add_node(stock)?;
    let token = cluster.service_account_token("windlass", "windlass")?;
    let config = cluster.kubeconfig("windlass", &token)?;
    let node = WindlassNode::join_real(ours, &config, &[])?;
    let env = cluster.run_flanneld(stock)?;
    cluster.run_kube_proxy(stock)?;
    let (near, far) = (CniNode::new(ours, node.subnet_env_path())?, CniNode::new(stock, env)?);
    let scene = scene(cluster, &near, &far)?;
    for pod in [&scene.near[1], &scene.far[1]] {
        wait_for_the_services(&pod.netns)?;
    }
    ensure!(cluster.get("/apis/networking.k8s.io/v1/servicecidrs")?.contains(SERVICE_CIDR), "no ServiceCIDR");
    let log = node.log();
    let warned = log.lines().find(|line| line.contains("WARN") && !line.contains("node-51"));
    ensure!(warned.is_none(), "the least rights are not enough: {warned:?}");
    check_matrix(cluster, &scene, [ours, stock])?;
    check_outside(wire, &scene, [ours, stock])?;
    check_node_ports(cluster, wire, &scene, [ours, stock])?;
    // The CNI plugin's bridge came while it ran, so the host is not as it was; lifecycle tests look at that.
    node.dismiss();
    Ok(())
}
