//! What Kubernetes' conformance tests (test/e2e/network/service.go) and kube-proxy's packet-flow cases
//! (pkg/proxy/nftables/proxier_test.go) expect of services, from objects to packets: the cluster's state is compiled
//! and published as a running node does it, and packets are sent through the engine.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use windlass_control::cluster::{
    ClusterState, Endpoint, EndpointPort, EndpointSlice, ObjectName, Service, ServicePort,
};
use windlass_control::compile::Compiler;
use windlass_control::node::{NodeSettings, UnderlayChoice};
use windlass_control::source::manifests::load_text;
use windlass_dataplane::drop_reason::DropReason::{self, *};
use windlass_dataplane::engine::Settings;
use windlass_dataplane::tables::TableSet;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, VNI, addr, flow, mac, net, parsed, socket, vni};
use windlass_tests::packets::{Tcp, tcp, udp, verified_flow, verified_icmp, vxlan};

const POD: &str = "10.244.0.14";
const NODE: &str = "192.168.1.40";
const CLIENT: &str = "198.51.100.9";
/// What backends on other nodes see instead of a client.
const BASE: &str = "10.244.0.0";
/// What backends on this node see instead of a client.
const SOURCE_VIP: &str = "169.254.77.1";

const VIP: &str = "10.96.5.5:80";
/// Where the host sends what comes for a node port.
const NODE_PORT: &str = "169.254.77.2:30080";
const BALANCER: &str = "203.0.113.5:80";
const EXTERNAL: &str = "203.0.113.6:80";

/// Endpoints: the first is a pod of this node.
const HERE: &str = "10.244.0.20";
const THERE: &str = "10.244.2.20";
const ALSO_THERE: &str = "10.244.2.21";

/// A node with one service, `default/tested`, whose objects change.
struct Bed {
    state: ClusterState,
    compiler: Compiler,
    node: EngineNode,
    next_port: u16,
}

impl Bed {
    fn new(edit: impl FnOnce(&mut Service, &mut EndpointSlice)) -> Self {
        let example = include_str!("../../control/examples/worked-example.yaml");
        let state = load_text("worked-example.yaml", example, "flannel.alpha.coreos.com").unwrap().state;
        let mut bed = Self {
            state,
            compiler: Compiler::new(settings()),
            node: EngineNode::new(TableSet::default(), Settings::default()),
            next_port: 40_000,
        };
        bed.state.services.insert(name(), Arc::new(tested()));
        bed.state.endpoint_slices.insert(name(), Arc::new(slice()));
        bed.change(edit);
        bed
    }

    /// Changes the objects, and does what a reload does: compile, publish, forget UDP connections (F6).
    fn change(&mut self, edit: impl FnOnce(&mut Service, &mut EndpointSlice)) {
        let service = Arc::make_mut(self.state.services.get_mut(&name()).unwrap());
        let slice = Arc::make_mut(self.state.endpoint_slices.get_mut(&name()).unwrap());
        edit(service, slice);
        self.compiler.follow(&self.state);
        let update = self.compiler.update();
        assert_eq!(update.problems, Vec::new());
        let tables = self.node.writer.publish_draft(&update.draft);
        self.node.connections.purge(|connection| tables.strands(connection));
    }

    fn send(&mut self, packet: &[u8]) -> Outcome {
        let outcome = self.node.encap(packet);
        let answer = outcome.packets.first().map(|packet| packet.bytes.clone());
        match (&outcome.drops[..], &outcome.datagrams[..]) {
            ([], [sent]) => Outcome::Sent(verified_flow(&sent.payload[22..])),
            ([], []) => Outcome::Sent(verified_flow(&answer.unwrap())),
            ([(reason, 1)], []) => Outcome::Dropped(*reason, answer),
            _ => panic!("{outcome:?}"),
        }
    }

    /// A new flow, from a source port that no other had.
    fn open(&mut self, protocol: Protocol, client: &str, to: &str) -> Outcome {
        self.next_port += 1;
        let client = format!("{client}:{}", self.next_port);
        let packet = match protocol {
            Protocol::TCP => tcp(&flow(protocol, &client, to), Tcp::Syn, b""),
            _ => udp(&flow(protocol, &client, to), b"query"),
        };
        self.send(&packet)
    }

    fn connect(&mut self, client: &str, to: &str) -> Outcome {
        self.open(Protocol::TCP, client, to)
    }

    /// Where a hundred new flows go.
    fn spread(&mut self, client: &str, to: &str) -> BTreeSet<String> {
        (0..100).map(|_| self.connect(client, to).backend()).collect()
    }
}

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Sent(FlowKey),
    /// Dropped, with what the sender was told.
    Dropped(DropReason, Option<Vec<u8>>),
}

impl Outcome {
    fn flow(&self) -> FlowKey {
        match self {
            Self::Sent(flow) => *flow,
            Self::Dropped(reason, _) => panic!("dropped: {reason:?}"),
        }
    }

    fn backend(&self) -> String {
        let flow = self.flow();
        format!("{}:{}", flow.dst, flow.dst_port)
    }

    fn is_refused(&self) -> bool {
        matches!(self, Self::Dropped(NoEndpoint | UnservedPort, Some(_)))
    }
}

fn name() -> ObjectName {
    ObjectName::new("default", "tested")
}

fn port(name: &str, protocol: Protocol, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol, port, node_port: None }
}

fn tested() -> Service {
    Service {
        cluster_ips: vec![addr("10.96.5.5")],
        ports: vec![port("http", Protocol::TCP, 80), port("dns", Protocol::UDP, 80)],
        ..Service::default()
    }
}

fn slice() -> EndpointSlice {
    let port = |name: &str, protocol| EndpointPort { name: name.into(), protocol, port: 8080 };
    EndpointSlice {
        service: Some("tested".into()),
        ports: vec![port("http", Protocol::TCP), port("dns", Protocol::UDP)],
        ..EndpointSlice::default()
    }
}

fn endpoint(addr: &str) -> Endpoint {
    let node = if addr.starts_with("10.244.0.") { "node-a" } else { "node-b" };
    Endpoint {
        addr: parsed(addr),
        node: Some(node.into()),
        ready: true,
        serving: true,
        terminating: false,
        hints: None,
    }
}

fn ending(addr: &str) -> Endpoint {
    Endpoint { ready: false, terminating: true, ..endpoint(addr) }
}

/// Reachable in every way there is.
fn expose(service: &mut Service) {
    for port in &mut service.ports {
        port.node_port = Some(30_080);
    }
    service.exposure.load_balancer_ips = vec![socket(BALANCER).ip()];
    service.exposure.external_ips = vec![socket(EXTERNAL).ip()];
}

fn settings() -> NodeSettings {
    NodeSettings {
        node: "node-a".into(),
        vni: vni(),
        port: 4789,
        underlay: vec![UnderlayChoice { addr: addr(NODE), why: String::new() }],
        mac_v4: Some(mac(MAC_A)),
        mac_v6: None,
        pod_cidrs: vec![net("10.244.0.0/24")],
        cluster_cidrs: vec![net("10.244.0.0/16")],
        service_cidrs: vec![net("10.96.0.0/12")],
        source_vip_v4: parsed(SOURCE_VIP),
        source_vip_v6: parsed("fd77::1"),
        overlay_mtu: 1450,
        addresses: vec![addr(NODE)],
        node_port_addrs: vec![addr(NODE)],
        zone: None,
    }
}

fn set(texts: &[&str]) -> BTreeSet<String> {
    texts.iter().map(|text| format!("{text}:8080")).collect()
}

/// "should serve a basic endpoint from pods"
#[test]
fn f5_endpoints_come_and_go() {
    let mut bed = Bed::new(|_, _| ());
    assert!(bed.connect(POD, VIP).is_refused());
    bed.change(|_, slice| slice.endpoints = vec![endpoint(THERE)]);
    assert_eq!(bed.spread(POD, VIP), set(&[THERE]));
    bed.change(|_, slice| slice.endpoints.push(endpoint(ALSO_THERE)));
    assert_eq!(bed.spread(POD, VIP), set(&[THERE, ALSO_THERE]));
    bed.change(|_, slice| drop(slice.endpoints.remove(0)));
    assert_eq!(bed.spread(POD, VIP), set(&[ALSO_THERE]));
    bed.change(|_, slice| slice.endpoints.clear());
    assert!(bed.connect(POD, VIP).is_refused());
}

/// "should serve multiport endpoints from pods"
#[test]
fn each_port_has_its_own_endpoints() {
    let mut bed = Bed::new(|service, slice| {
        service.ports = vec![port("portname1", Protocol::TCP, 80), port("portname2", Protocol::TCP, 81)];
        slice.ports = vec![EndpointPort { name: "portname1".into(), protocol: Protocol::TCP, port: 100 }];
        slice.endpoints = vec![endpoint(THERE)];
    });
    assert_eq!(bed.connect(POD, VIP).backend(), "10.244.2.20:100");
    assert!(bed.connect(POD, "10.96.5.5:81").is_refused());
    let mut second = slice();
    second.ports = vec![EndpointPort { name: "portname2".into(), protocol: Protocol::TCP, port: 101 }];
    second.endpoints = vec![endpoint(ALSO_THERE)];
    bed.state.endpoint_slices.insert(ObjectName::new("default", "tested-2"), second.into());
    bed.change(|_, _| ());
    assert_eq!(bed.connect(POD, VIP).backend(), "10.244.2.20:100");
    assert_eq!(bed.connect(POD, "10.96.5.5:81").backend(), "10.244.2.21:101");
}

/// "should serve endpoints on same port and different protocols"
#[test]
fn f1_one_port_over_tcp_and_udp_is_two_services() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        slice.endpoints = vec![endpoint(THERE)];
    });
    for to in [VIP, NODE_PORT, BALANCER, EXTERNAL] {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            assert_eq!(bed.open(protocol, POD, to).backend(), "10.244.2.20:8080", "{to} {protocol}");
        }
    }
    bed.change(|service, _| drop(service.ports.pop()));
    for to in [VIP, NODE_PORT, BALANCER, EXTERNAL] {
        assert_eq!(bed.connect(POD, to).backend(), "10.244.2.20:8080", "{to}");
        assert!(bed.open(Protocol::UDP, POD, to).is_refused(), "{to}");
    }
}

/// "should have session affinity work for ... service", "should be able to switch session affinity", "should have
/// session affinity timeout work": of ClusterIP, NodePort and load balancer.
#[test]
fn f2_session_affinity_is_switched_on_and_off_and_times_out() {
    for to in [VIP, NODE_PORT, BALANCER, EXTERNAL] {
        let mut bed = Bed::new(|service, slice| {
            expose(service);
            slice.endpoints = [HERE, THERE, ALSO_THERE].map(endpoint).into();
        });
        assert_eq!(bed.spread(CLIENT, to).len(), 3, "{to}: off");
        bed.change(|service, _| service.affinity = Some(Duration::from_secs(100)));
        let stay = bed.spread(CLIENT, to);
        assert_eq!(stay.len(), 1, "{to}: on");
        bed.node.now = Instant::ZERO + Duration::from_secs(99);
        assert_eq!(bed.spread(CLIENT, to), stay, "{to}: renewed by new flows");
        bed.node.now = Instant::ZERO + Duration::from_secs(198);
        assert_eq!(bed.spread(CLIENT, to), stay, "{to}");
        let after_timeouts: BTreeSet<_> = (1..=20)
            .map(|round| {
                bed.node.now = Instant::ZERO + Duration::from_secs(198 + round * 101);
                bed.connect(CLIENT, to).backend()
            })
            .collect();
        assert!(after_timeouts.len() > 1, "{to}: timed out");
        bed.change(|service, _| service.affinity = None);
        assert_eq!(bed.spread(CLIENT, to).len(), 3, "{to}: off again");
    }
}

/// kube-proxy remembers a client by the service's port and endpoint, and not by the address it came by
/// (pkg/proxy/nftables/proxier.go, the affinity sets of endpoint chains).
#[test]
fn f2_a_client_stays_whichever_address_of_the_service_it_comes_by() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        service.affinity = Some(Duration::from_secs(100));
        slice.endpoints = [HERE, THERE, ALSO_THERE].map(endpoint).into();
    });
    for client in (1..=20).map(|number| format!("198.51.100.{number}")) {
        let stays: BTreeSet<_> =
            [VIP, NODE_PORT, BALANCER, EXTERNAL].into_iter().flat_map(|to| bed.spread(&client, to)).collect();
        assert_eq!(stays.len(), 1, "{client}");
    }
    bed.change(|service, slice| {
        service.exposure.local = true;
        slice.endpoints.remove(0);
        slice.endpoints.push(endpoint(HERE));
    });
    for client in (1..=20).map(|number| format!("198.51.100.{number}")) {
        assert_eq!(
            bed.spread(&client, NODE_PORT),
            set(&[HERE]),
            "{client}: where it stayed is not served here"
        );
    }
}

/// "should be able to change the type from ExternalName to ClusterIP", "... to NodePort", and back.
#[test]
fn a_change_of_type_takes_effect_for_the_next_flow() {
    let mut bed = Bed::new(|service, slice| {
        service.external_name = true;
        slice.endpoints = vec![endpoint(THERE)];
    });
    assert_eq!(bed.connect(POD, VIP), Outcome::Dropped(NoSuchService, None));
    bed.change(|service, _| service.external_name = false);
    assert_eq!(bed.spread(POD, VIP), set(&[THERE]));
    assert_eq!(bed.connect(CLIENT, NODE_PORT), Outcome::Dropped(DestinationInvalid, None));
    bed.change(|service, _| expose(service));
    for to in [VIP, NODE_PORT, BALANCER, EXTERNAL] {
        assert_eq!(bed.spread(CLIENT, to), set(&[THERE]), "{to}");
    }
    bed.change(|service, _| *service = tested());
    assert_eq!(bed.connect(CLIENT, NODE_PORT), Outcome::Dropped(DestinationInvalid, None));
    assert_eq!(bed.spread(POD, VIP), set(&[THERE]));
}

/// "should be rejected when no endpoints exist", and "... for evicted pods (no endpoints exist)" with either policy.
#[test]
fn f3_without_endpoints_everybody_is_refused_at_once() {
    for local in [false, true] {
        let mut bed = Bed::new(|service, slice| {
            expose(service);
            (service.internal_local, service.exposure.local) = (local, local);
            // An evicted pod is neither ready nor serving.
            slice.endpoints = vec![Endpoint { ready: false, serving: false, ..endpoint(HERE) }];
        });
        for (client, to) in
            [(POD, VIP), (NODE, VIP), (CLIENT, NODE_PORT), (POD, NODE_PORT), (CLIENT, BALANCER)]
        {
            let told = |outcome| match outcome {
                Outcome::Dropped(NoEndpoint, Some(answer)) => answer,
                other => panic!("{client} to {to}: {other:?}"),
            };
            let reset = told(bed.connect(client, to));
            let answered = verified_flow(&reset);
            assert_eq!((answered.src, answered.dst), (socket(to).ip(), addr(client)));
            assert_eq!(reset[33] & 0x04, 0x04, "RST");
            let unreachable = verified_icmp(&told(bed.open(Protocol::UDP, client, to)));
            assert_eq!((unreachable.src, unreachable.kind), (socket(to).ip(), (3, 3)), "C8: from the VIP");
        }
    }
}

/// "should fail health check node port ... / fall back to terminating endpoints": internalTrafficPolicy and
/// externalTrafficPolicy, Cluster and Local (KEP-1669).
#[test]
fn f4_terminating_endpoints_serve_while_no_other_does() {
    for (local, to, ready, fallen_back) in [
        (false, VIP, set(&[THERE]), set(&[HERE, ALSO_THERE])),
        (true, VIP, set(&[HERE]), set(&[HERE])),
        (false, NODE_PORT, set(&[THERE]), set(&[HERE, ALSO_THERE])),
        (true, NODE_PORT, set(&[HERE]), set(&[HERE])),
        (true, BALANCER, set(&[HERE]), set(&[HERE])),
    ] {
        let mut bed = Bed::new(|service, slice| {
            expose(service);
            (service.internal_local, service.exposure.local) = (local, local);
            slice.endpoints = vec![ending(HERE), endpoint(THERE)];
        });
        assert_eq!(bed.spread(CLIENT, to), ready, "{to}, Local: {local}");
        bed.change(|_, slice| slice.endpoints = vec![ending(HERE), ending(ALSO_THERE)]);
        assert_eq!(bed.spread(CLIENT, to), fallen_back, "{to}, Local: {local}");
        bed.change(|_, slice| slice.endpoints.iter_mut().for_each(|endpoint| endpoint.serving = false));
        assert!(bed.connect(CLIENT, to).is_refused(), "{to}, Local: {local}");
    }
}

/// A case of `TestInternalExternalMasquerade`: where flows go, and as whom they arrive there.
struct FlowCase {
    name: &'static str,
    client: &'static str,
    to: &'static str,
    /// Backend and the source it sees, each as often as there are backends; empty where the packet is dropped.
    arrivals: &'static [(&'static str, &'static str)],
}

const fn flow_case(
    name: &'static str,
    client: &'static str,
    to: &'static str,
    arrivals: &'static [(&'static str, &'static str)],
) -> FlowCase {
    FlowCase { name, client, to, arrivals }
}

/// From a pod: its own address where the reply comes back by itself.
const POD_TO_BOTH: &[(&str, &str)] = &[(HERE, SOURCE_VIP), (THERE, POD)];
/// Masqueraded.
const TO_BOTH: &[(&str, &str)] = &[(HERE, SOURCE_VIP), (THERE, BASE)];
const TO_NONE: &[(&str, &str)] = &[];

fn run(policies: (bool, bool), cases: &[FlowCase]) {
    for case in cases {
        let mut bed = Bed::new(|service, slice| {
            expose(service);
            (service.internal_local, service.exposure.local) = policies;
            slice.endpoints = vec![endpoint(HERE), endpoint(THERE)];
        });
        let mut arrived = BTreeSet::new();
        for _ in 0..50 {
            match bed.connect(case.client, case.to) {
                Outcome::Sent(flow) => drop(arrived.insert((flow.dst, flow.src))),
                Outcome::Dropped(..) if case.arrivals.is_empty() => {}
                dropped => panic!("{}: {dropped:?}", case.name),
            }
        }
        let expected: BTreeSet<(IpAddr, IpAddr)> =
            case.arrivals.iter().map(|(backend, source)| (addr(backend), addr(source))).collect();
        assert_eq!(arrived, expected, "{} with iTP, eTP Local {policies:?}", case.name);
    }
}

/// `TestInternalExternalMasquerade`, "base"
#[test]
fn packet_flows_with_both_policies_cluster() {
    run(
        (false, false),
        &[
            flow_case("pod to ClusterIP", POD, VIP, POD_TO_BOTH),
            flow_case("pod to NodePort", POD, NODE_PORT, TO_BOTH),
            flow_case("pod to LB", POD, BALANCER, TO_BOTH),
            flow_case("node to ClusterIP", NODE, VIP, TO_BOTH),
            flow_case("node to NodePort", NODE, NODE_PORT, TO_BOTH),
            flow_case("node to LB", NODE, BALANCER, TO_BOTH),
            flow_case("external to ClusterIP", CLIENT, VIP, TO_BOTH),
            flow_case("external to NodePort", CLIENT, NODE_PORT, TO_BOTH),
            flow_case("external to LB", CLIENT, BALANCER, TO_BOTH),
            flow_case("external to external IP", CLIENT, EXTERNAL, TO_BOTH),
        ],
    );
}

const CLIENT_HERE: &[(&str, &str)] = &[(HERE, CLIENT)];

/// `TestInternalExternalMasquerade`, "eTP:Local"
#[test]
fn packet_flows_with_external_policy_local() {
    run(
        (false, true),
        &[
            flow_case("pod to ClusterIP", POD, VIP, POD_TO_BOTH),
            flow_case("pod to NodePort: the short cut, not masqueraded", POD, NODE_PORT, POD_TO_BOTH),
            flow_case("pod to LB: the short cut", POD, BALANCER, POD_TO_BOTH),
            flow_case("node to NodePort: the short cut, masqueraded", NODE, NODE_PORT, TO_BOTH),
            flow_case("node to LB", NODE, BALANCER, TO_BOTH),
            flow_case("external to ClusterIP", CLIENT, VIP, TO_BOTH),
            flow_case("external to NodePort", CLIENT, NODE_PORT, CLIENT_HERE),
            flow_case("external to LB", CLIENT, BALANCER, CLIENT_HERE),
            flow_case("external to external IP", CLIENT, EXTERNAL, CLIENT_HERE),
        ],
    );
}

/// `TestInternalExternalMasquerade`, "iTP:Local" and "iTP:Local and eTP:Local"
#[test]
fn packet_flows_with_internal_policy_local() {
    const POD_HERE: &[(&str, &str)] = &[(HERE, SOURCE_VIP)];
    run(
        (true, false),
        &[
            flow_case("pod to ClusterIP", POD, VIP, POD_HERE),
            flow_case("pod to NodePort", POD, NODE_PORT, TO_BOTH),
            flow_case("external to LB", CLIENT, BALANCER, TO_BOTH),
        ],
    );
    run(
        (true, true),
        &[
            flow_case("node to ClusterIP", NODE, VIP, POD_HERE),
            flow_case("pod to NodePort", POD, NODE_PORT, POD_TO_BOTH),
            flow_case("external to LB", CLIENT, BALANCER, CLIENT_HERE),
        ],
    );
}

/// `TestExternalTrafficPolicyLocal` without an endpoint here: outsiders are dropped, the others are not.
#[test]
fn f3_policy_local_with_endpoints_elsewhere_alone_drops_outsiders() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        service.exposure.local = true;
        slice.endpoints = vec![endpoint(THERE)];
    });
    for to in [NODE_PORT, BALANCER, EXTERNAL] {
        assert_eq!(bed.connect(CLIENT, to), Outcome::Dropped(NoLocalEndpoint, None), "{to}");
        assert_eq!((bed.spread(POD, to), bed.spread(NODE, to)), (set(&[THERE]), set(&[THERE])), "{to}");
    }
    run((false, true), &[flow_case("nobody", CLIENT, "203.0.113.7:80", TO_NONE)]);
}

/// `TestLoadBalancer`: source ranges drop before anything else is asked, for the load balancer's address alone.
#[test]
fn source_ranges_drop_in_silence() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        service.exposure.source_ranges = vec![net("198.51.100.0/24"), net("10.244.2.0/24")];
        slice.endpoints = vec![endpoint(THERE)];
    });
    assert_eq!(bed.spread(CLIENT, BALANCER), set(&[THERE]));
    for client in ["198.51.101.9", POD, NODE] {
        assert_eq!(bed.connect(client, BALANCER), Outcome::Dropped(SourceNotAllowed, None), "{client}");
        for to in [NODE_PORT, EXTERNAL, VIP] {
            assert_eq!(bed.spread(client, to), set(&[THERE]), "{client} to {to}");
        }
    }
    bed.change(|_, slice| slice.endpoints.clear());
    assert_eq!(bed.connect("198.51.101.9", BALANCER), Outcome::Dropped(SourceNotAllowed, None));
}

/// Policy Local and its reply: the host brings it back to us, and it leaves as from the address that was asked.
#[test]
fn replies_to_clients_that_are_kept_leave_as_from_the_vip() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        service.exposure.local = true;
        slice.endpoints = vec![endpoint(HERE)];
    });
    for to in [NODE_PORT, BALANCER, EXTERNAL] {
        let original = flow(Protocol::TCP, "198.51.100.9:50000", to);
        let arrived = bed.send(&tcp(&original, Tcp::Syn, b"")).flow();
        let reply = bed.send(&tcp(&arrived.reversed(), Tcp::SynAck, b"")).flow();
        assert_eq!(reply, original.reversed(), "{to}");
    }
    // Policy Cluster, from a pod elsewhere: by VXLAN, to the podCIDR base.
    bed.change(|service, slice| {
        service.exposure.local = false;
        slice.endpoints = vec![endpoint(THERE)];
    });
    let original = flow(Protocol::TCP, "198.51.100.9:50001", NODE_PORT);
    let arrived = bed.send(&tcp(&original, Tcp::Syn, b"")).flow();
    assert_eq!(arrived.src, addr(BASE));
    let reply = vxlan(VNI, mac(MAC_A), &tcp(&arrived.reversed(), Tcp::SynAck, b""));
    let outcome = bed.node.decap(&reply, addr("192.168.1.51"), 0);
    assert_eq!(verified_flow(&outcome.packets[0].bytes), original.reversed());
}

/// Hairpin by every address: a pod reaches itself.
#[test]
fn d7_a_pod_reaches_itself_by_every_address_of_its_service() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        service.exposure.local = true;
        slice.endpoints = vec![endpoint(HERE)];
    });
    for to in [VIP, NODE_PORT, BALANCER, EXTERNAL] {
        let arrived = bed.connect(HERE, to).flow();
        assert_eq!((arrived.src, arrived.dst), (addr(SOURCE_VIP), addr(HERE)), "{to}");
    }
}

/// "should be able to preserve UDP traffic when server pod cycles for a ... service", of every address.
#[test]
fn f6_udp_follows_its_service_and_tcp_stays() {
    for (local, to) in
        [(false, VIP), (false, NODE_PORT), (true, NODE_PORT), (true, BALANCER), (false, EXTERNAL)]
    {
        let mut bed = Bed::new(|service, slice| {
            expose(service);
            service.exposure.local = local;
            slice.endpoints = vec![endpoint(HERE)];
        });
        let query = udp(&flow(Protocol::UDP, "198.51.100.9:5000", to), b"query");
        let open = flow(Protocol::TCP, "198.51.100.9:5001", to);
        assert_eq!(bed.send(&query).backend(), "10.244.0.20:8080");
        let arrived = bed.send(&tcp(&open, Tcp::Syn, b"")).flow();
        bed.send(&tcp(&arrived.reversed(), Tcp::SynAck, b""));
        assert_eq!(bed.node.connections.len(), 2);

        bed.change(|_, slice| slice.endpoints = vec![endpoint("10.244.0.21")]);
        assert_eq!(bed.node.connections.len(), 1, "{to}: UDP is forgotten, TCP is not");
        assert_eq!(bed.send(&query).backend(), "10.244.0.21:8080", "{to}");
        assert_eq!(bed.send(&tcp(&open, Tcp::Ack, b"data")).flow(), arrived, "{to}: TCP stays");

        bed.change(|_, slice| slice.endpoints.clear());
        assert!(bed.send(&query).is_refused(), "{to}: down to no endpoint");
        bed.change(|_, slice| slice.endpoints = vec![endpoint(HERE)]);
        assert_eq!(bed.send(&query).backend(), "10.244.0.20:8080", "{to}: up again");
    }
}

/// F6 for a change of policy: a flow from outside leaves the pod elsewhere that it may no longer have.
#[test]
fn f6_udp_from_outside_leaves_other_nodes_when_the_policy_becomes_local() {
    let mut bed = Bed::new(|service, slice| {
        expose(service);
        slice.endpoints = vec![endpoint(THERE)];
    });
    let query = udp(&flow(Protocol::UDP, "198.51.100.9:5000", NODE_PORT), b"query");
    assert_eq!(bed.send(&query).backend(), "10.244.2.20:8080");
    bed.change(|service, slice| {
        service.exposure.local = true;
        slice.endpoints = vec![endpoint(HERE)];
    });
    let flow = bed.send(&query).flow();
    assert_eq!((flow.dst, flow.src), (addr(HERE), addr(CLIENT)));
}
