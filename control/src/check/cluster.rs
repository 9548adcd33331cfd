//! What the objects, flags and annotations say of the network, and whether they agree.

use std::net::IpAddr;

use ipnet::IpNet;

use windlass_dataplane::device::LocalAddress;

use super::{Facts, Finding, Severity, Subject};
use crate::catalog::{self, Check};
use crate::cluster::{Announcement, NetConf, NetConfState, Node};
use crate::compile::remedy_of_twins;
use crate::node::{FLANNEL_PORT, FLANNEL_VNI, NodeError, NodeSettings};

/// How much younger than the cluster's newest object a clock may be, in seconds.
const CLOCK_SLACK: i64 = 300;

pub(super) fn findings(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let NetConfState::Present(conf) = &subject.cluster.net_conf {
        findings.extend(flags_and_net_conf(subject, conf));
        findings.extend(conf.direct_routing.then(direct_routing));
    }
    findings.extend(service_cidrs(subject));
    findings.extend(subject.node.and_then(|node| peers_vni(subject, node)));
    findings.extend(pod_cidr_overlaps(subject));
    findings.extend(subject.node.into_iter().flat_map(|node| vtep_addresses(subject, node)));
    let addresses = facts.host.addresses.as_deref().unwrap_or_default();
    findings.extend(addresses.iter().flat_map(|local| external_addresses(subject, local)));
    findings.extend(late_clock(subject, facts.host.clock));
    findings
}

/// The check that an unusable node fails.
pub(super) fn check_of(error: &NodeError) -> &'static Check {
    match error {
        NodeError::NoNodes { .. } | NodeError::NotFound { .. } => &catalog::NODE,
        NodeError::NoPodCidr { .. } | NodeError::OutsideCluster { .. } => &catalog::POD_CIDR,
        NodeError::NoVtep { .. } => &catalog::ANNOTATIONS,
        NodeError::NetConf(_) | NodeError::Backend { .. } => &catalog::NET_CONF,
        NodeError::Overlap { .. } => &catalog::OVERLAP,
        NodeError::NoUnderlay { .. } | NodeError::NotLocal { .. } => &catalog::UNDERLAY,
        NodeError::Mtu { .. } => &catalog::MTU,
    }
}

/// Flags win over net-conf.json, which the other nodes follow.
fn flags_and_net_conf(subject: &Subject<'_>, conf: &NetConf) -> Vec<Finding> {
    let mut findings = Vec::new();
    let config = subject.config;
    let theirs = conf.vni.unwrap_or(FLANNEL_VNI);
    if let Some(vni) = config.vni.filter(|vni| *vni != theirs) {
        let seen = format!("--vni is {vni}, and net-conf.json makes the other nodes use {theirs}");
        findings.push(Finding::warning(&catalog::VNI, seen, "leave --vni out, or correct net-conf.json"));
    }
    let theirs = conf.port.unwrap_or(FLANNEL_PORT);
    if let Some(port) = config.underlay_port.filter(|port| *port != theirs) {
        let seen = format!("--underlay-port is {port}, and net-conf.json makes the other nodes use {theirs}");
        let remedy = "leave --underlay-port out, or correct net-conf.json";
        findings.push(Finding::warning(&catalog::VXLAN_PORT_AGREES, seen, remedy));
    }
    let given = &config.cluster_cidrs;
    let outside = |network: &IpNet| !given.is_empty() && !given.iter().any(|cidr| cidr.contains(network));
    for network in conf.network.iter().chain(&conf.ipv6_network).filter(|network| outside(network)) {
        let seen = format!("net-conf.json has the network {network}, and --cluster-cidr {}", join(given));
        let remedy = format!("leave --cluster-cidr out, or give --cluster-cidr {network}");
        findings.push(Finding::warning(&catalog::NETWORK, seen, remedy));
    }
    findings
}

fn direct_routing() -> Finding {
    let seen = "net-conf.json has Backend.DirectRouting true".to_owned();
    let remedy = "set DirectRouting to false in kube-flannel-cfg and restart flanneld on every stock node";
    Finding::error(&catalog::DIRECT_ROUTING, seen, remedy)
}

fn service_cidrs(subject: &Subject<'_>) -> Option<Finding> {
    let given = &subject.config.service_cidrs;
    let known: Vec<IpNet> = subject.cluster.service_cidrs.values().flatten().copied().collect();
    let outside = known.iter().any(|cidr| !given.iter().any(|given| given.contains(cidr)));
    (outside && !given.is_empty()).then(|| {
        let seen = format!("ServiceCIDR objects have {}, and --service-cidr {}", join(&known), join(given));
        Finding::warning(&catalog::NETWORK, seen, "leave --service-cidr out, or give all of them")
    })
}

/// One peer with another VNI is left out; when all have another, it is this node that is wrong.
fn peers_vni(subject: &Subject<'_>, node: &NodeSettings) -> Option<Finding> {
    let peers = subject.cluster.nodes.iter().filter(|(name, _)| **name != node.node);
    let announced = peers.flat_map(|(_, peer)| [&peer.flannel.vtep_v4, &peer.flannel.vtep_v6]);
    let mut theirs: Vec<_> = announced
        .filter_map(|announcement| match announcement {
            Announcement::Ready { vni, .. } => Some(*vni),
            _ => None,
        })
        .collect();
    theirs.sort_unstable();
    theirs.dedup();
    (!theirs.is_empty() && !theirs.contains(&node.vni)).then(|| {
        let theirs = theirs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let seen = format!("this node will use VNI {}, and every peer announces {theirs}", node.vni);
        Finding::error(&catalog::VNI, seen, format!("give --vni {theirs}, or net-conf.json's Backend.VNI"))
    })
}

/// In order of their beginning, two ranges that overlap have nothing between them that does not.
fn pod_cidr_overlaps(subject: &Subject<'_>) -> Vec<Finding> {
    let nodes = subject.cluster.nodes.iter();
    let mut held: Vec<(IpNet, &str)> = nodes
        .flat_map(|(name, node)| node.pod_cidrs.iter().map(move |cidr| (cidr.trunc(), name.as_str())))
        .collect();
    held.sort_unstable_by_key(|(cidr, name)| (cidr.network(), cidr.prefix_len(), *name));
    let mut findings = Vec::new();
    let mut widest: Option<(IpNet, &str)> = None;
    for (cidr, name) in held {
        match widest.filter(|(other, _)| other.contains(&cidr)) {
            None => widest = Some((cidr, name)),
            Some((other, holder)) if holder != name => {
                let age = |name: &str| {
                    (subject.cluster.nodes.get(name).map(|node| node.created_at), name.to_owned())
                };
                let (older, younger) = if age(name) < age(holder) { (name, holder) } else { (holder, name) };
                let seen = format!(
                    "podCIDR {cidr} of node {name} overlaps {other} of node {holder}: {older}, the older, is served"
                );
                let remedy = remedy_of_twins(younger, older);
                findings.push(Finding::warning(&catalog::POD_CIDR_OVERLAP, seen, remedy));
            }
            Some(_) => {}
        }
    }
    findings
}

/// Services that want an address of this host, but for those of its Node object, which the compiler refuses.
fn external_addresses(subject: &Subject<'_>, local: &LocalAddress) -> Vec<Finding> {
    let addr = local.address;
    if subject.node.is_some_and(|node| node.addresses.contains(&addr)) {
        return Vec::new();
    }
    let wants = subject.cluster.services.iter().filter_map(|(name, service)| {
        let exposure = &service.exposure;
        let external = exposure.external_ips.contains(&addr).then_some("external IP");
        let balanced = exposure.load_balancer_ips.contains(&addr).then_some("load-balancer address");
        Some((name, external.or(balanced)?))
    });
    let finding = |(name, kind)| {
        let seen = format!(
            "the {kind} {addr} of Service {name} is an address of this host's interface {}: clients outside the \
             cluster reach this host there, and not the service",
            local.interface
        );
        let remedy = format!(
            "ip addr del {addr}/{} dev {}, or give the service another address",
            local.prefix_len, local.interface
        );
        Finding::warning(&catalog::EXTERNAL_ADDRESS, seen, remedy)
    };
    wants.map(finding).collect()
}

fn vtep_addresses(subject: &Subject<'_>, own: &NodeSettings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, peer) in subject.cluster.nodes.iter().filter(|(name, _)| **name != own.node) {
        for addr in vteps(peer) {
            let mut ranges = own.cluster_cidrs.iter().chain(&own.service_cidrs);
            if let Some(range) = ranges.find(|range| range.contains(&addr)) {
                let seen = format!("node {name} announces the VTEP address {addr}, which is inside {range}");
                let remedy = format!("start flanneld on {name} with --iface, or correct the range");
                findings.push(Finding::warning(&catalog::VTEP_ADDRESS, seen, remedy));
            }
        }
    }
    findings
}

/// Where a node's VTEPs are.
pub(super) fn vteps(node: &Node) -> impl Iterator<Item = IpAddr> + '_ {
    node.flannel.public_ip.into_iter().chain(node.flannel.public_ipv6)
}

fn late_clock(subject: &Subject<'_>, clock: i64) -> Option<Finding> {
    let nodes = subject.cluster.nodes.values().filter_map(|node| node.created_at);
    let services = subject.cluster.services.values().filter_map(|service| service.created_at);
    let newest = nodes.chain(services).max()?;
    (clock.saturating_add(CLOCK_SLACK) < newest).then(|| {
        let late = newest - clock;
        let seen = format!("this host's clock is {late} s before the creation of an object of the cluster");
        Finding::new(&catalog::CLOCK, Severity::Warning, seen, "timedatectl set-ntp true")
    })
}

fn join(cidrs: &[IpNet]) -> String {
    cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}
