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
fn an_external_address_on_an_interface_of_this_host_is_named_with_its_service() {
    let mut cluster = example();
    let (name, service) = cluster.services.iter_mut().next().unwrap();
    let exposure = &mut Arc::make_mut(service).exposure;
    exposure.external_ips = vec!["203.0.113.7".parse().unwrap(), "10.244.0.1".parse().unwrap()];
    exposure.load_balancer_ips = vec!["203.0.113.8".parse().unwrap()];
    let name = name.to_string();
    let mut facts = healthy();
    let addresses = facts.host.addresses.as_mut().unwrap();
    addresses.extend([local("eth1", 4, "203.0.113.8", 1500), local("lo", 1, "203.0.113.9", 65536)]);
    let findings = found(&[], &cluster, &facts);
    let said: Vec<_> = findings.iter().filter(|finding| finding.check.name == "external-address").collect();
    assert_eq!(said.len(), 2, "{findings:?}");
    assert!(said[0].seen.contains("10.244.0.1") && said[0].seen.contains("cni0"), "{said:?}");
    for word in ["load-balancer address 203.0.113.8", name.as_str(), "interface eth1"] {
        assert!(said[1].seen.contains(word), "{said:?}");
    }
    assert_eq!(said[1].remedy, "ip addr del 203.0.113.8/24 dev eth1, or give the service another address");
}

#[test]
fn two_nodes_of_one_pod_cidr_are_named_with_the_one_that_is_served() {
    for (created_at, older, younger) in [(None, "node-c", "node-b"), (Some(i64::MAX), "node-b", "node-c")] {
        let mut cluster = example();
        let mut twin = peer(&mut cluster).clone();
        twin.created_at = created_at;
        cluster.nodes.insert("node-c".into(), twin.into());
        let findings = found(&[], &cluster, &healthy());
        let finding = findings.iter().find(|finding| finding.check.name == "pod-cidr-overlap").unwrap();
        assert!(finding.seen.ends_with(&format!(": {older}, the older, is served")), "{finding:?}");
        assert!(
            finding.remedy.starts_with(&format!("kubectl delete node {younger} (or {older},")),
            "{finding:?}"
        );
    }
}

#[test]
fn a_clock_that_is_late_is_told_by_how_much_and_how_to_set_it() {
    let mut cluster = example();
    let mut facts = healthy();
    peer(&mut cluster).created_at = Some(NOON_2026);
    for (late, is_said) in [(299, false), (301, true)] {
        facts.host.clock = NOON_2026 - late;
        let findings = found(&[], &cluster, &facts);
        let said = findings.iter().find(|finding| finding.check.name == "clock");
        assert_eq!(said.is_some(), is_said, "{findings:?}");
        if let Some(finding) = said {
            assert!(finding.seen.contains("301 s before"), "{finding:?}");
            assert_eq!(finding.remedy, "timedatectl set-ntp true");
        }
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
