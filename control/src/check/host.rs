//! What running takes, and who else runs here.

use std::net::IpAddr;

use windlass_dataplane::device::Survey;

use super::windows;
use super::{Facts, Finding, Subject};
use crate::catalog::{self, Check};
use crate::node::HostFacts;

/// Where kube-proxy serves metrics and health.
pub(super) const KUBE_PROXY_PORTS: [u16; 2] = [10249, 10256];

/// Linux keeps 15 bytes of a process's name.
const FLANNELD: &[&str] = &["flanneld"];
const KUBE_PROXY: &[&str] = &["kube-proxy"];

/// The TCP ports whose holders the checks ask for.
pub fn tcp_ports(config: &crate::config::Config) -> Vec<u16> {
    KUBE_PROXY_PORTS.into_iter().chain(config.metrics.map(|addr| addr.port())).collect()
}

pub(super) fn findings(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let mut findings = abilities(&facts.host);
    findings.extend(ports(subject, facts));
    if let Some(who) = &facts.managed_by {
        let seen = format!("{who} manages this host's routes and filter rules");
        findings.push(Finding::error(&catalog::ANOTHER_WINDLASS, seen, "stop it first"));
    }
    findings.extend(process(
        &facts.host,
        &catalog::FLANNELD,
        FLANNELD,
        "take this node out of the DaemonSet kube-flannel-ds, or stop flanneld",
    ));
    findings.extend(process(
        &facts.host,
        &catalog::KUBE_PROXY,
        KUBE_PROXY,
        "take this node out of the DaemonSet kube-proxy, or stop kube-proxy; then kube-proxy --cleanup",
    ));
    findings
}

fn abilities(host: &Survey) -> Vec<Finding> {
    let privilege = "run as root or give the process CAP_NET_ADMIN (on Windows: run as Administrator)";
    let tun = "modprobe tun, or give the container the device with --device /dev/net/tun";
    let abilities = [
        (
            &catalog::PRIVILEGE,
            &host.net_admin,
            "this process has no CAP_NET_ADMIN or Administrator rights",
            privilege,
        ),
        (&catalog::TUN, &host.tun, "/dev/net/tun is missing", tun),
        (&catalog::NFT, &host.nft, "the program nft is missing", "install the package nftables"),
    ];
    let finding =
        |(check, seen, missing, remedy): (&'static Check, &Result<bool, String>, &str, &str)| match seen {
            Ok(true) => None,
            Ok(false) => Some(Finding::error(check, missing.to_owned(), remedy)),
            Err(why) => Some(Finding::unseen(check, why)),
        };
    abilities.into_iter().filter_map(finding).collect()
}

fn ports(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &facts.vxlan_port {
        Some(Err(why)) => {
            let (mut seen, remedy) = super::split(why);
            if let Some((windows, node)) = facts.host.windows.as_ref().zip(subject.node) {
                seen.push_str(&format!("; {}", windows::port_holder(windows, node.port)));
            }
            findings.push(Finding::error(&catalog::VXLAN_PORT, seen, remedy));
        }
        Some(Ok(())) => {}
        None => findings.push(Finding::without_node(&catalog::VXLAN_PORT)),
    }
    let holder = |port: u16| facts.host.tcp_holders.as_ref().ok().and_then(|holders| holders.get(&port));
    if let Err(why) = &facts.metrics {
        let (seen, remedy) = super::split(why);
        let held = subject.config.metrics.and_then(|addr| holder(addr.port()));
        let seen = held.map_or(seen.clone(), |holder| format!("{seen}: {holder} has it"));
        findings.push(Finding::error(&catalog::METRICS_PORT, seen, remedy));
    }
    let ours = subject.config.metrics.map(|addr| addr.port());
    for port in KUBE_PROXY_PORTS.into_iter().filter(|port| Some(*port) != ours) {
        if let Some(holder) = holder(port) {
            let seen = format!("TCP port {port} is held by {holder}");
            findings.push(Finding::warning(&catalog::KUBE_PROXY_PORTS, seen, "stop it if it is kube-proxy"));
        }
    }
    if let Err(why) = &facts.host.tcp_holders {
        findings.push(Finding::unseen(&catalog::KUBE_PROXY_PORTS, why));
    }
    findings
}

fn process(host: &Survey, check: &'static Check, names: &[&str], remedy: &str) -> Option<Finding> {
    let processes = match &host.processes {
        Ok(processes) => processes,
        Err(why) => return Some(Finding::unseen(check, why)),
    };
    let named = |is_here: bool| {
        let named = processes.iter().filter(|process| names.contains(&process.name.as_str()));
        let found: Vec<_> = named
            .filter(|process| process.is_here == is_here)
            .map(|process| format!("process {} ({})", process.id, process.name))
            .collect();
        (!found.is_empty()).then(|| found.join(", "))
    };
    let here = named(true).map(|found| Finding::error(check, format!("{found} runs on this node"), remedy));
    let hidden = || named(false).map(|found| format!("whether {found} runs on this node"));
    here.or_else(|| hidden().map(|why| Finding::unseen(check, &why)))
}

/// What a node is resolved against. Where addresses cannot be seen, every one that is given is believed.
impl HostFacts for Survey {
    fn default_route_addr(&self, ipv6: bool) -> Option<IpAddr> {
        self.default_routes.iter().flatten().copied().find(|addr| addr.is_ipv6() == ipv6)
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        match &self.addresses {
            Ok(addresses) => addresses.iter().any(|local| local.address == addr),
            Err(_) => true,
        }
    }

    fn mtu(&self, addr: IpAddr) -> Option<u32> {
        let local = self.addresses.iter().flatten().find(|local| local.address == addr);
        local.map(|local| local.mtu)
    }
}
