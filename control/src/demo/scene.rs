//! Who sits where: the worked example's manifests, read and compiled as `windlass run` does it, once per node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::Context;
use ipnet::IpNet;
use windlass_dataplane::tables::{TableSet, Vip};
use windlass_dataplane::wire::flow::Protocol;

use crate::cluster::{ClusterState, ObjectName};
use crate::compile::compile;
use crate::config::{Config, Settings};
use crate::node::{self, HostFacts, NodeSettings};
use crate::source::manifests;

/// The manifests, part of the binary.
const MANIFESTS: &str = include_str!("../../examples/worked-example.yaml");

const UNDERLAY_MTU: u32 = 1500;

/// Offsets into the podCIDR of the pods that the manifests do not name.
const CLIENTS: [u8; 2] = [20, 21];
const PROBE: u8 = 30;

/// The cluster.
pub(super) struct Scene {
    pub(super) nodes: Vec<SceneNode>,
    /// TCP, with backends on both nodes.
    pub(super) web: Service,
    /// UDP, with backends on both nodes.
    pub(super) dns: Service,
    /// TCP, without endpoints.
    pub(super) empty: Service,
}

/// A service of the manifests.
pub(super) struct Service {
    /// `namespace/name:port`, as the tables call it.
    pub(super) name: String,
    pub(super) vip: SocketAddrV4,
    pub(super) protocol: Protocol,
    pub(super) backends: Vec<SocketAddrV4>,
}

/// A node, as `compile` sees it.
pub(super) struct SceneNode {
    pub(super) settings: NodeSettings,
    pub(super) tables: TableSet,
    /// Its underlay address and VXLAN port in the tables.
    pub(super) underlay: SocketAddr,
    pub(super) gateway: Ipv4Addr,
    pub(super) clients: Vec<Ipv4Addr>,
    pub(super) probe: Ipv4Addr,
}

impl SceneNode {
    /// Whether a pod lives here.
    pub(super) fn has_pod(&self, addr: Ipv4Addr) -> bool {
        self.settings.pod_cidrs.iter().any(|cidr| cidr.contains(&IpAddr::V4(addr)))
    }
}

impl Scene {
    /// Reads and compiles the manifests.
    pub(super) fn load() -> anyhow::Result<Self> {
        let config = Config::new(&Settings::default(), || Some("node-a".to_owned()))?;
        let loaded = manifests::load_text("worked-example.yaml", MANIFESTS, &config.annotation_prefix)?;
        if let Some(problem) = loaded.problems.first() {
            anyhow::bail!("the built-in manifests: {problem}");
        }
        let state = loaded.state;
        let names = state.nodes.keys();
        let nodes: Vec<_> =
            names.map(|name| scene_node(&state, &config, name)).collect::<anyhow::Result<_>>()?;
        let tables = &nodes.first().context("the built-in manifests have no node")?.tables;
        let web = service(&state, tables, "default", "web", Protocol::TCP)?;
        let dns = service(&state, tables, "kube-system", "kube-dns", Protocol::UDP)?;
        let empty = service(&state, tables, "default", "empty", Protocol::TCP)?;
        Ok(Self { web, dns, empty, nodes })
    }
}

/// A host whose only interface has the node's address.
struct OnlyInterface(Vec<IpAddr>);

impl HostFacts for OnlyInterface {
    fn default_route_addr(&self, _ipv6: bool) -> Option<IpAddr> {
        None
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        self.0.contains(&addr)
    }

    fn mtu(&self, _addr: IpAddr) -> Option<u32> {
        Some(UNDERLAY_MTU)
    }
}

fn scene_node(state: &ClusterState, config: &Config, name: &str) -> anyhow::Result<SceneNode> {
    let config = Config { node: name.to_owned(), ..config.clone() };
    let addrs = state.nodes.get(name).map(|node| node.internal_ips.clone()).unwrap_or_default();
    let (settings, mut problems) = node::resolve(state, &config, &OnlyInterface(addrs))?;
    let compiled = compile(state, &settings);
    problems.extend(compiled.problems);
    if let Some(problem) = problems.first() {
        anyhow::bail!("the built-in manifests, seen from {name}: {problem}");
    }
    let underlay = settings.underlay.first().map(|choice| SocketAddr::new(choice.addr, settings.port));
    let Some(IpNet::V4(pods)) = settings.pod_cidrs.first() else {
        anyhow::bail!("{name} has no IPv4 podCIDR");
    };
    let [a, b, c, _] = pods.network().octets();
    let pod = |last| Ipv4Addr::new(a, b, c, last);
    Ok(SceneNode {
        underlay: underlay.with_context(|| format!("{name} has no underlay address"))?,
        gateway: pod(1),
        clients: CLIENTS.map(pod).to_vec(),
        probe: pod(PROBE),
        tables: compiled.tables,
        settings,
    })
}

fn service(
    state: &ClusterState,
    tables: &TableSet,
    namespace: &str,
    name: &str,
    protocol: Protocol,
) -> anyhow::Result<Service> {
    let name = ObjectName::new(namespace, name);
    let missing =
        || format!("the built-in manifests lack service {name} with an IPv4 address and {protocol:?}");
    let object = state.services.get(&name).with_context(missing)?;
    let port = object.ports.iter().find(|port| port.protocol == protocol).with_context(missing)?;
    let addr = object.cluster_ips.iter().find_map(|addr| match addr {
        IpAddr::V4(addr) => Some(*addr),
        IpAddr::V6(_) => None,
    });
    let addr = addr.with_context(missing)?;
    let vip = Vip { addr: addr.into(), port: port.port, protocol };
    let compiled = tables.services.lookup(vip).with_context(missing)?;
    let backends = compiled.backends.iter().filter_map(|backend| match backend {
        SocketAddr::V4(backend) => Some(*backend),
        SocketAddr::V6(_) => None,
    });
    Ok(Service {
        name: compiled.name.clone(),
        vip: SocketAddrV4::new(addr, port.port),
        protocol,
        backends: backends.collect(),
    })
}
