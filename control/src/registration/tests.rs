use super::*;
use crate::cluster::{Announcement, ClusterState};
use crate::config::{Config, settings};
use crate::node::{self, HostFacts};
use crate::source::manifests::load_text;

const PREFIX: &str = "flannel.alpha.coreos.com";

const CLUSTER: &str = r#"
apiVersion: v1
kind: Node
metadata: {name: n1, uid: u1}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24, "fd00:244:0:1::/64"]}
status: {addresses: [{type: InternalIP, address: 192.168.1.40}, {type: InternalIP, address: "fd00:1::40"}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-flannel-cfg, namespace: kube-flannel}
data:
  net-conf.json: '{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan","VNI":4096,"Port":4789}}'
"#;

struct AnyHost;

impl HostFacts for AnyHost {
    fn default_route_addr(&self, _ipv6: bool) -> Option<IpAddr> {
        None
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        addr.to_string() != "203.0.113.9"
    }

    fn mtu(&self, _addr: IpAddr) -> Option<u32> {
        Some(1500)
    }
}

fn state(text: &str) -> ClusterState {
    load_text("cluster.yaml", text, PREFIX).unwrap().state
}

/// What a node with these MACs runs with.
fn registered(mut state: ClusterState, vteps: Vteps) -> (ClusterState, NodeSettings) {
    let config = settings::from_arguments(["--node", "n1"]).unwrap();
    let config = Config::new(&config, || None).unwrap();
    let vni = node::vni(&state, &config);
    OwnNode::new("n1", &state.nodes["n1"].clone(), vteps).impose(&mut state, vni);
    let (settings, problems) = node::resolve(&state, &config, &AnyHost).unwrap();
    assert_eq!(problems, []);
    (state, settings)
}

fn vteps() -> Vteps {
    let mac = |text: &str| text.parse().ok();
    Vteps { mac_v4: mac("ce:7a:e5:af:6a:e9"), mac_v6: mac("ce:7a:e5:af:6a:ea") }
}

#[test]
fn annotations_are_flannels_byte_for_byte() {
    let (state, settings) = registered(state(CLUSTER), vteps());
    let annotations = annotations(PREFIX, &state.nodes["n1"], &settings);
    let expected = [
        ("backend-data", r#"{"VNI":4096,"VtepMAC":"ce:7a:e5:af:6a:e9"}"#),
        ("backend-type", "vxlan"),
        ("backend-v6-data", r#"{"VNI":4096,"VtepMAC":"ce:7a:e5:af:6a:ea"}"#),
        ("kube-subnet-manager", "true"),
        ("public-ip", "192.168.1.40"),
        ("public-ipv6", "fd00:1::40"),
    ];
    let expected = expected.map(|(name, text)| (format!("{PREFIX}/{name}"), text.to_owned()));
    assert_eq!(annotations, BTreeMap::from(expected));
}

#[test]
fn an_operators_address_is_announced_in_place_of_the_underlays() {
    for (name, addr) in [("node-public-ip", "203.0.113.9"), ("public-ip-overwrite", "203.0.113.9")] {
        let text = CLUSTER.replace("uid: u1", &format!("uid: u1, annotations: {{{PREFIX}/{name}: {addr}}}"));
        let (state, settings) = registered(state(&text), vteps());
        let annotations = annotations(PREFIX, &state.nodes["n1"], &settings);
        assert_eq!(annotations[&format!("{PREFIX}/public-ip")], addr);
        assert_eq!(settings.underlay[0].addr.to_string(), "192.168.1.40");
    }
}

#[test]
fn subnet_env_has_every_key_that_the_plugin_wants() {
    let (_, settings) = registered(state(CLUSTER), vteps());
    let expected = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n\
                    FLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:1::1/64\n\
                    FLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n";
    assert_eq!(subnet_env(&settings, true), expected);
    assert!(
        subnet_env(&settings, false).ends_with("FLANNEL_IPMASQ=false\n"),
        "the bridge plugin masquerades"
    );
}

#[test]
fn the_condition_says_what_flannel_says() {
    let patch = network_available_patch(Timestamp::from_second(1_700_000_000).unwrap());
    let expected = json!({ "status": { "conditions": [{
        "type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp",
        "message": "Flannel is running on this node",
        "lastHeartbeatTime": "2023-11-14T22:13:20Z", "lastTransitionTime": "2023-11-14T22:13:20Z",
    }] } });
    assert_eq!(patch, expected);
}

#[test]
fn a_mac_is_kept_by_the_annotation_then_by_the_state_dir_and_else_made() {
    let mut node = Node::clone(&state(CLUSTER).nodes["n1"]);
    let made = Vteps::of(&node, None);
    let [first, ..] = made.mac_v4.unwrap().0;
    assert_eq!(first & 3, 2, "locally administered and unicast");
    assert!(made.mac_v4 != made.mac_v6 && made != Vteps::of(&node, None));

    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("new");
    assert_eq!(Kept::read(&folder, "n1", &node), Ok(None));
    Kept::new("n1", &node, made).write(&folder).unwrap();
    let kept = Kept::read(&folder, "n1", &node).unwrap();
    assert_eq!(Vteps::of(&node, kept.as_ref()), made);

    node.flannel.vtep_v4 = Announcement::NotReady;
    assert_eq!(Vteps::of(&node, kept.as_ref()), made);
    let announced = vteps().mac_v4.unwrap();
    node.flannel.vtep_v4 = Announcement::Ready { vni: settings_vni(), mac: announced };
    assert_eq!(Vteps::of(&node, kept.as_ref()), Vteps { mac_v4: Some(announced), ..made });
}

fn settings_vni() -> windlass_dataplane::wire::vxlan::Vni {
    registered(state(CLUSTER), vteps()).1.vni
}

#[test]
fn what_was_kept_of_another_node_or_podcidr_is_discarded() {
    let node = Node::clone(&state(CLUSTER).nodes["n1"]);
    let folder = tempfile::tempdir().unwrap();
    Kept::new("n1", &node, vteps()).write(folder.path()).unwrap();
    let rejoined = Node { uid: Some("u2".to_owned()), ..node.clone() };
    let moved = Node { pod_cidrs: vec!["10.244.9.0/24".parse().unwrap()], ..node.clone() };
    for (name, other) in [("n2", &node), ("n1", &rejoined), ("n1", &moved)] {
        let said = Kept::read(folder.path(), name, other).unwrap_err();
        assert!(said.contains("node.json") && said.contains("discarded"), "{said}");
    }
    std::fs::write(folder.path().join("node.json"), "{").unwrap();
    assert!(Kept::read(folder.path(), "n1", &node).is_err());
}

#[test]
fn a_node_without_ipv6_pods_announces_no_ipv6() {
    let text = CLUSTER.replace(r#", "fd00:244:0:1::/64""#, "");
    let made = Vteps::of(&state(&text).nodes["n1"], None);
    assert_eq!(made.mac_v6, None);
    let (state, settings) = registered(state(&text), made);
    let annotations = annotations(PREFIX, &state.nodes["n1"], &settings);
    assert!(annotations.keys().all(|name| !name.contains("v6")), "{annotations:?}");
    assert!(!subnet_env(&settings, true).contains("IPV6"));
}

#[test]
fn our_own_node_holds_whatever_becomes_of_it() {
    let (before, settings) = registered(state(CLUSTER), vteps());
    let mut own = OwnNode::new("n1", &before.nodes["n1"], vteps());
    let mut same = before.clone();
    assert_eq!(own.impose(&mut same, settings.vni), Drift::default());

    let mut gone = before.clone();
    gone.nodes.clear();
    let drift = own.impose(&mut gone, settings.vni);
    assert!(drift.problems[0].text.contains("gone from the cluster") && !drift.is_to_be_written);
    assert_eq!(gone.nodes, before.nodes);

    let mut rejoined = state(CLUSTER.replace("uid: u1", "uid: u2").as_str());
    let drift = own.impose(&mut rejoined, settings.vni);
    assert!(drift.is_to_be_written);
    assert_eq!(rejoined.nodes["n1"].flannel, before.nodes["n1"].flannel);

    let mut bare = state("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n");
    let drift = own.impose(&mut bare, settings.vni);
    assert!(drift.problems[0].text.contains("--allocate-node-cidrs"));
    assert_eq!(bare.nodes["n1"].pod_cidrs, before.nodes["n1"].pod_cidrs);
}
