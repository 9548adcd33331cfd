use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::config::settings;
use crate::source::manifests::load_text;

const EXAMPLE: &str = include_str!("../../examples/worked-example.yaml");

struct Host {
    addrs: BTreeMap<IpAddr, u32>,
    default_route: Vec<IpAddr>,
}

impl HostFacts for Host {
    fn default_route_addr(&self, ipv6: bool) -> Option<IpAddr> {
        self.default_route.iter().copied().find(|addr| addr.is_ipv6() == ipv6)
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        self.addrs.contains_key(&addr)
    }

    fn mtu(&self, addr: IpAddr) -> Option<u32> {
        self.addrs.get(&addr).copied()
    }
}

fn host(addrs: &[&str]) -> Host {
    let addrs: Vec<IpAddr> = addrs.iter().map(|addr| addr.parse().unwrap()).collect();
    Host { addrs: addrs.iter().map(|addr| (*addr, 1500)).collect(), default_route: addrs }
}

fn config(arguments: &[&str]) -> Config {
    let settings = settings::from_arguments(arguments.iter().copied()).unwrap();
    Config::new(&settings, || Some("node-a".into())).unwrap()
}

fn example() -> ClusterState {
    load_text("worked-example.yaml", EXAMPLE, "flannel.alpha.coreos.com").unwrap().state
}

fn edited(edit: impl FnOnce(&mut ClusterState)) -> ClusterState {
    let mut state = example();
    edit(&mut state);
    state
}

fn error(state: &ClusterState, arguments: &[&str]) -> String {
    resolve(state, &config(arguments), &host(&["192.168.1.40"])).unwrap_err().to_string()
}

fn own(state: &mut ClusterState) -> &mut Node {
    Arc::make_mut(state.nodes.get_mut("node-a").unwrap())
}

#[test]
fn the_worked_example_resolves() {
    let (settings, problems) = resolve(&example(), &config(&[]), &host(&["192.168.1.40"])).unwrap();
    assert_eq!(problems, Vec::new());
    assert_eq!((settings.vni.get(), settings.port, settings.overlay_mtu), (4096, 4789, 1450));
    assert_eq!(settings.underlay[0].to_string(), "192.168.1.40 (InternalIP of the Node)");
    assert_eq!(settings.mac_v4.unwrap().to_string(), "ce:7a:e5:af:6a:e9");
    assert_eq!(settings.cluster_cidrs, vec!["10.244.0.0/16".parse().unwrap()]);
    assert_eq!(settings.service_cidrs, vec!["10.96.0.0/12".parse().unwrap()]);
}

#[test]
fn vni_and_port_follow_flag_then_net_conf_then_flannels_defaults() {
    let vni_and_port = |state: &ClusterState, arguments: &[&str]| {
        let settings = resolve(state, &config(arguments), &host(&["192.168.1.40"])).unwrap().0;
        (settings.vni.get(), settings.port)
    };
    let stock = NetConf { network: "10.244.0.0/16".parse().ok(), ..NetConf::default() };
    let stock = edited(|state| state.net_conf = NetConfState::Present(stock));
    let without = edited(|state| state.net_conf = NetConfState::Absent);
    assert_eq!(vni_and_port(&example(), &["--vni", "7", "--underlay-port", "9"]), (7, 9));
    assert_eq!(vni_and_port(&example(), &[]), (4096, 4789));
    assert_eq!(vni_and_port(&stock, &[]), (1, 8472));
    assert_eq!(vni_and_port(&without, &[]), (4096, 4789));
}

#[test]
fn the_underlay_address_is_chosen_in_order_and_says_why() {
    let choose = |state: &ClusterState, arguments: &[&str], host: &Host| {
        resolve(state, &config(arguments), host).map(|(settings, _)| settings.underlay[0].to_string())
    };
    let all = host(&["10.0.0.9", "192.168.1.40", "203.0.113.5", "172.16.0.1"]);
    let overwritten = edited(|state| own(state).flannel.public_ip_overwrite = "203.0.113.5".parse().ok());
    let no_internal = edited(|state| own(state).internal_ips.clear());
    let flagged = choose(&overwritten, &["--underlay-addr", "172.16.0.1"], &all).unwrap();
    assert_eq!(flagged, "172.16.0.1 (--underlay-addr)");
    assert_eq!(choose(&overwritten, &[], &all).unwrap(), "203.0.113.5 (annotation public-ip-overwrite)");
    assert_eq!(
        choose(&overwritten, &[], &host(&["192.168.1.40"])).unwrap(),
        "192.168.1.40 (InternalIP of the Node; 203.0.113.5, annotation public-ip-overwrite, is on no interface)"
    );
    assert_eq!(
        choose(&no_internal, &[], &all).unwrap(),
        "10.0.0.9 (address of the default route's interface)"
    );
    let error = choose(&example(), &["--underlay-addr", "192.0.2.1"], &all).unwrap_err().to_string();
    assert!(error.contains("--underlay-addr 192.0.2.1 is on no interface"), "{error}");
    let error = choose(&example(), &[], &host(&[])).unwrap_err().to_string();
    assert!(error.contains("192.168.1.40, InternalIP of the Node, is on no interface"), "{error}");
}

#[test]
fn overlay_mtu_is_50_or_70_less_c2() {
    let mtu = |state: &ClusterState, arguments: &[&str], addr: &str| {
        resolve(state, &config(arguments), &host(&[addr])).map(|(settings, _)| settings.overlay_mtu)
    };
    assert_eq!(mtu(&example(), &[], "192.168.1.40").unwrap(), 1450);
    assert_eq!(mtu(&example(), &["--underlay-addr", "2001:db8::1"], "2001:db8::1").unwrap(), 1430);
    let with_mtu = |mtu: u32| {
        edited(|state| match &mut state.net_conf {
            NetConfState::Present(conf) => conf.mtu = Some(mtu),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(mtu(&with_mtu(1400), &[], "192.168.1.40").unwrap(), 1350);
    assert_eq!(mtu(&with_mtu(9000), &[], "192.168.1.40").unwrap(), 1450);
    let error = mtu(&with_mtu(600), &[], "192.168.1.40").unwrap_err().to_string();
    assert!(error.contains("leaves 550 for pods, and IPv4 needs 576"), "{error}");
}

#[test]
fn what_cannot_work_is_refused_with_its_remedy() {
    let missing = error(&example(), &["--node", "node-z"]);
    assert!(missing.contains("\"node-z\" is not in the cluster, which has node-a, node-b"), "{missing}");
    let nobody = error(&ClusterState::default(), &["--node", "node-z"]);
    assert!(
        nobody.starts_with("there is no Node at all") && nobody.contains("kubectl get nodes"),
        "{nobody}"
    );

    let empty = error(&edited(|state| own(state).pod_cidrs.clear()), &[]);
    assert!(empty.contains("--allocate-node-cidrs"), "{empty}");

    let no_vtep = error(&edited(|state| own(state).flannel.vtep_v4 = Announcement::Missing), &[]);
    assert!(no_vtep.contains("flannel.alpha.coreos.com/backend-data is missing; let flanneld"), "{no_vtep}");

    let overlap = error(&example(), &["--service-cidr", "10.244.128.0/17"]);
    assert!(
        overlap.contains("cluster CIDR 10.244.0.0/16 overlaps service CIDR 10.244.128.0/17"),
        "{overlap}"
    );

    let looped = error(&example(), &["--service-cidr", "192.168.0.0/16"]);
    assert!(looped.contains("underlay address 192.168.1.40"), "{looped}");

    let vip = error(&example(), &["--source-vip", "10.244.0.77"]);
    assert!(vip.contains("source VIP 10.244.0.77 overlaps 10.244.0.0/16"), "{vip}");
    let vip = error(&example(), &["--source-vip", "192.168.1.40"]);
    assert!(vip.contains("source VIP 192.168.1.40 overlaps an address of this node"), "{vip}");

    let outside = error(&example(), &["--cluster-cidr", "10.200.0.0/16"]);
    assert!(outside.contains("podCIDR 10.244.0.0/24 of node \"node-a\" is outside"), "{outside}");

    let conf = error(&edited(|state| state.net_conf = NetConfState::Malformed("Backend.VNI -1".into())), &[]);
    assert!(conf.contains("kube-flannel-cfg: Backend.VNI -1"), "{conf}");

    let backend = error(&edited(|state| own(state).flannel.backend_type = Some("host-gw".into())), &[]);
    assert!(backend.contains("\"host-gw\""), "{backend}");
}

#[test]
fn a_pod_cidr_that_an_older_node_has_is_refused_f11() {
    let state = edited(|state| {
        let cidrs = own(state).pod_cidrs.clone();
        let peer = Arc::make_mut(state.nodes.get_mut("node-b").unwrap());
        peer.pod_cidrs = cidrs;
        peer.created_at = Some(0);
    });
    assert!(error(&state, &[]).contains("\"node-b\", which is older and keeps it"));
}

#[test]
fn a_family_without_a_vtep_is_left_out_and_named() {
    let state = edited(|state| {
        own(state).pod_cidrs.push("fd00:244::/64".parse().unwrap());
    });
    let (settings, problems) = resolve(&state, &config(&[]), &host(&["192.168.1.40"])).unwrap();
    assert_eq!(settings.pod_cidrs.len(), 1);
    assert!(problems[0].to_string().contains("backend-v6-data is missing"), "{problems:?}");
}

#[test]
fn an_announced_address_that_is_not_ours_is_named() {
    let state = edited(|state| own(state).flannel.public_ip = "192.168.9.9".parse().ok());
    let (_, problems) = resolve(&state, &config(&[]), &host(&["192.168.1.40"])).unwrap();
    assert!(problems[0].text.contains("peers send to 192.168.9.9"), "{problems:?}");
}
