//! Services reached from outside the cluster: node ports, external IPs, load-balancer addresses; and pods that reach
//! out. The client is a host on the nodes' wire that knows nothing of the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use windlass_tests::netns::Netns;
use windlass_tests::node::{DEVICE, SOURCE_VIP, WindlassNode};
use windlass_tests::objects::{Objects, ServiceSpec};
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::{Pod, Pods};
use windlass_tests::process::wait_until;
use windlass_tests::topology::{FAMILIES, Family, Host, NodeSpec, Topology};
use windlass_tests::traffic::{PORT, Seen, Traffic, UDP_WHOLE_SIZES};

use crate::{TCP_BYTES, services, traffic};

const CLUSTER: ServiceSpec = services::at("cluster", [10, 106, 2, 1], 80, PORT);
const LOCAL: ServiceSpec = services::at("local", [10, 106, 2, 2], 80, PORT);
const GUARDED: ServiceSpec = services::at("guarded", [10, 106, 2, 3], 80, PORT);
const EMPTY: ServiceSpec = services::at("empty", [10, 106, 2, 4], 80, PORT);
const HOST: ServiceSpec = services::at("host", [10, 106, 2, 5], 80, 9090);

const CLUSTER_PORT: u16 = 30_080;
const LOCAL_PORT: u16 = 30_081;
const GUARDED_PORT: u16 = 30_082;
const EMPTY_PORT: u16 = 30_083;
const HOST_PORT: u16 = 30_084;
const HEALTH_PORT: u16 = 32_000;
const NOBODYS_PORT: u16 = 30_085;

/// The `number`th address for services that belongs to no host.
fn outside(number: u8, family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([203, 0, 113, number]),
        Family::V6 => IpAddr::from([0xfd00, 0x203, 0, 0, 0, 0, 0, u16::from(number)]),
    }
}

fn both(number: u8) -> [IpAddr; 2] {
    FAMILIES.map(|family| outside(number, family))
}

/// A Windlass node with a pod, a stock node with a pod, and a client.
struct Scene<'a> {
    ours: &'a Host,
    stock: &'a Host,
    client: &'a Host,
}

impl<'a> Scene<'a> {
    fn of(topology: &'a Topology) -> Result<Self> {
        let scene = Self { ours: topology.host(0)?, stock: topology.host(1)?, client: topology.host(2)? };
        for family in FAMILIES {
            let (client, node) = (scene.client.spec.underlay(family), scene.ours.spec.underlay(family));
            scene.ours.netns.ip(&format!("route add default via {client}"))?;
            let range = if family == Family::V4 { "203.0.113.0/24" } else { "fd00:203::/64" };
            scene.client.netns.ip(&format!("route add {range} via {node}"))?;
        }
        Ok(scene)
    }

    /// Every way to expose a service: policies Cluster and Local, source ranges, no endpoints, a host's own server.
    fn objects(&self, near: &Pod, far: &Pod) -> Result<Objects> {
        let both_pods: Vec<_> = FAMILIES
            .iter()
            .flat_map(|family| {
                [(near.ip(*family), self.ours.spec.name), (far.ip(*family), self.stock.spec.name)]
            })
            .collect();
        let own = FAMILIES.map(|family| (self.ours.spec.underlay(family), self.ours.spec.name));
        let mut objects = Objects::cluster(&[self.ours.spec.clone(), self.stock.spec.clone()])
            .with_service(&CLUSTER, &both_pods)
            .with_service(&LOCAL, &both_pods)
            .with_service(&GUARDED, &both_pods)
            .with_service(&EMPTY, &[])
            .with_service(&HOST, &own);
        let local = "Local";
        objects.expose("cluster", json!({ "externalIPs": both(1) }), CLUSTER_PORT, &both(2))?;
        objects.expose(
            "local",
            json!({
                "externalIPs": both(3),
                "externalTrafficPolicy": local,
                "healthCheckNodePort": HEALTH_PORT,
            }),
            LOCAL_PORT,
            &both(4),
        )?;
        let ranges = ["198.51.100.0/24", "fd00:198::/64"];
        objects.expose("guarded", json!({ "loadBalancerSourceRanges": ranges }), GUARDED_PORT, &both(5))?;
        objects.expose("empty", json!({}), EMPTY_PORT, &[])?;
        objects.expose("host", json!({ "externalTrafficPolicy": local }), HOST_PORT, &[])?;
        Ok(objects)
    }
}

fn topology() -> Result<Topology> {
    Topology::new([NodeSpec::first(), NodeSpec::second(), NodeSpec::third()])
}

/// TCP in bulk, and UDP; gives what the server of the TCP connection saw.
fn reach(traffic: &Traffic, from: &Netns, to: IpAddr, port: u16) -> Result<Seen> {
    traffic.udp(from, to, port, &UDP_WHOLE_SIZES)?;
    traffic.tcp(from, to, port, TCP_BYTES)
}

/// Connects until both pods have answered, and gives the clients' addresses as either saw them.
fn reach_both(
    traffic: &Traffic,
    from: &Netns,
    (to, port): (IpAddr, u16),
    pods: [IpAddr; 2],
) -> Result<[IpAddr; 2]> {
    let mut clients = [None; 2];
    wait_until("both pods to answer", Duration::from_secs(60), || {
        let seen = traffic.tcp(from, to, port, 1)?;
        for (pod, client) in pods.iter().zip(&mut clients) {
            if seen.server.ip() == *pod {
                *client = Some(seen.client.ip());
            }
        }
        Ok(clients.iter().all(Option::is_some))
    })?;
    Ok(clients.map(|client| client.unwrap_or(to)))
}

#[test]
fn services_are_reached_from_outside_over_ipv4() -> Result<()> {
    services_are_reached_from_outside(Family::V4)
}

#[test]
fn services_are_reached_from_outside_over_ipv6() -> Result<()> {
    services_are_reached_from_outside(Family::V6)
}

fn services_are_reached_from_outside(family: Family) -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = topology()?;
    let scene = Scene::of(&topology)?;
    let (ours, client) = (scene.ours, &scene.client.netns);
    let _peer = KernelPeer::new(scene.stock, &topology.specs()[..2])?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(scene.stock, 1)?);
    let (near, other, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let node = WindlassNode::start(ours, &scene.objects(near, far)?, &[])?;
    let own = ours.spec.underlay(family);
    let _servers = [
        traffic.serve(&near.netns, near.ip(family), PORT)?,
        traffic.serve(&far.netns, far.ip(family), PORT)?,
        traffic.serve(&ours.netns, own, HOST.backend_port)?,
    ];
    let pods = [near.ip(family), far.ip(family)];
    let (client_addr, base) = (scene.client.spec.underlay(family), ours.spec.pod_base(family));

    // Policy Cluster: either node's endpoints, and the client's address is not seen.
    for at in [(own, CLUSTER_PORT), (outside(1, family), 80), (outside(2, family), 80)] {
        reach(&traffic, client, at.0, at.1)?;
        let [here, there] = reach_both(&traffic, client, at, pods)?;
        assert_eq!(there, base, "{at:?}: masqueraded toward the other node");
        assert!(family == Family::V6 || here.to_string() == SOURCE_VIP, "{at:?}: {here}");
        assert_ne!(here, client_addr, "{at:?}");
    }
    // Policy Local: the endpoint of this node alone, and it sees the client.
    for at in [(own, LOCAL_PORT), (outside(3, family), 80), (outside(4, family), 80)] {
        for _ in 0..4 {
            let seen = reach(&traffic, client, at.0, at.1)?;
            assert_eq!((seen.server.ip(), seen.client.ip()), (near.ip(family), client_addr), "{at:?}");
        }
    }
    let seen = reach(&traffic, client, own, HOST_PORT)?;
    assert_eq!((seen.server, seen.client.ip()), ((own, HOST.backend_port).into(), client_addr));
    // From the node that hosts the pod, and from its pods: the short cut leads to every endpoint.
    for from in [&ours.netns, &other.netns, &near.netns] {
        for at in [(own, CLUSTER_PORT), (own, LOCAL_PORT), (outside(1, family), 80), (outside(4, family), 80)]
        {
            let clients = reach_both(&traffic, from, at, pods)?;
            assert_ne!(clients[1], client_addr, "{} {at:?}", from.name());
        }
    }
    // No endpoint: refused at once. Ports that are nobody's are this host's as before.
    for port in [EMPTY_PORT, NOBODYS_PORT] {
        traffic.refused(client, own, port)?;
    }
    let health = health_of_local(client, own)?;
    ensure!(health.starts_with("HTTP/1.1 200") && health.contains(r#""localEndpoints":1"#), "{health:?}");
    guarded_drops(&node, client, outside(5, family))?;
    reach(&traffic, client, own, GUARDED_PORT)?;
    node.stop()
}

/// loadBalancerSourceRanges: dropped in silence, for the load balancer's address alone.
fn guarded_drops(node: &WindlassNode<'_>, client: &Netns, addr: IpAddr) -> Result<()> {
    wait_until("a packet from outside the source ranges to be dropped", Duration::from_secs(20), || {
        let mut send = client.command("bash");
        send.args(["-c", &format!("echo > /dev/udp/{addr}/80")]);
        ensure!(send.status()?.success(), "bash cannot send to {addr}");
        let drops = node.ask(&["show", "drops"])?.said;
        Ok(drops.lines().any(|line| line.starts_with("source_not_allowed")))
    })
}

/// Flannel's --ip-masq: what leaves the cluster carries the node's address, and nothing else does.
#[test]
fn pods_reach_out_masqueraded_and_each_other_as_themselves() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = topology()?;
    let scene = Scene::of(&topology)?;
    let (ours, client) = (scene.ours, scene.client);
    let _peer = KernelPeer::new(scene.stock, &topology.specs()[..2])?;
    let (near, far) = (Pods::with_pods(ours, 2)?, Pods::with_pods(scene.stock, 1)?);
    let (near, other, far) = (near.pod(0)?, near.pod(1)?, far.pod(0)?);
    let node = WindlassNode::start(ours, &scene.objects(near, far)?, &[])?;
    for family in FAMILIES {
        let servers = [
            (&client.netns, client.spec.underlay(family), ours.spec.underlay(family)),
            (&far.netns, far.ip(family), near.ip(family)),
            (&other.netns, other.ip(family), near.ip(family)),
        ];
        for (at, addr, expected) in servers {
            let _server = traffic.serve(at, addr, PORT)?;
            let seen = reach(&traffic, &near.netns, addr, PORT)?;
            assert_eq!(seen.client.ip(), expected, "{addr}");
        }
    }
    node.stop()
}

/// A reload changes elements of sets: neither the number of rules nor anything else of the host.
#[test]
fn node_ports_follow_a_reload_and_the_rules_stay_as_many() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = topology()?;
    let scene = Scene::of(&topology)?;
    let ours = scene.ours;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(scene.stock, 1)?);
    let (near, far) = (near.pod(0)?, far.pod(0)?);
    let mut objects = scene.objects(near, far)?;
    let node = WindlassNode::start(ours, &objects, &[])?;
    let (own, moved) = (ours.spec.underlay(Family::V4), LOCAL_PORT + 100);
    let _server = traffic.serve(&near.netns, near.ip(Family::V4), PORT)?;
    reach(&traffic, &scene.client.netns, own, LOCAL_PORT)?;
    let rules = |netns: &Netns| -> Result<usize> {
        let ruleset = netns.exec("nft list table inet windlass")?;
        Ok(ruleset.lines().filter(|line| line.contains(DEVICE) || line.contains("dnat")).count())
    };
    let before = rules(&ours.netns)?;
    objects.expose("local", json!({ "externalTrafficPolicy": "Local" }), moved, &[])?;
    objects.write(&node.manifests())?;
    wait_until("the node port to move", Duration::from_secs(20), || {
        Ok(traffic.refused(&scene.client.netns, own, LOCAL_PORT).is_ok())
    })?;
    expect_no_udp_flow(&ours.netns, LOCAL_PORT)?;
    reach(&traffic, &scene.client.netns, own, moved)?;
    assert_eq!(rules(&ours.netns)?, before);
    let said: BTreeSet<String> = node.ask(&["show", "services"])?.said.lines().map(str::to_owned).collect();
    ensure!(said.iter().any(|line| line.contains(&moved.to_string())), "{said:#?}");
    node.stop()
}

/// F6: of a node port that is gone the kernel soon remembers no UDP flow that it would go on translating. The engine
/// refuses before the kernel's rules have followed.
fn expect_no_udp_flow(netns: &Netns, node_port: u16) -> Result<()> {
    if netns.exec("cat /proc/net/nf_conntrack").is_err() {
        windlass_tests::say("SKIPPED: this kernel does not show its connections");
        return Ok(());
    }
    let (to_port, translated) = (format!("dport={node_port}"), "src=169.254.77.2 ");
    wait_until("the kernel to forget UDP flows to the node port", Duration::from_secs(20), || {
        let flows = netns.exec("cat /proc/net/nf_conntrack")?;
        let mut udp = flows.lines().filter(|flow| flow.contains(" udp ") && flow.contains(&to_port));
        Ok(!udp.any(|flow| flow.contains(translated)))
    })
}

/// What a load balancer is told of the service with policy Local, over HTTP.
fn health_of_local(from: &Netns, addr: IpAddr) -> Result<String> {
    let mut ask = from.command("bash");
    let script = format!(
        "exec 3<>/dev/tcp/{addr}/{HEALTH_PORT}; printf 'GET / HTTP/1.1\\r\\nHost: n\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3"
    );
    let said = ask.args(["-c", &script]).output()?;
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}
