//! Service rules as kube-proxy's nftables mode lays them out (Kubernetes, pkg/proxy/nftables/proxier.go): one
//! verdict map from address, protocol and port to a chain per service port, and a chain per endpoint that
//! translates. Masquerading is for clients outside the cluster's pods only, as with `--cluster-cidr`.

use std::fmt::Write;
use std::net::Ipv4Addr;

use anyhow::Result;
use windlass_tests::netns::Netns;
use windlass_tests::process::run_with_input;
use windlass_tests::topology::CLUSTER_CIDR;

use crate::services::{Filler, MEASURED, PORT, fillers};

const TABLE: &str = "ip kube-proxy";

/// The rules of the measured service with that backend, and of fillers, `services` in all, for `nft -f -`.
#[must_use]
pub fn rules(services: usize, backend: Ipv4Addr) -> String {
    let mut rules = frame();
    for protocol in ["tcp", "udp"] {
        rules += &service_port(MEASURED.name, protocol, MEASURED.vip, backend);
    }
    for filler in fillers(services.saturating_sub(1)) {
        rules += &filler_rules(&filler);
    }
    rules
}

/// The rules that one more filler adds to those loaded.
#[must_use]
pub fn filler_rules(filler: &Filler) -> String {
    service_port(&filler.name, "tcp", filler.vip, filler.endpoint)
}

/// The rules that give a loaded filler another endpoint.
#[must_use]
pub fn changed_endpoint(before: &Filler, after: &Filler) -> String {
    let (service, old) = chains(&before.name, "tcp", before.endpoint);
    let (_, new) = chains(&after.name, "tcp", after.endpoint);
    let flushed = format!("flush chain {TABLE} {service}\n");
    flushed
        + &endpoint_chain(&new, "tcp", after.endpoint)
        + &service_rules(&service, &new, "tcp", after.vip)
        + &format!("flush chain {TABLE} {old}\ndelete chain {TABLE} {old}\n")
}

/// Loads rules in one transaction.
///
/// # Errors
/// When `nft` refuses them.
pub fn load(at: &Netns, rules: &str) -> Result<()> {
    run_with_input(at.command("nft").args(["-f", "-"]), rules).map(drop)
}

fn frame() -> String {
    format!(
        "add table ip kube-proxy
table ip kube-proxy {{
  set cluster-ips {{ type ipv4_addr; }}
  map service-ips {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  map no-endpoint-services {{ type ipv4_addr . inet_proto . inet_service : verdict; }}
  chain mark-for-masquerade {{ meta mark set meta mark | 0x4000; }}
  chain masquerading {{
    meta mark & 0x4000 == 0x0 return
    meta mark set meta mark ^ 0x4000
    masquerade fully-random
  }}
  chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }}
  chain service-endpoints-check {{ ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
  chain cluster-ips-check {{ ip daddr @cluster-ips reject; }}
  chain filter-forward {{
    type filter hook forward priority -110; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }}
  chain filter-output {{
    type filter hook output priority -90; policy accept;
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }}
  chain nat-prerouting {{ type nat hook prerouting priority dstnat; policy accept; jump services; }}
  chain nat-output {{ type nat hook output priority -100; policy accept; jump services; }}
  chain nat-postrouting {{ type nat hook postrouting priority srcnat; policy accept; jump masquerading; }}
  chain pods {{ ip saddr != {CLUSTER_CIDR} jump mark-for-masquerade; }}
}}
"
    )
}

fn service_port(name: &str, protocol: &str, vip: Ipv4Addr, endpoint: Ipv4Addr) -> String {
    let (service, target) = chains(name, protocol, endpoint);
    let port = MEASURED.port;
    let mut rules = endpoint_chain(&target, protocol, endpoint);
    // Writing to a String cannot fail.
    let _ = writeln!(rules, "add chain {TABLE} {service}");
    rules += &service_rules(&service, &target, protocol, vip);
    let _ = write!(
        rules,
        "add element {TABLE} cluster-ips {{ {vip} }}
add element {TABLE} service-ips {{ {vip} . {protocol} . {port} : goto {service} }}
"
    );
    rules
}

/// Names of the chains of a service port and of its endpoint.
fn chains(name: &str, protocol: &str, endpoint: Ipv4Addr) -> (String, String) {
    let service = format!("service-default/{name}/{protocol}");
    let target = format!("endpoint-default/{name}/{protocol}/{endpoint}");
    // nft takes these characters in a quoted name only where it is a string, so they are replaced as in a hash.
    (service.replace('/', "_"), target.replace(['/', '.'], "_"))
}

fn endpoint_chain(target: &str, protocol: &str, endpoint: Ipv4Addr) -> String {
    format!(
        "add chain {TABLE} {target}
add rule {TABLE} {target} ip saddr {endpoint} jump mark-for-masquerade
add rule {TABLE} {target} meta l4proto {protocol} dnat to {endpoint}:{PORT}
"
    )
}

fn service_rules(service: &str, target: &str, protocol: &str, vip: Ipv4Addr) -> String {
    let (from_outside, port) =
        (format!("ip saddr != {CLUSTER_CIDR} jump mark-for-masquerade"), MEASURED.port);
    format!(
        "add rule {TABLE} {service} ip daddr {vip} {protocol} dport {port} {from_outside}
add rule {TABLE} {service} numgen random mod 1 vmap {{ 0 : goto {target} }}
"
    )
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::rules;

    #[test]
    fn every_service_has_its_element_and_its_chains() {
        let rules = rules(3, Ipv4Addr::new(10, 244, 2, 2));
        assert_eq!(rules.matches("add element ip kube-proxy service-ips").count(), 4);
        assert!(rules.contains("10.106.228.152 . udp . 80 : goto service-default_measured_udp"));
        assert!(rules.contains("dnat to 10.244.2.2:8080"));
    }
}
