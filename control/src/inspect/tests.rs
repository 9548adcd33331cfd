use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::lb::conntrack::{Connection, FlowDirection};
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use super::connections::{Connections, Filter};
use super::rows::{BackendState, Tables};
use super::trace::{Arrival, End, Report, Request, trace};
use super::*;
use crate::cluster::{Announcement, ObjectName};
use crate::compile::compile;
use crate::config::{Config, settings};
use crate::node::{UnknownHost, resolve};
use crate::source::manifests::load_text;

const EXAMPLE: &str = include_str!("../../examples/worked-example.yaml");

fn node(edit: impl FnOnce(&mut ClusterState)) -> Inspection {
    let mut state = load_text("worked-example.yaml", EXAMPLE, "flannel.alpha.coreos.com").unwrap().state;
    edit(&mut state);
    let settings = settings::from_arguments(["--node", "node-a"]).unwrap();
    let config = Config::new(&settings, || None).unwrap();
    let (settings, _) = resolve(&state, &config, &UnknownHost).unwrap();
    let compiled = compile(&state, &settings);
    let problems = compiled.problems.clone();
    let mut node =
        Inspection::offline(Origin { state, settings, problems }, compiled, engine::Settings::default());
    node.connections = Arc::new(Conntrack::new(100, 1));
    node
}

fn asks(node: &Inspection, flow: &str) -> Report {
    trace(node, &Request { flow: Some(flow.to_owned()), ..Request::default() }).unwrap()
}

fn arrives(node: &Inspection, flow: &str, from: [u8; 4]) -> Report {
    let arrival = Arrival { from: from.into(), vni: None, mac: None, tos: 0 };
    trace(node, &Request { flow: Some(flow.to_owned()), hex: None, arrival: Some(arrival), vni: None })
        .unwrap()
}

fn steps(report: &Report) -> Vec<&str> {
    report.forward.steps.iter().map(|row| row.step.as_str()).collect()
}

#[track_caller]
fn says(report: &Report, reason: DropReason, expected: &str) {
    assert_eq!(report.forward.reason.as_deref(), Some(reason.name()), "{report:#?}");
    assert!(!report.forward.end.is_well());
    assert!(report.advice.iter().any(|line| line.contains(expected)), "{expected:?} in {:#?}", report.advice);
}

fn endpoint_of<'a>(
    state: &'a mut ClusterState,
    slice: &str,
    index: usize,
) -> &'a mut crate::cluster::Endpoint {
    let (_, slice) = state.endpoint_slices.iter_mut().find(|(name, _)| name.name == slice).unwrap();
    &mut Arc::make_mut(slice).endpoints[index]
}

/// The first flow to the service that goes to that backend.
fn flow_to(node: &Inspection, service: &str, backend: &str) -> (String, Report) {
    (40_000..40_100)
        .map(|port| format!("tcp 10.244.0.14:{port} > {service}"))
        .map(|flow| (flow.clone(), asks(node, &flow)))
        .find(|(_, report)| {
            let chosen = |row: &trace::StepRow| row.step == "backend" && row.text.starts_with(backend);
            report.forward.steps.iter().any(chosen)
        })
        .unwrap()
}

#[test]
fn a_flow_to_a_remote_backend_is_told_from_service_to_outer_header_and_back() {
    let node = node(|_| ());
    let (flow, report) = flow_to(&node, "10.106.228.152:80", "10.244.2.7:8080");
    assert_eq!(steps(&report), ["service", "backend", "route", "neighbor", "fdb", "translation", "outer"]);
    let text: Vec<_> = report.forward.steps.iter().map(|row| row.text.as_str()).collect();
    assert_eq!(text[0], "default/web:80 at tcp 10.106.228.152:80: 2 ready, 0 draining");
    assert_eq!(text[1], "10.244.2.7:8080, by rendezvous hash of the flow over 2");
    assert_eq!(text[2], "10.244.2.0/24 -> gateway 10.244.2.0 on VNI 4096, node node-b");
    assert!(text[4].ends_with("is the VTEP of node node-b at 192.168.1.51:4789"), "{}", text[4]);
    assert!(text[5].contains("the source stays"), "{}", text[5]);
    assert!(text[6].starts_with("192.168.1.40 > 192.168.1.51:4789, a UDP source port"), "{}", text[6]);
    assert_eq!((report.forward.end, report.advice.len()), (End::Sent, 0));

    let reply = report.reply.unwrap();
    let names: Vec<_> = reply.steps.iter().map(|row| row.step.as_str()).collect();
    assert_eq!(names, ["admission", "connection", "route", "translation"]);
    let client = flow.split_whitespace().nth(1).unwrap();
    assert!(reply.steps[3].text.contains(&format!("10.106.228.152:80 > {client}")), "{reply:#?}");
    assert_eq!(reply.end, End::Sent);
}

/// The example's web service on node port 30080 and at a load balancer's address, with policy Local.
fn exposed(edit: impl FnOnce(&mut crate::cluster::Service)) -> Inspection {
    node(|state| {
        let web = state.services.get_mut(&ObjectName::new("default", "web")).unwrap();
        let web = Arc::make_mut(web);
        web.ports[0].node_port = Some(30_080);
        web.exposure.local = true;
        web.exposure.load_balancer_ips = vec!["203.0.113.5".parse().unwrap()];
        edit(web);
    })
}

#[test]
fn a_node_port_is_traced_as_its_client_addresses_it() {
    let node = exposed(|_| ());
    let report = asks(&node, "tcp 198.51.100.9:40000 > 192.168.1.40:30080");
    assert_eq!(steps(&report)[..3], ["host", "service", "backend"]);
    let text: Vec<_> = report.forward.steps.iter().map(|row| row.text.as_str()).collect();
    assert!(text[0].contains("its node port 30080 is sent to 169.254.77.2"), "{}", text[0]);
    assert!(
        text[1].contains("(node-port): 1 ready on this node, which see the client's address"),
        "{}",
        text[1]
    );
    assert_eq!(report.forward.end, End::Sent);
    let reply = report.reply.unwrap();
    assert!(
        reply.steps.iter().any(|row| row.text.contains("169.254.77.2:30080 > 198.51.100.9:40000")),
        "{reply:#?}"
    );
    let elsewhere = asks(&node, "tcp 198.51.100.9:40000 > 192.168.1.40:30081");
    assert_eq!(elsewhere.forward.reason.as_deref(), Some("outside_overlay"), "the host's own");
}

#[test]
fn external_entries_say_their_kind_their_guards_and_who_gets_what() {
    let node = exposed(|web| web.exposure.source_ranges = vec!["198.51.100.0/24".parse().unwrap()]);
    let denied = asks(&node, "tcp 203.0.113.9:40000 > 203.0.113.5:80");
    says(&denied, DropReason::SourceNotAllowed, "loadBalancerSourceRanges are 198.51.100.0/24");
    let rows = rows::Tables::of(&node).services;
    let balanced = rows.iter().find(|row| row.kind == "load-balancer").unwrap();
    assert_eq!(balanced.outside_backends, Some(vec!["10.244.0.14:8080".parse().unwrap()]));
    assert_eq!((balanced.backends.len(), balanced.source_ranges.len()), (2, 1));
    assert!(balanced.backends.iter().all(|backend| backend.why.is_none()), "{balanced:#?}");
    assert!(rows.iter().any(|row| (row.kind.as_str(), row.port) == ("node-port", 30_080)));
}

#[test]
fn a_trace_commits_nothing() {
    let node = node(|_| ());
    asks(&node, "tcp 10.244.0.14:40000 > 10.106.228.152:80");
    assert!(node.connections.is_empty());
}

#[test]
fn why_a_vip_is_dead_is_answered_no_such_service_or_port() {
    let node = node(|_| ());
    let gone = asks(&node, "udp 10.244.0.14:1 > 10.96.9.9:53");
    says(&gone, DropReason::NoSuchService, "no Service object has the ClusterIP 10.96.9.9");
    let port = asks(&node, "tcp 10.244.0.14:1 > 10.106.228.152:81");
    says(&port, DropReason::UnservedPort, "Service default/web has the address, with port tcp 80");
    assert_eq!(port.advice.len(), 1, "the same fact is told once: {:?}", port.advice);
    let protocol = asks(&node, "udp 10.244.0.14:1 > 10.106.228.152:80");
    says(&protocol, DropReason::UnservedPort, "Service default/web has the address, with port tcp 80");
    assert!(protocol.forward.text.ends_with("The sender gets an ICMP port unreachable."));
}

#[test]
fn why_a_vip_is_dead_is_answered_which_endpoints_exist_and_why_each_is_out() {
    let empty = asks(&node(|_| ()), "tcp 10.244.0.14:1 > 10.106.0.99:80");
    says(&empty, DropReason::NoEndpoint, "Service default/empty has no endpoint for port 80");
    let node = node(|state| {
        let first = endpoint_of(state, "web-m4c9d", 0);
        (first.ready, first.serving) = (false, false);
        let second = endpoint_of(state, "web-m4c9d", 1);
        (second.ready, second.serving, second.terminating) = (false, false, true);
    });
    let report = asks(&node, "tcp 10.244.0.14:1 > 10.106.228.152:80");
    says(&report, DropReason::NoEndpoint, "endpoint 10.244.0.14:8080 on node-a is out: not ready");
    says(
        &report,
        DropReason::NoEndpoint,
        "endpoint 10.244.2.7:8080 on node-b is out: terminating and no longer",
    );
}

#[test]
fn why_a_vip_is_dead_is_answered_no_endpoint_on_this_node() {
    let node = node(|state| {
        let name = crate::cluster::ObjectName::new("default", "web");
        Arc::make_mut(state.services.get_mut(&name).unwrap()).internal_local = true;
        endpoint_of(state, "web-m4c9d", 0).node = Some("node-b".into());
    });
    let report = asks(&node, "tcp 10.244.0.14:1 > 10.106.228.152:80");
    says(&report, DropReason::NoLocalEndpoint, "not on this node, and internalTrafficPolicy is Local");
}

#[test]
fn why_a_vip_is_dead_is_answered_the_backends_node_has_no_annotation() {
    let node = node(|state| {
        let peer = Arc::make_mut(state.nodes.get_mut("node-b").unwrap());
        peer.flannel.vtep_v4 = Announcement::Missing;
    });
    let (_, report) = flow_to(&node, "10.106.228.152:80", "10.244.2.7:8080");
    says(&report, DropReason::NoRoute, "node node-b: it has no flannel annotation backend-data");
    let direct = asks(&node, "udp 10.244.0.14:1 > 10.244.2.7:80");
    says(&direct, DropReason::NoRoute, "node node-b: it has no flannel annotation");

    let services = Tables::of(&node).services;
    let web = services.iter().find(|row| row.name == "default/web:80").unwrap();
    let why: BTreeMap<_, _> =
        web.backends.iter().map(|row| (row.addr.to_string(), row.why.clone())).collect();
    assert_eq!(why["10.244.0.14:8080"], None);
    assert!(why["10.244.2.7:8080"].as_ref().unwrap().contains("no flannel annotation"), "{why:?}");
}

#[test]
fn a_backend_of_a_node_that_is_not_there_is_named() {
    let node = node(|state| endpoint_of(state, "web-m4c9d", 1).addr = [10, 244, 9, 9].into());
    let (_, report) = flow_to(&node, "10.106.228.152:80", "10.244.9.9:8080");
    says(&report, DropReason::NoRoute, "10.244.9.9: it is in no podCIDR of its node node-b");
    let node = self::node(|state| {
        let endpoint = endpoint_of(state, "web-m4c9d", 1);
        (endpoint.addr, endpoint.node) = ([10, 244, 9, 9].into(), Some("node-z".into()));
    });
    let (_, report) = flow_to(&node, "10.106.228.152:80", "10.244.9.9:8080");
    says(&report, DropReason::NoRoute, "its node node-z is not among the Node objects");
}

#[test]
fn a_packet_from_the_underlay_is_judged_by_every_rule_of_admission() {
    let node = node(|_| ());
    const PEER: [u8; 4] = [192, 168, 1, 51];
    let fine = arrives(&node, "udp 10.244.2.7:5 > 10.244.0.14:80", PEER);
    assert_eq!((fine.forward.end, steps(&fine)), (End::Sent, vec!["admission", "route"]));
    assert_eq!(fine.reply.unwrap().end, End::Sent);
    let unknown = arrives(&node, "udp 10.244.2.7:5 > 10.244.0.14:80", [192, 168, 1, 52]);
    says(&unknown, DropReason::UnknownVtep, "known VTEPs: 192.168.1.51 (node-b)");
    let spoofed = arrives(&node, "udp 10.244.3.7:5 > 10.244.0.14:80", PEER);
    says(&spoofed, DropReason::SourceSpoofed, "node node-b may send from 10.244.2.0/24");
    let elsewhere = arrives(&node, "udp 10.244.2.7:5 > 10.244.9.1:80", PEER);
    assert_eq!(elsewhere.forward.reason.as_deref(), Some("destination_not_local"));
    let hex = "4500001c00004000401100000af402070af4000e0005005000080000";
    let arrival = Some(Arrival { from: PEER.into(), vni: None, mac: None, tos: 3 });
    let report =
        trace(&node, &Request { flow: None, hex: Some(hex.to_owned()), arrival, vni: None }).unwrap();
    assert_eq!(report.forward.reason.as_deref(), Some("ecn_illegal"));
}

#[test]
fn a_packet_too_long_is_told_the_length_that_fits() {
    let report = asks(&node(|_| ()), "udp 10.244.0.14:1 > 10.244.2.7:5 len 1451");
    assert_eq!(report.forward.reason.as_deref(), Some("too_big"));
    let expected = "the sender would be told. It has 1451 bytes, and 1450 fit.";
    assert!(report.forward.text.ends_with(expected), "{}", report.forward.text);
}

#[test]
fn a_question_that_cannot_be_understood_is_refused() {
    let node = node(|_| ());
    let refused = |request: Request| trace(&node, &request).unwrap_err().to_string();
    assert!(refused(Request::default()).contains("give either a packet"));
    let arrival = Arrival { from: [1, 1, 1, 1].into(), vni: Some(1 << 24), mac: None, tos: 0 };
    let flow = Some("udp 10.244.2.7:5 > 10.244.0.14:80".to_owned());
    let vni = refused(Request { flow: flow.clone(), hex: None, arrival: Some(arrival.clone()), vni: None });
    assert_eq!(vni, "VNI 16777216 is more than 16777215");
    let arrival = Arrival { vni: None, mac: Some("x".into()), ..arrival };
    assert!(refused(Request { flow, hex: None, arrival: Some(arrival), vni: None }).contains("no MAC like"));
}

#[test]
fn of_bytes_that_are_no_packet_is_said_what_was_expected_and_found() {
    let node = node(|_| ());
    let vxlan = |rest: &str| format!("0800000000100000{}{}", "00".repeat(12), rest);
    let short = "45000100000040004011000001020304";
    let from_pod: &[(&str, &str)] = &[
        ("00", "begins with the digit 4 or 6, found 1 B that begin with 00"),
        ("450000", "expected an IPv4 header of 20 B at least, found 3 B"),
        (&format!("{short}05060708"), "expected 256 B, as the IPv4 header says, found 20 B"),
        ("4f00001c0000400040110000010203040506070800000000", "one that says 60 B of 28 B"),
        ("60000000", "expected an IPv6 header of 40 B, found 4 B"),
        ("4500001800004000400600000102030405060708 00000000", "too short for the protocol that it names"),
    ];
    let from_peer: &[(&str, &str)] = &[
        ("00", "expected a VXLAN header (first byte 08) or an IP packet"),
        ("08000000", "expected a VXLAN and an Ethernet header, 22 B together, found 4 B"),
        (&vxlan("0806"), "found 0806: Windlass carries IP alone"),
        (&vxlan("0800"), "expected an IP packet, found nothing"),
        (&vxlan("080045"), "expected an IPv4 header of 20 B at least, found 1 B"),
        ("45", "expected an IPv4 header of 20 B at least, found 1 B"),
    ];
    for (arrival, cases) in [
        (None, from_pod),
        (Some(Arrival { from: [192, 168, 1, 51].into(), vni: None, mac: None, tos: 0 }), from_peer),
    ] {
        for (hex, expected) in cases {
            let request =
                Request { flow: None, hex: Some((*hex).to_owned()), arrival: arrival.clone(), vni: None };
            let way = trace(&node, &request).unwrap().forward;
            assert_eq!(way.end, End::Dropped);
            assert!(way.text.contains(expected), "{hex}: {}", way.text);
        }
    }
}

#[test]
fn a_ping_names_the_services_that_answer_and_no_route_says_that_there_is_none() {
    let node = node(|_| ());
    let ping = asks(&node, "icmp 10.244.0.14 > 10.106.228.152");
    assert_eq!(ping.forward.end, End::Answered, "{ping:#?}");
    assert_eq!(ping.forward.steps[0].text, "10.106.228.152 is the address of default/web:80 (tcp 80)");
    let nowhere = asks(&node, "udp 10.244.0.14:1 > 10.244.9.9:5");
    says(&nowhere, DropReason::NoRoute, "10.244.9.9");
    let expected = "none: 10.244.9.9 is in the cluster CIDR 10.244.0.0/16, and in no node's podCIDR";
    assert_eq!(nowhere.forward.steps[0].text, expected);
}

#[test]
fn connections_are_shown_with_backend_state_and_timers_and_filtered() {
    let mut node = node(|_| ());
    let flow = |protocol, port| FlowKey {
        src: [10, 244, 0, 14].into(),
        dst: [10, 106, 228, 152].into(),
        protocol,
        src_port: port,
        dst_port: 80,
    };
    for (protocol, port) in [(Protocol::TCP, 40_000), (Protocol::TCP, 40_001), (Protocol::UDP, 40_000)] {
        let original = flow(protocol, port);
        let reply = FlowKey { src: [10, 244, 2, 7].into(), src_port: 8080, ..original.reversed() };
        let connection = Arc::new(Connection::new(original, reply, Instant::ZERO));
        node.connections.insert(&connection, 0).unwrap();
        if port == 40_001 {
            connection.touch(FlowDirection::Reply, 5);
        }
    }
    node.now = Instant::ZERO + Duration::from_secs(15);
    let all = Connections::of(&node, &Filter::default());
    assert_eq!((all.total, all.rows.len(), all.truncated), (3, 3, false));
    let row = &all.rows[1];
    assert_eq!(row.original, "tcp 10.244.0.14:40001 > 10.106.228.152:80");
    assert_eq!(row.translated, "tcp 10.244.0.14:40001 > 10.244.2.7:8080");
    assert_eq!((row.backend.as_str(), row.state.as_str()), ("10.244.2.7:8080", "replied"));
    assert_eq!((row.age_seconds, row.idle_seconds), (15, 10));
    assert_eq!(row.service.as_deref(), Some("default/web:80"));
    let count = |filter: Filter| Connections::of(&node, &filter).rows.len();
    assert_eq!(count(Filter { state: Some("unreplied".into()), ..Filter::default() }), 1);
    assert_eq!(count(Filter { service: Some("web".into()), ..Filter::default() }), 2);
    assert_eq!(count(Filter { addr: Some([10, 244, 2, 7].into()), ..Filter::default() }), 3);
    assert_eq!(count(Filter { addr: Some([10, 244, 2, 8].into()), ..Filter::default() }), 0);
}

#[test]
fn draining_and_lost_endpoints_are_rows_of_their_service() {
    let node = node(|state| {
        let first = endpoint_of(state, "kube-dns-7xk2p", 0);
        (first.ready, first.terminating) = (false, true);
        state.nodes.insert("node-c".into(), Arc::default());
    });
    let tables = Tables::of(&node);
    let dns = tables.services.iter().find(|row| row.name == "kube-system/kube-dns:dns").unwrap();
    let states: Vec<_> = dns.backends.iter().map(|row| (row.state, row.why.as_deref())).collect();
    let draining = (BackendState::Draining, Some("terminating: keeps the flows it has"));
    assert_eq!(states, [draining, (BackendState::Ready, None)]);
    assert!(tables.problems[0].starts_with("Node node-c: it has no flannel annotation"));
    let text = serde_json::to_string(&tables).unwrap();
    assert_eq!(serde_json::from_str::<Tables>(&text).unwrap(), tables);
}
