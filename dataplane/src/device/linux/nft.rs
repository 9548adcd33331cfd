//! The filter rules this program needs, as one nftables table that the program `nft` replaces atomically.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};

use crate::device::host::{HostPlan, LinkError};

/// The only table this program touches.
pub(super) const TABLE: &str = "inet windlass";

/// Replaces the table with the plan's rules.
pub(super) fn install(plan: &HostPlan) -> Result<(), LinkError> {
    feed(&ruleset(plan))
}

/// Whether the table is there.
pub(super) fn is_there() -> Result<bool, LinkError> {
    let output = Command::new("nft").args(["list", "tables"]).output().map_err(failed)?;
    match output.status.success() {
        true => {
            Ok(String::from_utf8_lossy(&output.stdout).lines().any(|line| line == format!("table {TABLE}")))
        }
        false => Err(refused(&output)),
    }
}

/// Removes the table, if it is there.
pub(super) fn remove() -> Result<(), LinkError> {
    feed(&format!("table {TABLE}\ndelete table {TABLE}\n"))
}

/// The table of a plan. Declaring it before deleting it makes the deletion succeed where it does not exist.
///
/// The first chain is E5: a VXLAN datagram that a pod makes could reach a peer under an address the peer trusts,
/// by the host's masquerading or by a forged source. So none is forwarded, whatever its source; our own are not
/// forwarded but sent by this host. What crosses our device is judged there.
fn ruleset(plan: &HostPlan) -> String {
    let mut rules = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    let device = &plan.device;
    rules.push_str("  chain forward {\n    type filter hook forward priority -10; policy accept;\n");
    let _ = writeln!(rules, "    oifname != \"{device}\" udp dport {} drop", plan.vtep_port);
    rules
        .push_str("  }\n  chain postrouting {\n    type nat hook postrouting priority 100; policy accept;\n");
    for vip in &plan.source_vips {
        let inside = cluster_of(plan, vip);
        let _ =
            writeln!(rules, "    {0} saddr {vip}{inside} oifname != \"{device}\" masquerade", keyword(vip));
    }
    rules.push_str("  }\n}\n");
    rules
}

/// The condition that a destination lies outside the cluster's CIDRs of the source VIP's family.
fn cluster_of(plan: &HostPlan, vip: &IpAddr) -> String {
    let family = plan.cluster_cidrs.iter().filter(|net| net.addr().is_ipv4() == vip.is_ipv4());
    // Sets refuse intervals that overlap.
    let cidrs = ipnet::IpNet::aggregate(&family.copied().collect());
    if cidrs.is_empty() {
        return String::new();
    }
    let cidrs = cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!(" {} daddr != {{ {cidrs} }}", keyword(vip))
}

fn keyword(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "ip" } else { "ip6" }
}

fn feed(rules: &str) -> Result<(), LinkError> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A broken pipe means that nft has given up; its own message says why.
        let _ = stdin.write_all(rules.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(refused(&output))
}

fn failed(error: io::Error) -> LinkError {
    match error.kind() {
        io::ErrorKind::NotFound => LinkError::NoNft,
        _ => LinkError::system("running nft", error),
    }
}

fn refused(output: &Output) -> LinkError {
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match message.contains("Operation not permitted") {
        true => LinkError::NotPermitted { action: "changing nftables".to_owned() },
        false => LinkError::Nft { message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e5_no_vxlan_is_forwarded_and_source_vips_are_masqueraded_outside_the_cluster() {
        let plan = HostPlan {
            device: "windlass0".to_owned(),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
            cluster_cidrs: vec![
                "10.244.0.0/16".parse().unwrap(),
                "10.244.1.0/24".parse().unwrap(),
                "fd00::/48".parse().unwrap(),
            ],
            source_vips: vec!["169.254.77.1".parse().unwrap(), "fd77::1".parse().unwrap()],
            vtep_port: 8472,
            ..HostPlan::default()
        };
        let rules = ruleset(&plan);
        for line in [
            "oifname != \"windlass0\" udp dport 8472 drop",
            "ip saddr 169.254.77.1 ip daddr != { 10.244.0.0/16 } oifname != \"windlass0\" masquerade",
            "ip6 saddr fd77::1 ip6 daddr != { fd00::/48 } oifname != \"windlass0\" masquerade",
        ] {
            assert!(rules.lines().any(|found| found.trim() == line), "{line} is not in\n{rules}");
        }
    }
}
