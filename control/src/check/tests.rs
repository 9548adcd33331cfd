mod windows;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use windlass_dataplane::device::LocalAddress;
use windlass_dataplane::device::survey::{SurveyedLink, SurveyedProcess, SurveyedRoute};

use super::*;
use crate::cluster::{Announcement, NetConfState, Node};
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
    Facts { host, vxlan_port: Some(Ok(())), metrics: Ok(()), managed: false }
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

type HostCase = (&'static str, fn(&mut Facts), (Severity, &'static str), &'static [&'static str]);

/// What the host is like, what is found, and words of what is seen and of the remedy.
const HOST_CASES: &[HostCase] = &[
    ("no privilege", |f| f.host.net_admin = Ok(false), (Error, "privilege"), &["CAP_NET_ADMIN"]),
    ("no TUN", |f| f.host.tun = Ok(false), (Error, "tun"), &["/dev/net/tun", "modprobe tun"]),
    ("a TUN that cannot be opened", |f| f.host.tun = Err("denied".into()), (Unseen, "tun"), &["denied"]),
    (
        "an underlay device without offloads",
        |f| f.host.links.as_mut().unwrap()[1].offloads_off = vec!["tx-udp-segmentation", "rx-gro"],
        (Note, "offloads"),
        &["eth0", "tx-udp-segmentation is off", "ethtool -K eth0 tx-udp-segmentation on rx-gro on"],
    ),
    ("no nft", |f| f.host.nft = Ok(false), (Error, "nft"), &["nftables"]),
    (
        "port taken",
        |f| f.vxlan_port = Some(Err("UDP port 4789 is taken by process 7 (x); stop it".into())),
        (Error, "vxlan-port"),
        &["process 7 (x)", "stop it"],
    ),
    (
        "metrics port taken",
        |f| {
            f.metrics = Err("cannot listen on 127.0.0.1:10249 for metrics: in use; give another".into());
            f.host.tcp_holders = Ok(BTreeMap::from([(10249, "process 8 (kube-proxy)".to_owned())]));
        },
        (Error, "metrics-port"),
        &["cannot listen on 127.0.0.1:10249 for metrics", "process 8 (kube-proxy)"],
    ),
    (
        "kube-proxy's health port taken",
        |f| f.host.tcp_holders = Ok(BTreeMap::from([(10256, "process 8 (kube-proxy)".to_owned())])),
        (Warning, "kube-proxy-ports"),
        &["10256", "process 8"],
    ),
    ("another windlass", |f| f.managed = true, (Error, "another-windlass"), &["stop it"]),
    ("flanneld", |f| runs(f, "flanneld", true), (Error, "flanneld"), &["process 77 (flanneld)"]),
    ("kube-proxy", |f| runs(f, "kube-proxy", true), (Error, "kube-proxy"), &["--cleanup"]),
    ("a kube-proxy of who knows where", |f| runs(f, "kube-proxy", false), (Unseen, "kube-proxy"), &["77"]),
    ("our device's name", |f| add(f, link("windlass0", 9, 1450)), (Error, "device-name"), &["--device"]),
    (
        "flannel's device",
        |f| add(f, vxlan("flannel.4096", 4096, 4789)),
        (Error, "flannel-device"),
        &["ip link delete flannel.4096", "4789"],
    ),
    ("our VNI under another name", |f| add(f, vxlan("vx", 4096, 1)), (Error, "flannel-device"), &["vx"]),
    ("our port under another name", |f| add(f, vxlan("vx", 1, 4789)), (Error, "flannel-device"), &["vx"]),
    ("another flannel's", |f| add(f, vxlan("flannel.9", 9, 9)), (Warning, "flannel-device"), &["flannel.9"]),
    ("kube-ipvs0", |f| add(f, link("kube-ipvs0", 9, 1500)), (Error, "kube-proxy-ipvs"), &["ip link delete"]),
    (
        "IPVS",
        |f| f.host.ipvs = Ok(vec!["TCP  0A600001:01BB rr".into()]),
        (Error, "kube-proxy-ipvs"),
        &["1 virtual", "ipvsadm --clear"],
    ),
    (
        "a peer's route",
        |f| lead(f, route("10.244.2.0/24", "eth0")),
        (Error, "routes"),
        &["ip route delete 10.244.2.0/24 dev eth0"],
    ),
    (
        "a route to our range",
        |f| lead(f, route("10.96.0.0/12", "eth0")),
        (Error, "routes"),
        &["10.96.0.0/12"],
    ),
    (
        "a route to no peer's",
        |f| lead(f, route("10.244.9.0/24", "eth0")),
        (Warning, "routes"),
        &["10.244.9.0"],
    ),
    (
        "a narrow path to a peer, with a strict filter before it",
        |f| {
            lead(f, route("192.168.1.51/32", "wg0"));
            add(f, link("wg0", 9, 1420));
            f.host.sysctls.insert("net/ipv4/conf/all/rp_filter".into(), "2".into());
        },
        (Warning, "mtu"),
        &["1420", "ip link set wg0 mtu 1500"],
    ),
    (
        "a path by another interface",
        |f| lead(f, route("192.168.1.51/32", "b")),
        (Warning, "rp-filter"),
        &["eth0"],
    ),
    (
        "no forwarding",
        |f| drop(f.host.sysctls.insert("net/ipv4/ip_forward".into(), "0".into())),
        (Note, "ip-forward"),
        &["net.ipv4.ip_forward", "windlass run sets it"],
    ),
    (
        "a bridge too wide",
        |f| f.host.links = Ok(vec![link("cni0", 3, 1500)]),
        (Warning, "bridge-mtu"),
        &["ip link set cni0 mtu 1450"],
    ),
    (
        "flannel's CNI too wide",
        |f| f.host.subnet_env = Ok(Some("FLANNEL_NETWORK=x\nFLANNEL_MTU=1480\n".into())),
        (Warning, "bridge-mtu"),
        &["FLANNEL_MTU=1480"],
    ),
    ("a clock of 1970", |f| f.host.clock = 0, (Warning, "clock"), &["timedatectl"]),
];

fn runs(facts: &mut Facts, name: &str, is_here: bool) {
    let process = SurveyedProcess { id: 77, name: name.to_owned(), is_here };
    facts.host.processes = Ok(vec![process]);
}

fn add(facts: &mut Facts, link: SurveyedLink) {
    facts.host.links.as_mut().unwrap().push(link);
}

fn lead(facts: &mut Facts, route: SurveyedRoute) {
    facts.host.routes.as_mut().unwrap().push(route);
}

#[test]
fn each_trouble_of_the_host_is_found_alone_with_its_remedy() {
    let mut cluster = example();
    peer(&mut cluster).created_at = Some(NOON_2026 - 1000);
    for (what, change, expected, words) in HOST_CASES {
        let mut facts = healthy();
        change(&mut facts);
        let findings = found(&[], &cluster, &facts);
        assert_eq!(named(&findings), [*expected], "{what}: {findings:?}");
        let text = format!("{} {}", findings[0].seen, findings[0].remedy);
        for word in *words {
            assert!(text.contains(word), "{what}: {word:?} is not in {text:?}");
        }
    }
}

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

fn peer(state: &mut ClusterState) -> &mut Node {
    Arc::make_mut(state.nodes.get_mut("node-b").unwrap())
}

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

const FLANNEL_MASQ: &str = "# Generated by iptables-save v1.8.9\n*nat\n:POSTROUTING ACCEPT [0:0]\n:FLANNEL-POSTRTG - [0:0]\n\
    -A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n\
    -A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -j RETURN\n\
    -A FLANNEL-POSTRTG -s 10.244.0.0/24 -d 10.244.0.0/16 -j RETURN\n\
    -A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully\nCOMMIT\n";

const CNI_MASQ: &str = "*nat\n:POSTROUTING ACCEPT [0:0]\n:CNI-1 - [0:0]\n\
    -A POSTROUTING -s 10.244.0.7/32 -j CNI-1\n-A CNI-1 -d 10.244.0.0/24 -j ACCEPT\n\
    -A CNI-1 ! -d 224.0.0.0/4 -j MASQUERADE\nCOMMIT\n";

const DOCKER: &str = "*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\nCOMMIT\n\
    *filter\n:FORWARD DROP [0:0]\n-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
    -A FORWARD -i docker0 -o docker0 -j ACCEPT\nCOMMIT\n";

const FLANNEL_FORWARDS: &str = "*filter\n:FORWARD DROP [0:0]\n:FLANNEL-FWD - [0:0]\n-A FORWARD -j FLANNEL-FWD\n\
    -A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT\nCOMMIT\n";

const MARKED: &str = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m mark --mark 0x1 -j ACCEPT\nCOMMIT\n";

const KUBE_PROXY: &str = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-ABC - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n\
    -A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-ABC\nCOMMIT\n";

const KUBELET: &str =
    "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n*filter\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n";

#[test]
fn rules_of_iptables_are_judged_by_what_they_do_to_pods() {
    let cases: [(&str, &[(Severity, &str)]); 8] = [
        (FLANNEL_MASQ, &[(Warning, "ip-masq")]),
        (CNI_MASQ, &[(Warning, "ip-masq")]),
        (DOCKER, &[(Error, "forward-policy"), (Warning, "bridge-netfilter")]),
        (FLANNEL_FORWARDS, &[]),
        (MARKED, &[(Warning, "bridge-netfilter"), (Warning, "forward-policy")]),
        (KUBE_PROXY, &[(Error, "kube-proxy-rules")]),
        ("*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n", &[(Warning, "kube-proxy-rules")]),
        (KUBELET, &[]),
    ];
    for (rules, expected) in cases {
        let mut facts = healthy();
        facts.host.iptables_rules = Ok(rules.to_owned());
        let findings = found(&[], &example(), &facts);
        assert_eq!(named(&findings), expected, "{rules}: {findings:?}");
    }
    let mut facts = healthy();
    facts.host.iptables_rules = Ok("*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n".to_owned());
    let seen = found(&[], &example(), &facts).remove(0).seen;
    assert_eq!(seen, "there is an iptables chain of kube-proxy, KUBE-FORWARD");
}

/// The service's address alone is masqueraded by flannel's rules, and the remedy is a rule before them.
#[test]
fn masquerading_says_what_is_masqueraded_and_by_whom() {
    let mut facts = healthy();
    facts.host.iptables_rules = Ok(FLANNEL_MASQ.to_owned());
    let finding = found(&[], &example(), &facts).remove(0);
    assert!(finding.seen.contains("service addresses"), "{}", finding.seen);
    assert_eq!(finding.remedy, "iptables -t nat -I POSTROUTING -o windlass0 -j RETURN");
    facts.host.iptables_rules = Ok(FLANNEL_MASQ.replacen(
        "-A POSTROUTING -m",
        "-A POSTROUTING -o windlass0 -j RETURN\n-A POSTROUTING -m",
        1,
    ));
    assert_eq!(found(&[], &example(), &facts), Vec::new());
}

/// As nft 1.0.6 prints them.
#[test]
fn rules_of_nftables_are_judged_alike() {
    const FORWARD: &str = r#"{"table": {"family": "inet", "name": "fw"}},
        {"chain": {"family": "inet", "table": "fw", "name": "fwd", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}}"#;
    const REJECT: &str = r#",{"rule": {"family": "inet", "table": "fw", "chain": "fwd", "expr": [{"reject": {"type": "icmpx"}}]}}"#;
    const ACCEPT: &str = r#",{"rule": {"family": "inet", "table": "fw", "chain": "fwd", "expr": [
        {"match": {"op": "==", "left": {"meta": {"key": "META"}}, "right": "windlass0"}}, {"accept": null}]}}"#;
    const ESTABLISHED: &str = r#",{"rule": {"family": "inet", "table": "fw", "chain": "fwd", "expr": [
        {"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}, {"accept": null}]}}"#;
    const MASQ: &str = r#"{"chain": {"family": "inet", "table": "x", "name": "post", "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "x", "chain": "post", "expr": [
        {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": {"prefix": {"addr": "10.244.0.0", "len": 16}}}},
        {"match": {"op": "!=", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": EXEMPT}},
        {"masquerade": null}]}}"#;
    let both = ACCEPT.replace("META", "iifname") + &ACCEPT.replace("META", "oifname");
    let all = r#"{"set": [{"prefix": {"addr": "10.96.0.0", "len": 12}}, {"prefix": {"addr": "10.244.0.0", "len": 16}}]}"#;
    let pods = r#"{"prefix": {"addr": "10.244.0.0", "len": 16}}"#;
    let proxy = r#"{"table": {"family": "ip6", "name": "kube-proxy"}}"#;
    let dropping: &[_] = &[(Error, "forward-policy"), (Warning, "bridge-netfilter")];
    let cases = [
        (FORWARD.to_owned(), dropping),
        (format!("{}{REJECT}", FORWARD.replace("\"drop\"", "\"accept\"")), dropping),
        (format!("{FORWARD}{ESTABLISHED}"), dropping),
        (format!("{FORWARD}{both}"), &[][..]),
        (MASQ.replace("EXEMPT", all), &[]),
        (MASQ.replace("EXEMPT", pods), &[(Warning, "ip-masq")]),
        (proxy.to_owned(), &[(Error, "kube-proxy-rules")]),
    ];
    for (objects, expected) in cases {
        let mut facts = healthy();
        facts.host.ruleset = Ok(format!("{{\"nftables\": [{objects}]}}"));
        let findings = found(&[], &example(), &facts);
        assert_eq!(named(&findings), expected, "{objects}: {findings:?}");
    }
}

/// nft 1.0.6 does not say what iptables' conntrack match asks for.
#[test]
fn extensions_of_iptables_nft_are_read_from_its_own_words() {
    const OPAQUE: &str = r#"{"nftables": [{"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}},
        {"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "expr": [{"xt": {"type": "match", "name": "conntrack"}}, {"accept": null}]}}]}"#;
    const SAVED: &str = "# Generated by iptables-save v1.8.9 (nf_tables) on Sat Nov 21 05:10:41 2026\n*filter\n:FORWARD DROP [0:0]\n\
        -A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\nCOMMIT\n";
    let mut facts = healthy();
    facts.host.ruleset = Ok(OPAQUE.to_owned());
    assert!(named(&found(&[], &example(), &facts)).contains(&(Warning, "forward-policy")));
    facts.host.iptables_rules = Ok(SAVED.to_owned());
    let findings = found(&[], &example(), &facts);
    assert_eq!(named(&findings)[0], (Error, "forward-policy"));
    assert!(findings[0].remedy.starts_with("iptables -I FORWARD"), "{}", findings[0].remedy);
}

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
    facts.managed = true;
    facts.host.nft = Ok(false);
    let findings = found(&[], &example(), &facts);
    let refused = |arguments: &[&str]| {
        let config = config(arguments);
        refusals(&findings, &config).iter().map(|finding| finding.check.name).collect::<Vec<_>>()
    };
    assert_eq!(refused(&[]), ["nft", "another-windlass"]);
    assert_eq!(refused(&["--ignore", "nft"]), ["another-windlass"]);
    assert_eq!(refused(&["--ignore", "nft", "--ignore", "another-windlass"]), Vec::<&str>::new());
    for name in ["all", "manifests", "node"] {
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
