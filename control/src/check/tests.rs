mod cluster;
mod host;
mod rules;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use windlass_dataplane::device::LocalAddress;
use windlass_dataplane::device::survey::{
    KernelOffload, OffloadState, SurveyedLink, SurveyedProcess, SurveyedRoute,
};

use super::*;
use crate::cluster::{NetConfState, Node};
use crate::compile::compile;
use crate::config::settings;
use crate::node;
use crate::source::manifests::load_text;

const EXAMPLE: &str = include_str!("../../examples/worked-example.yaml");
const NOON_2026: i64 = 1_780_000_000;

fn example() -> ClusterState {
    load_text("worked-example.yaml", EXAMPLE, "flannel.alpha.coreos.com").unwrap().state
}

fn config(arguments: &[&str]) -> Config {
    let settings = settings::from_arguments(arguments.iter().copied()).unwrap();
    Config::new(&settings, || Some("node-a".into())).unwrap()
}

fn local(interface: &str, index: u32, address: &str, mtu: u32) -> LocalAddress {
    let address = address.parse().unwrap();
    LocalAddress { interface: interface.to_owned(), index, address, prefix_len: 24, mtu }
}

fn link(name: &str, index: u32, mtu: u32) -> SurveyedLink {
    SurveyedLink { name: name.to_owned(), index, mtu, ..SurveyedLink::default() }
}

fn vxlan(name: &str, vni: u32, port: u16) -> SurveyedLink {
    let (vxlan_vni, vxlan_port) = (Some(vni), Some(port));
    SurveyedLink { kind: Some("vxlan".into()), vxlan_vni, vxlan_port, ..link(name, 9, 1450) }
}

fn route(destination: &str, interface: &str) -> SurveyedRoute {
    SurveyedRoute {
        destination: destination.parse().unwrap(),
        interface: Some(interface.to_owned()),
        gateway: None,
        ours: false,
        advertised: false,
    }
}

/// The worked example's node-a with cni0 and a firewall that accepts everything.
fn healthy() -> Facts {
    let sysctl = |path: &str, value: &str| (path.to_owned(), value.to_owned());
    let host = Survey {
        net_admin: Ok(true),
        tun: Ok(true),
        windows: None,
        nft: Ok(true),
        ruleset: Ok(r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}]}"#.to_owned()),
        iptables_rules: Ok(String::new()),
        ipvs: Ok(Vec::new()),
        kernel_offloads: Vec::new(),
        links: Ok(vec![link("lo", 1, 65536), link("eth0", 2, 1500), link("cni0", 3, 1450)]),
        addresses: Ok(vec![local("eth0", 2, "192.168.1.40", 1500), local("cni0", 3, "10.244.0.1", 1450)]),
        default_routes: Ok(vec!["192.168.1.40".parse().unwrap()]),
        routes: Ok(vec![
            route("0.0.0.0/0", "eth0"),
            route("192.168.1.0/24", "eth0"),
            route("10.244.0.0/24", "cni0"),
        ]),
        processes: Ok(vec![SurveyedProcess { id: 1, name: "systemd".into(), is_here: true }]),
        tcp_holders: Ok(BTreeMap::new()),
        sysctls: BTreeMap::from([
            sysctl("net/ipv4/ip_forward", "1"),
            sysctl("net/ipv4/conf/all/rp_filter", "1"),
            sysctl("net/ipv6/conf/all/forwarding", "0"),
            sysctl("net/bridge/bridge-nf-call-iptables", "1"),
        ]),
        subnet_env: Ok(Some("FLANNEL_MTU=1450\n".into())),
        clock: NOON_2026,
    };
    Facts { host, vxlan_port: Some(Ok(())), metrics: Ok(()), managed_by: None }
}

/// What is found of node-a, as severity and name of the check.
fn found(arguments: &[&str], cluster: &ClusterState, facts: &Facts) -> Vec<Finding> {
    let config = config(arguments);
    let (settings, problems) = node::resolve(cluster, &config, &facts.host).unwrap();
    let subject = Subject { config: &config, cluster, node: Some(&settings) };
    let mut findings = findings(&subject, facts);
    with_problems(&mut findings, problems.iter().chain(&compile(cluster, &settings).problems));
    findings
}

fn named(findings: &[Finding]) -> Vec<(Severity, &'static str)> {
    findings.iter().map(|finding| (finding.severity, finding.check.name)).collect()
}

use Severity::{Error, Note, Unseen, Warning};

#[test]
fn a_healthy_node_has_no_finding() {
    assert_eq!(named(&found(&[], &example(), &healthy())), Vec::new());
}

fn peer(state: &mut ClusterState) -> &mut Node {
    Arc::make_mut(state.nodes.get_mut("node-b").unwrap())
}

const DOCKER: &str = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n\
    *filter\n:FORWARD DROP [0:0]\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
    -A FORWARD -i docker0 -o docker0 -j ACCEPT\nCOMMIT\n";

#[test]
fn what_cannot_be_seen_is_said_and_refuses_nothing() {
    let mut facts = healthy();
    let denied = || "not permitted".to_owned();
    facts.host.ruleset = Err(denied());
    facts.host.links = Err(denied());
    facts.host.routes = Err(denied());
    facts.host.tcp_holders = Err(denied());
    let findings = found(&[], &example(), &facts);
    assert!(findings.iter().all(|finding| finding.severity == Unseen), "{findings:?}");
    for check in
        ["kube-proxy-rules", "forward-policy", "ip-masq", "flannel-device", "routes", "kube-proxy-ports"]
    {
        let seen = findings.iter().find(|finding| finding.check.name == check).map(|f| f.seen.as_str());
        assert_eq!(seen, Some("could not be seen: not permitted"), "{check}");
    }
    assert!(refusals(&findings, &config(&[])).is_empty());
    facts.host.ruleset = Ok("not JSON".into());
    assert!(named(&found(&[], &example(), &facts)).contains(&(Unseen, "forward-policy")));
}

#[test]
fn without_a_node_the_host_is_checked_nevertheless() {
    let mut facts = healthy();
    facts.vxlan_port = None;
    facts.host.nft = Ok(false);
    let config = config(&[]);
    let subject = Subject { config: &config, cluster: &ClusterState::default(), node: None };
    let found = named(&findings(&subject, &facts));
    assert_eq!(found[0], (Error, "nft"));
    for check in ["vxlan-port", "routes", "forward-policy", "ip-masq"] {
        assert!(found.contains(&(Unseen, check)), "{found:?}");
    }
    facts.host.iptables_rules = Ok(DOCKER.to_owned());
    let found = named(&findings(&subject, &facts));
    assert!(found.contains(&(Warning, "forward-policy")), "{found:?}");
    assert!(!found.contains(&(Unseen, "forward-policy")), "{found:?}");
}

#[test]
fn an_error_is_ignored_only_by_its_own_name() {
    let mut facts = healthy();
    facts.host.processes = Ok(vec![SurveyedProcess { id: 77, name: "flanneld".into(), is_here: true }]);
    facts.host.iptables_rules = Ok(DOCKER.to_owned());
    let findings = found(&[], &example(), &facts);
    let refused = |arguments: &[&str]| {
        let config = config(arguments);
        refusals(&findings, &config).iter().map(|finding| finding.check.name).collect::<Vec<_>>()
    };
    assert_eq!(refused(&[]), ["flanneld", "forward-policy"]);
    assert_eq!(refused(&["--ignore", "flanneld"]), ["forward-policy"]);
    assert_eq!(refused(&["--ignore", "flanneld,forward-policy"]), Vec::<&str>::new());
    for name in ["all", "manifests", "node", "nft", "another-windlass"] {
        let settings = settings::from_arguments(["--ignore", name]).unwrap();
        let error = Config::new(&settings, || Some("node-a".into())).unwrap_err().to_string();
        assert!(error.contains("give a check that can be ignored: "), "{error}");
    }
}

#[test]
fn names_are_unique_and_every_check_says_why() {
    let mut names: Vec<_> = ALL.iter().map(|check| check.name).collect();
    for check in ALL {
        assert!(check.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'), "{}", check.name);
        assert!(check.why.len() > 20, "{}", check.name);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), ALL.len());
}
