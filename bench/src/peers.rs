//! A thousand further nodes as one node's tables know them, all of them simulated by the second node: it takes what
//! is sent to any of their VTEPs, and its pod what is meant for any of their pods.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::{Value, json};
use windlass_tests::objects::Objects;
use windlass_tests::pod::Pod;
use windlass_tests::process::run_with_input;
use windlass_tests::topology::{Family, Host, VNI};

/// Number of simulated nodes.
pub const COUNT: usize = 1000;

/// VTEPs' addresses.
const UNDERLAY: (Ipv4Addr, u8) = (Ipv4Addr::new(172, 20, 0, 0), 16);
/// Their podCIDRs together, and the size of each.
const PODS: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 244, 64, 0), 18);
const POD_CIDR: (usize, u8) = (16, 28);

/// The address of a pod on the simulated node of that number.
#[must_use]
pub fn pod(number: usize) -> Ipv4Addr {
    plus(PODS.0, number * POD_CIDR.0 + 2)
}

/// Adds their Nodes.
pub fn add_nodes(objects: &mut Objects) {
    (0..COUNT).for_each(|number| objects.push(node(number)));
}

/// Lets the second node and its pod take what is sent to all of them, and the first node's underlay reach it.
///
/// # Errors
/// When `ip` or `nft` refuses.
pub fn simulate(near: &Host, far: &Host, server: &Pod) -> Result<()> {
    let (underlay, pods) = (cidr(UNDERLAY.0, UNDERLAY.1), cidr(PODS.0, PODS.1));
    near.netns.ip(&format!("route add {underlay} via {}", far.spec.underlay(Family::V4)))?;
    far.netns.ip(&format!("route add local {underlay} dev eth0"))?;
    far.netns.ip(&format!("route add {pods} via {} dev cni0", server.ip(Family::V4)))?;
    server.netns.ip(&format!("route add local {pods} dev lo"))?;
    // Every simulated VTEP has a MAC of its own, and the device takes its own MAC for it only.
    let rules = format!(
        "add table netdev simulated
add chain netdev simulated vteps {{ type filter hook ingress device flannel.{VNI} priority 0; }}
add rule netdev simulated vteps meta pkttype set host
"
    );
    run_with_input(far.netns.command("nft").args(["-f", "-"]), &rules).map(drop)
}

/// Programs them into a kernel vxlan device, as flannel does.
///
/// # Errors
/// When `ip` or `bridge` refuses.
pub fn program_kernel(near: &Host) -> Result<()> {
    let device = format!("flannel.{VNI}");
    let (mut ip, mut bridge) = (String::new(), String::new());
    for number in 0..COUNT {
        let (base, mac, vtep) = (base(number), mac(number), vtep(number));
        // Writing to a String cannot fail.
        let _ = writeln!(ip, "neigh replace {base} lladdr {mac} dev {device} nud permanent");
        let _ = writeln!(ip, "route replace {} via {base} dev {device} onlink", cidr(base, POD_CIDR.1));
        let _ = writeln!(bridge, "fdb append {mac} dev {device} dst {vtep} self permanent");
    }
    run_with_input(near.netns.command("ip").args(["-batch", "-"]), &ip)?;
    run_with_input(near.netns.command("bridge").args(["-batch", "-"]), &bridge).map(drop)
}

fn node(number: usize) -> Value {
    let pod_cidr = cidr(base(number), POD_CIDR.1);
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": format!("simulated-{number}"),
            "annotations": {
                "flannel.alpha.coreos.com/kube-subnet-manager": "true",
                "flannel.alpha.coreos.com/backend-type": "vxlan",
                "flannel.alpha.coreos.com/backend-data": format!(r#"{{"VNI":{VNI},"VtepMAC":"{}"}}"#, mac(number)),
                "flannel.alpha.coreos.com/public-ip": vtep(number),
            },
        },
        "spec": { "podCIDR": pod_cidr, "podCIDRs": [pod_cidr] },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": vtep(number) }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

fn vtep(number: usize) -> Ipv4Addr {
    plus(UNDERLAY.0, number + 1)
}

fn base(number: usize) -> Ipv4Addr {
    plus(PODS.0, number * POD_CIDR.0)
}

fn mac(number: usize) -> String {
    format!("0a:00:00:00:{:02x}:{:02x}", number / 256, number % 256)
}

fn cidr(base: Ipv4Addr, len: u8) -> String {
    format!("{base}/{len}")
}

fn plus(base: Ipv4Addr, offset: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(base) + u32::try_from(offset).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::{COUNT, mac, pod, vtep};

    #[test]
    fn every_simulated_node_has_addresses_of_its_own() {
        let nodes: std::collections::BTreeSet<_> =
            (0..COUNT).map(|it| (vtep(it), pod(it), mac(it))).collect();
        assert_eq!(nodes.len(), COUNT);
        assert_eq!(pod(COUNT - 1).octets(), [10, 244, 126, 114]);
    }
}
