//! Which packets of clients outside the cluster the host must bring to the overlay device.

use windlass_dataplane::device::Entrances;
use windlass_dataplane::tables::{TableSet, Vip, VipKind};

use crate::node::NodeSettings;

/// The entrances of all services that are more than a ClusterIP.
pub fn entrances(settings: &NodeSettings, tables: &TableSet) -> Entrances {
    let mut entrances = Entrances::default();
    for service in tables.services.iter() {
        let keeps_client = service.outside.is_some();
        let mut enter = |destination: Vip, node_port: bool| {
            let kind = if node_port { &mut entrances.node_ports } else { &mut entrances.external };
            kind.insert(destination);
            if keeps_client {
                entrances.kept.insert(destination);
            }
        };
        match service.kind {
            VipKind::ClusterIp => {}
            VipKind::ExternalIp | VipKind::LoadBalancer => enter(service.vip, false),
            VipKind::NodePort => {
                let ipv6 = service.vip.addr.is_ipv6();
                for addr in settings.node_port_addrs.iter().filter(|addr| addr.is_ipv6() == ipv6) {
                    enter(Vip { addr: *addr, ..service.vip }, true);
                }
            }
        }
    }
    entrances
}
