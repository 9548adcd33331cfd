//! From Kubernetes' types to ours, object by object: files and the API give the same ones.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use windlass_dataplane::wire::flow::Protocol;

use super::flannel;
use crate::cluster::{
    Endpoint, EndpointPort, EndpointSlice, Exposure, Hints, NetConf, Node, SCTP, Service, ServicePort,
    parse_cidr,
};

/// How long ClientIP affinity lasts where a Service does not say: three hours.
const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);

/// The label by which an EndpointSlice names its Service.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The label of a node's zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The taint of nodes that the cluster autoscaler is about to delete (KEP-3836).
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Reads a Node. A single doubtful address or annotation is left out and given to `refuse`.
///
/// # Errors
/// Why the object as a whole cannot be used.
pub fn node(node: &core::Node, prefix: &str, mut refuse: impl FnMut(String)) -> Result<Node, String> {
    let spec = node.spec.clone().unwrap_or_default();
    let is_tainted = spec.taints.iter().flatten().any(|taint| taint.key == LEAVING_TAINT);
    let texts = spec.pod_cidrs.filter(|cidrs| !cidrs.is_empty());
    let texts = texts.unwrap_or_else(|| spec.pod_cidr.into_iter().filter(|cidr| !cidr.is_empty()).collect());
    let mut pod_cidrs = Vec::with_capacity(texts.len());
    for text in &texts {
        pod_cidrs.push(network(text).ok_or_else(|| format!("spec.podCIDR: {}", no_network(text)))?);
    }
    let mut addresses = |kind: &str| -> Vec<IpAddr> {
        let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        let texts = all.filter(|address| address.type_ == kind);
        let parsed = texts.filter_map(|address| match address.address.parse() {
            Ok(addr) => Some(addr),
            Err(_) => {
                refuse(format!("status.addresses: {kind} {}", no_address(&address.address)));
                None
            }
        });
        parsed.collect()
    };
    let (internal_ips, external_ips) = (addresses("InternalIP"), addresses("ExternalIP"));
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    Ok(Node {
        uid: node.metadata.uid.clone(),
        created_at: created_at(&node.metadata),
        pod_cidrs,
        internal_ips,
        external_ips,
        zone: node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL)).cloned(),
        is_leaving: is_tainted || node.metadata.deletion_timestamp.is_some(),
        flannel: flannel::annotations(&annotations, prefix, refuse),
    })
}

/// Reads a Service.
///
/// # Errors
/// Why the object cannot be used.
pub fn service(service: &core::Service) -> Result<Service, String> {
    let spec = service.spec.as_ref().ok_or("it has no spec")?;
    let texts = match &spec.cluster_ips {
        Some(ips) if !ips.is_empty() => ips.clone(),
        _ => spec.cluster_ip.iter().cloned().collect(),
    };
    let texts = texts.iter().filter(|text| !text.is_empty() && *text != "None");
    let cluster_ips = vips("spec.clusterIPs", texts)?;
    let has_node_ports = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let mut ports = Vec::new();
    for port in spec.ports.iter().flatten() {
        let node_port = port.node_port.filter(|number| *number != 0 && has_node_ports);
        ports.push(ServicePort {
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol(port.protocol.as_deref())?,
            port: port_number(port.port)?,
            node_port: node_port.map(port_number).transpose()?,
        });
    }
    let affinity = match spec.session_affinity.as_deref() {
        None | Some("" | "None") => None,
        Some("ClientIP") => Some(affinity(spec)?),
        Some(other) => return Err(format!("spec.sessionAffinity {other:?} is neither ClientIP nor None")),
    };
    Ok(Service {
        created_at: created_at(&service.metadata),
        labels: service.metadata.labels.clone().unwrap_or_default(),
        external_name: spec.type_.as_deref() == Some("ExternalName"),
        cluster_ips,
        ports,
        affinity,
        internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
        exposure: exposure(spec, service.status.as_ref())?,
    })
}

fn exposure(spec: &core::ServiceSpec, status: Option<&core::ServiceStatus>) -> Result<Exposure, String> {
    let local = spec.external_traffic_policy.as_deref() == Some("Local");
    let external_ips = vips("spec.externalIPs", spec.external_ips.iter().flatten())?;
    if spec.type_.as_deref() != Some("LoadBalancer") {
        return Ok(Exposure { local, external_ips, ..Exposure::default() });
    }
    let status = status.and_then(|status| status.load_balancer.as_ref());
    let ingress = status.into_iter().flat_map(|status| status.ingress.iter().flatten());
    // Packets of a load balancer that is a proxy are not addressed to it when they come here.
    let direct = ingress.filter(|ingress| ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"));
    let mut source_ranges = Vec::new();
    for text in spec.load_balancer_source_ranges.iter().flatten() {
        let range = network(text.trim());
        source_ranges
            .push(range.ok_or_else(|| format!("spec.loadBalancerSourceRanges: {}", no_network(text)))?);
    }
    let health_check_port = spec.health_check_node_port.filter(|number| *number != 0 && local);
    Ok(Exposure {
        local,
        external_ips,
        load_balancer_ips: vips("status.loadBalancer", direct.filter_map(|ingress| ingress.ip.as_ref()))?,
        source_ranges,
        health_check_port: health_check_port.map(port_number).transpose()?,
    })
}

fn vips<'a>(place: &str, texts: impl Iterator<Item = &'a String>) -> Result<Vec<IpAddr>, String> {
    let parsed = texts.map(|text| {
        let addr = text.parse().ok().filter(|addr| refusal(*addr).is_none());
        addr.ok_or_else(|| format!("{place}: {}", no_address(text)))
    });
    parsed.collect()
}

fn affinity(spec: &core::ServiceSpec) -> Result<Duration, String> {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    match config.and_then(|config| config.timeout_seconds) {
        None => Ok(DEFAULT_AFFINITY),
        Some(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds.unsigned_abs().into())),
        Some(seconds) => {
            Err(format!("spec.sessionAffinityConfig.clientIP.timeoutSeconds {seconds} is not 1 to 86400"))
        }
    }
}

/// Reads an EndpointSlice; `None` when its addresses are names (addressType FQDN). An address that no backend
/// may have (E8, E9) is left out and given to `refuse`.
///
/// # Errors
/// Why the object as a whole cannot be used.
pub fn endpoint_slice(
    slice: &discovery::EndpointSlice,
    mut refuse: impl FnMut(String),
) -> Result<Option<EndpointSlice>, String> {
    let ipv6 = match slice.address_type.as_str() {
        "IPv4" => false,
        "IPv6" => true,
        "FQDN" => return Ok(None),
        other => return Err(format!("addressType {other:?} is neither IPv4 nor IPv6")),
    };
    let mut ports = Vec::new();
    for port in slice.ports.iter().flatten() {
        let Some(number) = port.port else { continue };
        ports.push(EndpointPort {
            name: port.name.clone().unwrap_or_default(),
            protocol: protocol(port.protocol.as_deref())?,
            port: port_number(number)?,
        });
    }
    let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
        let text = endpoint.addresses.first()?;
        match endpoint_addr(text, ipv6) {
            Ok(addr) => Some(conditions(endpoint, addr)),
            Err(reason) => {
                refuse(reason);
                None
            }
        }
    });
    let labels = slice.metadata.labels.as_ref();
    Ok(Some(EndpointSlice {
        service: labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)).cloned(),
        ipv6,
        ports,
        endpoints: endpoints.collect(),
    }))
}

fn conditions(endpoint: &discovery::Endpoint, addr: IpAddr) -> Endpoint {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    Endpoint {
        addr,
        node: endpoint.node_name.clone(),
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        hints: endpoint.hints.as_ref().map(|hints| Box::new(read_hints(hints))),
    }
}

fn read_hints(hints: &discovery::EndpointHints) -> Hints {
    Hints {
        zones: hints.for_zones.iter().flatten().map(|zone| zone.name.clone()).collect(),
        nodes: hints.for_nodes.iter().flatten().map(|node| node.name.clone()).collect(),
    }
}

fn endpoint_addr(text: &str, ipv6: bool) -> Result<IpAddr, String> {
    let addr: IpAddr = text.parse().map_err(|_| format!("endpoint {}", no_address(text)))?;
    if addr.is_ipv6() != ipv6 {
        return Err(format!("endpoint address {addr} is not of the slice's addressType; it is refused"));
    }
    match refusal(addr) {
        Some(kind) => Err(format!("endpoint address {addr} is {kind}; it is refused")),
        None => Ok(addr),
    }
}

/// Why no service or endpoint may have this address (E8).
fn refusal(addr: IpAddr) -> Option<&'static str> {
    let link_local = match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    };
    match addr {
        _ if addr.is_unspecified() => Some("unspecified"),
        _ if addr.is_loopback() => Some("a loopback address"),
        _ if addr.is_multicast() => Some("a multicast address"),
        _ if link_local => Some("a link-local address"),
        IpAddr::V4(addr) if addr.is_broadcast() || addr.octets()[0] == 0 => Some("no host's address"),
        IpAddr::V6(addr) if addr.to_ipv4_mapped().is_some() => Some("an IPv4 address in IPv6 clothes"),
        _ => None,
    }
}

/// Reads a ServiceCIDR.
///
/// # Errors
/// Why the object cannot be used.
pub fn service_cidr(object: &networking::ServiceCIDR) -> Result<Vec<IpNet>, String> {
    let texts = object.spec.as_ref().and_then(|spec| spec.cidrs.clone()).unwrap_or_default();
    texts
        .iter()
        .map(|text| network(text).ok_or_else(|| format!("spec.cidrs: {}", no_network(text))))
        .collect()
}

/// Reads flannel's configuration out of its ConfigMap; `None` when the ConfigMap holds none.
///
/// # Errors
/// Why it cannot be used.
pub fn net_conf(config_map: &core::ConfigMap) -> Option<Result<NetConf, String>> {
    config_map.data.as_ref()?.get("net-conf.json").map(|text| flannel::net_conf(text))
}

fn created_at(metadata: &ObjectMeta) -> Option<i64> {
    metadata.creation_timestamp.as_ref().map(|time| time.0.as_second())
}

fn protocol(text: Option<&str>) -> Result<Protocol, String> {
    match text {
        None | Some("TCP" | "") => Ok(Protocol::TCP),
        Some("UDP") => Ok(Protocol::UDP),
        Some("SCTP") => Ok(SCTP),
        Some(other) => Err(format!("port protocol {other:?} is not TCP, UDP or SCTP")),
    }
}

fn port_number(number: i32) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("port {number} is not 1 to 65535"))
}

fn network(text: &str) -> Option<IpNet> {
    parse_cidr(text).map(|cidr| cidr.trunc())
}

fn no_network(text: &str) -> String {
    format!("{text:?} is no network like 10.244.1.0/24{}", zeros(text))
}

fn no_address(text: &str) -> String {
    format!("address {text:?} is no usable IP address{}; it is refused", zeros(text))
}

fn zeros(text: &str) -> &'static str {
    let leading = |byte: &str| byte.len() > 1 && byte.starts_with('0');
    if text.split(['.', '/']).any(leading) { " (leading zeros)" } else { "" }
}
