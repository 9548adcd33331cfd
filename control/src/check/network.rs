//! Devices, routes, MTUs and settings of the host that do not go with ours.

use std::net::IpAddr;

use ipnet::IpNet;
use windlass_dataplane::device::Survey;
use windlass_dataplane::device::survey::{SurveyedLink, SurveyedRoute};

use super::cluster::vteps;
use super::windows;
use super::{Facts, Finding, Severity, Subject};
use crate::catalog::{self, Check};
use crate::cluster::NetConfState;
use crate::node::{NodeSettings, USUAL_MTU, overhead};

pub(super) fn findings(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let host = &facts.host;
    let mut findings = Vec::new();
    match &host.links {
        Ok(links) => {
            // The device of a run that goes on is that run's, and one that was left standing is gone on with.
            let is_free = |link: &&SurveyedLink| facts.managed_by.is_none() && !link.kept;
            let links = links.iter().filter(|link| is_free(link) || link.name != subject.config.device);
            findings.extend(links.filter_map(|link| device(subject, host, link)));
        }
        Err(why) => findings.push(Finding::unseen(&catalog::FLANNEL_DEVICE, why)),
    }
    match (&host.routes, subject.node) {
        (Err(why), _) => findings.push(Finding::unseen(&catalog::ROUTES, why)),
        (Ok(_), None) => findings.push(Finding::without_node(&catalog::ROUTES)),
        (Ok(routes), Some(node)) => {
            findings.extend(competing_routes(subject, node, host, routes));
            findings.extend(underlay_paths(subject, node, host, routes));
            findings.extend(advertised_default(node, host, routes));
        }
    }
    if let Some(node) = subject.node {
        findings.extend(underlay_mtus(subject, node, host));
        findings.extend(bridge_mtus(subject, node, host));
        findings.extend(flannel_mtu(node, host));
    }
    findings.extend(forwarding(subject.node, host));
    findings
}

/// Sets an interface's MTU, in the words of the host's own tools.
fn set_mtu(host: &Survey, interface: &str, mtu: u32) -> String {
    match host.windows {
        Some(_) => windows::set_mtu(interface, mtu),
        None => format!("ip link set {interface} mtu {mtu}"),
    }
}

/// Removes a route, likewise.
fn delete_route(host: &Survey, route: &SurveyedRoute) -> String {
    if host.windows.is_some() {
        return windows::delete_route(route);
    }
    let family = if route.destination.addr().is_ipv6() { "-6 " } else { "" };
    format!("ip {family}route delete {}", described(route))
}

/// A vxlan device takes a VNI and port as a whole, whatever its name is.
fn device(subject: &Subject<'_>, host: &Survey, link: &SurveyedLink) -> Option<Finding> {
    let remedy = match host.windows {
        Some(_) => windows::delete_device(&link.name),
        None => format!("ip link delete {}", link.name),
    };
    if link.name == subject.config.device {
        let seen = format!("an interface {} exists already", link.name);
        let remedy = format!("{remedy}, or choose another name with --device");
        return Some(Finding::error(&catalog::DEVICE_NAME, seen, remedy));
    }
    let same =
        |node: &NodeSettings| link.vxlan_vni == Some(node.vni.get()) || link.vxlan_port == Some(node.port);
    if subject.node.is_some_and(same) {
        let (vni, port) = (link.vxlan_vni.unwrap_or_default(), link.vxlan_port.unwrap_or_default());
        let seen = format!("the vxlan device {} has VNI {vni} and UDP port {port}", link.name);
        return Some(Finding::error(&catalog::FLANNEL_DEVICE, seen, remedy));
    }
    if link.name.starts_with("flannel") {
        let seen = format!("the device {} is flannel's", link.name);
        return Some(Finding::warning(&catalog::FLANNEL_DEVICE, seen, remedy));
    }
    (link.name == "kube-ipvs0").then(|| {
        let seen = "the device kube-ipvs0 has the service addresses, so they are taken for this host's";
        Finding::error(&catalog::KUBE_PROXY_IPVS, seen.to_owned(), remedy)
    })
}

/// Routes inside the overlay's ranges that are not ours: one inside a peer's podCIDR, or to one of our own
/// prefixes, takes what is meant for us; another may be meant so.
fn competing_routes(
    subject: &Subject<'_>,
    node: &NodeSettings,
    host: &Survey,
    routes: &[SurveyedRoute],
) -> Vec<Finding> {
    let ranges: Vec<&IpNet> = node.cluster_cidrs.iter().chain(&node.service_cidrs).collect();
    let peers: Vec<&IpNet> = (subject.cluster.nodes.iter())
        .filter(|(name, _)| **name != node.node)
        .flat_map(|(_, peer)| &peer.pod_cidrs)
        .collect();
    let own = |net: &IpNet| node.pod_cidrs.iter().any(|cidr| cidr.contains(net));
    let mut findings = Vec::new();
    for route in routes.iter().filter(|route| !route.ours && !own(&route.destination)) {
        let net = &route.destination;
        if !ranges.iter().any(|range| range.contains(net)) {
            continue;
        }
        let taken =
            ranges.contains(&net) || peers.iter().any(|cidr| cidr.contains(net) || net.contains(*cidr));
        let severity = if taken { Severity::Error } else { Severity::Warning };
        let seen = format!("the host has a route to {}", described(route));
        findings.push(Finding::new(&catalog::ROUTES, severity, seen, delete_route(host, route)));
    }
    findings
}

fn described(route: &SurveyedRoute) -> String {
    let mut text = route.destination.to_string();
    if let Some(gateway) = route.gateway {
        text.push_str(&format!(" via {gateway}"));
    }
    if let Some(interface) = &route.interface {
        text.push_str(&format!(" dev {interface}"));
    }
    text
}

/// Peers that are reached by another interface than the underlay address's: its MTU counts, and a strict filter
/// drops what comes from them on ours.
fn underlay_paths(
    subject: &Subject<'_>,
    node: &NodeSettings,
    host: &Survey,
    routes: &[SurveyedRoute],
) -> Vec<Finding> {
    let interface = |addr: IpAddr| {
        let local = host.addresses.iter().flatten().find(|local| local.address == addr);
        local.map(|local| (local.interface.as_str(), local.mtu))
    };
    let link_mtu =
        |name: &str| host.links.iter().flatten().find(|link| link.name == name).map(|link| link.mtu);
    let peers = subject.cluster.nodes.iter().filter(|(name, _)| **name != node.node);
    let mut findings: Vec<Finding> = Vec::new();
    for addr in peers.flat_map(|(_, peer)| vteps(peer)) {
        let ours = node.underlay.iter().find(|choice| choice.addr.is_ipv6() == addr.is_ipv6());
        let Some((own, own_mtu)) = ours.and_then(|choice| interface(choice.addr)) else { continue };
        let Some(path) = route_to(routes, addr).and_then(|route| route.interface.as_deref()) else {
            continue;
        };
        if path == own {
            continue;
        }
        let said = |check: &'static Check| findings.iter().any(|finding| finding.check == check);
        let smaller = link_mtu(path).filter(|mtu| *mtu < own_mtu && !said(&catalog::MTU));
        let strict = addr.is_ipv4() && is_strict(host, own) && !said(&catalog::RP_FILTER);
        if let Some(mtu) = smaller {
            let seen = format!("the route to {addr} leaves by {path}, MTU {mtu}, and {own} has {own_mtu}");
            let remedy =
                format!("{}, or give that interface's --underlay-addr", set_mtu(host, path, own_mtu));
            findings.push(Finding::warning(&catalog::MTU, seen, remedy));
        }
        if strict {
            let seen = format!("rp_filter of {own} is strict, and the route to {addr} leaves by {path}");
            let remedy = format!("sysctl -w net.ipv4.conf.{own}.rp_filter=2");
            findings.push(Finding::warning(&catalog::RP_FILTER, seen, remedy));
        }
    }
    findings
}

/// An underlay that carries less than peers think, or less than a device needs that is there already.
fn underlay_mtus(subject: &Subject<'_>, node: &NodeSettings, host: &Survey) -> Vec<Finding> {
    let agreed = matches!(&subject.cluster.net_conf, NetConfState::Present(conf) if conf.mtu.is_some());
    let device = host.links.iter().flatten().find(|link| link.name == subject.config.device);
    let mut findings = Vec::new();
    for local in host.addresses.iter().flatten() {
        let (name, mtu) = (&local.interface, local.mtu);
        if !node.underlay.iter().any(|choice| choice.addr == local.address) {
            continue;
        }
        let overhead = overhead(local.address);
        if let Some(device) = device.filter(|device| device.mtu + overhead > mtu) {
            let needed = device.mtu + overhead;
            let seen = format!(
                "{} has an MTU of {}, which needs {needed} of {name}, and {name} has {mtu}",
                device.name, device.mtu
            );
            let set = set_mtu(host, name, needed);
            let remedy = format!("{set}, or restart windlass, which takes the lesser MTU");
            findings.push(Finding::warning(&catalog::MTU, seen, remedy));
        } else if mtu < USUAL_MTU && !agreed {
            let seen = format!(
                "{name} has an MTU of {mtu}, so the overlay carries {}; peers whose underlay carries {USUAL_MTU} \
                 send up to {}",
                mtu.saturating_sub(overhead),
                USUAL_MTU - overhead
            );
            let remedy = format!(
                "{}; where the network carries no more, \"MTU\": {mtu} under Backend in net-conf.json tells all \
                 nodes",
                set_mtu(host, name, USUAL_MTU)
            );
            findings.push(Finding::warning(&catalog::MTU, seen, remedy));
        }
    }
    findings
}

/// The kernel takes the larger of the interface's and that of all.
fn is_strict(host: &Survey, interface: &str) -> bool {
    let value = |name: &str| {
        let value = host.sysctls.get(&format!("net/ipv4/conf/{name}/rp_filter"));
        value.and_then(|value| value.parse::<u8>().ok()).unwrap_or(0)
    };
    value("all").max(value(interface)) == 1
}

/// The route of the longest prefix.
fn route_to(routes: &[SurveyedRoute], addr: IpAddr) -> Option<&SurveyedRoute> {
    let leads = routes.iter().filter(|route| route.destination.contains(&addr));
    leads.max_by_key(|route| route.destination.prefix_len())
}

/// Interfaces with an address inside our podCIDR carry our pods.
pub(super) fn pod_interfaces<'a>(node: &'a NodeSettings, host: &'a Survey) -> impl Iterator<Item = &'a str> {
    let locals = host.addresses.iter().flatten();
    let of_pods = locals.filter(|local| node.pod_cidrs.iter().any(|cidr| cidr.contains(&local.address)));
    of_pods.map(|local| local.interface.as_str())
}

fn bridge_mtus(subject: &Subject<'_>, node: &NodeSettings, host: &Survey) -> Vec<Finding> {
    let mut names: Vec<_> = pod_interfaces(node, host)
        .filter(|name| *name != subject.config.device && !name.starts_with("flannel"))
        .collect();
    names.sort_unstable();
    names.dedup();
    let links = host.links.iter().flatten().filter(|link| names.contains(&link.name.as_str()));
    let larger = links.filter(|link| link.mtu > node.overlay_mtu);
    larger
        .map(|link| {
            let seen = format!(
                "{} has an MTU of {}, and the overlay carries {}",
                link.name, link.mtu, node.overlay_mtu
            );
            let remedy = format!(
                "ip link set {} mtu {1}, and \"mtu\": {1} in the CNI configuration",
                link.name, node.overlay_mtu
            );
            Finding::warning(&catalog::BRIDGE_MTU, seen, remedy)
        })
        .collect()
}

/// flannel's CNI plugin gives pods the MTU that subnet.env says.
fn flannel_mtu(node: &NodeSettings, host: &Survey) -> Option<Finding> {
    let text = match &host.subnet_env {
        Ok(text) => text.as_ref()?,
        Err(why) => return Some(Finding::unseen(&catalog::BRIDGE_MTU, why)),
    };
    let mtu = text.lines().find_map(|line| line.trim().strip_prefix("FLANNEL_MTU="))?.parse::<u32>().ok()?;
    (mtu > node.overlay_mtu).then(|| {
        let seen = format!(
            "subnet.env says FLANNEL_MTU={mtu}, which new pods get, and the overlay carries {}",
            node.overlay_mtu
        );
        let remedy =
            format!("sed -i s/^FLANNEL_MTU=.*/FLANNEL_MTU={}/ /run/flannel/subnet.env", node.overlay_mtu);
        Finding::warning(&catalog::BRIDGE_MTU, seen, remedy)
    })
}

fn forwarding(node: Option<&NodeSettings>, host: &Survey) -> Vec<Finding> {
    let serves =
        |ipv6: bool| node.is_some_and(|node| node.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6() == ipv6));
    let settings = [(false, "net/ipv4/ip_forward"), (true, "net/ipv6/conf/all/forwarding")];
    let off = |path: &str| host.sysctls.get(path).is_some_and(|value| value == "0");
    settings
        .into_iter()
        .filter(|(ipv6, path)| serves(*ipv6) && off(path))
        .map(|(_, path)| {
            let seen =
                format!("{} is 0; windlass run sets it to 1, and back at its end", path.replace('/', "."));
            Finding::new(&catalog::IP_FORWARD, Severity::Note, seen, "")
        })
        .collect()
}

fn advertised_default(node: &NodeSettings, host: &Survey, routes: &[SurveyedRoute]) -> Option<Finding> {
    let serves = node.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6());
    let forwards = host.sysctls.get("net/ipv6/conf/all/forwarding").is_some_and(|value| value != "0");
    let is_default = |route: &&SurveyedRoute| route.advertised && route.destination.prefix_len() == 0;
    let interface = routes.iter().find(is_default)?.interface.as_ref()?;
    let accepts = host.sysctls.get(&format!("net/ipv6/conf/{interface}/accept_ra"))?;
    (serves && !forwards && accepts == "1").then(|| {
        let seen =
            format!("the IPv6 default route by {interface} came by router advertisement, and accept_ra is 1");
        let remedy = format!("sysctl -w net.ipv6.conf.{interface}.accept_ra=2");
        Finding::warning(&catalog::ACCEPT_RA, seen, remedy)
    })
}
