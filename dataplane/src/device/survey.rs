//! What a host is like, seen without changing anything of it: what is checked before a node runs.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::host::{Family, LocalAddress};

/// Something that was looked at, or why it could not be seen.
pub type Seen<T> = Result<T, String>;

/// The host as far as it can be seen. One thing that cannot be seen does not hide the others.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Whether this process may change the network.
    pub net_admin: Seen<bool>,
    /// Whether the TUN driver is there.
    pub tun: Seen<bool>,
    /// What only Windows has; `None` elsewhere.
    pub windows: Option<WindowsSurvey>,
    /// Whether the program nft is there.
    pub nft: Seen<bool>,
    /// All nftables rules, those of iptables-nft among them, as `nft -j list ruleset` prints them.
    pub ruleset: Seen<String>,
    /// Rules of iptables, as `iptables-legacy-save` and `iptables-nft-save` print them; empty where neither is in use.
    pub iptables_rules: Seen<String>,
    /// IPVS's virtual services, one line each as `/proc/net/ip_vs` has them.
    pub ipvs: Seen<Vec<String>>,
    /// Interfaces.
    pub links: Seen<Vec<SurveyedLink>>,
    /// Addresses of all interfaces.
    pub addresses: Seen<Vec<LocalAddress>>,
    /// The address that packets along each family's default route carry.
    pub default_routes: Seen<Vec<IpAddr>>,
    /// The main table's routes.
    pub routes: Seen<Vec<SurveyedRoute>>,
    /// Processes of this network namespace, and those whose namespace cannot be seen.
    pub processes: Seen<Vec<SurveyedProcess>>,
    /// Who listens on each of the TCP ports that were asked about and is taken.
    pub tcp_holders: Seen<BTreeMap<u16, String>>,
    /// Settings by their path below /proc/sys; those this host lacks are absent.
    pub sysctls: BTreeMap<String, String>,
    /// flannel's subnet.env; `None` where there is none.
    pub subnet_env: Seen<Option<String>>,
    /// The clock, in seconds since 1970.
    pub clock: i64,
}

/// What only a Windows host has.
#[derive(Clone, Debug)]
pub struct WindowsSurvey {
    /// Whether wintun.dll can be used, or what is wrong and what to do.
    pub wintun: Result<(), String>,
    /// Who has each UDP port that is bound.
    pub udp_holders: Seen<BTreeMap<u16, String>>,
    /// The networks of the Host Networking Service, as it prints them: JSON.
    pub hns_networks: Seen<String>,
    /// Which interfaces forward.
    pub forwarding: Seen<Vec<SurveyedForwarding>>,
    /// The firewall.
    pub firewall: Seen<FirewallSurvey>,
}

/// Whether an interface forwards packets of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedForwarding {
    /// The interface's name.
    pub interface: String,
    /// The family.
    pub family: Family,
    /// Whether it does.
    pub is_on: bool,
}

/// What Windows' firewall is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallSurvey {
    /// The profiles that it is on for: domain, private, public.
    pub active: Vec<&'static str>,
    /// Its rules as its service keeps them (MS-FASP 2.2.19): `v2.30|Action=Allow|Dir=In|Protocol=17|...|`.
    pub rules: Vec<String>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyedLink {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its kind, as `ip -d link` names it; `None` for hardware.
    pub kind: Option<String>,
    /// The VNI of a vxlan device.
    pub vxlan_vni: Option<u32>,
    /// The UDP port of a vxlan device.
    pub vxlan_port: Option<u16>,
    /// Whether it is our device, left standing by a run that has ended.
    pub kept: bool,
    /// Those of [`OFFLOADS`] that it could have and that are off.
    pub offloads_off: Vec<&'static str>,
}

/// What the underlay device can do for many datagrams at once, by ethtool's names, and what its lack costs.
pub const OFFLOADS: [(&str, &str); 2] = [
    ("tx-udp-segmentation", "the CPU cuts joined datagrams before the device has them"),
    ("rx-gro", "datagrams of peers on the wire come one by one"),
];

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedRoute {
    /// Where it leads.
    pub destination: IpNet,
    /// The interface; `None` for a route to nowhere.
    pub interface: Option<String>,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Whether this program made it, in this run or an earlier one.
    pub ours: bool,
    /// Whether a router's advertisement made it.
    pub advertised: bool,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedProcess {
    /// Its id.
    pub id: u32,
    /// Its name, at most 15 bytes on Linux.
    pub name: String,
    /// Whether it certainly is of this network namespace.
    pub is_here: bool,
}
