//! Which node we are, and whether what the cluster says about it can work.
//!
//! Every check here is made before anything of the host is touched, and each error says what to do.

mod checks;
mod segments;
mod underlay;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use windlass_dataplane::device::SegmentDevice;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::vxlan::Vni;

use crate::cluster::{Announcement, ClusterState, NetConf, NetConfState, Node, Problem};
use crate::config::{Config, DeviceKind};

pub use underlay::{HostFacts, UnderlayChoice, UnknownHost};
pub(crate) use underlay::{USUAL_MTU, overhead};

/// VNI and port where no net-conf.json is known: flannel's for Windows, which mixed clusters use.
const VNI_WITHOUT_NET_CONF: Vni = constant_vni(4096);
const PORT_WITHOUT_NET_CONF: u16 = 4789;

/// VNI and port that flannel itself takes on Linux when net-conf.json lacks the key.
pub(crate) const FLANNEL_VNI: Vni = constant_vni(1);
pub(crate) const FLANNEL_PORT: u16 = 8472;

const fn constant_vni(number: u32) -> Vni {
    match Vni::new(number) {
        Some(vni) => vni,
        None => unreachable!(),
    }
}

/// This node, as [`compile`](crate::compile::compile) and the host's set-up need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Its name.
    pub node: String,
    /// The overlay's VNI.
    pub vni: Vni,
    /// VXLAN's UDP port, ours and the peers'.
    pub port: u16,
    /// Own underlay addresses, at most one per family, and why these.
    pub underlay: Vec<UnderlayChoice>,
    /// The MAC that carries inner IPv4.
    pub mac_v4: Option<Mac>,
    /// The MAC that carries inner IPv6.
    pub mac_v6: Option<Mac>,
    /// Own podCIDRs, of the families we have a MAC for.
    pub pod_cidrs: Vec<IpNet>,
    /// Where all pods are.
    pub cluster_cidrs: Vec<IpNet>,
    /// Where ClusterIPs are allocated; empty when nobody says.
    pub service_cidrs: Vec<IpNet>,
    /// Source of translated IPv4 flows.
    pub source_vip_v4: Ipv4Addr,
    /// Source of translated IPv6 flows.
    pub source_vip_v6: Ipv6Addr,
    /// MTU of the overlay device in bytes.
    pub overlay_mtu: u32,
    /// Own addresses: the underlay's and those of the Node object.
    pub addresses: Vec<IpAddr>,
    /// Where node ports are served: the node's primary address of each family.
    pub node_port_addrs: Vec<IpAddr>,
    /// The zone we are in.
    pub zone: Option<String>,
    /// The L2 segments that we are in, and their devices; none where pods' packets are routed.
    pub segments: Vec<SegmentDevice>,
}

impl NodeSettings {
    /// Whether frames of segments are bridged; else pods' packets are routed.
    pub fn is_bridge(&self) -> bool {
        !self.segments.is_empty()
    }

    /// The address that stands for this node's own at its node ports: the one after the source VIP. The host brings
    /// their packets to it, and so into the overlay device.
    pub fn node_port_vip(&self, ipv6: bool) -> IpAddr {
        match ipv6 {
            false => Ipv4Addr::from(u32::from(self.source_vip_v4).wrapping_add(1)).into(),
            true => Ipv6Addr::from(u128::from(self.source_vip_v6).wrapping_add(1)).into(),
        }
    }

    /// The source VIPs and the node ports' address, which nothing else may have.
    pub fn reserved_addrs(&self) -> [IpAddr; 4] {
        [
            self.source_vip_v4.into(),
            self.source_vip_v6.into(),
            self.node_port_vip(false),
            self.node_port_vip(true),
        ]
    }
}

/// Why this node cannot run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// There is no Node object.
    #[error(
        "there is no Node at all, so none named {node:?}; put what `kubectl get nodes -o yaml` prints into \
         --manifests, or let --kubeconfig name a cluster with nodes"
    )]
    NoNodes {
        /// The name.
        node: String,
    },
    /// There are Node objects, but none of our name.
    #[error("node {node:?} is not in the cluster, which has {known}; give the right name with --node")]
    NotFound {
        /// The name.
        node: String,
        /// The nodes there are.
        known: String,
    },
    /// The Node has no podCIDR.
    #[error(
        "node {node:?} has no spec.podCIDR; run kube-controller-manager with --allocate-node-cidrs=true and \
         --cluster-cidr, or set spec.podCIDR of the Node yourself"
    )]
    NoPodCidr {
        /// The node.
        node: String,
    },
    /// The Node has no usable VTEP annotation.
    #[error("node {node:?}: annotation {annotation} {state}; {remedy}")]
    NoVtep {
        /// The node.
        node: String,
        /// The annotation's name.
        annotation: String,
        /// What is wrong with it.
        state: String,
        /// What to do.
        remedy: String,
    },
    /// flannel's configuration cannot be read.
    #[error("ConfigMap kube-flannel-cfg: {0}; correct it, since VNI and port must be the same on all nodes")]
    NetConf(String),
    /// flannel runs another backend.
    #[error(
        "flannel's backend is {found:?} ({place}); Windlass speaks only vxlan: set Backend.Type to \"vxlan\""
    )]
    Backend {
        /// The backend.
        found: String,
        /// Where that stands.
        place: String,
    },
    /// Two ranges overlap that must not.
    #[error("{first} overlaps {second}; {remedy}")]
    Overlap {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// What to do.
        remedy: String,
    },
    /// A podCIDR lies outside the cluster's.
    #[error(
        "podCIDR {pod_cidr} of node {node:?} is outside the cluster CIDR {cluster}; correct --cluster-cidr, or Network in net-conf.json"
    )]
    OutsideCluster {
        /// The podCIDR.
        pod_cidr: IpNet,
        /// The node.
        node: String,
        /// The cluster CIDRs.
        cluster: String,
    },
    /// There is no L2 segment.
    #[error(
        "there is no Segment; describe the networks in --manifests as objects of kind Segment, apiVersion \
         windlass.dev/v1alpha1, or leave out --device-kind tap"
    )]
    NoSegment,
    /// No L2 segment is ours.
    #[error(
        "no Segment has an address of this host among its vteps, which are {listed}; add this host's address to \
         spec.vteps, or give one of those with --underlay-addr"
    )]
    NotInSegments {
        /// The VTEPs there are.
        listed: String,
    },
    /// No underlay address can be found.
    #[error("no underlay address for node {node:?}: {tried}; give this host's address with --underlay-addr")]
    NoUnderlay {
        /// The node.
        node: String,
        /// What was tried.
        tried: String,
    },
    /// The given underlay address is not this host's.
    #[error(
        "--underlay-addr {addr} is on no interface of this host; give an address that `ip addr` (on Windows `ipconfig`) shows"
    )]
    NotLocal {
        /// The address.
        addr: IpAddr,
    },
    /// Nothing fits through the underlay.
    #[error(
        "the underlay's MTU of {underlay} bytes leaves {overlay} for pods, and {family} needs {least}; raise the MTU of the interface of {addr}"
    )]
    Mtu {
        /// The underlay's MTU.
        underlay: u32,
        /// What is left.
        overlay: u32,
        /// IPv4 or IPv6.
        family: &'static str,
        /// What it needs.
        least: u32,
        /// The underlay address.
        addr: IpAddr,
    },
}

/// Finds our node in the cluster and checks it.
///
/// # Errors
/// When the node cannot run as things are.
pub fn resolve(
    state: &ClusterState,
    config: &Config,
    host: &dyn HostFacts,
) -> Result<(NodeSettings, Vec<Problem>), NodeError> {
    if config.device_kind == DeviceKind::Tap {
        return segments::resolve(state, config, host);
    }
    let node = state.nodes.get(&config.node).ok_or_else(|| not_found(state, &config.node))?;
    let mut problems: Vec<_> = state.segments.keys().map(|name| segment_without_tap(name)).collect();
    let net_conf = net_conf(state, node)?;
    if net_conf.is_some_and(|conf| conf.direct_routing) {
        let text = "DirectRouting is on: stock peers of this subnet send to our pods unencapsulated, past Windlass; turn it off";
        problems.push(Problem::new("ConfigMap kube-flannel-cfg", text).found_by("direct-routing"));
    }
    let vni = vni_of(config, net_conf);
    let port = config.underlay_port.unwrap_or(match net_conf {
        None => PORT_WITHOUT_NET_CONF,
        Some(conf) => conf.port.unwrap_or(FLANNEL_PORT),
    });
    let families = families(config, node, vni, &mut problems)?;
    let underlay = underlay::choose(config, node, families.mac_v6.is_some(), host)?;
    let overlay_mtu =
        underlay::overlay_mtu(&underlay, net_conf, families.mac_v6.is_some(), host, &mut problems)?;
    let mut addresses: Vec<IpAddr> = underlay.iter().map(|choice| choice.addr).collect();
    addresses.extend(node.internal_ips.iter().chain(&node.external_ips));
    addresses.sort_unstable();
    addresses.dedup();
    let node_port_addrs = node_port_addrs(node, &underlay);
    let settings = NodeSettings {
        node: config.node.clone(),
        vni,
        port,
        underlay,
        mac_v4: families.mac_v4,
        mac_v6: families.mac_v6,
        pod_cidrs: families.pod_cidrs,
        cluster_cidrs: cluster_cidrs(state, config, net_conf),
        service_cidrs: service_cidrs(state, config),
        source_vip_v4: config.source_vip_v4,
        source_vip_v6: config.source_vip_v6,
        overlay_mtu,
        addresses,
        node_port_addrs,
        zone: node.zone.clone(),
        segments: Vec::new(),
    };
    checks::check(state, &settings)?;
    problems.extend(checks::warnings(node, &settings));
    Ok((settings, problems))
}

fn segment_without_tap(name: &str) -> Problem {
    let text = "segments are bridged with --device-kind tap alone; it is passed over";
    Problem::new(format!("Segment {name}"), text)
}

/// The first InternalIP of each family, else the first ExternalIP, else the underlay address (kube-proxy's
/// `--nodeport-addresses primary`).
fn node_port_addrs(node: &Node, underlay: &[UnderlayChoice]) -> Vec<IpAddr> {
    let all = node.internal_ips.iter().chain(&node.external_ips).copied();
    let all: Vec<IpAddr> = all.chain(underlay.iter().map(|choice| choice.addr)).collect();
    let first = |ipv6: bool| all.iter().copied().find(|addr| addr.is_ipv6() == ipv6);
    first(false).into_iter().chain(first(true)).collect()
}

/// The VNI that this node is to use: the flag's, else net-conf.json's, else flannel's own.
pub fn vni(state: &ClusterState, config: &Config) -> Vni {
    match &state.net_conf {
        NetConfState::Present(conf) => vni_of(config, Some(conf)),
        NetConfState::Absent | NetConfState::Malformed(_) => vni_of(config, None),
    }
}

fn vni_of(config: &Config, net_conf: Option<&NetConf>) -> Vni {
    config.vni.unwrap_or(match net_conf {
        None => VNI_WITHOUT_NET_CONF,
        Some(conf) => conf.vni.unwrap_or(FLANNEL_VNI),
    })
}

/// Whether the cluster has that node, and the node a podCIDR.
///
/// # Errors
/// What is missing of them.
pub fn expect_pod_cidr(state: &ClusterState, node: &str) -> Result<(), NodeError> {
    match state.nodes.get(node) {
        None => Err(not_found(state, node)),
        Some(found) if found.pod_cidrs.is_empty() => Err(NodeError::NoPodCidr { node: node.to_owned() }),
        Some(_) => Ok(()),
    }
}

fn not_found(state: &ClusterState, node: &str) -> NodeError {
    let node = node.to_owned();
    if state.nodes.is_empty() {
        return NodeError::NoNodes { node };
    }
    let mut known: Vec<_> = state.nodes.keys().take(10).cloned().collect();
    if state.nodes.len() > known.len() {
        known.push(format!("and {} more", state.nodes.len() - known.len()));
    }
    NodeError::NotFound { node, known: known.join(", ") }
}

fn net_conf<'a>(state: &'a ClusterState, node: &Node) -> Result<Option<&'a NetConf>, NodeError> {
    let conf = match &state.net_conf {
        NetConfState::Malformed(reason) => return Err(NodeError::NetConf(reason.clone())),
        NetConfState::Present(conf) => Some(conf),
        NetConfState::Absent => None,
    };
    let in_conf = conf.and_then(|conf| conf.backend_type.as_deref()).map(|found| (found, "net-conf.json"));
    let on_node = node.flannel.backend_type.as_deref().map(|found| (found, "this node's annotation"));
    match in_conf.into_iter().chain(on_node).find(|(found, _)| *found != "vxlan") {
        Some((found, place)) => Err(NodeError::Backend { found: found.to_owned(), place: place.to_owned() }),
        None => Ok(conf),
    }
}

#[derive(Default)]
struct Families {
    mac_v4: Option<Mac>,
    mac_v6: Option<Mac>,
    pod_cidrs: Vec<IpNet>,
}

/// The families for which this node has both a podCIDR and a VTEP.
fn families(
    config: &Config,
    node: &Node,
    vni: Vni,
    problems: &mut Vec<Problem>,
) -> Result<Families, NodeError> {
    if node.pod_cidrs.is_empty() {
        return Err(NodeError::NoPodCidr { node: config.node.clone() });
    }
    let mut families = Families::default();
    let mut errors = Vec::new();
    for cidr in &node.pod_cidrs {
        let ipv6 = cidr.addr().is_ipv6();
        let (announcement, name) = match ipv6 {
            false => (&node.flannel.vtep_v4, "backend-data"),
            true => (&node.flannel.vtep_v6, "backend-v6-data"),
        };
        match announcement {
            Announcement::Ready { vni: announced, mac } => {
                if *announced != vni {
                    let text = format!(
                        "its annotation {name} announces VNI {announced}, but this node will use VNI {vni}; make --vni, net-conf.json and the annotation agree"
                    );
                    problems.push(Problem::new(format!("Node {}", config.node), text).found_by("vni"));
                }
                *(if ipv6 { &mut families.mac_v6 } else { &mut families.mac_v4 }) = Some(*mac);
                families.pod_cidrs.push(*cidr);
            }
            unusable => errors.push(no_vtep(config, name, unusable)),
        }
    }
    if families.pod_cidrs.is_empty()
        && let Some(error) = errors.pop()
    {
        return Err(error);
    }
    for error in errors {
        let text = format!("{error}; pods of that family are not served");
        problems.push(Problem::new(format!("Node {}", config.node), text));
    }
    Ok(families)
}

fn no_vtep(config: &Config, name: &str, announcement: &Announcement) -> NodeError {
    let state = match announcement {
        Announcement::Malformed(reason) => format!("cannot be read ({reason})"),
        Announcement::NotReady => "has an empty VtepMAC".to_owned(),
        Announcement::Missing | Announcement::Ready { .. } => "is missing".to_owned(),
    };
    let remedy = "let flanneld register the node once, run with --kubeconfig, which does so, or annotate it yourself with \
                  {\"VNI\":4096,\"VtepMAC\":\"<a locally administered MAC>\"}";
    NodeError::NoVtep {
        node: config.node.clone(),
        annotation: format!("{}/{name}", config.annotation_prefix),
        state,
        remedy: remedy.to_owned(),
    }
}

fn cluster_cidrs(state: &ClusterState, config: &Config, net_conf: Option<&NetConf>) -> Vec<IpNet> {
    if !config.cluster_cidrs.is_empty() {
        return config.cluster_cidrs.clone();
    }
    let networks = net_conf.map(|conf| conf.network.into_iter().chain(conf.ipv6_network).collect::<Vec<_>>());
    if let Some(networks) = networks.filter(|networks| !networks.is_empty()) {
        return networks;
    }
    let mut cidrs: Vec<_> = state.nodes.values().flat_map(|node| node.pod_cidrs.iter().copied()).collect();
    cidrs.sort_unstable();
    cidrs.dedup();
    cidrs
}

fn service_cidrs(state: &ClusterState, config: &Config) -> Vec<IpNet> {
    if !config.service_cidrs.is_empty() {
        return config.service_cidrs.clone();
    }
    let mut cidrs: Vec<_> = state.service_cidrs.values().flatten().copied().collect();
    cidrs.sort_unstable();
    cidrs.dedup();
    cidrs
}

#[cfg(test)]
mod tests;
