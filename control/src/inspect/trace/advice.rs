//! Why a packet ends where it ends, and what to do about it.

use std::net::IpAddr;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::observe::RecordedStep;
use windlass_dataplane::tables::{NextHop, Service, Vip};

use super::walk::Walked;
use crate::inspect::explain::{BackendRow, BackendState};
use crate::inspect::{Inspection, explain};

/// What there is to say about a packet's way and its reply's.
pub(super) fn of(node: &Inspection, walked: &Walked<'_>, reply: Option<&Walked<'_>>) -> Vec<String> {
    let mut lines = match walked.reason {
        Some(reason) => because(node, walked, reason),
        None => Vec::new(),
    };
    if walked.reason.is_none() && walked.next_hop() == Some(NextHop::Host) && walked.arrival.is_none() {
        lines.push("what the host does with it is the host's: its firewall and routes decide".to_owned());
    }
    if let Some((reply, reason)) = reply.and_then(|reply| reply.reason.map(|reason| (reply, reason))) {
        lines.push(format!("the packet is delivered, but its reply is dropped: {}", reason.name()));
        lines.extend(because(node, reply, reason));
    }
    lines
}

fn because(node: &Inspection, walked: &Walked<'_>, reason: DropReason) -> Vec<String> {
    let Some(packet) = &walked.packet else { return Vec::new() };
    let (tables, origin) = (&*node.tables, &*node.origin);
    let flow = &packet.flow;
    let vip = Vip { addr: flow.dst, port: flow.dst_port, protocol: flow.protocol };
    match reason {
        DropReason::NoSuchService | DropReason::UnservedPort => explain::no_service(tables, origin, vip),
        DropReason::NoEndpoint | DropReason::NoLocalEndpoint => {
            service(walked).map_or_else(Vec::new, |service| no_endpoint(node, service))
        }
        DropReason::SourceNotAllowed => service(walked).map_or_else(Vec::new, |service| {
            let ranges: Vec<_> = service.source_ranges.iter().map(ToString::to_string).collect();
            vec![format!("{}: loadBalancerSourceRanges are {}", service.name, ranges.join(", "))]
        }),
        DropReason::NoRoute | DropReason::NoNeighbor | DropReason::NoFdbEntry => {
            no_route(node, walked, flow.dst)
        }
        DropReason::UnknownVtep => {
            let mut known: Vec<_> = tables
                .fdb()
                .iter()
                .map(|(_, _, vtep)| format!("{} ({})", vtep.addr.ip(), vtep.node))
                .collect();
            known.sort();
            known.dedup();
            let shown = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            vec![
                format!("known VTEPs: {shown}"),
                "a node of the cluster is known once its Node object has flannel's annotations".to_owned(),
            ]
        }
        DropReason::UnknownVni => vec![format!("this node serves VNI {} only", origin.settings.vni)],
        DropReason::InnerMacNotOurs => {
            let own = origin.settings.mac_v4.iter().chain(&origin.settings.mac_v6);
            let own: Vec<_> = own.map(ToString::to_string).collect();
            vec![format!(
                "ours is {}: the peer has another in its FDB, from this node's annotation",
                own.join(", ")
            )]
        }
        DropReason::SourceSpoofed => spoofed(node, walked, flow.src),
        DropReason::OutsideOverlay => vec![format!(
            "{} is in no cluster CIDR and no service CIDR: the host's own routes lead there",
            flow.dst
        )],
        DropReason::LocalPodNotOnHost => vec![format!(
            "{} is in this node's podCIDR, so the host's route to its pods (cni0) should have taken it",
            flow.dst
        )],
        _ => Vec::new(),
    }
}

fn service<'a>(walked: &'a Walked<'_>) -> Option<&'a Service> {
    walked.recorded.iter().find_map(|step| match step {
        RecordedStep::Service(service) => Some(&**service),
        _ => None,
    })
}

fn no_endpoint(node: &Inspection, service: &Service) -> Vec<String> {
    let index = explain::Index::new(&node.origin.state);
    let backends = explain::backends(&node.tables, &node.origin, &index, service);
    if backends.is_empty() {
        let (name, port) = service.name.split_once(':').unwrap_or((&service.name, ""));
        return vec![format!(
            "Service {name} has no endpoint for port {port} in any EndpointSlice: no pod matches its selector, or \
             the port's name differs; see `kubectl get endpointslices` and `kubectl get pods` there"
        )];
    }
    let line = |backend: &BackendRow| {
        let on = backend.node.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let state = if backend.state == BackendState::Out { "is out" } else { "takes no new flow" };
        format!(
            "endpoint {}{on} {state}: {}",
            backend.addr,
            backend.why.as_deref().unwrap_or("no reason known")
        )
    };
    backends.iter().map(line).collect()
}

fn no_route(node: &Inspection, walked: &Walked<'_>, dst: IpAddr) -> Vec<String> {
    let backend = walked.recorded.iter().find_map(|step| match step {
        RecordedStep::Backend(backend) | RecordedStep::Affinity(backend) => Some(*backend),
        _ => None,
    });
    let addr = backend.map_or(dst, |backend| backend.ip());
    let index = explain::Index::new(&node.origin.state);
    let rows = service(walked).map(|service| explain::backends(&node.tables, &node.origin, &index, service));
    let row = rows.iter().flatten().find(|row| Some(row.addr) == backend);
    let on = row.and_then(|row| row.node.as_deref());
    explain::unreachable(&node.tables, &node.origin, addr, on).into_iter().collect()
}

fn spoofed(node: &Inspection, walked: &Walked<'_>, src: IpAddr) -> Vec<String> {
    let senders = walked.arrival.map(|(vni, from)| node.tables.fdb().sources(vni, from));
    let line = |vtep: &std::sync::Arc<windlass_dataplane::tables::RemoteVtep>| {
        let prefixes: Vec<_> = vtep.prefixes.iter().map(ToString::to_string).collect();
        format!(
            "node {} may send from {} and its own addresses, not from {src}",
            vtep.node,
            prefixes.join(", ")
        )
    };
    senders.unwrap_or_default().iter().map(line).collect()
}
