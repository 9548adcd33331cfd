//! Who is measured: each [`Contestant`] is a name and how its two nodes are set up.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use windlass_tests::binary;
use windlass_tests::process::run;
use windlass_tests::topology::Family;

use crate::nuisance::Nuisance;
use crate::ovs;

/// What carries the overlay between the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carrier {
    /// The kernel's vxlan device on both.
    Kernel,
    /// `windlass run` on both, with these flags.
    Windlass(&'static [&'static str]),
    /// `windlass run` with these flags on the client's node, the kernel's vxlan device on the server's.
    WindlassToKernel(&'static [&'static str]),
    /// Open vSwitch's userspace datapath, with ports of this type.
    Ovs(&'static str),
}

/// What the clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// The server pod's own address.
    Pod,
    /// A service's VIP, among that many services.
    Vip(usize),
}

/// One way to connect two nodes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Contestant {
    /// Its name on the command line and in the JSON.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// What carries the overlay.
    pub carrier: Carrier,
    /// What the clients connect to.
    pub target: Target,
    /// Whether the pods' host-side veths aggregate (GRO on).
    pub veth_gro: bool,
    /// Whether client and server, and so the underlay too, speak IPv6.
    pub ipv6: bool,
    /// What besets the client's node while it is measured.
    pub nuisance: Option<Nuisance>,
    /// Whether the client's node knows the [`peers`](crate::peers) too.
    pub peers: bool,
    /// Whether `--quick` measures it too.
    pub quick: bool,
}

/// The one that all others are compared with.
pub const BASE: &str = "kernel";

/// Number of services where there are many.
pub const MANY_SERVICES: usize = 10_000;

/// All contestants, the base first.
pub const CONTESTANTS: [Contestant; 29] = [
    on_kernel(BASE, "kernel vxlan").in_quick(),
    on_kernel("kernel-gro", "kernel vxlan, veth GRO on").with_veth_gro().in_quick(),
    on_kernel("kernel-nft-1", "kernel vxlan + nftables, VIP, 1 service").via_vip(1).in_quick(),
    on_kernel("kernel-nft-10k", "kernel vxlan + nftables, VIP, 10,000 services").via_vip(MANY_SERVICES),
    on_ovs("ovs-afpacket", "OVS userspace, AF_PACKET", "system"),
    on_ovs("ovs-afxdp", "OVS userspace, AF_XDP", POLLED_PORT),
    on_windlass("windlass-1w", "Windlass, 1 worker", &[]).in_quick(),
    on_windlass("windlass-2w", "Windlass, 2 workers", &["--workers", "2"]),
    on_windlass("windlass-gro", "Windlass, 1 worker, veth GRO on", &[]).with_veth_gro(),
    on_windlass("windlass-gro-2w", "Windlass, 2 workers, veth GRO on", &["--workers", "2"]).with_veth_gro(),
    on_windlass("windlass-tuned", "Windlass, 1 worker, tuned pods", &["--tune-pods"]).in_quick(),
    on_windlass("windlass-tuned-2w", "Windlass, 2 workers, tuned pods", &["--workers", "2", "--tune-pods"]),
    on_windlass("windlass-pinned-2w", "Windlass, 2 workers, pinned", &["--workers", "2", "--pin", "auto"]),
    on_windlass("windlass-vip-1", "Windlass, 1 worker, VIP, 1 service", &[]).via_vip(1).in_quick(),
    on_windlass("windlass-vip-10k", "Windlass, 1 worker, VIP, 10,000 services", &[])
        .via_vip(MANY_SERVICES)
        .in_quick(),
    on_windlass("windlass-vip-10k-2w", "Windlass, 2 workers, VIP, 10,000 services", &["--workers", "2"])
        .via_vip(MANY_SERVICES),
    on_windlass("windlass-no-offload", "Windlass, 1 worker, no offloads", NO_OFFLOADS),
    on_windlass("windlass-no-gso", "Windlass, 1 worker, no UDP GSO/GRO", NO_UDP_GSO),
    on_windlass("windlass-udp-lane", "Windlass, 1 worker, UDP lane only", &["--tunnel-gso", "off"]),
    on_windlass("windlass-tunnel-gso", "Windlass, 1 worker, tunnel-GSO lane", &["--tunnel-gso", "on"]),
    on_windlass("windlass-interrupt", "Windlass, 1 worker, poll interrupt", &["--poll", "interrupt"]),
    on_windlass("windlass-busy", "Windlass, 1 worker, poll busy", &["--poll", "busy"]),
    to_kernel("windlass-to-kernel", "Windlass, 1 worker, to a kernel vxlan node"),
    on_kernel("kernel-v6", "kernel vxlan, IPv6").over_ipv6(),
    on_windlass("windlass-v6", "Windlass, 1 worker, IPv6", &[]).over_ipv6(),
    on_windlass("windlass-v6-vip-1", "Windlass, 1 worker, IPv6, VIP, 1 service", &[]).via_vip(1).over_ipv6(),
    on_windlass("windlass-scraped", "Windlass, 1 worker, hostile scrapers", &[]).beset(Nuisance::Scrapers),
    on_windlass("windlass-log-stalled", "Windlass, 1 worker, stalled log reader", &[])
        .beset(Nuisance::StalledLog),
    on_windlass("windlass-capture-stalled", "Windlass, 1 worker, stalled capture", &[])
        .beset(Nuisance::StalledCapture),
];

/// The contestant beside which those with a [`Nuisance`] are.
pub const UNBESET: &str = "windlass-1w";

/// Further ones, for sweeps and by name.
pub const SWEPT: [Contestant; 8] = [
    on_kernel("kernel-nft-10", "kernel vxlan + nftables, VIP, 10 services").via_vip(10),
    on_kernel("kernel-nft-1k", "kernel vxlan + nftables, VIP, 1,000 services").via_vip(1000),
    on_kernel("kernel-nft-100k", "kernel vxlan + nftables, VIP, 100,000 services").via_vip(100_000),
    on_windlass("windlass-vip-10", "Windlass, 1 worker, VIP, 10 services", &[]).via_vip(10),
    on_windlass("windlass-vip-1k", "Windlass, 1 worker, VIP, 1,000 services", &[]).via_vip(1000),
    on_windlass("windlass-vip-100k", "Windlass, 1 worker, VIP, 100,000 services", &[]).via_vip(100_000),
    on_kernel("kernel-peers", "kernel vxlan, 1,000 peers").with_peers(),
    to_kernel("windlass-peers", "Windlass, 1 worker, 1,000 peers").with_peers(),
];

/// Every contestant that has a name.
pub fn all() -> impl Iterator<Item = Contestant> {
    CONTESTANTS.into_iter().chain(SWEPT)
}

/// Windlass with each lane, tuned and not, with 1 and 2 workers, to a pod, a VIP, and a VIP among many. What they take
/// of memory stays taken, once per run.
#[must_use]
pub fn matrix() -> Vec<Contestant> {
    let lanes: [(&str, &[&str]); 3] =
        [("none", NO_OFFLOADS), ("udp", &["--tunnel-gso", "off"]), ("tunnel", &["--tunnel-gso", "on"])];
    let mut contestants = Vec::new();
    for (lane, lane_flags) in lanes {
        for tuned in [false, true] {
            for workers in ["1", "2"] {
                for target in [Target::Pod, Target::Vip(1), Target::Vip(MANY_SERVICES)] {
                    let mut flags = [lane_flags, &["--workers", workers]].concat();
                    flags.extend(tuned.then_some("--tune-pods"));
                    let (short, long) = match target {
                        Target::Pod => (String::new(), String::new()),
                        Target::Vip(count) => (format!("-vip-{count}"), format!(", VIP, services: {count}")),
                    };
                    let (tuned, also) = if tuned { ("-tuned", ", tuned pods") } else { ("", "") };
                    let key = format!("windlass-{lane}{tuned}-{workers}w{short}");
                    let title = format!("Windlass, lane {lane}{also}, workers: {workers}{long}");
                    let made = on_windlass(key.leak(), title.leak(), flags.leak());
                    contestants.push(Contestant { target, ..made });
                }
            }
        }
    }
    contestants
}

/// The type of port that Open vSwitch polls without rest.
const POLLED_PORT: &str = "afxdp";
const NO_UDP_GSO: &[&str] = &["--no-gso", "--no-gro", "--tunnel-gso", "off"];
const NO_OFFLOADS: &[&str] = &["--no-tun-offload", "--no-gso", "--no-gro", "--tunnel-gso", "off"];

const fn on_kernel(key: &'static str, title: &'static str) -> Contestant {
    let (carrier, target) = (Carrier::Kernel, Target::Pod);
    Contestant {
        key,
        title,
        carrier,
        target,
        veth_gro: false,
        ipv6: false,
        nuisance: None,
        peers: false,
        quick: false,
    }
}

const fn on_windlass(key: &'static str, title: &'static str, flags: &'static [&'static str]) -> Contestant {
    Contestant { carrier: Carrier::Windlass(flags), ..on_kernel(key, title) }
}

const fn to_kernel(key: &'static str, title: &'static str) -> Contestant {
    Contestant { carrier: Carrier::WindlassToKernel(&[]), ..on_kernel(key, title) }
}

const fn on_ovs(key: &'static str, title: &'static str, port_type: &'static str) -> Contestant {
    Contestant { carrier: Carrier::Ovs(port_type), quick: true, ..on_kernel(key, title) }
}

impl Contestant {
    /// Windlass with other flags, as `NAME=FLAGS`. What it takes of memory stays taken, once per run.
    ///
    /// # Errors
    /// When there is no name.
    pub fn given(text: &str) -> Result<Self> {
        let (name, flags) = text.split_once('=').with_context(|| format!("NAME=FLAGS in {text:?}"))?;
        let leak = |text: String| -> &'static str { text.leak() };
        let flags: Vec<&'static str> = flags.split_whitespace().map(|flag| leak(flag.to_owned())).collect();
        let key = leak(format!("windlass-{name}"));
        Ok(on_windlass(key, leak(format!("Windlass, {name}")), flags.leak()))
    }

    const fn in_quick(mut self) -> Self {
        self.quick = true;
        self
    }

    const fn with_veth_gro(mut self) -> Self {
        self.veth_gro = true;
        self
    }

    const fn over_ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    const fn beset(mut self, by: Nuisance) -> Self {
        self.nuisance = Some(by);
        self
    }

    const fn with_peers(mut self) -> Self {
        self.peers = true;
        self
    }

    const fn via_vip(mut self, services: usize) -> Self {
        self.target = Target::Vip(services);
        self
    }

    /// The family that client and server speak.
    #[must_use]
    pub fn family(&self) -> Family {
        if self.ipv6 { Family::V6 } else { Family::V4 }
    }

    /// The flags of its `windlass run`, none where there is no such.
    #[must_use]
    pub fn flags(&self) -> &'static [&'static str] {
        match self.carrier {
            Carrier::Windlass(flags) | Carrier::WindlassToKernel(flags) => flags,
            Carrier::Kernel | Carrier::Ovs(_) => &[],
        }
    }

    /// Whether it keeps a core busy while nothing is measured, so that it has to be stopped meanwhile.
    #[must_use]
    pub fn never_rests(&self) -> bool {
        self.flags().contains(&"busy") || self.carrier == Carrier::Ovs(POLLED_PORT)
    }

    /// How it is set up, in words.
    #[must_use]
    pub fn how(&self) -> String {
        let carrier = match self.carrier {
            Carrier::Kernel => "vxlan device as flannel programs it, both nodes".to_owned(),
            Carrier::Windlass(flags) => format!("`windlass run {}`, both nodes", flags.join(" ")),
            Carrier::WindlassToKernel(flags) => {
                format!(
                    "`windlass run {}` on the client's node, kernel vxlan on the server's",
                    flags.join(" ")
                )
            }
            Carrier::Ovs(port) => format!(
                "ovs-vswitchd, datapath_type=netdev, ports of type {port} (afxdp is polled, each node on a core of its \
                 own, the default being core 0 for both), VXLAN tunnel, routing by OpenFlow; pods' TX offloads off"
            ),
        };
        let target = match self.target {
            Target::Pod => "to the pod's address".to_owned(),
            Target::Vip(services) => format!("to a VIP among {services} services"),
        };
        let further = [
            (self.veth_gro, ", veth GRO on"),
            (self.ipv6, ", IPv6 over IPv6"),
            (self.peers, ", 1,000 further nodes known"),
        ];
        let further: String = further.into_iter().filter(|(so, _)| *so).map(|(_, text)| text).collect();
        let beset = self.nuisance.map_or_else(String::new, |nuisance| format!(", {}", nuisance.how()));
        format!("{carrier}; {target}{further}{beset}")
    }

    /// Why it cannot be measured here, if it cannot; `help` is what `windlass run --help` says.
    #[must_use]
    pub fn missing(&self, help: &str) -> Option<String> {
        if matches!(self.carrier, Carrier::Ovs(_)) {
            return ovs::missing();
        }
        let flag = self.flags().iter().find(|word| word.starts_with("--") && !offers(help, word))?;
        Some(format!("this windlass has no {flag}"))
    }
}

fn offers(help: &str, flag: &str) -> bool {
    help.split(|letter: char| letter.is_whitespace() || letter == ',' || letter == '=' || letter == '[')
        .any(|word| word == flag)
}

/// What `windlass run --help` says.
///
/// # Errors
/// When the binary does not build or run.
pub fn windlass_help() -> Result<String> {
    run(Command::new(binary::windlass()?).args(["run", "--help"]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{BASE, CONTESTANTS, all, matrix, offers};

    #[test]
    fn keys_are_unique_and_the_base_is_first() {
        let every = || all().chain(matrix()).map(|contestant| contestant.key);
        let keys: BTreeSet<&str> = every().collect();
        assert_eq!(keys.len(), every().count());
        assert_eq!(CONTESTANTS[0].key, BASE);
    }

    #[test]
    fn a_flag_is_offered_by_its_whole_name_only() {
        let help = "      --no-gso [<BOOL>]\n      --poll <MODE>\n  -n, --node=<NAME>";
        assert!(offers(help, "--no-gso") && offers(help, "--poll") && offers(help, "--node"));
        assert!(!offers(help, "--no-gs"));
    }
}
