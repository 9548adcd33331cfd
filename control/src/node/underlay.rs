//! The underlay: which of this host's addresses carries VXLAN, and how much fits through.

use std::fmt;
use std::net::IpAddr;

use super::NodeError;
use crate::cluster::{NetConf, Node, Problem};
use crate::config::Config;

/// What the host can be asked.
pub trait HostFacts {
    /// The address that packets along the default route carry; `None` without such a route.
    fn default_route_addr(&self, ipv6: bool) -> Option<IpAddr>;

    /// Whether an interface has this address.
    fn has_addr(&self, addr: IpAddr) -> bool;

    /// The MTU in bytes of the interface that has this address, when it can be found out.
    fn mtu(&self, addr: IpAddr) -> Option<u32>;
}

/// A host that nothing is known of: it may have any address.
#[derive(Clone, Copy, Debug)]
pub struct UnknownHost;

impl HostFacts for UnknownHost {
    fn default_route_addr(&self, _ipv6: bool) -> Option<IpAddr> {
        None
    }

    fn has_addr(&self, _addr: IpAddr) -> bool {
        true
    }

    fn mtu(&self, _addr: IpAddr) -> Option<u32> {
        None
    }
}

/// An underlay address and why it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderlayChoice {
    /// The address.
    pub addr: IpAddr,
    /// Why: `InternalIP of the Node`.
    pub why: String,
}

impl fmt::Display for UnderlayChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.addr, self.why)
    }
}

/// Takes the configured addresses, else for each family that is needed the first of: flannel's overwrite, the
/// Node's InternalIP, the default route's address. IPv6 is needed for IPv6 pods, or when there is no IPv4.
pub(super) fn choose(
    config: &Config,
    node: &Node,
    ipv6_pods: bool,
    host: &dyn HostFacts,
) -> Result<Vec<UnderlayChoice>, NodeError> {
    if let Some(addr) = config.underlay_addrs.iter().find(|addr| !host.has_addr(**addr)) {
        return Err(NodeError::NotLocal { addr: *addr });
    }
    if !config.underlay_addrs.is_empty() {
        let why = || "--underlay-addr".to_owned();
        return Ok(config
            .underlay_addrs
            .iter()
            .map(|addr| UnderlayChoice { addr: *addr, why: why() })
            .collect());
    }
    let mut tried = Vec::new();
    let v4 = first_local(candidates(node, false, host), host, &mut tried);
    let v6 = if ipv6_pods || v4.is_none() {
        first_local(candidates(node, true, host), host, &mut tried)
    } else {
        None
    };
    let choices: Vec<_> = v4.into_iter().chain(v6).collect();
    if choices.is_empty() {
        if tried.is_empty() {
            tried.push("the Node has no InternalIP, and this host has no default route".to_owned());
        }
        return Err(NodeError::NoUnderlay { node: config.node.clone(), tried: tried.join("; ") });
    }
    Ok(choices)
}

fn candidates(node: &Node, ipv6: bool, host: &dyn HostFacts) -> Vec<(IpAddr, &'static str)> {
    let (overwrite, name) = match ipv6 {
        false => (node.flannel.public_ip_overwrite, "annotation public-ip-overwrite"),
        true => (node.flannel.public_ipv6_overwrite, "annotation public-ipv6-overwrite"),
    };
    let internal = node.internal_ips.iter().filter(|addr| addr.is_ipv6() == ipv6);
    overwrite
        .map(|addr| (addr, name))
        .into_iter()
        .chain(internal.map(|addr| (*addr, "InternalIP of the Node")))
        .chain(host.default_route_addr(ipv6).map(|addr| (addr, "address of the default route's interface")))
        .collect()
}

/// A public address may be a NAT's and on no interface of ours: the next candidate is taken then.
fn first_local(
    candidates: Vec<(IpAddr, &'static str)>,
    host: &dyn HostFacts,
    tried: &mut Vec<String>,
) -> Option<UnderlayChoice> {
    let mut passed = Vec::new();
    for (addr, why) in candidates {
        if host.has_addr(addr) {
            let because: String = passed.iter().map(|text| format!("; {text}")).collect();
            return Some(UnderlayChoice { addr, why: format!("{why}{because}") });
        }
        passed.push(format!("{addr}, {why}, is on no interface"));
    }
    tried.extend(passed);
    None
}

/// Outer IPv4, UDP, VXLAN and inner Ethernet header, in bytes; 20 more with IPv6 outside.
const OVERHEAD_V4: u32 = 50;
const OVERHEAD_V6: u32 = 70;
/// The smallest MTU of a link (RFC 791 with room to spare, RFC 8200 section 5).
const LEAST_MTU_V4: u32 = 576;
const LEAST_MTU_V6: u32 = 1280;
/// Ethernet's.
pub(crate) const USUAL_MTU: u32 = 1500;

/// What encapsulation adds to a packet that is sent from this address, in bytes.
pub(crate) fn overhead(underlay: IpAddr) -> u32 {
    if underlay.is_ipv6() { OVERHEAD_V6 } else { OVERHEAD_V4 }
}

/// The overlay's MTU: what is left of the underlay's in the worst of our families.
pub(super) fn overlay_mtu(
    underlay: &[UnderlayChoice],
    net_conf: Option<&NetConf>,
    ipv6_pods: bool,
    host: &dyn HostFacts,
    problems: &mut Vec<Problem>,
) -> Result<u32, NodeError> {
    let (least, family) = if ipv6_pods { (LEAST_MTU_V6, "IPv6") } else { (LEAST_MTU_V4, "IPv4") };
    let mut smallest = u32::MAX;
    for choice in underlay {
        let interface = host.mtu(choice.addr);
        let wanted = net_conf.and_then(|conf| conf.mtu);
        let mtu = match (wanted, interface) {
            (Some(wanted), Some(interface)) if wanted > interface => {
                let text = format!(
                    "Backend.MTU {wanted} is more than the {interface} of the interface of {}, which is used",
                    choice.addr
                );
                problems.push(Problem::new("ConfigMap kube-flannel-cfg", text).found_by("mtu"));
                interface
            }
            (Some(mtu), _) | (None, Some(mtu)) => mtu,
            (None, None) => USUAL_MTU,
        };
        let overlay = mtu.saturating_sub(overhead(choice.addr));
        if overlay < least {
            return Err(NodeError::Mtu { underlay: mtu, overlay, family, least, addr: choice.addr });
        }
        smallest = smallest.min(overlay);
    }
    Ok(smallest)
}
