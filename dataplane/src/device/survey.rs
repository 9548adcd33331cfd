//! What a host is like, seen without changing anything of it: what is checked before a node runs.

use std::collections::BTreeMap;
use std::fmt;
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
    /// What the kernel does for many packets at once, as far as the platform has such.
    pub kernel_offloads: Vec<KernelOffload>,
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
    /// Those of [`OFFLOADS`] that it tells of, by name.
    pub offloads: Vec<(&'static str, OffloadState)>,
}

/// What has become of an interface's offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffloadState {
    /// It is on.
    On,
    /// It is off, and can be turned on.
    Off,
    /// The device cannot do it.
    Cannot,
}

impl fmt::Display for OffloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::On => "on",
            Self::Off => "off by setting",
            Self::Cannot => "off: the device cannot",
        })
    }
}

/// What an interface may do for many packets at once in place of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    /// Its name, as `ethtool -K` takes it.
    pub name: &'static str,
    /// The kernel's features, one of which is enough.
    pub features: &'static [&'static str],
    /// What its lack costs.
    pub lack: &'static str,
    /// The interfaces that it is of use on.
    pub place: OffloadPlace,
}

/// Where an [`Offload`] is of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadPlace {
    /// The devices with the underlay addresses.
    Underlay,
    /// The host's side of the pods' veths.
    PodVeth,
}

/// Every offload of an interface that is of use.
pub const OFFLOADS: [Offload; 7] = [
    underlay("tx-checksumming", CHECKSUMS, "the CPU sums every outer datagram"),
    underlay(
        "tx-udp-segmentation",
        &["tx-udp-segmentation"],
        "the CPU cuts joined datagrams before the device has them",
    ),
    underlay(
        "tx-udp_tnl-segmentation",
        &["tx-udp_tnl-segmentation"],
        "superpackets in VXLAN without an outer checksum are cut by the CPU",
    ),
    underlay(
        "tx-udp_tnl-csum-segmentation",
        &["tx-udp_tnl-csum-segmentation"],
        "the tunnel-GSO lane stays off unless it is forced",
    ),
    underlay("rx-gro", &["rx-gro"], "datagrams of peers on the wire come one by one"),
    pod_veth("generic-receive-offload", &["rx-gro"], "packets that pods send come one by one"),
    pod_veth("rx-udp-gro-forwarding", &["rx-udp-gro-forwarding"], "datagrams that pods send come one by one"),
];

const CHECKSUMS: &[&str] = &["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];

const fn underlay(name: &'static str, features: &'static [&'static str], lack: &'static str) -> Offload {
    Offload { name, features, lack, place: OffloadPlace::Underlay }
}

const fn pod_veth(name: &'static str, features: &'static [&'static str], lack: &'static str) -> Offload {
    Offload { name, features, lack, place: OffloadPlace::PodVeth }
}

/// What the kernel does for many packets at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOffload {
    /// Its name.
    pub name: &'static str,
    /// Why there is none, or why it could not be seen.
    pub state: Seen<()>,
}

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
