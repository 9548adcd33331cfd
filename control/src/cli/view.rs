//! The tables as people read them, and the filters on them.

mod segments;

use std::net::IpAddr;

use clap::Args;
use windlass_control::config::ConfigError;
use windlass_control::inspect::explain::{BackendRow, BackendState};
use windlass_control::inspect::rows::{FdbRow, LocalRow, NeighborRow, RouteRow, ServiceRow, Tables};

use super::print::{columns, list, maybe};
pub(crate) use segments::{segments, stations};

/// Which rows are wanted.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// Only rows about this address: a VIP, a backend, a pod, a node
    #[arg(long, value_name = "IP")]
    pub(crate) addr: Option<IpAddr>,

    /// Only services whose namespace/name:port contains this
    #[arg(long, value_name = "NAME")]
    pub(crate) service: Option<String>,
}

/// The tables whose rows are about addresses.
const WITH_ADDR: [&str; 5] = ["fdb", "neighbors", "routes", "services", "connections"];
/// The tables whose rows are about services.
const WITH_SERVICE: [&str; 2] = ["services", "connections"];

/// Refuses a filter that says nothing about `table`, rather than ignoring it.
pub(crate) fn expect_applies(
    filter: &str,
    is_given: bool,
    table: &str,
    to: &[&str],
) -> Result<(), ConfigError> {
    if !is_given || to.contains(&table) {
        return Ok(());
    }
    let text = format!("{filter} does not apply to {table}, only to {}; leave it out", to.join(", "));
    Err(ConfigError::Arguments(text))
}

impl Wanted {
    /// Refuses a filter that says nothing about `table`.
    pub(crate) fn expect_apply(&self, table: &str) -> Result<(), ConfigError> {
        expect_applies("--addr", self.addr.is_some(), table, &WITH_ADDR)?;
        expect_applies("--service", self.service.is_some(), table, &WITH_SERVICE)
    }

    fn no_service(&self) -> String {
        let addr = self.addr.map(|addr| format!(" --addr {addr}"));
        let service = self.service.as_ref().map(|part| format!(" --service {part}"));
        let filters: String = addr.into_iter().chain(service).collect();
        if filters.is_empty() { "no service".to_owned() } else { format!("no service matches{filters}") }
    }

    /// Keeps the wanted rows. A route or a podCIDR is about every address in it, but for the default route.
    pub(crate) fn keep(&self, tables: &mut Tables) {
        if let Some(addr) = self.addr {
            let about = |prefix: &ipnet::IpNet| prefix.prefix_len() > 0 && prefix.contains(&addr);
            tables.fdb.retain(|row| row.vtep.ip() == addr || row.prefixes.iter().any(about));
            let nodes: Vec<_> = tables.fdb.iter().map(|row| row.node.clone()).collect();
            tables
                .neighbors
                .retain(|row| row.addr == addr || row.node.as_ref().is_some_and(|node| nodes.contains(node)));
            tables.routes.retain(|row| about(&row.prefix));
            tables
                .stations
                .retain(|row| row.ips.contains(&addr) || row.vtep.is_some_and(|vtep| vtep.ip() == addr));
        }
        let named = |row: &ServiceRow| self.service.as_ref().is_none_or(|part| row.name.contains(part));
        let at = |row: &ServiceRow| {
            let is = |addr| row.addr == addr || row.backends.iter().any(|backend| backend.addr.ip() == addr);
            self.addr.is_none_or(is)
        };
        tables.services.retain(|row| named(row) && at(row));
    }
}

pub(crate) fn fdb(rows: &[FdbRow]) -> String {
    let row = |row: &FdbRow| {
        vec![
            row.node.clone(),
            row.vni.to_string(),
            row.mac.clone(),
            row.vtep.to_string(),
            list(&row.prefixes),
            maybe(row.path_mtu.as_ref()),
        ]
    };
    let header = ["NODE", "VNI", "MAC", "VTEP", "MAY SEND FROM", "PATH MTU"];
    columns(&header, rows.iter().map(row).collect(), "no FDB entry")
}

pub(crate) fn neighbors(rows: &[NeighborRow]) -> String {
    let row = |row: &NeighborRow| {
        vec![row.addr.to_string(), row.vni.to_string(), row.mac.clone(), maybe(row.node.as_ref())]
    };
    columns(&["GATEWAY", "VNI", "MAC", "NODE"], rows.iter().map(row).collect(), "no neighbor")
}

pub(crate) fn routes(rows: &[RouteRow]) -> String {
    let row = |row: &RouteRow| {
        let node = row.node.clone();
        let via = match row.via.as_str() {
            "remote" => format!("VTEP of {}", node.unwrap_or_else(|| "an unknown node".to_owned())),
            "overlay" => "pods of this node".to_owned(),
            _ if row.prefix.prefix_len() == 0 => "the host, as outside the overlay".to_owned(),
            _ => "this node itself".to_owned(),
        };
        vec![row.prefix.to_string(), maybe(row.gateway.as_ref()), via]
    };
    columns(&["PREFIX", "GATEWAY", "TO"], rows.iter().map(row).collect(), "no route")
}

pub(crate) fn services(rows: &[ServiceRow], wanted: &Wanted) -> String {
    let mut lines = Vec::new();
    for row in rows {
        let mut name = row.name.clone();
        let mut vip = vip(row);
        let mut of_service = of_service(row);
        if row.backends.is_empty() {
            let what = if row.when_empty == "drop" { "drops" } else { "refuses" };
            of_service.push(format!("no endpoint in any EndpointSlice: {what} every packet"));
            let note = of_service.join("; ");
            lines.push(vec![name, vip, "-".to_owned(), "none".to_owned(), "-".to_owned(), note]);
            continue;
        }
        for backend in &row.backends {
            let notes: Vec<_> = of_service.drain(..).chain(backend.why.clone()).collect();
            lines.push(vec![
                std::mem::take(&mut name),
                std::mem::take(&mut vip),
                backend.addr.to_string(),
                state(backend).to_owned(),
                maybe(backend.node.as_ref()),
                notes.join("; "),
            ]);
        }
    }
    columns(&["SERVICE", "VIP", "BACKEND", "STATE", "NODE", "NOTE"], lines, &wanted.no_service())
}

/// Where the service is reached, as clients name it.
fn vip(row: &ServiceRow) -> String {
    match row.kind.as_str() {
        "node-port" => {
            let family = if row.addr.is_ipv6() { " (IPv6)" } else { "" };
            format!("{} node port {}{family}", row.protocol, row.port)
        }
        _ => format!("{} {}", row.protocol, std::net::SocketAddr::new(row.addr, row.port)),
    }
}

/// What holds of the service whatever its backends.
fn of_service(row: &ServiceRow) -> Vec<String> {
    let mut notes = Vec::new();
    if matches!(row.kind.as_str(), "external-ip" | "load-balancer") {
        notes.push(row.kind.replace('-', " "));
    }
    notes.extend(row.affinity_seconds.map(|seconds| format!("ClientIP affinity {seconds} s")));
    if !row.source_ranges.is_empty() {
        notes.push(format!("only for clients in {}", list(&row.source_ranges)));
    }
    if let Some(backends) = &row.outside_backends {
        let backends = if backends.is_empty() { "none".to_owned() } else { list(backends) };
        notes.push(format!("clients outside the cluster: {backends} (externalTrafficPolicy Local)"));
    }
    notes
}

fn state(backend: &BackendRow) -> &'static str {
    match backend.state {
        BackendState::Ready => "ready",
        BackendState::Draining => "draining",
        BackendState::Out => "out",
    }
}

pub(crate) fn local(row: &LocalRow) -> String {
    let line = |name: &str, value: String| vec![name.to_owned(), value];
    if row.pod_cidrs.is_empty() {
        // Of a node that bridges segments there is nothing else to say.
        let rows = vec![
            line("node", row.node.clone()),
            line("underlay", list(&row.underlay)),
            line("port", row.port.to_string()),
            line("overlay MTU", row.overlay_mtu.to_string()),
        ];
        return columns(&["LOCAL", ""], rows, "");
    }
    let services = if row.service_cidrs.is_empty() { "by VIP".to_owned() } else { list(&row.service_cidrs) };
    let rows = vec![
        line("node", row.node.clone()),
        line("underlay", list(&row.underlay)),
        line("VNI, port", format!("{}, {}", row.vni, row.port)),
        line("VTEP MAC", list(&row.macs)),
        line("addresses", list(&row.addresses)),
        line("pods here", list(&row.pod_cidrs)),
        line("all pods", list(&row.cluster_cidrs)),
        line("services", services),
        line("source VIP", list(&row.source_vips)),
        line("overlay MTU", row.overlay_mtu.to_string()),
    ];
    columns(&["LOCAL", ""], rows, "")
}
