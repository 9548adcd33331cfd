//! A made-up cluster of any size, as plain objects and as an API server has them: UDP services of one port each, whose
//! endpoints are spread over all nodes.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use serde_json::{Value, json};
use windlass_control::cluster::{
    Announcement, ClusterState, Endpoint, EndpointPort, EndpointSlice, Flannel, Node, ObjectName, Service,
    ServicePort,
};
use windlass_control::node::{NodeSettings, UnderlayChoice};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

use crate::objects::Objects;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Services, at most a million.
    pub services: u32,
    /// Endpoints of each.
    pub endpoints: u32,
    /// Nodes beside our own, at most 32,000.
    pub nodes: u32,
}

/// The port that services are asked at.
pub const PORT: u16 = 80;

const VNI: Vni = match Vni::new(1) {
    Some(vni) => vni,
    None => unreachable!(),
};
const PORT_NAME: &str = "rpc";
const BACKEND_PORT: u16 = 8080;

/// 10.128.0.0: where the podCIDRs begin.
const POD_CIDRS: u32 = 0x0a80_0000;

/// 10.96.0.16: where the ClusterIPs begin.
const CLUSTER_IPS: u32 = 0x0a60_0010;

/// 172.16.0.0: where the nodes are.
const NODES: u32 = 0xac10_0000;

impl Size {
    /// All of it.
    #[must_use]
    pub fn cluster(self) -> ClusterState {
        let mut state = ClusterState::default();
        for number in 0..self.nodes {
            state.nodes.insert(node_name(number), Arc::new(peer(number, number)));
        }
        for number in 0..self.services {
            state.services.insert(name(number), Arc::new(service(number)));
            state.endpoint_slices.insert(name(number), Arc::new(self.slice(number, None)));
        }
        state
    }

    /// The same as an API server has it.
    #[must_use]
    pub fn objects(self) -> Objects {
        let mut objects = Objects::default();
        (0..self.nodes).for_each(|number| objects.push(node_object(number)));
        for number in 0..self.services {
            objects.push(service_object(number));
            objects.push(self.slice_object(number, None));
        }
        objects
    }

    /// The EndpointSlice of a service, with one more endpoint where `more` says which.
    #[must_use]
    pub fn slice(self, service: u32, more: Option<u32>) -> EndpointSlice {
        let endpoint = |(node, addr)| Endpoint {
            addr,
            node: Some(node_name(node)),
            ready: true,
            serving: true,
            terminating: false,
            hints: None,
        };
        EndpointSlice {
            service: Some(name(service).name.to_string()),
            ports: vec![EndpointPort { name: PORT_NAME.into(), protocol: Protocol::UDP, port: BACKEND_PORT }],
            endpoints: self.places(service, more).map(endpoint).collect(),
            ..EndpointSlice::default()
        }
    }

    /// The same as an API server has it.
    #[must_use]
    pub fn slice_object(self, service: u32, more: Option<u32>) -> Value {
        let endpoint = |(node, addr): (u32, IpAddr)| {
            json!({
                "addresses": [addr],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": node_name(node),
            })
        };
        let ObjectName { namespace, name } = name(service);
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": &*name, "namespace": &*namespace, "labels": { "kubernetes.io/service-name": &*name },
            },
            "addressType": "IPv4",
            "endpoints": self.places(service, more).map(endpoint).collect::<Vec<_>>(),
            "ports": [{ "name": PORT_NAME, "protocol": "UDP", "port": BACKEND_PORT }],
        })
    }

    /// The node and the address of each endpoint of a service.
    fn places(self, service: u32, more: Option<u32>) -> impl Iterator<Item = (u32, IpAddr)> {
        let first = service * self.endpoints;
        let all =
            (first..first + self.endpoints).chain(more.map(|more| self.services * self.endpoints + more));
        all.map(move |number| {
            let node = number % self.nodes;
            let addr = POD_CIDRS + (node << 8) + 1 + number / self.nodes % 250;
            (node, Ipv4Addr::from(addr).into())
        })
    }
}

/// The name of a service, and of its EndpointSlice.
#[must_use]
pub fn name(service: u32) -> ObjectName {
    ObjectName::new("default", format!("service-{service:06}"))
}

/// The name of a node.
#[must_use]
pub fn node_name(number: u32) -> String {
    format!("node-{number}")
}

/// The ClusterIP of a service.
#[must_use]
pub fn cluster_ip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from(CLUSTER_IPS + service)
}

/// A service.
#[must_use]
pub fn service(number: u32) -> Service {
    let port = ServicePort { name: PORT_NAME.into(), protocol: Protocol::UDP, port: PORT, node_port: None };
    Service { cluster_ips: vec![cluster_ip(number).into()], ports: vec![port], ..Service::default() }
}

fn service_object(number: u32) -> Value {
    let (ObjectName { namespace, name }, ip) = (name(number), cluster_ip(number));
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": &*name, "namespace": &*namespace },
        "spec": {
            "clusterIP": ip, "clusterIPs": [ip],
            "ports": [{ "name": PORT_NAME, "protocol": "UDP", "port": PORT }],
        },
    })
}

/// A node whose VTEP has the MAC of that number.
#[must_use]
pub fn peer(number: u32, mac: u32) -> Node {
    let addr = node_addr(number);
    let flannel = Flannel {
        backend_type: Some("vxlan".to_owned()),
        vtep_v4: Announcement::Ready { vni: VNI, mac: vtep_mac(mac) },
        public_ip: Some(addr),
        ..Flannel::default()
    };
    let pod_cidrs = pod_cidr(number).parse().into_iter().collect();
    Node { pod_cidrs, internal_ips: vec![addr], flannel, ..Node::default() }
}

fn node_object(number: u32) -> Value {
    let (addr, cidr) = (node_addr(number), pod_cidr(number));
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node_name(number),
            "annotations": {
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/backend-data":
                    format!(r#"{{"VNI":{VNI},"VtepMAC":"{}"}}"#, vtep_mac(number)),
                "flannel.alpha.coreos.com/public-ip": addr,
            },
        },
        "spec": { "podCIDR": &cidr, "podCIDRs": [&cidr] },
        "status": { "addresses": [{ "type": "InternalIP", "address": addr }] },
    })
}

fn node_addr(number: u32) -> IpAddr {
    Ipv4Addr::from(NODES + number).into()
}

fn pod_cidr(number: u32) -> String {
    format!("{}/24", Ipv4Addr::from(POD_CIDRS + (number << 8)))
}

fn vtep_mac(number: u32) -> Mac {
    let [.., third, fourth] = number.to_be_bytes();
    Mac([2, 0, 0, 1, third, fourth])
}

/// Our own node, whose pods are 10.244.0.0/24.
#[must_use]
pub fn settings() -> NodeSettings {
    NodeSettings {
        node: "own".to_owned(),
        vni: VNI,
        port: 8472,
        underlay: vec![UnderlayChoice { addr: Ipv4Addr::new(192, 168, 0, 1).into(), why: String::new() }],
        mac_v4: Some(Mac([2, 0, 0, 0, 0, 1])),
        mac_v6: None,
        pod_cidrs: "10.244.0.0/24".parse().into_iter().collect(),
        cluster_cidrs: "10.128.0.0/9".parse().into_iter().collect(),
        service_cidrs: "10.96.0.0/12".parse().into_iter().collect(),
        source_vip_v4: Ipv4Addr::new(169, 254, 77, 1),
        source_vip_v6: std::net::Ipv6Addr::LOCALHOST,
        overlay_mtu: 1450,
        addresses: Vec::new(),
        node_port_addrs: Vec::new(),
        zone: None,
        segments: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use windlass_control::source::manifests::load_text;

    use super::*;

    #[test]
    fn both_forms_are_one_cluster() {
        let size = Size { services: 7, endpoints: 3, nodes: 5 };
        let objects = size.objects();
        let items: Vec<&Value> = objects.iter().collect();
        let text = json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string();
        let loaded = load_text("large.json", &text, "flannel.alpha.coreos.com").unwrap();
        assert_eq!(loaded.problems, Vec::new());
        assert_eq!(loaded.state, size.cluster());
    }
}
