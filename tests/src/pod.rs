//! Pods on a node's bridge `cni0`, made by the real CNI plugins where they are installed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::netns::{Netns, scratch_folder};
use crate::process::run_with_input;
use crate::topology::{CLUSTER_CIDR, CLUSTER_CIDR_V6, FAMILIES, Family, Host, OVERLAY_MTU};

const PLUGIN_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// A pod: a namespace with `eth0` on its node's bridge.
#[derive(Debug)]
pub struct Pod {
    /// The pod's namespace.
    pub netns: Netns,
    /// The pod's IPv4 address.
    pub address: Ipv4Addr,
    /// The pod's IPv6 address.
    pub address_v6: Ipv6Addr,
}

/// Puts pods on one node; holds the addresses given out.
#[derive(Debug)]
pub struct Pods<'a> {
    host: &'a Host,
    plugins: Option<PathBuf>,
    leases: tempfile::TempDir,
    made: Vec<Pod>,
}

impl<'a> Pods<'a> {
    /// No pods as yet on that node; says so when pods are to be made without the CNI plugins.
    ///
    /// # Errors
    /// When there is no place for the address leases.
    pub fn new(host: &'a Host) -> Result<Self> {
        let plugins = PLUGIN_DIRS.iter().map(PathBuf::from).find(|dir| has_plugins(dir));
        if plugins.is_none() {
            crate::say("NOTE: no CNI plugins `bridge` and `host-local`: pods are joined by hand");
        }
        let leases = scratch_folder("cni")?;
        Ok(Self { host, plugins, leases, made: Vec::new() })
    }

    /// Makes `count` pods on that node.
    ///
    /// # Errors
    /// As [`Pods::new`] and [`Pods::add`].
    pub fn with_pods(host: &'a Host, count: usize) -> Result<Self> {
        let mut pods = Self::new(host)?;
        for _ in 0..count {
            pods.add()?;
        }
        Ok(pods)
    }

    /// Makes one more pod.
    ///
    /// # Errors
    /// When a plugin or `ip` fails.
    pub fn add(&mut self) -> Result<&Pod> {
        let netns = Netns::new("pod")?;
        let pod = match &self.plugins {
            Some(dir) => self.join_by_cni(dir, netns)?,
            None => self.join_by_hand(netns)?,
        };
        self.made.push(pod);
        self.made.last().context("a pod was just made")
    }

    /// The pod at `index`, in the order made.
    ///
    /// # Errors
    /// When there are fewer pods.
    pub fn pod(&self, index: usize) -> Result<&Pod> {
        self.made.get(index).with_context(|| format!("no pod {index} on {}", self.host.spec.name))
    }

    fn join_by_cni(&self, dir: &Path, netns: Netns) -> Result<Pod> {
        let mut plugin = self.host.netns.command(dir.join("bridge"));
        plugin
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", netns.name())
            .env("CNI_NETNS", netns.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", dir);
        let result = run_with_input(&mut plugin, &self.network().to_string())?;
        let result: Value = serde_json::from_str(&result).context("the bridge plugin's result")?;
        let given: Vec<IpAddr> = result["ips"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|ip| ip["address"].as_str()?.split('/').next()?.parse().ok())
            .collect();
        let address = given.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        let address_v6 = given.iter().find_map(|ip| match ip {
            IpAddr::V6(ip) => Some(*ip),
            IpAddr::V4(_) => None,
        });
        let (address, address_v6) = address.zip(address_v6).context("the plugin gave both families")?;
        Ok(Pod { netns, address, address_v6 })
    }

    /// The network as flannel's CNI plugin delegates it to `bridge`, with masquerade off.
    fn network(&self) -> Value {
        let ranges: Vec<Value> =
            FAMILIES.iter().map(|family| json!([{ "subnet": self.host.spec.pod_cidr(*family) }])).collect();
        json!({
            "cniVersion": "0.4.0",
            "name": "cbr0",
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "isDefaultGateway": true,
            "hairpinMode": true,
            "ipMasq": false,
            "mtu": OVERLAY_MTU,
            "ipam": {
                "type": "host-local",
                "dataDir": self.leases.path(),
                "ranges": ranges,
                "routes": [{ "dst": CLUSTER_CIDR }, { "dst": CLUSTER_CIDR_V6 }],
            },
        })
    }

    fn join_by_hand(&self, netns: Netns) -> Result<Pod> {
        let number = self.made.len();
        let host = &self.host.netns;
        if number == 0 {
            self.make_bridge()?;
        }
        let inside = netns.name();
        host.ip(&format!(
            "link add pod{number} mtu {OVERLAY_MTU} type veth peer name eth0 mtu {OVERLAY_MTU} netns {inside}"
        ))?;
        host.ip(&format!("link set pod{number} master cni0 up type bridge_slave hairpin on"))?;
        netns.ip("link set eth0 up")?;
        let (address, address_v6) = self.nth_addresses(number)?;
        netns.ip(&format!("addr add {address}/24 dev eth0"))?;
        netns.ip(&format!("addr add {address_v6}/64 dev eth0 nodad"))?;
        for family in FAMILIES {
            netns.ip(&format!("route add default via {}", self.host.spec.gateway(family)))?;
        }
        Ok(Pod { netns, address, address_v6 })
    }

    fn make_bridge(&self) -> Result<()> {
        let host = &self.host.netns;
        host.ip(&format!("link add cni0 mtu {OVERLAY_MTU} type bridge"))?;
        host.ip(&format!("addr add {}/24 dev cni0", self.host.spec.gateway(Family::V4)))?;
        host.ip(&format!("addr add {}/64 dev cni0 nodad", self.host.spec.gateway(Family::V6)))?;
        host.ip("link set cni0 up")?;
        host.sysctl("net.ipv4.ip_forward", "1")?;
        host.sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    fn nth_addresses(&self, number: usize) -> Result<(Ipv4Addr, Ipv6Addr)> {
        let offset = u32::try_from(number)? + 2;
        match (self.host.spec.pod_base(Family::V4), self.host.spec.pod_base(Family::V6)) {
            (IpAddr::V4(v4), IpAddr::V6(v6)) => Ok((
                Ipv4Addr::from(u32::from(v4) + offset),
                Ipv6Addr::from(u128::from(v6) + u128::from(offset)),
            )),
            _ => anyhow::bail!("a podCIDR of the wrong family"),
        }
    }
}

impl Pod {
    /// The pod's address of one family.
    #[must_use]
    pub fn ip(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.address.into(),
            Family::V6 => self.address_v6.into(),
        }
    }
}

fn has_plugins(dir: &Path) -> bool {
    ["bridge", "host-local"].iter().all(|plugin| dir.join(plugin).is_file())
}
