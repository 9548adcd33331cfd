//! What only a Windows host has: its driver, its container networks, its firewall.

mod rule;

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::Value;
use windlass_dataplane::device::Family;
use windlass_dataplane::device::survey::{FirewallSurvey, SurveyedForwarding, SurveyedRoute, WindowsSurvey};
use windlass_dataplane::tables::TableSet;

use self::rule::Rule;
use super::network::pod_interfaces;
use super::{Facts, Finding, Severity, Subject};
use crate::catalog::{self, Check};
use crate::compile::{self, NodePorts};
use crate::node::NodeSettings;

/// Checks of what only Linux has.
pub(super) fn is_of_linux(check: &Check) -> bool {
    [
        &catalog::TUN,
        &catalog::NFT,
        &catalog::KUBE_PROXY_RULES,
        &catalog::KUBE_PROXY_IPVS,
        &catalog::FORWARD_POLICY,
        &catalog::IP_MASQ,
        &catalog::BRIDGE_MTU,
    ]
    .contains(&check)
}

pub(super) fn findings(subject: &Subject<'_>, facts: &Facts, host: &WindowsSurvey) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(why) = &host.wintun {
        let (seen, remedy) = super::split(why);
        findings.push(Finding::error(&catalog::WINTUN, seen, remedy));
    }
    match (&host.hns_networks, subject.node) {
        (Err(why), _) => findings.push(Finding::unseen(&catalog::HNS_OVERLAY, why)),
        (Ok(_), None) => findings.push(Finding::without_node(&catalog::HNS_OVERLAY)),
        (Ok(networks), Some(node)) => findings.extend(overlays(node, networks)),
    }
    match (&host.forwarding, subject.node) {
        (Err(why), _) => findings.push(Finding::unseen(&catalog::IP_FORWARD, why)),
        (Ok(_), None) => findings.push(Finding::without_node(&catalog::IP_FORWARD)),
        (Ok(interfaces), Some(node)) => findings.extend(forwarding(node, facts, interfaces)),
    }
    match (&host.firewall, subject.node) {
        (Err(why), _) => findings.push(Finding::unseen(&catalog::FIREWALL, why)),
        (Ok(_), None) => findings.push(Finding::without_node(&catalog::FIREWALL)),
        (Ok(firewall), Some(node)) => findings.extend(self::firewall(node, firewall)),
    }
    if let Some(node) = subject.node {
        let tables = compile::compile(subject.cluster, node).tables;
        findings.extend(node_ports(node, &tables));
        findings.extend(backends_outside(node, &tables));
    }
    findings
}

/// Services that one finding names.
const NAMED: usize = 5;

/// Backends to which the host would have to masquerade the source VIP.
fn backends_outside(node: &NodeSettings, tables: &TableSet) -> Option<Finding> {
    let is_outside = |addr: IpAddr| {
        !node.cluster_cidrs.iter().any(|cidr| cidr.contains(&addr)) && !node.addresses.contains(&addr)
    };
    let services = tables.services.iter();
    let with_one = services.filter(|service| service.backends.iter().any(|backend| is_outside(backend.ip())));
    let names: BTreeSet<&str> = with_one.map(|service| service.name.as_str()).collect();
    let first: Vec<_> = names.iter().copied().take(NAMED).collect();
    if first.is_empty() {
        return None;
    }
    let seen = format!(
        "backends outside the overlay and this node see the source VIP {}, which Windows does not masquerade, so that \
         their replies are lost: {} has such{}",
        node.source_vip_v4,
        first.join(", "),
        if names.len() > NAMED { format!(", and {} more", names.len() - NAMED) } else { String::new() },
    );
    let remedy =
        "let this node's pods use the backends' own addresses (the API server's: KUBERNETES_SERVICE_HOST)";
    Some(Finding::warning(&catalog::IP_MASQ, seen, remedy))
}

/// Which ways in from outside sockets of ours serve, and which nobody does.
fn node_ports(node: &NodeSettings, tables: &TableSet) -> Vec<Finding> {
    let NodePorts { served, problems } = compile::node_ports(node, tables);
    let mut findings: Vec<_> = problems.iter().map(Finding::of_problem).collect();
    if !served.is_empty() {
        let seen = format!(
            "{} node ports are served by sockets of Windlass; backends see this node in place of the client",
            served.len()
        );
        let remedy = "New-NetFirewallRule -DisplayName windlass-node-ports -Direction Inbound -Action Allow -Program \
                      (Resolve-Path .\\windlass.exe), if the firewall is on";
        findings.push(Finding::new(&catalog::NODE_PORTS, Severity::Note, seen, remedy));
    }
    findings
}

/// Sets an interface's MTU, for good.
pub(super) fn set_mtu(interface: &str, mtu: u32) -> String {
    format!("Set-NetIPInterface -InterfaceAlias '{interface}' -NlMtuBytes {mtu}")
}

/// Removes a route, also from what outlives a restart.
pub(super) fn delete_route(route: &SurveyedRoute) -> String {
    let mut command = format!("Remove-NetRoute -DestinationPrefix {}", route.destination);
    if let Some(interface) = &route.interface {
        command.push_str(&format!(" -InterfaceAlias '{interface}'"));
    }
    if let Some(gateway) = route.gateway {
        command.push_str(&format!(" -NextHop {gateway}"));
    }
    command
}

/// Removes a network device.
pub(super) fn delete_device(name: &str) -> String {
    format!("Get-NetAdapter -Name '{name}' | ForEach-Object {{ pnputil /remove-device $_.PnPDeviceID }}")
}

/// Who has VXLAN's port, where a process has it; VFP takes it without one.
pub(super) fn port_holder(host: &WindowsSurvey, port: u16) -> String {
    match &host.udp_holders {
        Ok(holders) => holders.get(&port).cloned().unwrap_or_else(|| {
            "no process has it: VFP takes it while HNS has an overlay network (Get-HnsNetwork)".to_owned()
        }),
        Err(why) => format!("who has it could not be seen: {why}"),
    }
}

/// HNS's networks that encapsulate in VXLAN.
fn overlays(node: &NodeSettings, networks: &str) -> Vec<Finding> {
    let listed = match listed(networks) {
        Ok(listed) => listed,
        Err(why) => return vec![Finding::unseen(&catalog::HNS_OVERLAY, &why)],
    };
    let is_overlay = |network: &&Value| text(network, "Type").eq_ignore_ascii_case("overlay");
    let finding = |network: &Value| {
        let name = text(network, "Name");
        let vnis = vnis(network);
        let remedy = format!(
            "Get-HnsNetwork | Where-Object Name -eq '{name}' | Remove-HnsNetwork, after draining the node's pods"
        );
        if vnis.contains(&u64::from(node.vni.get())) {
            let seen =
                format!("HNS has the overlay network {name:?} on VNI {}, which is ours", node.vni.get());
            return Finding::error(&catalog::HNS_OVERLAY, seen, remedy);
        }
        let seen =
            format!("HNS has the overlay network {name:?} on VNI {vnis:?}, which may hold VXLAN's port");
        Finding::warning(&catalog::HNS_OVERLAY, seen, remedy)
    };
    listed.iter().filter(is_overlay).map(finding).collect()
}

fn listed(networks: &str) -> Result<Vec<Value>, String> {
    let response: Value =
        serde_json::from_str(networks).map_err(|error| format!("HNS's answer is no JSON: {error}"))?;
    match response {
        Value::Object(mut response) => match response.remove("Output") {
            Some(Value::Array(networks)) => Ok(networks),
            _ => Err(format!("HNS says {}", response.get("Error").unwrap_or(&Value::Null))),
        },
        _ => Err("HNS's answer is no object".to_owned()),
    }
}

/// A network's VNIs: policies of the type VSID, of the network or of its subnets.
fn vnis(network: &Value) -> Vec<u64> {
    let list = |of: &Value, key: &str| of.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let of_subnets = list(network, "Subnets").into_iter().flat_map(|subnet| list(&subnet, "Policies"));
    let policies = list(network, "Policies").into_iter().chain(of_subnets);
    let mut vnis: Vec<_> = policies.filter_map(|policy| policy.get("VSID")?.as_u64()).collect();
    vnis.sort_unstable();
    vnis.dedup();
    vnis
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Packets between pods, the adapter and the underlay are forwarded by Windows, which needs it on at each of them. `run`
/// sees to the adapter's own.
fn forwarding(node: &NodeSettings, facts: &Facts, interfaces: &[SurveyedForwarding]) -> Vec<Finding> {
    let is_underlay = |name: &str| {
        let mut locals = facts.host.addresses.iter().flatten().filter(|local| local.interface == name);
        locals.any(|local| node.underlay.iter().any(|choice| choice.addr == local.address))
    };
    let is_involved =
        |name: &str| is_underlay(name) || pod_interfaces(node, &facts.host).any(|pods| pods == name);
    let serves =
        |family: Family| node.pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6() == (family == Family::V6));
    let off = interfaces.iter().filter(|it| !it.is_on && serves(it.family) && is_involved(&it.interface));
    off.map(|it| {
        let family = if it.family == Family::V6 { "ipv6" } else { "ipv4" };
        let seen = format!("{:?} does not forward {family}", it.interface);
        let remedy =
            format!("netsh interface {family} set interface \"{}\" forwarding=enabled", it.interface);
        Finding::warning(&catalog::IP_FORWARD, seen, remedy)
    })
    .collect()
}

/// Without a rule the firewall drops what comes; a rule that blocks wins over all that allow.
fn firewall(node: &NodeSettings, firewall: &FirewallSurvey) -> Option<Finding> {
    if firewall.active.is_empty() {
        return None;
    }
    let rules: Vec<_> = firewall.rules.iter().map(|rule| Rule::parse(rule)).collect();
    let applying = || rules.iter().filter(|rule| rule.lets_vxlan_in_or_blocks_it(node.port));
    if let Some(block) = applying().find(|rule| rule.blocks) {
        let seen = format!("the firewall's rule {:?} blocks UDP port {}", block.name, node.port);
        let remedy = format!("netsh advfirewall firewall set rule name=\"{}\" new enable=no", block.name);
        return Some(Finding::warning(&catalog::FIREWALL, seen, remedy));
    }
    if applying().next().is_some() {
        return None;
    }
    let seen = format!(
        "the firewall is on ({}) and no rule lets UDP port {} in",
        firewall.active.join(", "),
        node.port
    );
    let remedy = format!(
        "windlass service install adds one; or netsh advfirewall firewall add rule name=windlass-vxlan dir=in \
         action=allow protocol=UDP localport={}",
        node.port
    );
    Some(Finding::warning(&catalog::FIREWALL, seen, remedy))
}
