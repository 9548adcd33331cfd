//! Kubernetes objects of a test cluster, as `kubectl get -o json` prints them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::topology::{
    CLUSTER_CIDR, CLUSTER_CIDR_V6, FAMILIES, Family, NodeSpec, SERVICE_CIDR, SERVICE_CIDR_V6, VNI, VXLAN_PORT,
};

/// A service with one port number, served over TCP and over UDP (F1), with a VIP of each family.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    /// Name of the Service, in namespace `default`.
    pub name: &'static str,
    /// The IPv4 VIP.
    pub vip: Ipv4Addr,
    /// The VIPs' port.
    pub port: u16,
    /// The backends' port.
    pub backend_port: u16,
}

impl ServiceSpec {
    /// The VIP of one family; the IPv6 one ends in the IPv4 one's last two octets.
    #[must_use]
    pub fn vip(&self, family: Family) -> IpAddr {
        let [_, _, third, fourth] = self.vip.octets();
        match family {
            Family::V4 => self.vip.into(),
            Family::V6 => {
                let last = u16::from_be_bytes([third, fourth]);
                Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, last).into()
            }
        }
    }
}

/// A backend and the node that it runs on.
pub type Placed = (IpAddr, &'static str);

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    items: Vec<Value>,
}

impl Objects {
    /// flannel's ConfigMap, the ServiceCIDR, and one annotated Node for each.
    #[must_use]
    pub fn cluster(nodes: &[NodeSpec]) -> Self {
        let mut items = vec![flannel_config(), service_cidr()];
        items.extend(nodes.iter().map(node));
        Self { items }
    }

    /// Adds a Service and its EndpointSlices, one per family, empty ones where there are no backends.
    #[must_use]
    pub fn with_service(mut self, spec: &ServiceSpec, backends: &[Placed]) -> Self {
        self.items.push(service(spec));
        for family in FAMILIES {
            self.items.push(endpoint_slice(spec, family, backends));
        }
        self
    }

    /// The objects.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.items.iter()
    }

    /// Adds an object as it is.
    pub fn push(&mut self, item: Value) {
        self.items.push(item);
    }

    /// The Node object of that name, to be changed.
    ///
    /// # Errors
    /// When there is none.
    pub fn node_mut(&mut self, name: &str) -> Result<&mut Value> {
        self.object_mut("Node", name)
    }

    /// The object of that kind and name, to be changed.
    ///
    /// # Errors
    /// When there is none.
    pub fn object_mut(&mut self, kind: &str, name: &str) -> Result<&mut Value> {
        self.items
            .iter_mut()
            .find(|item| item["kind"] == kind && item["metadata"]["name"] == name)
            .with_context(|| format!("no {kind} {name}"))
    }

    /// Makes a Service reachable from outside the cluster: `spec` is put into its spec, TCP and UDP get the node
    /// port, and a load balancer announces the addresses.
    ///
    /// # Errors
    /// When there is no such Service.
    pub fn expose(&mut self, name: &str, spec: Value, node_port: u16, balanced: &[IpAddr]) -> Result<()> {
        let service = self.object_mut("Service", name)?;
        service["spec"]["type"] = json!(if balanced.is_empty() { "NodePort" } else { "LoadBalancer" });
        for (key, value) in spec.as_object().into_iter().flatten() {
            service["spec"][key] = value.clone();
        }
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            port["nodePort"] = json!(node_port);
        }
        let ingress: Vec<Value> =
            balanced.iter().map(|addr| json!({ "ip": addr, "ipMode": "VIP" })).collect();
        service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
        Ok(())
    }

    /// Writes them as one `List` into that folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": self.items });
        std::fs::write(folder.join("cluster.json"), serde_json::to_vec_pretty(&list)?).context("manifests")
    }
}

fn flannel_config() -> Value {
    let net_conf = json!({
        "Network": CLUSTER_CIDR,
        "EnableIPv6": true,
        "IPv6Network": CLUSTER_CIDR_V6,
        "Backend": { "Type": "vxlan", "VNI": VNI, "Port": VXLAN_PORT },
    });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "kube-flannel-cfg", "namespace": "kube-flannel" },
        "data": { "net-conf.json": net_conf.to_string() },
    })
}

fn service_cidr() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": [SERVICE_CIDR, SERVICE_CIDR_V6] },
    })
}

fn node(spec: &NodeSpec) -> Value {
    // Written out: flannel insists on this order of the keys, without a space.
    let backend = |mac: &str| format!(r#"{{"VNI":{VNI},"VtepMAC":"{mac}"}}"#);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "annotations": {
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/backend-data": backend(spec.vtep_mac),
                "flannel.alpha.coreos.com/backend-v6-data": backend(spec.vtep_mac_v6),
                "flannel.alpha.coreos.com/public-ip": spec.address,
                "flannel.alpha.coreos.com/public-ipv6": spec.address_v6,
            },
        },
        "spec": {
            "podCIDR": spec.pod_cidr(Family::V4),
            "podCIDRs": [spec.pod_cidr(Family::V4), spec.pod_cidr(Family::V6)],
        },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": spec.address },
                { "type": "InternalIP", "address": spec.address_v6 },
                { "type": "Hostname", "address": spec.name },
            ],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn service(spec: &ServiceSpec) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": spec.name, "namespace": "default" },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": spec.vip(Family::V4),
            "clusterIPs": [spec.vip(Family::V4), spec.vip(Family::V6)],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [
                { "name": "tcp", "protocol": "TCP", "port": spec.port, "targetPort": spec.backend_port },
                { "name": "udp", "protocol": "UDP", "port": spec.port, "targetPort": spec.backend_port },
            ],
        },
    })
}

fn endpoint_slice(spec: &ServiceSpec, family: Family, backends: &[Placed]) -> Value {
    let (kind, suffix) = match family {
        Family::V4 => ("IPv4", "v4"),
        Family::V6 => ("IPv6", "v6"),
    };
    let endpoints: Vec<Value> = backends
        .iter()
        .filter(|(address, _)| address.is_ipv4() == (family == Family::V4))
        .map(|(address, node)| {
            json!({
                "addresses": [address],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": node,
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{}-{suffix}", spec.name),
            "namespace": "default",
            "labels": { "kubernetes.io/service-name": spec.name },
        },
        "addressType": kind,
        "endpoints": endpoints,
        "ports": [
            { "name": "tcp", "protocol": "TCP", "port": spec.backend_port },
            { "name": "udp", "protocol": "UDP", "port": spec.backend_port },
        ],
    })
}
