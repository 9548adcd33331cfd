//! Node ports where the host brings nothing to the overlay device: this program listens on them itself, and relays to
//! the address that stands for node ports in the overlay, where backends are chosen as for every service.

use std::net::SocketAddr;

use windlass_dataplane::tables::{Service, TableSet, VipKind};
use windlass_dataplane::wire::flow::Protocol;

use crate::catalog;
use crate::cluster::Problem;
use crate::node::NodeSettings;

/// A node port at one of the node's addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePort {
    /// `namespace/name:port` of its Service.
    pub service: String,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where clients come to.
    pub listen: SocketAddr,
    /// Where the same port is reached in the overlay.
    pub relay_to: SocketAddr,
}

/// What sockets can serve, and what they cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePorts {
    /// Those to listen on, at each of the node's addresses.
    pub served: Vec<NodePort>,
    /// Ways in from outside that are not served, and why.
    pub problems: Vec<Problem>,
}

/// The node ports of all services. A relay hides the client's address, so that those with externalTrafficPolicy Local
/// are refused; external addresses of services are not this host's to listen on.
pub fn node_ports(settings: &NodeSettings, tables: &TableSet) -> NodePorts {
    let mut ports = NodePorts::default();
    for service in tables.services.iter() {
        match service.kind {
            VipKind::ClusterIp => {}
            VipKind::NodePort if service.outside.is_some() => ports.problems.push(keeps_client(service)),
            VipKind::NodePort => ports.served.extend(at_each_address(settings, service)),
            VipKind::ExternalIp | VipKind::LoadBalancer => ports.problems.push(external(service)),
        }
    }
    ports.served.sort_by_key(|port| (port.listen, port.protocol.0));
    ports.problems.sort_by(|a, b| a.subject.cmp(&b.subject).then_with(|| a.text.cmp(&b.text)));
    ports
}

fn at_each_address(settings: &NodeSettings, service: &Service) -> impl Iterator<Item = NodePort> {
    let ipv6 = service.vip.addr.is_ipv6();
    let addrs = settings.node_port_addrs.iter().filter(move |addr| addr.is_ipv6() == ipv6);
    addrs.map(|addr| NodePort {
        service: service.name.clone(),
        protocol: service.vip.protocol,
        listen: SocketAddr::new(*addr, service.vip.port),
        relay_to: SocketAddr::new(service.vip.addr, service.vip.port),
    })
}

fn keeps_client(service: &Service) -> Problem {
    let text = format!(
        "{} node port {} is not served on this node: externalTrafficPolicy Local promises backends the client's \
         address, which is lost where node ports are sockets of Windlass; set the policy to Cluster, or send clients \
         to a Linux node",
        service.vip.protocol, service.vip.port
    );
    Problem::new(format!("Service {}", service.name), text).found_by(catalog::NODE_PORTS.name)
}

fn external(service: &Service) -> Problem {
    let text = format!(
        "{} from outside the cluster is not served on this node, which brings nothing to Windlass but its own node \
         ports; send clients to a Linux node",
        service.vip
    );
    Problem::new(format!("Service {}", service.name), text).found_by(catalog::NODE_PORTS.name)
}
