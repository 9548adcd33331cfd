//! subnet.env, which the flannel CNI plugin reads for every pod (flannel v0.28, pkg/subnet/subnet.go).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::node::NodeSettings;

/// The file's text. The plugin refuses a file that lacks a key. It lets the `bridge` plugin masquerade pods unless
/// `ip_masq` says that we do.
pub fn subnet_env(settings: &NodeSettings, ip_masq: bool) -> String {
    let mut text = String::new();
    for (ipv6, name) in [(false, ""), (true, "IPV6_")] {
        let own = settings.pod_cidrs.iter().find(|cidr| cidr.addr().is_ipv6() == ipv6);
        let Some(own) = own else { continue };
        let cluster: Vec<String> = settings
            .cluster_cidrs
            .iter()
            .filter(|cidr| cidr.addr().is_ipv6() == ipv6)
            .map(ToString::to_string)
            .collect();
        text += &format!("FLANNEL_{name}NETWORK={}\n", cluster.join(","));
        text += &format!("FLANNEL_{name}SUBNET={}/{}\n", first_usable(own), own.prefix_len());
    }
    text + &format!("FLANNEL_MTU={}\nFLANNEL_IPMASQ={ip_masq}\n", settings.overlay_mtu)
}

/// The address after the network's own, which the plugin gives to the bridge.
fn first_usable(cidr: &IpNet) -> IpAddr {
    match cidr.network() {
        IpAddr::V4(base) => IpAddr::from((u32::from(base).wrapping_add(1)).to_be_bytes()),
        IpAddr::V6(base) => IpAddr::from((u128::from(base).wrapping_add(1)).to_be_bytes()),
    }
}
