//! From a cluster's state to one node's forwarding tables: a pure function, [`compile`], and a [`Compiler`] that
//! computes it again at the cost of what changed.

mod claims;
mod endpoints;
mod health_checks;
mod host_side;
mod incremental;
mod nodes;
mod services;

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use windlass_dataplane::tables::{Local, LocalVtep, NextHop, RouteTable, TableSet};

use crate::cluster::{ClusterState, Problem};
use crate::node::NodeSettings;

pub use health_checks::{HealthCheck, HealthChecks};
pub use host_side::HostSide;
pub use incremental::{Compiler, Update};
pub(crate) use nodes::remedy_of_twins;

/// Tables, and what was left out of them.
#[derive(Clone, Debug, Default)]
pub struct Compiled {
    /// The tables.
    pub tables: TableSet,
    /// What was left out.
    pub problems: Vec<Problem>,
}

/// Compiles the tables of the node that `settings` describe. Whatever a [`Compiler`] has seen before, it comes to
/// the same.
pub fn compile(state: &ClusterState, settings: &NodeSettings) -> Compiled {
    let mut compiler = Compiler::new(settings.clone());
    compiler.follow(state);
    let update = compiler.update();
    Compiled { tables: update.draft.tables().clone(), problems: update.problems }
}

fn local(settings: &NodeSettings) -> Local {
    let vtep = LocalVtep { mac_v4: settings.mac_v4, mac_v6: settings.mac_v6 };
    let base_v4 = settings.pod_cidrs.iter().find_map(|cidr| match cidr {
        IpNet::V4(cidr) => Some(cidr.network()),
        IpNet::V6(_) => None,
    });
    let base_v6 = settings.pod_cidrs.iter().find_map(|cidr| match cidr {
        IpNet::V6(cidr) => Some(cidr.network()),
        IpNet::V4(_) => None,
    });
    let mut addresses = settings.addresses.clone();
    addresses.extend(base_v4.map(IpAddr::V4));
    addresses.extend(base_v6.map(IpAddr::V6));
    Local {
        node: settings.node.clone(),
        vteps: [(settings.vni, vtep)].into_iter().collect(),
        addresses,
        base_v4,
        base_v6,
        pod_cidrs: settings.pod_cidrs.clone(),
        cluster_cidrs: settings.cluster_cidrs.clone(),
        service_cidrs: settings.service_cidrs.clone(),
        source_vip_v4: settings.source_vip_v4,
        source_vip_v6: settings.source_vip_v6,
        overlay_mtu: settings.overlay_mtu,
    }
}

/// Own pods, own addresses, and everything outside the overlay: host-network backends are anywhere.
fn own_routes(settings: &NodeSettings) -> RouteTable {
    let mut routes = RouteTable::default();
    routes.insert(Ipv4Net::default().into(), NextHop::Host);
    routes.insert(Ipv6Net::default().into(), NextHop::Host);
    for cidr in &settings.pod_cidrs {
        routes.insert(*cidr, NextHop::Overlay);
        routes.insert(cidr.network().into(), NextHop::Host);
    }
    for addr in &settings.addresses {
        routes.insert((*addr).into(), NextHop::Host);
    }
    routes
}

#[cfg(test)]
mod tests;
