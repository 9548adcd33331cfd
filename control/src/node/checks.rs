//! Ranges that must not overlap, and what else would make packets go in circles.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{NodeError, NodeSettings};
use crate::cluster::{ClusterState, Node, Problem};

/// Refuses settings that cannot work.
pub(super) fn check(state: &ClusterState, settings: &NodeSettings) -> Result<(), NodeError> {
    overlapping_ranges(settings)?;
    pod_cidrs(state, settings)?;
    underlay_outside_overlay(settings)?;
    source_vips(settings)
}

/// Names what can work but probably is not meant.
pub(super) fn warnings(node: &Node, settings: &NodeSettings) -> Vec<Problem> {
    let announced = [node.flannel.public_ip, node.flannel.public_ipv6];
    let elsewhere = announced.into_iter().flatten().filter(|announced| {
        let same_family = |addr: IpAddr| addr.is_ipv4() == announced.is_ipv4();
        settings.underlay.iter().any(|choice| same_family(choice.addr) && choice.addr != *announced)
    });
    let warning = |announced| {
        let chosen: Vec<_> = settings.underlay.iter().map(|choice| choice.addr.to_string()).collect();
        let text = format!(
            "peers send to {announced}, as its annotation says, but the underlay address is {}; \
             give --underlay-addr {announced} if that is this host's",
            chosen.join(", ")
        );
        Problem::new(format!("Node {}", settings.node), text).found_by("underlay")
    };
    elsewhere.map(warning).collect()
}

fn overlap(first: &IpNet, second: &IpNet) -> bool {
    first.contains(second) || second.contains(first)
}

fn overlapping_ranges(settings: &NodeSettings) -> Result<(), NodeError> {
    for cluster in &settings.cluster_cidrs {
        if let Some(service) = settings.service_cidrs.iter().find(|service| overlap(cluster, service)) {
            return Err(NodeError::Overlap {
                first: format!("cluster CIDR {cluster}"),
                second: format!("service CIDR {service}"),
                remedy:
                    "an address cannot be a pod's and a service's: correct --cluster-cidr, --service-cidr \
                         or the cluster"
                        .to_owned(),
            });
        }
    }
    Ok(())
}

fn pod_cidrs(state: &ClusterState, settings: &NodeSettings) -> Result<(), NodeError> {
    for pod_cidr in &settings.pod_cidrs {
        if !settings.cluster_cidrs.iter().any(|cluster| cluster.contains(pod_cidr)) {
            return Err(NodeError::OutsideCluster {
                pod_cidr: *pod_cidr,
                node: settings.node.clone(),
                cluster: join(&settings.cluster_cidrs),
            });
        }
        let own = state.nodes.get(&settings.node).map(|node| (node.created_at, &settings.node));
        let older = state.nodes.iter().find(|(name, node)| {
            Some((node.created_at, *name)) < own && node.pod_cidrs.iter().any(|cidr| overlap(cidr, pod_cidr))
        });
        if let Some((name, _)) = older {
            return Err(NodeError::Overlap {
                first: format!("podCIDR {pod_cidr} of node {:?}", settings.node),
                second: format!("that of node {name:?}, which is older and keeps it"),
                remedy: "delete the node that is wrong and let it join again".to_owned(),
            });
        }
    }
    Ok(())
}

/// An underlay address inside the overlay would send encapsulated packets into the overlay again.
fn underlay_outside_overlay(settings: &NodeSettings) -> Result<(), NodeError> {
    for choice in &settings.underlay {
        let ranges = settings.cluster_cidrs.iter().map(|cidr| ("cluster CIDR", cidr));
        let mut ranges = ranges.chain(settings.service_cidrs.iter().map(|cidr| ("service CIDR", cidr)));
        if let Some((kind, cidr)) = ranges.find(|(_, cidr)| cidr.contains(&choice.addr)) {
            return Err(NodeError::Overlap {
                first: format!("underlay address {choice}"),
                second: format!("{kind} {cidr}"),
                remedy:
                    "VXLAN would be encapsulated again and again: give another --underlay-addr, or correct \
                         the range"
                        .to_owned(),
            });
        }
    }
    Ok(())
}

fn source_vips(settings: &NodeSettings) -> Result<(), NodeError> {
    let [source_v4, source_v6, ..] = settings.reserved_addrs();
    for addr in settings.reserved_addrs() {
        let cidrs = settings.cluster_cidrs.iter().chain(&settings.service_cidrs).chain(&settings.pod_cidrs);
        let range = cidrs.copied().find(|cidr| cidr.contains(&addr)).map(|cidr| cidr.to_string());
        let own =
            settings.addresses.iter().find(|own| **own == addr).map(|_| "an address of this node".to_owned());
        if let Some(second) = range.or(own) {
            return Err(NodeError::Overlap {
                first: match addr == source_v4 || addr == source_v6 {
                    true => format!("source VIP {addr}"),
                    false => format!("{addr}, which follows the source VIP and stands for node ports,"),
                },
                second,
                remedy: "give one that nothing else uses with --source-vip, like 169.254.77.1".to_owned(),
            });
        }
    }
    Ok(())
}

fn join(cidrs: &[IpNet]) -> String {
    cidrs.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
}
