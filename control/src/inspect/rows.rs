//! Tables as rows: what is printed, and what goes over the admin socket as JSON.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::tables::{ForwardingTables, NextHop, VipKind, WhenEmpty};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::vxlan::Vni;

use super::explain::{self, BackendRow};
use super::segments::{self, SegmentRow, StationRow};
use super::{Inspection, Origin};

/// A VTEP of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdbRow {
    /// Network.
    pub vni: u32,
    /// Inner MAC of the VTEP.
    pub mac: String,
    /// Its node.
    pub node: String,
    /// Where its VXLAN port is.
    pub vtep: SocketAddr,
    /// Inner sources it may send from.
    pub prefixes: Vec<IpNet>,
    /// What was learned of the path, in bytes of the outer packet.
    pub path_mtu: Option<u32>,
}

/// A gateway's MAC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighborRow {
    /// Network.
    pub vni: u32,
    /// The gateway.
    pub addr: IpAddr,
    /// Its MAC.
    pub mac: String,
    /// Its node.
    pub node: Option<String>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteRow {
    /// Destination.
    pub prefix: IpNet,
    /// `remote`, `overlay` (a pod of this node) or `host`.
    pub via: String,
    /// The gateway of a remote one.
    pub gateway: Option<IpAddr>,
    /// The node of a remote one.
    pub node: Option<String>,
}

/// One port of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// `namespace/name:port`.
    pub name: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The address; of a node port the one that stands for this node's own.
    pub addr: IpAddr,
    /// The VIP's port.
    pub port: u16,
    /// `cluster-ip`, `node-port`, `external-ip` or `load-balancer`.
    pub kind: String,
    /// Who may open flows (loadBalancerSourceRanges); empty for everybody.
    pub source_ranges: Vec<IpNet>,
    /// With externalTrafficPolicy Local: who gets the flows of clients outside the cluster, and sees their addresses.
    pub outside_backends: Option<Vec<SocketAddr>>,
    /// How long ClientIP affinity lasts, in seconds.
    pub affinity_seconds: Option<u64>,
    /// What happens without a ready backend: `reject` or `drop`.
    pub when_empty: String,
    /// Every endpoint that is known, those that get nothing too.
    pub backends: Vec<BackendRow>,
}

/// This node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRow {
    /// Its name.
    pub node: String,
    /// Its network.
    pub vni: u32,
    /// VXLAN's UDP port.
    pub port: u16,
    /// Its underlay addresses, and why these.
    pub underlay: Vec<String>,
    /// Its VTEP MACs, IPv4's and IPv6's.
    pub macs: Vec<String>,
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// Its pods.
    pub pod_cidrs: Vec<IpNet>,
    /// All pods.
    pub cluster_cidrs: Vec<IpNet>,
    /// All ClusterIPs.
    pub service_cidrs: Vec<IpNet>,
    /// Sources of translated flows.
    pub source_vips: Vec<IpAddr>,
    /// MTU of the overlay device in bytes.
    pub overlay_mtu: u32,
}

/// The overlay device and the sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// The device's name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Threads that forward.
    pub workers: usize,
    /// The CPU each of them stays on; empty when they run anywhere.
    pub cpus: Vec<usize>,
    /// The UDP ports that VXLAN is sent from, per underlay address one after the other.
    pub source_ports: Vec<u16>,
    /// What device and sockets can do.
    pub facts: Vec<String>,
}

/// How many packets one reason dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRow {
    /// The reason's name.
    pub reason: String,
    /// Wire-size packets.
    pub packets: u64,
    /// What it means.
    pub meaning: String,
}

/// All tables, each sorted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    /// This node.
    pub local: LocalRow,
    /// VTEPs.
    pub fdb: Vec<FdbRow>,
    /// Gateways.
    pub neighbors: Vec<NeighborRow>,
    /// Routes.
    pub routes: Vec<RouteRow>,
    /// Services.
    pub services: Vec<ServiceRow>,
    /// L2 segments; with any, there is none of the other tables but neighbors.
    pub segments: Vec<SegmentRow>,
    /// Stations of L2 segments.
    pub stations: Vec<StationRow>,
    /// What was left out, and why.
    pub problems: Vec<String>,
}

impl Tables {
    /// All rows of a node.
    pub fn of(inspection: &Inspection) -> Self {
        let (tables, origin) = (&*inspection.tables, &*inspection.origin);
        Self {
            local: local(tables, origin),
            fdb: fdb(tables, inspection.now),
            neighbors: neighbors(inspection),
            routes: routes(tables),
            services: services(tables, origin),
            segments: segments::segments(inspection),
            stations: segments::stations(inspection),
            problems: origin.problems.iter().map(ToString::to_string).collect(),
        }
    }
}

/// The node behind a gateway.
pub(super) fn node_behind(tables: &ForwardingTables, vni: Vni, gateway: IpAddr) -> Option<String> {
    let mac = tables.neighbors().lookup(vni, gateway)?;
    tables.fdb().lookup(vni, mac).map(|vtep| vtep.node.clone())
}

/// A drop reason's meaning as one sentence.
pub fn meaning(reason: DropReason) -> String {
    reason.meaning().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn local(tables: &ForwardingTables, origin: &Origin) -> LocalRow {
    let (local, settings) = (tables.local(), &origin.settings);
    LocalRow {
        node: local.node.clone(),
        vni: settings.vni.get(),
        port: settings.port,
        underlay: settings.underlay.iter().map(ToString::to_string).collect(),
        macs: settings.mac_v4.iter().chain(&settings.mac_v6).map(ToString::to_string).collect(),
        addresses: local.addresses.clone(),
        pod_cidrs: local.pod_cidrs.clone(),
        cluster_cidrs: local.cluster_cidrs.clone(),
        service_cidrs: local.service_cidrs.clone(),
        source_vips: vec![local.source_vip_v4.into(), local.source_vip_v6.into()],
        overlay_mtu: local.overlay_mtu,
    }
}

fn fdb(tables: &ForwardingTables, now: Instant) -> Vec<FdbRow> {
    let row = |(vni, mac, vtep): (Vni, windlass_dataplane::wire::ethernet::Mac, &std::sync::Arc<_>)| {
        let vtep: &windlass_dataplane::tables::RemoteVtep = vtep;
        FdbRow {
            vni: vni.get(),
            mac: mac.to_string(),
            node: vtep.node.clone(),
            vtep: vtep.addr,
            prefixes: vtep.prefixes.clone(),
            path_mtu: vtep.path_mtu.get(now),
        }
    };
    let mut rows: Vec<_> = tables.fdb().iter().map(row).collect();
    rows.sort_by(|a, b| (&a.node, a.vni, &a.mac).cmp(&(&b.node, b.vni, &b.mac)));
    rows
}

fn neighbors(inspection: &Inspection) -> Vec<NeighborRow> {
    let tables = &inspection.tables;
    let row = |(vni, addr, mac): (Vni, IpAddr, windlass_dataplane::wire::ethernet::Mac)| NeighborRow {
        vni: vni.get(),
        addr,
        mac: mac.to_string(),
        node: tables.fdb().lookup(vni, mac).map(|vtep| vtep.node.clone()),
    };
    let mut rows: Vec<_> = tables.neighbors().iter().map(row).collect();
    rows.extend(segments::neighbors(inspection));
    rows.sort_by_key(|row| (row.vni, row.addr));
    rows
}

fn routes(tables: &ForwardingTables) -> Vec<RouteRow> {
    let row = |(prefix, next_hop)| {
        let (via, gateway, node) = match next_hop {
            NextHop::Remote { vni, gateway } => ("remote", Some(gateway), node_behind(tables, vni, gateway)),
            NextHop::Overlay => ("overlay", None, None),
            NextHop::Host => ("host", None, None),
        };
        RouteRow { prefix, via: via.to_owned(), gateway, node }
    };
    tables.routes().iter().map(row).collect()
}

/// The name of a kind of address.
pub(super) fn kind(kind: VipKind) -> &'static str {
    match kind {
        VipKind::ClusterIp => "cluster-ip",
        VipKind::NodePort => "node-port",
        VipKind::ExternalIp => "external-ip",
        VipKind::LoadBalancer => "load-balancer",
    }
}

fn services(tables: &ForwardingTables, origin: &Origin) -> Vec<ServiceRow> {
    let index = explain::Index::new(&origin.state);
    let mut services: Vec<_> = tables.services().iter().collect();
    services.sort_by(|a, b| (&a.name, a.vip).cmp(&(&b.name, b.vip)));
    let row = |service: &std::sync::Arc<windlass_dataplane::tables::Service>| ServiceRow {
        name: service.name.clone(),
        protocol: service.vip.protocol.to_string(),
        addr: service.vip.addr,
        port: service.vip.port,
        kind: kind(service.kind).to_owned(),
        source_ranges: service.source_ranges.clone(),
        outside_backends: service.outside.as_ref().map(|outside| outside.backends.clone()),
        affinity_seconds: service.affinity.map(|lasts| lasts.as_secs()),
        when_empty: match service.when_empty {
            WhenEmpty::Reject => "reject".to_owned(),
            WhenEmpty::Drop => "drop".to_owned(),
        },
        backends: explain::backends(tables, origin, &index, service),
    };
    services.into_iter().map(row).collect()
}
