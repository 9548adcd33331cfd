//! What only a Windows host has: its driver, its container networks, its firewall.

mod rule;

use serde_json::Value;
use windlass_dataplane::device::Family;
use windlass_dataplane::device::survey::{FirewallSurvey, SurveyedForwarding, WindowsSurvey};

use self::rule::Rule;
use super::network::pod_interfaces;
use super::{Facts, Finding, Subject};
use crate::catalog::{self, Check};
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
    findings
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
