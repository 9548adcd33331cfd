//! A stock node: the kernel's vxlan device, programmed word for word as flannel does.

use anyhow::Result;

use crate::process::run;
use crate::topology::{FAMILIES, Family, Host, NodeSpec, UNDERLAY_MTU, VNI, VXLAN_PORT};

/// A stock flannel node. Its devices go with its namespace.
#[derive(Debug)]
pub struct KernelPeer<'a> {
    host: &'a Host,
}

impl<'a> KernelPeer<'a> {
    /// Makes `flannel.<VNI>` and `flannel-v6.<VNI>` and programs neighbor, FDB and route of every other node.
    ///
    /// # Errors
    /// When the kernel refuses a step.
    pub fn new(host: &'a Host, cluster: &[NodeSpec]) -> Result<Self> {
        let peer = Self { host };
        host.netns.sysctl("net.ipv4.ip_forward", "1")?;
        host.netns.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        for family in FAMILIES {
            peer.add_device(family)?;
            for remote in cluster.iter().filter(|node| node.name != host.spec.name) {
                peer.add_remote(family, remote)?;
            }
        }
        Ok(peer)
    }

    /// The node's namespace and data.
    #[must_use]
    pub fn host(&self) -> &'a Host {
        self.host
    }

    /// The names of its vxlan devices.
    #[must_use]
    pub fn devices(&self) -> Vec<String> {
        FAMILIES.map(device_name).to_vec()
    }

    fn add_device(&self, family: Family) -> Result<()> {
        let Host { netns, spec } = self.host;
        let device = device_name(family);
        let local = spec.underlay(family);
        // As flannel does, the underlay's MTU is asked for; the kernel cuts it to 1450 over IPv4 and 1430 over IPv6.
        netns.ip(&format!(
            "link add {device} address {} mtu {UNDERLAY_MTU} type vxlan id {VNI} dev eth0 local {local} \
             dstport {VXLAN_PORT} nolearning",
            spec.mac(family)
        ))?;
        let own = host_prefix(family);
        netns.ip(&format!("addr add {}/{own} dev {device}", spec.pod_base(family)))?;
        netns.ip(&format!("link set {device} up"))?;
        Ok(())
    }

    fn add_remote(&self, family: Family, remote: &NodeSpec) -> Result<()> {
        let netns = &self.host.netns;
        let device = device_name(family);
        let (base, mac) = (remote.pod_base(family), remote.mac(family));
        netns.ip(&format!("neigh replace {base} lladdr {mac} dev {device} nud permanent"))?;
        run(netns.command("bridge").args(["fdb", "append", mac, "dev", device.as_str(), "dst"]).args([
            remote.underlay(family).to_string().as_str(),
            "self",
            "permanent",
        ]))?;
        netns.ip(&format!("route replace {} via {base} dev {device} onlink", remote.pod_cidr(family)))?;
        Ok(())
    }
}

fn device_name(family: Family) -> String {
    match family {
        Family::V4 => format!("flannel.{VNI}"),
        Family::V6 => format!("flannel-v6.{VNI}"),
    }
}

fn host_prefix(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}
