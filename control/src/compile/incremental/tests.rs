//! Whatever a compiler has seen before, it comes to what [`compile`] makes of the state, and what it names as
//! touched is all that differs.

use std::net::IpAddr;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use windlass_dataplane::tables::{Entry, ForwardingTables, NextHop, TableSet, Writer};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

use super::*;
use crate::cluster::{Announcement, Endpoint, EndpointPort, Exposure, Flannel, SCTP, ServicePort};
use crate::compile::{HostSide, compile};
use crate::node::UnderlayChoice;
use crate::source::manifests;

/// One change of a cluster in which everybody is after the same few addresses.
#[derive(Clone, Debug)]
enum Edit {
    Node(String, Option<Node>),
    Service(ObjectName, Option<Service>),
    Slice(ObjectName, Option<EndpointSlice>),
    Settings(NodeSettings),
}

/// Podcidrs that hold one another, our own, and one outside the cluster.
const POD_CIDRS: [&str; 8] = [
    "10.244.0.0/24",
    "10.244.1.0/24",
    "10.244.1.128/25",
    "10.244.2.0/24",
    "10.244.2.0/23",
    "10.244.3.7/32",
    "10.9.0.0/24",
    "fd00:244:1::/64",
];

/// ClusterIPs: two good ones, one of each family, one inside the cluster CIDR and one of this node.
const CLUSTER_IPS: [&str; 5] = ["10.96.0.1", "10.96.0.2", "fd00:96::1", "10.244.2.2", "10.244.3.7"];

/// Addresses outside the cluster: two good ones, and one that a node may have.
const EXTERNAL_IPS: [&str; 3] = ["203.0.113.1", "203.0.113.2", "192.168.1.43"];

/// Endpoints, one inside the service CIDR.
const ENDPOINTS: [&str; 5] = ["10.244.1.2", "10.244.2.3", "192.168.1.9", "10.96.0.9", "fd00:244:1::2"];

fn vni() -> Vni {
    Vni::new(1).unwrap()
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn settings() -> NodeSettings {
    let underlay = |addr| UnderlayChoice { addr, why: String::new() };
    NodeSettings {
        node: "n0".into(),
        vni: vni(),
        port: 8472,
        underlay: ips(&["192.168.1.40", "2001:db8::40"]).into_iter().map(underlay).collect(),
        mac_v4: Some(Mac([2, 0, 0, 0, 0, 0])),
        mac_v6: None,
        pod_cidrs: nets(&["10.244.0.0/24"]),
        cluster_cidrs: nets(&["10.244.0.0/16", "fd00:244::/32"]),
        service_cidrs: nets(&["10.96.0.0/12"]),
        source_vip_v4: "169.254.77.1".parse().unwrap(),
        source_vip_v6: "fd77::1".parse().unwrap(),
        overlay_mtu: 1450,
        // The second one is inside a podCIDR that a peer may have.
        addresses: ips(&["192.168.1.40", "10.244.3.7"]),
        node_port_addrs: ips(&["192.168.1.40"]),
        zone: None,
        segments: Vec::new(),
    }
}

fn any_settings() -> impl Strategy<Value = NodeSettings> {
    let cluster = subsequence(vec!["10.244.0.0/16", "fd00:244::/32", "10.9.0.0/16"], 1..=3);
    let service = subsequence(vec!["10.96.0.0/12"], 0..=1);
    let pods = select(vec!["10.244.0.0/24", "10.244.2.0/25"]);
    (cluster, service, pods, 1..3_u32, any::<bool>()).prop_map(|(cluster, service, pods, vni, address)| {
        let mut settings = NodeSettings {
            cluster_cidrs: nets(&cluster),
            service_cidrs: nets(&service),
            pod_cidrs: nets(&[pods]),
            vni: Vni::new(vni).unwrap(),
            ..settings()
        };
        settings.addresses.truncate(if address { 2 } else { 1 });
        settings
    })
}

fn any_vtep() -> impl Strategy<Value = Announcement> {
    (0..16_u8, 0..5_u8).prop_map(|(kind, mac)| match kind {
        0 => Announcement::Missing,
        1 => Announcement::NotReady,
        _ => Announcement::Ready { vni: vni(), mac: Mac([2, 0, 0, 0, 0, mac]) },
    })
}

fn any_node() -> impl Strategy<Value = Node> {
    let pod_cidrs = subsequence(POD_CIDRS.to_vec(), 0..=2);
    let age = proptest::option::of(0..3_i64);
    (pod_cidrs, age, any_vtep(), any_vtep(), 0..8_u8).prop_map(|(pod_cidrs, created_at, v4, v6, host)| Node {
        created_at,
        pod_cidrs: nets(&pod_cidrs),
        flannel: Flannel {
            vtep_v4: v4,
            vtep_v6: v6,
            public_ip: Some([192, 168, 1, 40 + host].into()),
            ..Flannel::default()
        },
        ..Node::default()
    })
}

fn any_service() -> impl Strategy<Value = Service> {
    let port = |(name, protocol, node_port): (&str, Protocol, Option<u16>)| ServicePort {
        name: name.into(),
        protocol,
        port: 80,
        node_port,
    };
    let ports = vec![
        port(("http", Protocol::TCP, Some(30_080))),
        port(("again", Protocol::TCP, Some(30_081))),
        port(("", Protocol::UDP, None)),
        port(("sctp", SCTP, Some(30_082))),
    ];
    let cluster_ips = subsequence(CLUSTER_IPS.to_vec(), 0..=2);
    let age = proptest::option::of(0..3_i64);
    let of_others = proptest::bool::weighted(0.1);
    (cluster_ips, subsequence(ports, 0..=4), age, of_others, any::<bool>(), any_exposure()).prop_map(
        |(cluster_ips, ports, created_at, external_name, internal_local, exposure)| Service {
            created_at,
            cluster_ips: ips(&cluster_ips),
            ports,
            external_name,
            internal_local,
            exposure,
            ..Service::default()
        },
    )
}

fn any_exposure() -> impl Strategy<Value = Exposure> {
    let addrs = || subsequence(EXTERNAL_IPS.to_vec(), 0..=2);
    (any::<bool>(), addrs(), addrs()).prop_map(|(local, external, balanced)| Exposure {
        local,
        external_ips: ips(&external),
        load_balancer_ips: ips(&balanced),
        ..Exposure::default()
    })
}

fn any_slice() -> impl Strategy<Value = EndpointSlice> {
    let service = proptest::option::of((0..5_u8).prop_map(|number| format!("s{number}")));
    let names = subsequence(vec!["http", "again", ""], 0..=3);
    let endpoints = subsequence(ENDPOINTS.to_vec(), 0..=4);
    (service, names, endpoints, any::<[bool; 2]>()).prop_map(
        |(service, names, endpoints, [ready, serving])| {
            let port = |name: &str| {
                let protocol = if name.is_empty() { Protocol::UDP } else { Protocol::TCP };
                EndpointPort { name: name.into(), protocol, port: 8080 }
            };
            let endpoint = |addr: IpAddr| Endpoint {
                addr,
                node: Some("n0".into()),
                ready,
                serving,
                terminating: !ready,
                hints: None,
            };
            EndpointSlice {
                service,
                ipv6: false,
                ports: names.into_iter().map(port).collect(),
                endpoints: ips(&endpoints).into_iter().map(endpoint).collect(),
            }
        },
    )
}

fn any_node_edit() -> impl Strategy<Value = Edit> {
    (0..7_u8, proptest::option::weighted(0.8, any_node()))
        .prop_map(|(number, node)| Edit::Node(format!("n{number}"), node))
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let object = |prefix: &'static str| {
        (0..5_u8).prop_map(move |number| ObjectName::new("d", format!("{prefix}{number}")))
    };
    let service = (object("s"), proptest::option::weighted(0.8, any_service()));
    let slice = (object("e"), proptest::option::weighted(0.8, any_slice()));
    prop_oneof![
        6 => any_node_edit(),
        6 => service.prop_map(|(name, service)| Edit::Service(name, service)),
        6 => slice.prop_map(|(name, slice)| Edit::Slice(name, slice)),
        1 => any_settings().prop_map(Edit::Settings),
    ]
}

/// Edits that are compiled together, and whether they are given one by one.
type Batch = (Vec<Edit>, bool);

fn batches(edit: impl Strategy<Value = Edit>) -> impl Strategy<Value = Vec<Batch>> {
    proptest::collection::vec((proptest::collection::vec(edit, 1..4), any::<bool>()), 1..40)
}

/// A compiler with its past beside the state that it should mirror.
struct Pair {
    state: ClusterState,
    settings: NodeSettings,
    compiler: Compiler,
    /// What is published by what was touched.
    by_draft: Writer,
    /// What is published by comparing everything.
    by_comparison: Writer,
    side: HostSide,
}

impl Pair {
    fn new() -> Self {
        Self {
            state: ClusterState::default(),
            settings: settings(),
            compiler: Compiler::new(settings()),
            by_draft: Writer::default(),
            by_comparison: Writer::default(),
            side: HostSide::default(),
        }
    }

    /// Edits the state and, `one_by_one`, tells the compiler.
    fn edit(&mut self, edit: Edit, one_by_one: bool) {
        match edit {
            Edit::Node(name, node) => {
                let node = node.map(Arc::new);
                set(&mut self.state.nodes, name.clone(), node.clone());
                if one_by_one {
                    self.compiler.set_node(&name, node);
                }
            }
            Edit::Service(name, service) => {
                let service = service.map(Arc::new);
                set(&mut self.state.services, name.clone(), service.clone());
                if one_by_one {
                    self.compiler.set_service(&name, service);
                }
            }
            Edit::Slice(name, slice) => {
                let slice = slice.map(Arc::new);
                set(&mut self.state.endpoint_slices, name.clone(), slice.clone());
                if one_by_one {
                    self.compiler.set_endpoint_slice(&name, slice);
                }
            }
            Edit::Settings(settings) => {
                self.compiler.set_settings(&settings);
                self.settings = settings;
            }
        }
    }

    fn assert_equal(&mut self) {
        let expected = compile(&self.state, &self.settings);
        let update = self.compiler.update();
        assert_eq!(*update.draft.tables(), expected.tables);
        assert_eq!(update.problems, expected.problems);
        let before = [self.by_draft.current(), self.by_comparison.current()];
        let after =
            [self.by_draft.publish_draft(&update.draft), self.by_comparison.publish(expected.tables.clone())];
        let side = HostSide::new(&self.settings, after[0].services());
        let was = (self.side.prefixes(), self.side.entrances().clone());
        let has_changed = self.side.follow(&self.settings, &before[0], &after[0], update.draft.touched());
        let is = (self.side.prefixes(), self.side.entrances().clone());
        assert_eq!(is, (side.prefixes(), side.entrances().clone()));
        assert!(has_changed || was == is, "the host is told of every change");
        for entry in all_entries(&expected.tables) {
            let stays = |index: usize| is_as_it_was(&before[index], &after[index], entry);
            assert_eq!(stays(0), stays(1), "{entry:?}");
        }
    }
}

/// Whether a flow that depends on an entry still may; `None` when the entry is new.
fn is_as_it_was(before: &ForwardingTables, after: &ForwardingTables, entry: Entry) -> Option<bool> {
    before.dependency(&entry).map(|dependency| after.epochs().is_current(dependency))
}

fn all_entries(set: &TableSet) -> Vec<Entry> {
    let mut entries = vec![Entry::Local];
    entries.extend(set.routes.iter().map(|(prefix, _)| Entry::Route(prefix)));
    entries.extend(set.neighbors.iter().map(|(vni, addr, _)| Entry::Neighbor(vni, addr)));
    entries.extend(set.fdb.iter().map(|(vni, mac, _)| Entry::Fdb(vni, mac)));
    entries.extend(set.fdb.iter_sources().map(|(vni, addr, _)| Entry::Source(vni, addr)));
    entries.extend(set.services.iter().map(|service| Entry::Service(service.vip)));
    entries
}

fn assert_equal_after_each(batches: Vec<Batch>) {
    let mut pair = Pair::new();
    for (edits, one_by_one) in batches {
        for edit in edits {
            pair.edit(edit, one_by_one);
        }
        if !one_by_one {
            pair.compiler.follow(&pair.state);
        }
        pair.assert_equal();
    }
}

proptest! {
    #[test]
    fn an_update_equals_compiling_from_nothing(batches in batches(any_edit())) {
        assert_equal_after_each(batches);
    }

    #[test]
    fn an_update_of_nodes_that_contend_equals_compiling_from_nothing(batches in batches(any_node_edit())) {
        assert_equal_after_each(batches);
    }
}

/// The oldest takes the VtepMAC of the second, whose podCIDR the third had wanted in vain.
#[test]
fn a_change_reaches_those_whom_it_concerns_through_others() {
    let node = |created_at, mac, cidr| {
        let vtep_v4 = Announcement::Ready { vni: vni(), mac: Mac([2, 0, 0, 0, 0, mac]) };
        let flannel =
            Flannel { vtep_v4, public_ip: Some([192, 168, 1, 50 + mac].into()), ..Flannel::default() };
        Node { created_at: Some(created_at), pod_cidrs: nets(&[cidr]), flannel, ..Node::default() }
    };
    let mut pair = Pair::new();
    pair.edit(Edit::Node("second".into(), Some(node(2, 2, "10.244.2.0/24"))), true);
    pair.edit(Edit::Node("third".into(), Some(node(3, 3, "10.244.2.0/24"))), true);
    pair.assert_equal();
    assert_eq!(holder(&pair.by_draft.current()), "second");
    pair.edit(Edit::Node("first".into(), Some(node(1, 2, "10.244.1.0/24"))), true);
    pair.assert_equal();
    assert_eq!(holder(&pair.by_draft.current()), "third");
}

/// What `windlass run` does at a reload, but for the devices.
struct Reloading {
    folder: tempfile::TempDir,
    state: ClusterState,
    compiler: Compiler,
    writer: Writer,
}

impl Reloading {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), include_str!("../../../examples/worked-example.yaml"))
            .unwrap();
        let settings = NodeSettings { node: "node-a".into(), vni: Vni::new(4096).unwrap(), ..settings() };
        let compiler = Compiler::new(settings);
        Self { folder, state: ClusterState::default(), compiler, writer: Writer::default() }
    }

    fn reload(&mut self) -> (Arc<ForwardingTables>, Vec<String>) {
        let paths = [self.folder.path().to_owned()];
        let mut loaded = manifests::Manifests::new(&paths, "flannel.alpha.coreos.com").read().unwrap();
        loaded.keep_last_good(&self.state);
        loaded.state.keep_unchanged(&self.state);
        self.state = loaded.state;
        self.compiler.follow(&self.state);
        let update = self.compiler.update();
        let problems = update.problems.iter().map(ToString::to_string).collect();
        (self.writer.publish_draft(&update.draft), problems)
    }

    /// A file with a twin of node-b: its podCIDR, another VTEP.
    fn write_twin(&self, created: &str) {
        let twin = format!(
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: twin\n  creationTimestamp: {created}\n  annotations:\n    \
             flannel.alpha.coreos.com/backend-type: vxlan\n    \
             flannel.alpha.coreos.com/backend-data: '{{\"VNI\":4096,\"VtepMAC\":\"02:00:00:00:00:99\"}}'\n    \
             flannel.alpha.coreos.com/public-ip: 192.168.1.99\nspec: {{podCIDR: 10.244.2.0/24}}\n"
        );
        std::fs::write(self.twin(), twin).unwrap();
    }

    fn twin(&self) -> std::path::PathBuf {
        self.folder.path().join("twin.yaml")
    }
}

/// Who is behind 10.244.2.0/24, by route, neighbor and FDB.
fn holder(tables: &ForwardingTables) -> String {
    let (_, hop) = tables.routes().lookup("10.244.2.7".parse().unwrap()).unwrap();
    let NextHop::Remote { vni, gateway } = hop else { panic!("{hop:?}") };
    let mac = tables.neighbors().lookup(vni, gateway).unwrap();
    tables.fdb().lookup(vni, mac).unwrap().node.clone()
}

#[test]
fn f11_a_duplicate_pod_cidr_that_comes_and_goes_leaves_the_first_holders_route() {
    let mut node = Reloading::new();
    let (start, problems) = node.reload();
    assert_eq!((holder(&start).as_str(), problems.len()), ("node-b", 0));
    let route = Entry::Route("10.244.2.0/24".parse().unwrap());
    let known = start.dependency(&route).unwrap();
    node.write_twin("2031-01-01T00:00:00Z");
    let (with_twin, problems) = node.reload();
    assert_eq!(holder(&with_twin), "node-b");
    assert_eq!(
        problems,
        [
            "Node twin: podCIDR 10.244.2.0/24 is not reachable: node node-b has it, or a part of it, and keeps it; \
             kubectl delete node twin (or node-b, if that one is wrong), and let it join again for a podCIDR of its own"
        ]
    );
    std::fs::remove_file(node.twin()).unwrap();
    let (without, problems) = node.reload();
    assert_eq!((holder(&without).as_str(), problems.len()), ("node-b", 0));
    assert!(
        with_twin.epochs().is_current(known) && without.epochs().is_current(known),
        "no flow is decided again"
    );
    assert_eq!(without.fdb(), start.fdb());
}

#[test]
fn f11_when_the_first_holder_goes_the_duplicate_takes_over() {
    let mut node = Reloading::new();
    node.write_twin("1999-01-01T00:00:00Z");
    let (tables, problems) = node.reload();
    assert_eq!(holder(&tables), "twin");
    assert!(problems[0].starts_with("Node node-b: podCIDR 10.244.2.0/24"), "{problems:?}");
    std::fs::remove_file(node.twin()).unwrap();
    let (tables, problems) = node.reload();
    assert_eq!((holder(&tables).as_str(), problems.len()), ("node-b", 0));
}

#[test]
fn what_does_not_change_stays_the_very_same() {
    let mut node = Reloading::new();
    let (start, _) = node.reload();
    let objects = node.state.clone();
    node.write_twin("2031-01-01T00:00:00Z");
    let (tables, _) = node.reload();
    assert!(std::ptr::eq(start.services(), tables.services()));
    let (name, slice) = objects.endpoint_slices.first_key_value().unwrap();
    assert!(Arc::ptr_eq(slice, &node.state.endpoint_slices[name]));
    let mtu_of = |tables: &ForwardingTables| tables.fdb().iter().next().unwrap().2.path_mtu.clone();
    let now = windlass_dataplane::time::Instant::ZERO;
    mtu_of(&tables).learn([192, 168, 1, 51].into(), 1400, now);
    let wider = NodeSettings { port: 4789, ..node.compiler.settings.clone() };
    node.compiler.set_settings(&NodeSettings { overlay_mtu: 1400, ..node.compiler.settings.clone() });
    assert_eq!(
        mtu_of(&node.reload().0).get(now),
        Some(1400),
        "what was learned of a path outlives new settings"
    );
    node.compiler.set_settings(&wider);
    assert_eq!(mtu_of(&node.reload().0).get(now), None, "another VTEP is another path");
}
