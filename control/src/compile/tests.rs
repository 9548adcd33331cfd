use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::tables::{Service, WhenEmpty};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{Protocol, Vip};
use windlass_dataplane::wire::vxlan::Vni;

pub(super) use super::Compiled;
use super::*;
use crate::cluster::{Announcement, Endpoint, EndpointSlice, Node, ObjectName};
use crate::node::UnderlayChoice;
use crate::source::manifests::load_text;

const EXAMPLE: &str = include_str!("../../examples/worked-example.yaml");
const PEER_MAC: &str = "00:15:5d:3c:3e:3c";

pub(super) fn example() -> ClusterState {
    load_text("worked-example.yaml", EXAMPLE, "flannel.alpha.coreos.com").unwrap().state
}

pub(crate) fn settings() -> NodeSettings {
    NodeSettings {
        node: "node-a".into(),
        vni: vni(),
        port: 4789,
        underlay: vec![UnderlayChoice { addr: ip("192.168.1.40"), why: String::new() }],
        mac_v4: Some("ce:7a:e5:af:6a:e9".parse().unwrap()),
        mac_v6: None,
        pod_cidrs: vec![net("10.244.0.0/24")],
        cluster_cidrs: vec![net("10.244.0.0/16")],
        service_cidrs: vec![net("10.96.0.0/12")],
        source_vip_v4: "169.254.77.1".parse().unwrap(),
        source_vip_v6: "fd77:6e64:6c61:7373::1".parse().unwrap(),
        overlay_mtu: 1450,
        addresses: vec![ip("192.168.1.40")],
        node_port_addrs: vec![ip("192.168.1.40")],
        zone: None,
        segments: Vec::new(),
    }
}

fn vni() -> Vni {
    Vni::new(4096).unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn mac(text: &str) -> Mac {
    text.parse().unwrap()
}

pub(super) fn service<'a>(compiled: &'a Compiled, addr: &str, port: u16, protocol: Protocol) -> &'a Service {
    compiled.tables.services.lookup(Vip { addr: ip(addr), port, protocol }).unwrap()
}

pub(super) fn backends(service: &Service) -> Vec<String> {
    service.backends.iter().map(ToString::to_string).collect()
}

fn draining(service: &Service) -> Vec<String> {
    service.draining.iter().map(ToString::to_string).collect()
}

pub(super) fn edited(edit: impl FnOnce(&mut ClusterState)) -> Compiled {
    let mut state = example();
    edit(&mut state);
    compile(&state, &settings())
}

fn peer(state: &mut ClusterState) -> &mut crate::cluster::Node {
    Arc::make_mut(state.nodes.get_mut("node-b").unwrap())
}

pub(super) fn web(state: &mut ClusterState) -> &mut crate::cluster::Service {
    Arc::make_mut(state.services.get_mut(&ObjectName::new("default", "web")).unwrap())
}

fn web_slice(state: &mut ClusterState) -> &mut EndpointSlice {
    slice_of(state, "web-m4c9d")
}

pub(super) fn slice_of<'a>(state: &'a mut ClusterState, name: &str) -> &'a mut EndpointSlice {
    Arc::make_mut(state.endpoint_slices.get_mut(&ObjectName::new("default", name)).unwrap())
}

pub(super) fn problem(compiled: &Compiled) -> String {
    let texts: Vec<_> = compiled.problems.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts[0].clone()
}

#[test]
fn the_worked_example_gives_flannels_tables() {
    let compiled = compile(&example(), &settings());
    assert_eq!(compiled.problems, Vec::new());
    let tables = &compiled.tables;
    let gateway = ip("10.244.2.0");
    assert_eq!(tables.neighbors.lookup(vni(), gateway), Some(mac(PEER_MAC)));
    let vtep = tables.fdb.lookup(vni(), mac(PEER_MAC)).unwrap();
    assert_eq!((vtep.node.as_str(), vtep.addr), ("node-b", "192.168.1.51:4789".parse().unwrap()));
    assert_eq!((&vtep.prefixes, &vtep.addresses), (&vec![net("10.244.2.0/24")], &vec![ip("192.168.1.51")]));
    let hop = |addr: &str| tables.routes.lookup(ip(addr)).unwrap().1;
    assert_eq!(hop("10.244.2.7"), NextHop::Remote { vni: vni(), gateway });
    assert_eq!(hop("10.244.0.14"), NextHop::Overlay);
    for host in ["10.244.0.0", "192.168.1.40", "192.168.1.51", "2001:db8::1"] {
        assert_eq!(hop(host), NextHop::Host, "{host}");
    }
    let local = &tables.local;
    assert_eq!(local.base_v4, Some("10.244.0.0".parse().unwrap()));
    assert_eq!(local.vteps[&vni()].mac_v4, Some(mac("ce:7a:e5:af:6a:e9")));
    assert_eq!(local.addresses, vec![ip("192.168.1.40"), ip("10.244.0.0")]);
}

#[test]
fn the_worked_example_gives_its_services() {
    let compiled = compile(&example(), &settings());
    assert_eq!(compiled.tables.services.len(), 5);
    let dns = service(&compiled, "10.96.0.10", 53, Protocol::UDP);
    assert_eq!(
        (dns.name.as_str(), backends(dns)),
        ("kube-system/kube-dns:dns", vec!["10.244.0.2:53".into(), "10.244.2.2:53".into()])
    );
    let tcp = service(&compiled, "10.96.0.10", 53, Protocol::TCP);
    assert_eq!(tcp.name, "kube-system/kube-dns:dns-tcp", "F1: one port number for TCP and UDP");
    let web = service(&compiled, "10.106.228.152", 80, Protocol::TCP);
    assert_eq!(
        (web.name.as_str(), backends(web)),
        ("default/web:80", vec!["10.244.0.14:8080".into(), "10.244.2.7:8080".into()])
    );
    let api = service(&compiled, "10.96.0.1", 443, Protocol::TCP);
    assert_eq!(backends(api), ["192.168.1.40:6443"]);
    let empty = service(&compiled, "10.106.0.99", 80, Protocol::TCP);
    assert_eq!((backends(empty).len(), empty.when_empty), (0, WhenEmpty::Reject), "F3");
}

#[test]
fn both_families_of_a_peer_get_their_own_vtep() {
    let mut state = example();
    let v6 = "3a:00:00:00:00:06";
    let node = peer(&mut state);
    node.pod_cidrs.push(net("fd00:244:2::/64"));
    node.flannel.vtep_v6 = Announcement::Ready { vni: vni(), mac: mac(v6) };
    node.flannel.public_ipv6 = Some(ip("2001:db8::51"));
    let mut settings = settings();
    settings.cluster_cidrs.push(net("fd00:244::/32"));

    let text = problem(&compile(&state, &settings));
    assert!(text.contains("no underlay address of the family of 2001:db8::51"), "{text}");

    settings.underlay.push(UnderlayChoice { addr: ip("2001:db8::40"), why: String::new() });
    let tables = compile(&state, &settings).tables;
    let vtep = tables.fdb.lookup(vni(), mac(v6)).unwrap();
    assert_eq!(vtep.addr, "[2001:db8::51]:4789".parse().unwrap());
    assert_eq!(vtep.prefixes, vec![net("10.244.2.0/24"), net("fd00:244:2::/64")]);
    assert_eq!(tables.neighbors.lookup(vni(), ip("fd00:244:2::")), Some(mac(v6)));
    assert_eq!(tables.fdb.lookup(vni(), mac(PEER_MAC)).unwrap().addr.ip(), ip("192.168.1.51"));

    peer(&mut state).flannel.public_ipv6 = None;
    let tables = compile(&state, &settings).tables;
    assert_eq!(tables.fdb.lookup(vni(), mac(v6)).unwrap().addr, "192.168.1.51:4789".parse().unwrap());
    assert_eq!(tables.fdb.sources(vni(), ip("192.168.1.51")).len(), 2);
}

#[test]
fn peers_that_are_not_ready_are_skipped_and_named_f13() {
    type Edit = fn(&mut crate::cluster::Node);
    let cases: [(Edit, &str); 9] = [
        (
            |node| node.flannel = Default::default(),
            "it has no flannel annotation backend-data; it is skipped",
        ),
        (|node| node.flannel.vtep_v4 = Announcement::NotReady, "empty VtepMAC: it is not ready yet"),
        (|node| node.flannel.vtep_v4 = Announcement::Malformed("x".into()), "cannot be read: x"),
        (|node| node.flannel.backend_type = Some("host-gw".into()), "\"host-gw\", not vxlan"),
        (|node| node.flannel.public_ip = None, "there is no annotation public-ip"),
        (
            |node| node.flannel.public_ip = Some(ip("10.244.9.9")),
            "inside 10.244.0.0/16: an encapsulation loop",
        ),
        (|node| node.flannel.public_ip = Some(ip("192.168.1.40")), "is our own"),
        (|node| node.pod_cidrs.clear(), "it has no podCIDR"),
        (|node| node.pod_cidrs = vec![net("0.0.0.0/0")], "keeps it"),
    ];
    for (edit, expected) in cases {
        let compiled = edited(|state| edit(peer(state)));
        let text = problem(&compiled);
        assert!(text.starts_with("Node node-b: ") && text.contains(expected), "{text}");
        assert!(compiled.tables.fdb.is_empty() && compiled.tables.neighbors.is_empty());
        assert_eq!(compiled.tables.services.len(), 5, "the rest goes on");
    }
    let other_vni = edited(|state| {
        let announcement = Announcement::Ready { vni: Vni::new(1).unwrap(), mac: mac(PEER_MAC) };
        peer(state).flannel.vtep_v4 = announcement;
    });
    assert!(problem(&other_vni).contains("announces VNI 1, and ours is 4096"));
    let outside = edited(|state| peer(state).pod_cidrs = vec![net("10.0.0.0/24")]);
    assert!(problem(&outside).contains("outside the cluster CIDR"));
    let own_mac = edited(|state| {
        let announcement = Announcement::Ready { vni: vni(), mac: mac("ce:7a:e5:af:6a:e9") };
        peer(state).flannel.vtep_v4 = announcement;
    });
    assert!(problem(&own_mac).contains("is our own"));
}

#[test]
fn of_two_nodes_with_one_pod_cidr_the_older_keeps_it_f11() {
    let twin = |created_at: Option<i64>, cidr: &str| {
        edited(|state| {
            let mut node = peer(state).clone();
            node.pod_cidrs = vec![net(cidr)];
            node.created_at = created_at;
            node.flannel.public_ip = Some(ip("192.168.1.52"));
            node.flannel.vtep_v4 = Announcement::Ready { vni: vni(), mac: mac("02:00:00:00:00:52") };
            state.nodes.insert("node-c".into(), node.into());
        })
    };
    let holder = |compiled: &Compiled| {
        let mac = compiled.tables.neighbors.lookup(vni(), ip("10.244.2.0")).unwrap();
        compiled.tables.fdb.lookup(vni(), mac).unwrap().node.clone()
    };
    let younger = twin(Some(i64::MAX), "10.244.2.0/24");
    assert_eq!(holder(&younger), "node-b");
    assert!(
        problem(&younger)
            .starts_with("Node node-c: podCIDR 10.244.2.0/24 is not reachable: node node-b has it")
    );
    assert_eq!(holder(&twin(Some(0), "10.244.2.0/24")), "node-c");
    assert_eq!(holder(&twin(Some(i64::MAX), "10.244.2.128/25")), "node-b", "a part of it");
    assert_eq!(holder(&twin(Some(i64::MAX), "10.244.2.0/23")), "node-b", "more than it");
    let clone = edited(|state| {
        let mut node = peer(state).clone();
        node.pod_cidrs = vec![net("10.244.3.0/24")];
        state.nodes.insert("node-c".into(), node.into());
    });
    assert!(problem(&clone).contains("its VtepMAC 00:15:5d:3c:3e:3c is that of node node-b"));
}

#[test]
fn ready_else_serving_and_terminating_endpoints_are_chosen_f4() {
    let with = |local: (bool, bool, bool), remote: (bool, bool, bool)| {
        edited(|state| {
            for (endpoint, (ready, serving, terminating)) in
                web_slice(state).endpoints.iter_mut().zip([local, remote])
            {
                (endpoint.ready, endpoint.serving, endpoint.terminating) = (ready, serving, terminating);
            }
        })
    };
    let (local, remote) = ("10.244.0.14:8080".to_owned(), "10.244.2.7:8080".to_owned());
    for (states, chosen, still_serving) in [
        (((true, true, false), (false, true, true)), vec![&local], vec![&remote]),
        (((false, false, false), (false, true, true)), vec![&remote], vec![]),
        (((false, false, true), (false, false, true)), vec![], vec![]),
        (((false, true, false), (false, false, false)), vec![], vec![&local]),
    ] {
        let compiled = with(states.0, states.1);
        let web = service(&compiled, "10.106.228.152", 80, Protocol::TCP);
        assert_eq!(backends(web).iter().collect::<Vec<_>>(), chosen, "{states:?}");
        assert_eq!(draining(web).iter().collect::<Vec<_>>(), still_serving, "{states:?}");
        assert_eq!(web.when_empty, WhenEmpty::Reject);
    }
}

#[test]
fn internal_traffic_policy_local_takes_only_our_own_endpoints() {
    let local = edited(|state| web(state).internal_local = true);
    assert_eq!(backends(service(&local, "10.106.228.152", 80, Protocol::TCP)), ["10.244.0.14:8080"]);
    let only_remote = edited(|state| {
        web(state).internal_local = true;
        web_slice(state).endpoints.remove(0);
    });
    let service = service(&only_remote, "10.106.228.152", 80, Protocol::TCP);
    assert_eq!((service.backends.len(), service.when_empty), (0, WhenEmpty::Drop));
}

#[test]
fn duplicates_across_slices_merge_f5() {
    let compiled = edited(|state| {
        let mut moved = web_slice(state).clone();
        moved.endpoints[0].ready = false;
        moved.endpoints.push(Endpoint { addr: ip("10.244.2.8"), ..moved.endpoints[0].clone() });
        moved.endpoints[2].ready = true;
        state.endpoint_slices.insert(ObjectName::new("default", "web-other"), moved.into());
    });
    let web = service(&compiled, "10.106.228.152", 80, Protocol::TCP);
    assert_eq!(backends(web), ["10.244.0.14:8080", "10.244.2.7:8080", "10.244.2.8:8080"]);
    assert_eq!(draining(web), Vec::<String>::new());
}

#[test]
fn affinity_is_carried_over_f2() {
    let hour = Duration::from_secs(3600);
    let compiled = edited(|state| web(state).affinity = Some(hour));
    assert_eq!(service(&compiled, "10.106.228.152", 80, Protocol::TCP).affinity, Some(hour));
}

#[test]
fn services_that_are_not_ours_are_skipped() {
    for label in NOT_OURS_LABELS {
        let labelled = edited(|state| {
            web(state).labels.insert(label.into(), String::new());
        });
        assert_eq!(labelled.tables.services.len(), 4, "{label}");
    }
    assert_eq!(edited(|state| web(state).external_name = true).tables.services.len(), 4);
    assert_eq!(edited(|state| web(state).cluster_ips.clear()).tables.services.len(), 4);
}

const NOT_OURS_LABELS: [&str; 2] =
    ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

#[test]
fn sctp_is_passed_over_and_said_once_d13() {
    let compiled = edited(|state| {
        let service = web(state);
        service.ports[0].protocol = crate::cluster::SCTP;
    });
    assert_eq!(problem(&compiled), "Services: SCTP ports are passed over, in default/web");
    assert_eq!(compiled.tables.services.len(), 4);
}

#[test]
fn a_vip_never_overrides_pods_nodes_or_an_older_service_e7() {
    for (addr, expected) in [
        ("10.244.2.7", "inside the cluster CIDR"),
        ("192.168.1.40", "an address of this node"),
        ("10.96.0.10", ""),
    ] {
        let compiled = edited(|state| {
            web(state).cluster_ips = vec![ip(addr)];
            web(state).ports[0].port = 53;
        });
        let text = problem(&compiled);
        assert!(text.starts_with("Service default/web: ") && text.contains(expected), "{text}");
        assert_eq!(compiled.tables.services.len(), 4);
    }
}

#[test]
fn an_endpoint_inside_the_service_cidr_would_loop_and_is_refused() {
    let compiled = edited(|state| web_slice(state).endpoints[0].addr = ip("10.96.0.1"));
    assert!(problem(&compiled).contains("endpoint 10.96.0.1:8080 is refused"));
    assert_eq!(backends(service(&compiled, "10.106.228.152", 80, Protocol::TCP)), ["10.244.2.7:8080"]);
}

fn routed(settings: &NodeSettings, tables: &TableSet) -> Vec<IpNet> {
    HostSide::new(settings, &tables.services).prefixes()
}

#[test]
fn vips_outside_the_service_cidrs_get_their_own_route() {
    let mut settings = settings();
    let tables = compile(&example(), &settings).tables;
    assert_eq!(routed(&settings, &tables), [net("10.96.0.0/12"), net("10.244.0.0/16")]);
    settings.service_cidrs = vec![net("10.96.0.0/24")];
    assert_eq!(
        routed(&settings, &tables),
        ["10.96.0.0/24", "10.106.0.99/32", "10.106.228.152/32", "10.244.0.0/16"].map(net)
    );
}

#[test]
fn own_pods_are_never_routed_into_the_device() {
    let mut settings = settings();
    // As without any net-conf: the cluster is where the nodes' pods are.
    settings.cluster_cidrs = vec![net("10.244.0.0/24"), net("10.244.2.0/24")];
    let tables = compile(&example(), &settings).tables;
    assert_eq!(settings.pod_cidrs, [net("10.244.0.0/24")]);
    assert_eq!(routed(&settings, &tables), [net("10.96.0.0/12"), net("10.244.2.0/24")]);
}

#[test]
fn a_service_of_a_thousand_ports_and_a_slice_of_a_thousand_addresses_compile() {
    let compiled = edited(|state| {
        let port = web(state).ports[0].clone();
        let numbered = |number: u16| crate::cluster::ServicePort {
            name: format!("p{number}"),
            port: number,
            ..port.clone()
        };
        web(state).ports = (1..=1_000).map(numbered).collect();
        let slice = web_slice(state);
        slice.ports[0].name = "p1000".into();
        let endpoint = slice.endpoints[0].clone();
        let addr = |number: u32| IpAddr::from((0x0af4_0200 + number).to_be_bytes());
        slice.endpoints =
            (0..1_000).map(|number| Endpoint { addr: addr(number), ..endpoint.clone() }).collect();
    });
    assert_eq!(compiled.problems, Vec::new());
    let backends_of = |port| service(&compiled, "10.106.228.152", port, Protocol::TCP).backends.len();
    assert_eq!((backends_of(1_000), backends_of(1)), (1_000, 0));
}

#[test]
fn f12_a_node_that_joins_again_with_another_pod_cidr_is_replaced_whole() {
    let mut state = example();
    let mut compiler = Compiler::new(settings());
    compiler.follow(&state);
    compiler.update();
    let known = state.nodes.remove("node-b").unwrap();
    compiler.follow(&state);
    let without = compiler.update().draft.tables().clone();
    assert_eq!((without.fdb.len(), without.neighbors.iter().count()), (0, 0));
    let mut rejoined = Node::clone(&known);
    rejoined.uid = Some("another".into());
    rejoined.pod_cidrs = vec![net("10.244.7.0/24")];
    state.nodes.insert("node-b".into(), rejoined.into());
    compiler.follow(&state);
    let update = compiler.update();
    let tables = update.draft.tables();
    let remote = |addr: &str| matches!(tables.routes.lookup(ip(addr)), Some((_, NextHop::Remote { .. })));
    assert!(remote("10.244.7.9") && !remote("10.244.2.9"));
    assert_eq!(tables.fdb.iter().next().unwrap().2.prefixes, [net("10.244.7.0/24")]);
    assert_eq!(update.draft.tables(), &compile(&state, &settings()).tables);
}

#[test]
fn ten_thousand_services_with_a_hundred_thousand_endpoints_compile() {
    let mut state = example();
    let (service, slice) = (web(&mut state).clone(), web_slice(&mut state).clone());
    for index in 0..10_000_u32 {
        let name = ObjectName::new("load", format!("s{index}"));
        let vip = IpAddr::from((0x0a60_0000 + 0x1_0000 + index).to_be_bytes());
        let endpoints = (0..10).map(|endpoint| Endpoint {
            addr: IpAddr::from((0x0af4_0000 + (index * 10 + endpoint) % 65_536).to_be_bytes()),
            ..slice.endpoints[0].clone()
        });
        let slice = EndpointSlice {
            service: Some(name.name.to_string()),
            endpoints: endpoints.collect(),
            ..slice.clone()
        };
        state.services.insert(
            name.clone(),
            crate::cluster::Service { cluster_ips: vec![vip], ..service.clone() }.into(),
        );
        state.endpoint_slices.insert(name, slice.into());
    }
    let started = std::time::Instant::now();
    let compiled = compile(&state, &settings());
    println!("compiled in {:?}", started.elapsed());
    assert_eq!(compiled.tables.services.len(), 10_005);
}
