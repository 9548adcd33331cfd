//! Who is measured: each [`Contestant`] is a name and how its two nodes are set up.

use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;
use windlass_tests::binary;
use windlass_tests::process::run;

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
    /// Whether `--quick` measures it too.
    pub quick: bool,
}

/// The one that all others are compared with.
pub const BASE: &str = "kernel";

/// Number of services where there are many.
pub const MANY_SERVICES: usize = 10_000;

/// All contestants, the base first.
pub const CONTESTANTS: [Contestant; 20] = [
    on_kernel(BASE, "kernel vxlan").in_quick(),
    on_kernel("kernel-gro", "kernel vxlan, veth GRO on").with_veth_gro().in_quick(),
    on_kernel("kernel-nft-1", "kernel vxlan + nftables, VIP, 1 service").via_vip(1).in_quick(),
    on_kernel("kernel-nft-10k", "kernel vxlan + nftables, VIP, 10,000 services").via_vip(MANY_SERVICES),
    on_ovs("ovs-afpacket", "OVS userspace, AF_PACKET", "system"),
    on_ovs("ovs-afxdp", "OVS userspace, AF_XDP", POLLED_PORT),
    on_windlass("windlass-1w", "Windlass, 1 worker", &[]).in_quick(),
    on_windlass("windlass-2w", "Windlass, 2 workers", &["--workers", "2"]).in_quick(),
    on_windlass("windlass-gro", "Windlass, 1 worker, veth GRO on", &[]).with_veth_gro().in_quick(),
    on_windlass("windlass-gro-2w", "Windlass, 2 workers, veth GRO on", &["--workers", "2"]).with_veth_gro(),
    on_windlass("windlass-vip-1", "Windlass, 1 worker, VIP, 1 service", &[]).via_vip(1).in_quick(),
    on_windlass("windlass-vip-10k", "Windlass, 1 worker, VIP, 10,000 services", &[])
        .via_vip(MANY_SERVICES)
        .in_quick(),
    on_windlass("windlass-vip-10k-2w", "Windlass, 2 workers, VIP, 10,000 services", &["--workers", "2"])
        .via_vip(MANY_SERVICES),
    on_windlass("windlass-no-offload", "Windlass, 1 worker, no offloads", NO_OFFLOADS),
    on_windlass("windlass-no-gso", "Windlass, 1 worker, no UDP GSO/GRO", &["--no-gso", "--no-gro"]),
    on_windlass("windlass-udp-lane", "Windlass, 1 worker, UDP lane only", &["--tunnel-gso", "off"]),
    on_windlass("windlass-tunnel-gso", "Windlass, 1 worker, tunnel-GSO lane", &["--tunnel-gso", "on"]),
    on_windlass("windlass-interrupt", "Windlass, 1 worker, poll interrupt", &["--poll", "interrupt"]),
    on_windlass("windlass-busy", "Windlass, 1 worker, poll busy", &["--poll", "busy"]),
    Contestant {
        carrier: Carrier::WindlassToKernel(&[]),
        ..on_kernel("windlass-to-kernel", "Windlass, 1 worker, to a kernel vxlan node")
    },
];

/// The type of port that Open vSwitch polls without rest.
const POLLED_PORT: &str = "afxdp";
const NO_OFFLOADS: &[&str] = &["--no-tun-offload", "--no-gso", "--no-gro"];

const fn on_kernel(key: &'static str, title: &'static str) -> Contestant {
    let (carrier, target) = (Carrier::Kernel, Target::Pod);
    Contestant { key, title, carrier, target, veth_gro: false, quick: false }
}

const fn on_windlass(key: &'static str, title: &'static str, flags: &'static [&'static str]) -> Contestant {
    Contestant { carrier: Carrier::Windlass(flags), ..on_kernel(key, title) }
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

    const fn via_vip(mut self, services: usize) -> Self {
        self.target = Target::Vip(services);
        self
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
        let veth = if self.veth_gro { ", veth GRO on" } else { "" };
        format!("{carrier}; {target}{veth}")
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

    use super::{BASE, CONTESTANTS, offers};

    #[test]
    fn keys_are_unique_and_the_base_is_first() {
        let keys: BTreeSet<&str> = CONTESTANTS.iter().map(|contestant| contestant.key).collect();
        assert_eq!(keys.len(), CONTESTANTS.len());
        assert_eq!(CONTESTANTS[0].key, BASE);
    }

    #[test]
    fn a_flag_is_offered_by_its_whole_name_only() {
        let help = "      --no-gso [<BOOL>]\n      --poll <MODE>\n  -n, --node=<NAME>";
        assert!(offers(help, "--no-gso") && offers(help, "--poll") && offers(help, "--node"));
        assert!(!offers(help, "--no-gs"));
    }
}
