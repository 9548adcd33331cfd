//! The offloads of devices: read, and set as contestants want them.

use anyhow::{Context, Result};
use windlass_tests::netns::Netns;
use windlass_tests::process::run;
use windlass_tests::topology::{Family, Host};

/// The features that decide how large packets are on their way, and who makes their checksums.
const FEATURES: [&str; 10] = [
    "tx-checksumming",
    "scatter-gather",
    "tcp-segmentation-offload",
    "tx-udp-segmentation",
    "generic-segmentation-offload",
    "generic-receive-offload",
    "rx-udp-gro-forwarding",
    "tx-udp_tnl-segmentation",
    "tx-udp_tnl-csum-segmentation",
    "large-receive-offload",
];

/// Lets the host-side veth of every pod on that node aggregate what the pods send, as `--tune-pods` does.
///
/// # Errors
/// When the node's interfaces cannot be listed.
pub fn gro_on(host: &Host) -> Result<()> {
    let mut tune = host.netns.command(std::env::current_exe()?);
    run(tune.arg("tune-pods").arg(host.spec.pod_cidr(Family::V4))).map(drop)
}

/// Takes the segmentation of tunnelled superpackets from the node's underlay device, as NICs without it have it.
///
/// # Errors
/// When `ethtool` refuses.
pub fn tunnel_segmentation_off(host: &Host) -> Result<()> {
    let features = "tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off";
    host.netns.exec(&format!("ethtool -K eth0 {features}")).map(drop)
}

/// MTU and the offloads that are on, a line for each device of a namespace.
///
/// # Errors
/// When the devices cannot be listed.
pub fn devices(netns: &Netns) -> Result<Vec<String>> {
    let said = netns.ip("-o link show")?;
    let links = said.lines().filter_map(link).filter(|(name, _)| *name != "lo");
    links
        .map(|(device, mtu)| {
            let features = netns.exec(&format!("ethtool -k {device}")).context("offloads")?;
            Ok(format!("{device}: MTU {mtu}; on: {}", on(&features)))
        })
        .collect()
}

/// Name and MTU in a line of `ip -o link show`.
fn link(line: &str) -> Option<(&str, &str)> {
    let name = line.split(": ").nth(1)?;
    let mtu = line.split_whitespace().skip_while(|word| *word != "mtu").nth(1)?;
    Some((name.split('@').next().unwrap_or(name), mtu))
}

fn on(features: &str) -> String {
    let on: Vec<&str> = features
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(name, state)| FEATURES.contains(name) && state.starts_with("on"))
        .map(|(name, _)| name)
        .collect();
    if on.is_empty() { "none".to_owned() } else { on.join(", ") }
}

/// The host-side veths of the node's pods, by name.
///
/// # Errors
/// When they cannot be listed.
pub fn pod_ports(netns: &Netns) -> Result<Vec<String>> {
    let ports = netns.ip("-o link show master cni0")?;
    let names = ports.lines().filter_map(|line| line.split(": ").nth(1));
    Ok(names.map(|name| name.split('@').next().unwrap_or(name).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_device_is_told_by_its_own_name_and_mtu() {
        let line = "7: veth1@if2: <BROADCAST,UP> mtu 1450 qdisc noqueue master cni0 state UP mode DEFAULT";
        assert_eq!(super::link(line), Some(("veth1", "1450")));
    }

    #[test]
    fn only_known_features_that_are_on_are_told() {
        let said = "Features for eth0:\nrx-checksumming: on\ntx-checksumming: on\n\ttx-udp-segmentation: off\n\
                    generic-receive-offload: on [fixed]\n";
        assert_eq!(super::on(said), "tx-checksumming, generic-receive-offload");
        assert_eq!(super::on(""), "none");
    }
}
