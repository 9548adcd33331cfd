//! Objects and flags that contradict each other.

use std::net::IpAddr;

use super::*;
use crate::cluster::Announcement;

type ClusterCase = (&'static str, &'static [&'static str], fn(&mut ClusterState), (Severity, &'static str));

const CLUSTER_CASES: &[ClusterCase] = &[
    ("--vni against net-conf", &["--vni", "4097"], everyone_has_4097, (Warning, "vni")),
    ("another VNI than all peers", &[], everyone_has_4097, (Error, "vni")),
    ("--underlay-port against net-conf", &["--underlay-port", "8472"], |_| {}, (Warning, "port")),
    ("--cluster-cidr against net-conf", &["--cluster-cidr", "10.244.0.0/17"], |_| {}, (Warning, "network")),
    ("--service-cidr against ServiceCIDR", &["--service-cidr", "10.96.0.0/16"], |_| {}, (Warning, "network")),
    (
        "DirectRouting",
        &[],
        |state| {
            let NetConfState::Present(conf) = &mut state.net_conf else { panic!() };
            conf.direct_routing = true;
        },
        (Error, "direct-routing"),
    ),
    (
        "a VTEP inside the overlay",
        &[],
        |state| peer(state).flannel.public_ip = Some(IpAddr::from([10, 244, 9, 9])),
        (Warning, "vtep-address"),
    ),
    (
        "two nodes of one podCIDR",
        &[],
        |state| {
            let mut twin = peer(state).clone();
            twin.pod_cidrs = vec!["10.244.2.128/25".parse().unwrap()];
            state.nodes.insert("node-c".into(), twin.into());
        },
        (Warning, "pod-cidr-overlap"),
    ),
];

fn everyone_has_4097(state: &mut ClusterState) {
    for (name, node) in &mut state.nodes {
        if let (Announcement::Ready { vni, .. }, "node-b") =
            (&mut Arc::make_mut(node).flannel.vtep_v4, name.as_str())
        {
            *vni = windlass_dataplane::wire::vxlan::Vni::new(4097).unwrap();
        }
    }
}

#[test]
fn each_contradiction_of_objects_and_flags_is_found() {
    for (what, arguments, change, expected) in CLUSTER_CASES {
        let mut cluster = example();
        change(&mut cluster);
        let findings = found(arguments, &cluster, &healthy());
        assert_eq!(
            findings.first().map(|f| (f.severity, f.check.name)),
            Some(*expected),
            "{what}: {findings:?}"
        );
        assert!(!findings[0].remedy.is_empty(), "{what}");
    }
}

#[test]
fn problems_name_checks_that_exist_and_none_is_said_twice() {
    let mut cluster = example();
    let NetConfState::Present(conf) = &mut cluster.net_conf else { panic!() };
    (conf.direct_routing, conf.mtu) = (true, Some(9000));
    let config = config(&[]);
    let (_, problems) = node::resolve(&cluster, &config, &healthy().host).unwrap();
    assert!(problems.iter().all(|problem| ALL.iter().any(|check| check.name == problem.check)));
    let names = named(&found(&[], &cluster, &healthy()));
    assert_eq!(names, [(Error, "direct-routing"), (Warning, "mtu")]);
}
