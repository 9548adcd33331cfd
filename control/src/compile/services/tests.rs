//! What packet-flow cases of kube-proxy (Kubernetes, pkg/proxy/nftables/proxier_test.go and
//! pkg/proxy/iptables/proxier_test.go) ask of the tables; `tests/tests/packet_kube_proxy.rs` sends the packets.

use windlass_dataplane::tables::WhenEmpty;
use windlass_dataplane::wire::flow::Protocol;

use super::*;
use crate::compile::tests::{Compiled, backends, edited, ip, net, problem, service, slice_of, web};

const LB: &str = "203.0.113.5";
const EXTERNAL: &str = "203.0.113.6";
/// The address that stands for the node's own.
const NODE_PORTS: &str = "169.254.77.2";
const NODE_PORT: u16 = 30_080;

/// The example's `web`, with an endpoint here and one on node-b, as a LoadBalancer.
fn exposed(edit: impl FnOnce(&mut Service)) -> Compiled {
    edited(|state| {
        let web = web(state);
        web.ports[0].node_port = Some(NODE_PORT);
        web.exposure.external_ips = vec![ip(EXTERNAL)];
        web.exposure.load_balancer_ips = vec![ip(LB)];
        edit(web);
    })
}

fn at<'a>(compiled: &'a Compiled, addr: &str, port: u16) -> &'a TableService {
    service(compiled, addr, port, Protocol::TCP)
}

const HERE: &str = "10.244.0.14:8080";
const THERE: &str = "10.244.2.7:8080";
const CLUSTER_IP: &str = "10.106.228.152";
const OUTSIDE: [(&str, u16, VipKind); 3] = [
    (LB, 80, VipKind::LoadBalancer),
    (EXTERNAL, 80, VipKind::ExternalIp),
    (NODE_PORTS, NODE_PORT, VipKind::NodePort),
];

/// `TestOverallNFTablesRules`, `TestInternalExternalMasquerade` ("base").
#[test]
fn policy_cluster_gives_everybody_all_endpoints_and_hides_the_client() {
    let compiled = exposed(|_| ());
    assert_eq!(compiled.problems, Vec::new());
    for (addr, port, kind) in OUTSIDE {
        let service = at(&compiled, addr, port);
        assert_eq!((service.kind, service.client_address), (kind, ClientAddress::Translated));
        assert_eq!((backends(service), service.outside.is_none()), (vec![HERE.into(), THERE.into()], true));
    }
    let cluster_ip = at(&compiled, CLUSTER_IP, 80);
    assert_eq!(cluster_ip.client_address, ClientAddress::WhereRepliesReturn);
}

/// `TestExternalTrafficPolicyLocal`, `TestInternalExternalMasquerade` ("eTP:Local").
#[test]
fn policy_local_gives_outsiders_the_endpoints_of_this_node_and_shows_them() {
    let compiled = exposed(|web| web.exposure.local = true);
    for (addr, port, _) in OUTSIDE {
        let service = at(&compiled, addr, port);
        assert_eq!(backends(service), [HERE, THERE], "pods and this node: the Cluster set");
        assert_eq!(service.client_address, ClientAddress::WhereRepliesReturn);
        let outside = service.outside.as_ref().unwrap();
        assert_eq!((backends(outside), outside.client_address), (vec![HERE.into()], ClientAddress::Kept));
    }
    assert_eq!(at(&compiled, CLUSTER_IP, 80).outside, None);
}

/// `TestInternalExternalMasquerade` ("iTP:Local and eTP:Cluster", "iTP:Cluster and eTP:Local").
#[test]
fn each_policy_rules_its_own_addresses() {
    let compiled = exposed(|web| web.internal_local = true);
    assert_eq!(backends(at(&compiled, CLUSTER_IP, 80)), [HERE]);
    assert_eq!(backends(at(&compiled, LB, 80)), [HERE, THERE]);
    let both = exposed(|web| (web.internal_local, web.exposure.local) = (true, true));
    assert_eq!(backends(at(&both, CLUSTER_IP, 80)), [HERE]);
    assert_eq!(backends(at(&both, LB, 80)), [HERE, THERE], "the short cut leads to the Cluster set");
}

/// `TestOnlyLocalNodePorts`, `TestOnlyLocalLoadBalancing`: without an endpoint here.
#[test]
fn policy_local_without_an_endpoint_here_drops_outsiders_alone_f3() {
    let compiled = edited(|state| {
        slice_of(state, "web-m4c9d").endpoints.remove(0);
        let web = web(state);
        web.ports[0].node_port = Some(NODE_PORT);
        web.exposure.local = true;
    });
    let service = at(&compiled, NODE_PORTS, NODE_PORT);
    let outside = service.outside.as_ref().unwrap();
    assert_eq!((outside.backends.len(), outside.when_empty), (0, WhenEmpty::Drop));
    assert_eq!(backends(service), [THERE]);
}

/// `TestClusterIPReject`, `TestExternalIPsReject`, `TestNodePortReject`, `TestLoadBalancerReject`.
#[test]
fn without_any_endpoint_everything_is_rejected_f3() {
    for local in [false, true] {
        let compiled = edited(|state| {
            slice_of(state, "web-m4c9d").endpoints.clear();
            let web = web(state);
            web.ports[0].node_port = Some(NODE_PORT);
            web.exposure.external_ips = vec![ip(EXTERNAL)];
            web.exposure.load_balancer_ips = vec![ip(LB)];
            web.exposure.local = local;
        });
        for (addr, port) in [(CLUSTER_IP, 80), (NODE_PORTS, NODE_PORT), (EXTERNAL, 80), (LB, 80)] {
            let service = at(&compiled, addr, port);
            let seen = service.seen_from(|| false);
            assert_eq!((seen.backends.len(), seen.when_empty), (0, WhenEmpty::Reject), "{addr}");
        }
    }
}

/// `TestLoadBalancer`: the ranges guard the load balancer's addresses alone, each family by its own.
#[test]
fn source_ranges_guard_load_balancer_addresses_alone() {
    let compiled = exposed(|web| {
        web.exposure.source_ranges = vec![net("203.0.113.0/25"), net("2001:db8::/64")];
        web.exposure.external_ips.push(ip(LB));
    });
    let guarded = at(&compiled, LB, 80);
    assert_eq!((guarded.kind, &guarded.source_ranges), (VipKind::LoadBalancer, &vec![net("203.0.113.0/25")]));
    assert!(guarded.admits(ip("203.0.113.9")) && !guarded.admits(ip("203.0.113.200")));
    for (addr, port) in [(EXTERNAL, 80), (NODE_PORTS, NODE_PORT), (CLUSTER_IP, 80)] {
        assert!(at(&compiled, addr, port).source_ranges.is_empty(), "{addr}");
    }
}

#[test]
fn e7_external_addresses_never_override_nodes_pods_or_services() {
    for (addr, expected) in [
        ("10.244.2.7", "it is inside the cluster CIDR 10.244.0.0/16"),
        ("10.96.0.10", "it is inside the service CIDR 10.96.0.0/12"),
        ("192.168.1.40", "it is an address of this node"),
        ("192.168.1.51", "it is an address of node node-b, whose traffic it would take"),
        ("169.254.77.1", "it is this node's source VIP, or the one after it"),
    ] {
        let compiled = exposed(|web| web.exposure.external_ips = vec![ip(addr)]);
        let text = format!("Service default/web: external IP {addr} is passed over: {expected}");
        assert_eq!(problem(&compiled), text);
        let compiled = exposed(|web| web.exposure.load_balancer_ips = vec![ip(addr)]);
        let text = format!("Service default/web: load-balancer address {addr} is passed over: {expected}");
        assert_eq!(problem(&compiled), text);
        assert_eq!(backends(at(&compiled, EXTERNAL, 80)), [HERE, THERE], "the rest goes on");
    }
}

/// `TestNodePorts` by family, and `TestExternalIPsOnlyLocal`'s dual-stack neighbours.
#[test]
fn only_families_with_a_cluster_ip_are_served() {
    let compiled = exposed(|web| web.exposure.external_ips.push(ip("2001:db8::6")));
    let v6 = compiled.tables.services.iter().filter(|service| service.vip.addr.is_ipv6());
    assert_eq!(v6.count(), 0);
}

#[test]
fn of_two_services_with_one_node_port_the_older_keeps_it() {
    let compiled = edited(|state| {
        web(state).ports[0].node_port = Some(NODE_PORT);
        let mut twin = web(state).clone();
        twin.cluster_ips = vec![ip("10.106.0.50")];
        twin.created_at = twin.created_at.map(|at| at + 1);
        state.services.insert(ObjectName::new("default", "a-twin"), twin.into());
    });
    let text =
        "Service default/a-twin: node port tcp 30080 is passed over: default/web:80 has it, and is older";
    assert_eq!(problem(&compiled), text);
    assert_eq!(at(&compiled, NODE_PORTS, NODE_PORT).name, "default/web:80");
}

/// A change of type, as the conformance tests make it: ClusterIP to NodePort and back.
#[test]
fn a_change_of_type_adds_and_removes_the_node_port() {
    let without = edited(|_| ());
    let with = exposed(|_| ());
    assert_eq!(with.tables.services.len(), without.tables.services.len() + 3);
    assert!(without.tables.services.lookup(at(&with, NODE_PORTS, NODE_PORT).vip).is_none());
}

#[test]
fn health_checks_count_the_ready_endpoints_of_this_node() {
    use crate::compile::tests::{example, settings};
    use crate::compile::{Compiler, HealthCheck};
    let mut state = example();
    let mut compiler = Compiler::new(settings());
    let mut checks = |state: &_| {
        compiler.follow(state);
        compiler.update().health_checks
    };
    assert!(checks(&state).by_port().is_empty());
    web(&mut state).exposure.health_check_port = Some(32_000);
    let service = ObjectName::new("default", "web");
    for (ready, local_endpoints) in [(true, 1), (false, 0)] {
        slice_of(&mut state, "web-m4c9d").endpoints[0].ready = ready;
        let check = HealthCheck { service: service.clone(), local_endpoints };
        let told = checks(&state);
        assert_eq!(told.by_port().into_iter().collect::<Vec<_>>(), [(32_000, check)]);
        assert!(told.is(&checks(&state)), "what does not change is shared");
    }
    web(&mut state).exposure.health_check_port = None;
    assert!(checks(&state).by_port().is_empty());
}

fn ports_of(compiled: &Compiled) -> crate::compile::NodePorts {
    crate::compile::node_ports(&crate::compile::tests::settings(), &compiled.tables)
}

#[test]
fn node_ports_are_sockets_at_the_nodes_addresses_and_lead_into_the_overlay() {
    let compiled = exposed(|web| web.exposure = Default::default());
    let ports = ports_of(&compiled);
    assert_eq!(ports.problems, Vec::new());
    let [port] = ports.served.as_slice() else { panic!("{ports:?}") };
    assert_eq!((port.protocol, port.listen.to_string()), (Protocol::TCP, "192.168.1.40:30080".to_owned()));
    assert_eq!(port.relay_to.to_string(), format!("{NODE_PORTS}:{NODE_PORT}"));
}

#[test]
fn what_sockets_cannot_serve_names_the_service() {
    let local = ports_of(&exposed(|web| web.exposure.local = true));
    assert_eq!(local.served, Vec::new());
    let told: Vec<_> = local.problems.iter().map(ToString::to_string).collect();
    assert!(told.iter().all(|text| text.starts_with("Service default/web:80: ")), "{told:?}");
    assert!(told.iter().any(|text| text.contains("tcp node port 30080 is not served")), "{told:?}");
    for addr in [LB, EXTERNAL] {
        assert!(told.iter().any(|text| text.contains(&format!("tcp {addr}:80 from outside"))), "{told:?}");
    }
    let cluster = ports_of(&exposed(|_| ()));
    assert_eq!((cluster.served.len(), cluster.problems.len()), (1, 2));
}
