//! The part of a cluster that forwarding depends on, in plain types: what every source is read into.
//!
//! Texts have been parsed and doubtful values refused here already; what an object means for a node is decided
//! later, in [`compile`](crate::compile).

mod serial;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

/// Everything that is known of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// By name.
    #[serde(with = "serial::shared")]
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// By namespace and name.
    #[serde(with = "serial::shared")]
    pub services: BTreeMap<ObjectName, Arc<Service>>,
    /// By namespace and name of the slice.
    #[serde(with = "serial::shared")]
    pub endpoint_slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
    /// Ranges of all ServiceCIDR objects, by object.
    pub service_cidrs: BTreeMap<String, Vec<IpNet>>,
    /// flannel's own configuration.
    pub net_conf: NetConfState,
}

impl ClusterState {
    /// Makes objects that are equal to those of `before` the very same ones: what does not change is held once
    /// and compared by its address from then on.
    pub fn keep_unchanged(&mut self, before: &Self) {
        keep_equal(&before.nodes, &mut self.nodes);
        keep_equal(&before.services, &mut self.services);
        keep_equal(&before.endpoint_slices, &mut self.endpoint_slices);
    }

    /// Makes of this state the one that `difference` leads to.
    pub fn apply(&mut self, difference: Difference) {
        difference.nodes.into_iter().for_each(|(name, node)| drop(set(&mut self.nodes, name, node)));
        let services = difference.services.into_iter();
        services.for_each(|(name, service)| drop(set(&mut self.services, name, service)));
        let slices = difference.endpoint_slices.into_iter();
        slices.for_each(|(name, slice)| drop(set(&mut self.endpoint_slices, name, slice)));
        if let Some(service_cidrs) = difference.service_cidrs {
            self.service_cidrs = service_cidrs;
        }
        if let Some(net_conf) = difference.net_conf {
            self.net_conf = net_conf;
        }
    }
}

fn keep_equal<K: Ord, V: Eq>(before: &BTreeMap<K, Arc<V>>, after: &mut BTreeMap<K, Arc<V>>) {
    let mut before = before.iter().peekable();
    for (name, object) in after {
        while before.next_if(|(known, _)| *known < name).is_some() {}
        if let Some((_, known)) = before.next_if(|(known, same)| *known == name && *same == object) {
            *object = Arc::clone(known);
        }
    }
}

/// What makes one state of another: the objects that differ, with the new one or, where it has gone, `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Option<Arc<Node>>>,
    /// Services by namespace and name.
    pub services: BTreeMap<ObjectName, Option<Arc<Service>>>,
    /// EndpointSlices by namespace and name.
    pub endpoint_slices: BTreeMap<ObjectName, Option<Arc<EndpointSlice>>>,
    /// The ranges of all ServiceCIDR objects, if one of them differs.
    pub service_cidrs: Option<BTreeMap<String, Vec<IpNet>>>,
    /// flannel's configuration, if it differs.
    pub net_conf: Option<NetConfState>,
}

impl Difference {
    /// What makes `after` of `before`. One pointer comparison for each object that is the very same in both.
    pub fn between(before: &ClusterState, after: &ClusterState) -> Self {
        let (cidrs, net_conf) = (&after.service_cidrs, &after.net_conf);
        Self {
            nodes: differences(&before.nodes, &after.nodes).into_iter().collect(),
            services: differences(&before.services, &after.services).into_iter().collect(),
            endpoint_slices: differences(&before.endpoint_slices, &after.endpoint_slices)
                .into_iter()
                .collect(),
            service_cidrs: (before.service_cidrs != *cidrs).then(|| cidrs.clone()),
            net_conf: (before.net_conf != *net_conf).then(|| net_conf.clone()),
        }
    }

    /// Whether this may make another node of ours: only Services and EndpointSlices do not.
    pub fn bears_on_settings(&self) -> bool {
        !self.nodes.is_empty() || self.service_cidrs.is_some() || self.net_conf.is_some()
    }

    /// Makes this the difference that it and then `later` make.
    pub fn extend(&mut self, later: Self) {
        self.nodes.extend(later.nodes);
        self.services.extend(later.services);
        self.endpoint_slices.extend(later.endpoint_slices);
        self.service_cidrs = later.service_cidrs.or(self.service_cidrs.take());
        self.net_conf = later.net_conf.or(self.net_conf.take());
    }
}

/// Puts an object in its place, or takes it away, and returns the one before.
pub(crate) fn set<K: Ord, V>(
    objects: &mut BTreeMap<K, Arc<V>>,
    name: K,
    object: Option<Arc<V>>,
) -> Option<Arc<V>> {
    match object {
        Some(object) => objects.insert(name, object),
        None => objects.remove(&name),
    }
}

/// What makes `after` of `before`: the names of objects that differ, with the new object or, where it has gone,
/// `None`. In the order of the names.
pub fn differences<K: Ord + Clone, V: Eq>(
    before: &BTreeMap<K, Arc<V>>,
    after: &BTreeMap<K, Arc<V>>,
) -> Vec<(K, Option<Arc<V>>)> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let mut differences = Vec::new();
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return differences,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let old = before.next_if(|_| order.is_le());
        let new = after.next_if(|_| order.is_ge());
        match (old, new) {
            (Some((_, old)), Some((_, new))) if old == new => {}
            (_, Some((name, new))) => differences.push((name.clone(), Some(Arc::clone(new)))),
            (Some((name, _)), None) => differences.push((name.clone(), None)),
            (None, None) => {}
        }
    }
}

/// Namespace and name. A clone shares both.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ObjectName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectName {
    /// `namespace/name`.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// Another name in the same namespace.
    #[must_use]
    pub fn beside(&self, name: &str) -> Self {
        Self { namespace: Arc::clone(&self.namespace), name: name.into() }
    }
}

impl From<ObjectName> for String {
    fn from(name: ObjectName) -> Self {
        name.to_string()
    }
}

impl TryFrom<String> for ObjectName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let (namespace, name) = text.split_once('/').ok_or("not a namespace and a name")?;
        Ok(Self::new(namespace, name))
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Node with what flannel says about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub created_at: Option<i64>,
    /// `spec.podCIDRs`, or else `spec.podCIDR`.
    pub pod_cidrs: Vec<IpNet>,
    /// Addresses of type InternalIP, in order.
    pub internal_ips: Vec<IpAddr>,
    /// Addresses of type ExternalIP, in order.
    pub external_ips: Vec<IpAddr>,
    /// Its topology zone (label `topology.kubernetes.io/zone`).
    pub zone: Option<String>,
    /// Whether it is being deleted, or the cluster autoscaler is about to.
    pub is_leaving: bool,
    /// flannel's annotations.
    pub flannel: Flannel,
}

/// flannel's annotations of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flannel {
    /// `backend-type`.
    pub backend_type: Option<String>,
    /// `backend-data`: the VTEP that carries inner IPv4.
    pub vtep_v4: Announcement,
    /// `backend-v6-data`: the VTEP that carries inner IPv6.
    pub vtep_v6: Announcement,
    /// `public-ip`: the IPv4 underlay address.
    pub public_ip: Option<IpAddr>,
    /// `public-ipv6`.
    pub public_ipv6: Option<IpAddr>,
    /// `node-public-ip`: what `public-ip` is to be where nothing overwrites it.
    pub node_public_ip: Option<IpAddr>,
    /// `node-public-ipv6`.
    pub node_public_ipv6: Option<IpAddr>,
    /// `public-ip-overwrite`: what an operator wants `public-ip` to be.
    pub public_ip_overwrite: Option<IpAddr>,
    /// `public-ipv6-overwrite`.
    pub public_ipv6_overwrite: Option<IpAddr>,
}

/// A VTEP as its node announces it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Announcement {
    /// There is no annotation.
    #[default]
    Missing,
    /// The annotation has an empty MAC: flannel on Windows writes it before its device is made.
    NotReady,
    /// The annotation cannot be read.
    Malformed(String),
    /// The VTEP.
    Ready {
        /// Its network.
        #[serde(with = "serial::vni")]
        vni: Vni,
        /// Its MAC.
        #[serde(with = "serial::mac")]
        mac: Mac,
    },
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// `metadata.creationTimestamp`, in seconds since 1970.
    pub created_at: Option<i64>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its type is ExternalName.
    pub external_name: bool,
    /// ClusterIPs of both families; empty when headless.
    pub cluster_ips: Vec<IpAddr>,
    /// Ports.
    pub ports: Vec<ServicePort>,
    /// ClientIP affinity and how long it lasts.
    pub affinity: Option<Duration>,
    /// Whether `internalTrafficPolicy` is Local.
    pub internal_local: bool,
    /// How clients outside the cluster reach it, besides node ports.
    pub exposure: Exposure,
}

/// How clients outside the cluster reach a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exposure {
    /// Whether `externalTrafficPolicy` is Local.
    pub local: bool,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of its load balancer whose packets arrive as they are (ipMode VIP).
    pub load_balancer_ips: Vec<IpAddr>,
    /// `loadBalancerSourceRanges`: who may use those; of a family that has none, everybody.
    pub source_ranges: Vec<IpNet>,
    /// `healthCheckNodePort`, where a load balancer asks which nodes have endpoints.
    pub health_check_port: Option<u16>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Its name, empty when it has none.
    pub name: String,
    /// TCP, UDP or SCTP.
    #[serde(with = "serial::protocol")]
    pub protocol: Protocol,
    /// The VIP's port.
    pub port: u16,
    /// The port of every node's own addresses.
    pub node_port: Option<u16>,
}

/// SCTP (132), which Services may name and Windlass passes over.
pub const SCTP: Protocol = Protocol(132);

/// An EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// The Service it belongs to, in the same namespace.
    pub service: Option<String>,
    /// Whether its addresses are IPv6.
    pub ipv6: bool,
    /// Ports that have a number.
    pub ports: Vec<EndpointPort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// One port of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name of the Service's port.
    pub name: String,
    /// TCP, UDP or SCTP.
    #[serde(with = "serial::protocol")]
    pub protocol: Protocol,
    /// The backend's port.
    pub port: u16,
}

/// One endpoint, its conditions with their defaults applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `addresses[0]`: the others have no meaning.
    pub addr: IpAddr,
    /// The node it runs on.
    pub node: Option<String>,
    /// Takes new flows.
    pub ready: bool,
    /// Answers, whether or not it takes new flows.
    pub serving: bool,
    /// Is going away.
    pub terminating: bool,
    /// Whom it is meant for, where the slice says.
    pub hints: Option<Box<Hints>>,
}

/// Whom an endpoint is meant for, as the control plane would have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// Zones.
    pub zones: Vec<String>,
    /// Nodes.
    pub nodes: Vec<String>,
}

/// What is known of flannel's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetConfState {
    /// There is no kube-flannel-cfg.
    #[default]
    Absent,
    /// It cannot be read: guessing VNI and port instead would cut the node off.
    Malformed(String),
    /// What it says.
    Present(NetConf),
}

/// net-conf.json. `None` where a key is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetConf {
    /// `Network`.
    pub network: Option<IpNet>,
    /// `IPv6Network`.
    pub ipv6_network: Option<IpNet>,
    /// `Backend.Type`.
    pub backend_type: Option<String>,
    /// `Backend.VNI`.
    #[serde(with = "serial::optional_vni")]
    pub vni: Option<Vni>,
    /// `Backend.Port`.
    pub port: Option<u16>,
    /// `Backend.MTU`: of the underlay, in bytes.
    pub mtu: Option<u32>,
    /// `Backend.DirectRouting`.
    pub direct_routing: bool,
}

/// Something that was left out, and why. The rest goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What it is about: `Service default/web`, with file and line where there is one.
    pub subject: String,
    /// What is wrong, what follows from it, and what to do.
    pub text: String,
    /// The name of the check that looks for it.
    pub check: &'static str,
}

impl Problem {
    /// A problem of `subject`.
    pub fn new(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), check: "objects" }
    }

    /// The same, as something that the check of that name looks for.
    pub fn found_by(self, check: &'static str) -> Self {
        Self { check, ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.text)
    }
}

/// Parses a network like `10.244.0.0/16`. IPv4 bytes with leading zeros, which some read as octal, are refused.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    let (addr, prefix_len) = text.split_once('/')?;
    if prefix_len.len() > 3 || !prefix_len.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    IpNet::new(addr.parse().ok()?, prefix_len.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidrs_with_leading_zeros_are_refused_e9() {
        assert!(parse_cidr("10.244.0.0/16").is_some() && parse_cidr("fd00::/48").is_some());
        for text in ["010.244.0.0/16", "10.244.0.00/16", "10.244.0.0", "10.244.0.0/33", "10.244.0.0/+8", "/8"]
        {
            assert_eq!(parse_cidr(text), None, "{text}");
        }
    }
}
