//! Any cluster, as its nodes would program it.

use std::net::{IpAddr, SocketAddr};

use windlass_control::cluster::ClusterState;
use windlass_control::compile::compile;
use windlass_control::config::{Config, settings};
use windlass_control::node::{NodeSettings, UnknownHost, resolve};
use windlass_control::source::manifests::load_text;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::tables::{NextHop, Service, TableSet};
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::vxlan::Vni;
use windlass_tests::engine_node::EngineNode;
use windlass_tests::packets::{Tcp, tcp, udp};

use crate::check;

/// Where flannel's annotations are looked for.
pub const PREFIX: &str = "flannel.alpha.coreos.com";

/// The cluster of the documentation, as text.
pub const EXAMPLE: &str = include_str!("../../control/examples/worked-example.yaml");

/// Nodes whose view is checked, and services that are sent packets; more of the same shows nothing new.
const MAX_NODES: usize = 3;
const MAX_SERVICES: usize = 4;

thread_local! {
    static CONFIG: Config = config();
    static EXAMPLE_STATE: ClusterState = load_text("example", EXAMPLE, PREFIX)
        .unwrap_or_else(|error| unreachable!("{error}"))
        .state;
}

/// The cluster of the documentation.
pub fn example() -> ClusterState {
    EXAMPLE_STATE.with(ClusterState::clone)
}

fn config() -> Config {
    let settings = settings::from_arguments(["--node", "any"]).unwrap_or_default();
    Config::new(&settings, || None).unwrap_or_else(|error| unreachable!("{error}"))
}

/// What a node of the cluster would run with, or why it would not.
pub fn settings_of(state: &ClusterState, node: &str) -> Result<NodeSettings, String> {
    let config = Config { node: node.to_owned(), ..CONFIG.with(Config::clone) };
    resolve(state, &config, &UnknownHost).map(|(settings, _)| settings).map_err(|error| error.to_string())
}

/// Checks what each node would program: no service has or leads to a refused address, every route has its neighbor
/// and its FDB entry, compiling again says the same, and packets to VIPs go to a backend or are dropped.
///
/// # Panics
/// When something of that does not hold.
pub fn check(state: &ClusterState) {
    for name in state.nodes.keys().take(MAX_NODES) {
        match settings_of(state, name) {
            Ok(settings) => check_node(state, &settings),
            Err(reason) => assert!(!reason.is_empty()),
        }
    }
}

fn check_node(state: &ClusterState, settings: &NodeSettings) {
    let compiled = compile(state, settings);
    let again = compile(state, settings);
    assert_eq!(compiled.problems, again.problems);
    let tables = compiled.tables;
    assert!(tables.services == again.tables.services && tables.fdb == again.tables.fdb);
    for (_, next_hop) in tables.routes.iter() {
        if let NextHop::Remote { vni, gateway } = next_hop {
            leads_somewhere(&tables, settings, vni, gateway);
        }
    }
    for service in tables.services.iter() {
        check_service(state, settings, service);
    }
    let services: Vec<_> = tables.services.iter().take(MAX_SERVICES).cloned().collect();
    let mut node = EngineNode::new(tables, Settings { flow_cache_entries: 64, ..Settings::default() });
    for service in &services {
        send(&mut node, settings, service);
    }
}

fn leads_somewhere(tables: &TableSet, settings: &NodeSettings, vni: Vni, gateway: IpAddr) {
    let mac = tables.neighbors.lookup(vni, gateway);
    let vtep = mac.and_then(|mac| tables.fdb.lookup(vni, mac));
    let Some(vtep) = vtep else { unreachable!("gateway {gateway} has no neighbor or no FDB entry") };
    assert_eq!((vni, vtep.addr.port()), (settings.vni, settings.port));
    assert!(!settings.underlay.iter().any(|own| own.addr == vtep.addr.ip()), "{vtep:?} is this node");
}

fn check_service(state: &ClusterState, settings: &NodeSettings, service: &Service) {
    let vip = service.vip.addr;
    assert!(!is_refused(vip), "VIP {vip}");
    assert!(!settings.cluster_cidrs.iter().any(|cidr| cidr.contains(&vip)), "VIP {vip} is a pod's");
    assert!(!settings.addresses.contains(&vip), "VIP {vip} is this node's");
    let is_nodes = |addr| {
        let mut nodes = state.nodes.values();
        nodes.any(|node| node.internal_ips.contains(&addr) || node.external_ips.contains(&addr))
    };
    assert!(!is_nodes(vip), "VIP {vip} is a node's");
    assert!(service.backends.is_sorted_by(|a, b| a < b), "{:?}", service.backends);
    for backend in service.backends.iter().chain(&service.draining) {
        assert!(!is_refused(backend.ip()), "{vip} leads to {backend}");
        assert_eq!(backend.is_ipv6(), vip.is_ipv6());
    }
}

/// Sends a service its first packet, and checks that it goes to one of its backends or nowhere.
fn send(node: &mut EngineNode, settings: &NodeSettings, service: &Service) {
    let vip = service.vip;
    let Some(src) = a_pod(settings, vip.addr.is_ipv6()) else { return };
    let flow = FlowKey { src, dst: vip.addr, protocol: vip.protocol, src_port: 40_000, dst_port: vip.port };
    let outcome = match vip.protocol {
        Protocol::TCP => node.encap(&tcp(&flow, Tcp::Syn, b"")),
        _ => node.encap(&udp(&flow, b"data")),
    };
    let datagrams = outcome.datagrams.iter().map(|sent| &sent.payload[check::HEADERS_LEN..]);
    for packet in datagrams.chain(outcome.packets.iter().map(|packet| &packet.bytes[..])) {
        let to = check::whole(packet).flow;
        let is_answer = to.src == vip.addr;
        let backend = SocketAddr::new(to.dst, to.dst_port);
        assert!(is_answer || service.backends.contains(&backend), "{vip} is sent to {backend}");
    }
    let answered_or_sent = !outcome.datagrams.is_empty() || !outcome.packets.is_empty();
    assert!(answered_or_sent || !outcome.drops.is_empty());
}

/// Some pod of this node: the second address of its podCIDR.
fn a_pod(settings: &NodeSettings, ipv6: bool) -> Option<IpAddr> {
    let cidr = settings.pod_cidrs.iter().find(|cidr| cidr.addr().is_ipv6() == ipv6)?;
    cidr.hosts().nth(1)
}

/// Addresses that no service and no backend may have (E8), said once more.
fn is_refused(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => {
            let [first, second, ..] = addr.octets();
            first == 0
                || first == 127
                || (first, second) == (169, 254)
                || (224..240).contains(&first)
                || addr.octets() == [255; 4]
        }
        IpAddr::V6(addr) => {
            let [first, ..] = addr.segments();
            let mapped = addr.segments()[..5] == [0; 5] && addr.segments()[5] == 0xffff;
            addr.is_unspecified()
                || addr.is_loopback()
                || first & 0xff00 == 0xff00
                || first & 0xffc0 == 0xfe80
                || mapped
        }
    }
}
