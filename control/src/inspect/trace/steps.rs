//! Recorded steps in words.

use std::net::IpAddr;

use ipnet::IpNet;
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::observe::RecordedStep;
use windlass_dataplane::lb::conntrack::FlowDirection;
use windlass_dataplane::lb::select::RENDEZVOUS_MAX;
use windlass_dataplane::tables::{ClientAddress, NextHop, Service, VipKind};
use windlass_dataplane::wire::flow::FlowKey;
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::wire::protocol::L4;

use super::StepRow;
use crate::inspect::{Inspection, rows};

/// One row per step but the last drop, which is the way's end.
pub(super) fn rows(node: &Inspection, packet: &InnerPacket, recorded: &[RecordedStep]) -> Vec<StepRow> {
    let (mut service, mut target) = (None, None);
    let mut rows = Vec::with_capacity(recorded.len());
    for step in recorded {
        match step {
            RecordedStep::Service(found) => service = Some(&**found),
            RecordedStep::Backend(backend) | RecordedStep::Affinity(backend) => target = Some(backend.ip()),
            _ => {}
        }
        let (name, text) = match step {
            RecordedStep::Dropped(_) => continue,
            RecordedStep::Backend(backend) => {
                ("backend", format!("{backend}{}", chosen(node, service, backend.ip())))
            }
            RecordedStep::Translated(to) => ("translation", translated(node, &packet.flow, to)),
            RecordedStep::Route(prefix, NextHop::Host) if prefix.prefix_len() == 0 => {
                ("route", no_other_route(node, target.unwrap_or(packet.flow.dst), *prefix))
            }
            step => row(node, step),
        };
        rows.push(StepRow { step: name.to_owned(), text });
    }
    rows
}

fn row(node: &Inspection, step: &RecordedStep) -> (&'static str, String) {
    match step {
        RecordedStep::Admitted(vni, vteps) => {
            let nodes: Vec<_> = vteps.iter().map(|vtep| vtep.node.as_str()).collect();
            let who = if nodes.is_empty() { "tolerated".to_owned() } else { nodes.join(", ") };
            (
                "admission",
                format!(
                    "VNI {vni} is served, the sender is {who}, the MAC is ours, the inner source is its own"
                ),
            )
        }
        RecordedStep::Connection { original, reply, direction } => {
            let which = match direction {
                FlowDirection::Original => "its original direction",
                FlowDirection::Reply => "its reply direction",
            };
            ("connection", format!("known: {original}, answered by {reply}; the packet goes in {which}"))
        }
        RecordedStep::ConnectionOver(original, backend) => {
            ("connection", format!("{original} is over, or its backend {backend} is gone: decided anew"))
        }
        RecordedStep::Service(service) => {
            let (ready, draining) = (service.backends.len(), service.draining.len());
            let kind = match service.kind {
                VipKind::ClusterIp => String::new(),
                kind => format!(" ({})", rows::kind(kind)),
            };
            let who = match service.client_address {
                ClientAddress::WhereRepliesReturn => "",
                ClientAddress::Translated => ", which do not see the client's address",
                ClientAddress::Kept => " on this node, which see the client's address",
            };
            let text =
                format!("{} at {}{kind}: {ready} ready{who}, {draining} draining", service.name, service.vip);
            ("service", text)
        }
        RecordedStep::Affinity(backend) => {
            ("backend", format!("{backend}, which this client stays with (ClientIP affinity)"))
        }
        RecordedStep::Route(prefix, next_hop) => ("route", format!("{prefix} -> {}", hop(node, *next_hop))),
        RecordedStep::Neighbor(vni, gateway, mac) => {
            ("neighbor", format!("{gateway} on VNI {vni} is at {mac}"))
        }
        RecordedStep::Fdb(vni, mac, vtep) => {
            ("fdb", format!("{mac} on VNI {vni} is the VTEP of node {} at {}", vtep.node, vtep.addr))
        }
        RecordedStep::Backend(backend) => ("backend", backend.to_string()),
        RecordedStep::Translated(to) => ("translation", to.to_string()),
        RecordedStep::Dropped(reason) => ("end", reason.name().to_owned()),
    }
}

fn chosen(node: &Inspection, service: Option<&Service>, backend: IpAddr) -> String {
    let count = service.map_or(0, |service| service.backends.len());
    let how = match count {
        0 | 1 => "the only one".to_owned(),
        count if count <= RENDEZVOUS_MAX => format!("by rendezvous hash of the flow over {count}"),
        count => format!("by Maglev hash of the flow over {count}"),
    };
    let local = node.tables.local();
    let here =
        local.pod_cidrs.iter().any(|cidr| cidr.contains(&backend)) || local.addresses.contains(&backend);
    format!(", {how}{}", if here { ", on this node" } else { "" })
}

fn translated(node: &Inspection, from: &FlowKey, to: &FlowKey) -> String {
    let local = node.tables.local();
    let why = if to.src == from.src && to.src_port == from.src_port {
        "the source stays"
    } else if to.src == local.source_vip(to.src) {
        "the source becomes the source VIP, so that the answer comes back here"
    } else if Some(to.src) == local.base(to.src) {
        "the source becomes this node's overlay address"
    } else if to.src == from.src {
        "the client's source port is in use, and another is taken"
    } else {
        "a reply: the VIP is its source again"
    };
    format!("becomes {to}; {why}")
}

fn hop(node: &Inspection, next_hop: NextHop) -> String {
    match next_hop {
        NextHop::Remote { vni, gateway } => {
            let behind = rows::node_behind(&node.tables, vni, gateway);
            let behind = behind.map_or_else(String::new, |name| format!(", node {name}"));
            format!("gateway {gateway} on VNI {vni}{behind}")
        }
        NextHop::Overlay => "a pod of this node".to_owned(),
        NextHop::Host => "the host: this node, or outside the overlay".to_owned(),
    }
}

/// What holds for every fragment but the first.
pub(super) fn follows_its_first() -> StepRow {
    let text = format!(
        "a later fragment goes as its first one did; one that comes before it waits for it up to a second, and is \
         dropped as {} then",
        DropReason::FragmentAlone.name()
    );
    StepRow { step: "fragment".to_owned(), text }
}

/// The default route leads to the host, which is no way to an address of the overlay.
fn no_other_route(node: &Inspection, dst: IpAddr, prefix: IpNet) -> String {
    let range = node.tables.local().cluster_cidrs.iter().find(|cidr| cidr.contains(&dst));
    match range {
        Some(range) => format!("none: {dst} is in the cluster CIDR {range}, and in no node's podCIDR"),
        None => format!("{prefix} -> {}", hop(node, NextHop::Host)),
    }
}

/// The table entries by which a ping is answered.
pub(super) fn pinged(node: &Inspection, vip: IpAddr) -> StepRow {
    let services = node.tables.services().iter().filter(|service| service.vip.addr == vip);
    let mut names: Vec<_> = services
        .map(|service| format!("{} ({} {})", service.name, service.vip.protocol, service.vip.port))
        .collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(PORTS_SHOWN);
    names.truncate(PORTS_SHOWN);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    StepRow { step: "service".into(), text: format!("{vip} is the address of {}", names.join(", ")) }
}

/// Ports of one VIP that are named before the rest is summed up.
const PORTS_SHOWN: usize = 5;

/// The last next hop that was looked up.
pub(super) fn next_hop(recorded: &[RecordedStep]) -> Option<NextHop> {
    recorded.iter().rev().find_map(|step| match step {
        RecordedStep::Route(_, next_hop) => Some(*next_hop),
        _ => None,
    })
}

/// Who gets a packet that goes into the device.
pub(super) fn into_device(recorded: &[RecordedStep]) -> &'static str {
    match next_hop(recorded) {
        Some(NextHop::Overlay) => "into the device, for a pod of this node",
        _ => "into the device, for the host to deliver or to route",
    }
}

/// What a rejected sender gets.
pub(super) fn rejected(packet: &InnerPacket, reason: DropReason) -> String {
    let answer = match packet.l4 {
        L4::Tcp { .. } => "a TCP RST",
        _ => "an ICMP port unreachable",
    };
    format!("{} The sender gets {answer}.", rows::meaning(reason))
}
