//! The filter rules this program needs, as one nftables table that the program `nft` replaces atomically.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::{Command, Output, Stdio};

use ipnet::IpNet;

use crate::device::host::{Entrances, Family, HostPlan, LinkError};
use crate::wire::flow::Vip;

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

/// Changes the elements of the sets, all at once: of entrances that [ask for the same rules](Entrances::are_ruled_as).
pub(super) fn change(before: &Entrances, after: &Entrances) -> Result<(), LinkError> {
    let mut rules = String::new();
    for family in [Family::V4, Family::V6] {
        for ((name, old), (_, new)) in sets(family, before).into_iter().zip(sets(family, after)) {
            for (verb, elements) in [("delete", difference(old, new)), ("add", difference(new, old))] {
                let elements = of_family(family, elements);
                if !elements.is_empty() {
                    let _ = writeln!(rules, "{verb} element {TABLE} {name} {{ {elements} }}");
                }
            }
        }
    }
    feed(&rules)
}

/// The table of a plan: a number of rules and sets that does not grow with the services. Declaring it before
/// deleting it makes the deletion succeed where it does not exist. Every packet of the host goes through every chain,
/// pods' and encapsulated ones alike, so there are no chains but those that the plan's entrances need.
///
/// - `forward` is E5: a VXLAN datagram that a pod makes could reach a peer under an address the peer trusts, by the
///   host's masquerading or by a forged source. So none is forwarded, whatever its source; our own are not
///   forwarded but sent by this host. What crosses our device is judged there.
/// - `node_ports` and `own_node_ports` send what comes to, or starts at, this host for a node port on to an address
///   that is routed into the device. The destination must change: an address of the host's own is delivered by the
///   rule of local addresses before any other is asked. The kernel's conntrack gives the reply the address that was
///   asked, in POSTROUTING or INPUT, where no source is martian any more.
/// - `steer` and `own_steer` mark what is addressed to external addresses, and a rule routes marked packets into the
///   device: other ports of these addresses go where they always went.
/// - A backend that sees its client's own address answers to that, and the answer must come back to the device,
///   though nothing in its destination says so. Its connection is known by how it came out of the device: from a
///   client that `clients` remembers from a moment ago, when its packet to a `kept` destination went in. That
///   connection is marked, and so are its replies. (What peers send from their node addresses also comes out of
///   the device and from outside the overlay, and its replies must not go in.)
/// - `postrouting` masquerades flows that carry the source VIP out of the cluster, and pods as flannel does.
fn ruleset(plan: &HostPlan) -> String {
    let mut rules = format!("table {TABLE}\ndelete table {TABLE}\ntable {TABLE} {{\n");
    let families: Vec<Family> = plan.source_vips.iter().map(Family::of).collect();
    let entrances = &plan.entrances;
    let (are_steered, has_node_ports) = (entrances.are_steered(), !entrances.node_ports.is_empty());
    for family in families.iter().filter(|_| are_steered || has_node_ports) {
        rules.push_str(&declared_sets(*family, entrances));
    }
    let device = &plan.device;
    let mut chain = |name: &str, hook: &str, lines: Vec<String>| {
        let _ = writeln!(rules, "  chain {name} {{\n    type {hook}; policy accept;");
        for line in lines {
            let _ = writeln!(rules, "    {line}");
        }
        rules.push_str("  }\n");
    };
    let vxlan = format!("oifname != \"{device}\" udp dport {} drop", plan.vtep_port);
    chain("forward", "filter hook forward priority -10", vec![vxlan]);
    let each = |of: fn(Family, &str) -> Vec<String>| -> Vec<String> {
        families.iter().flat_map(|family| of(*family, device)).collect()
    };
    if are_steered {
        let answers = format!("ct direction reply {CT_MARKED} {SET_MARK}");
        let steer = [each(steer), vec![format!("iifname != \"{device}\" {answers}")]].concat();
        chain("steer", "filter hook prerouting priority -150", steer);
        chain("own_steer", "route hook output priority -150", [each(own_steer), vec![answers]].concat());
    }
    let (from_outside, own) = (format!("iifname != \"{device}\" "), String::new());
    let node_ports = [
        ("node_ports", "nat hook prerouting priority -100", from_outside),
        ("own_node_ports", "nat hook output priority -100", own),
    ];
    for (name, hook, from) in node_ports.into_iter().filter(|_| has_node_ports) {
        let lines = plan.node_port_vips.iter().map(|vip| {
            let ip = keyword(Family::of(vip));
            let suffix = suffix(Family::of(vip));
            format!("{from}{ip} daddr . meta l4proto . th dport @node_ports_{suffix} dnat {ip} to {vip}")
        });
        chain(name, hook, lines.collect());
    }
    chain("postrouting", "nat hook postrouting priority 100", postrouting(plan, &families));
    rules.push_str("}\n");
    rules
}

const SET_MARK: &str = "meta mark set meta mark or 0x10000000";
const CT_MARKED: &str = "ct mark and 0x10000000 == 0x10000000";
const _: () = assert!(super::mark_rule::MARK == 0x1000_0000);

/// How long a client is remembered until its first packet comes out of the device, and how many are.
const CLIENTS: &str = "flags dynamic, timeout; timeout 10s; size 65536";

fn steer(family: Family, device: &str) -> Vec<String> {
    let (ip, suffix) = (keyword(family), suffix(family));
    let source = format!("{ip} saddr . meta l4proto . th sport");
    let destination = format!("{ip} daddr . meta l4proto . th dport");
    vec![
        format!(
            "iifname != \"{device}\" ct state new {destination} @kept_{suffix} update @clients_{suffix} {{ {source} }}"
        ),
        format!("iifname != \"{device}\" {destination} @external_{suffix} {SET_MARK}"),
        format!(
            "iifname \"{device}\" ct state new {source} @clients_{suffix} ct mark set ct mark or 0x10000000"
        ),
    ]
}

fn own_steer(family: Family, _: &str) -> Vec<String> {
    let (ip, suffix) = (keyword(family), suffix(family));
    vec![format!("{ip} daddr . meta l4proto . th dport @external_{suffix} {SET_MARK}")]
}

/// flannel's rules of `--ip-masq`, in its order (flannel v0.28, pkg/trafficmngr/nftables). A pod's packets that go
/// into the device are to pods and services: those are the engine's to translate.
fn postrouting(plan: &HostPlan, families: &[Family]) -> Vec<String> {
    let device = &plan.device;
    let mut lines = Vec::new();
    for vip in &plan.source_vips {
        let family = Family::of(vip);
        let ip = keyword(family);
        let outside = networks(family, &plan.cluster_cidrs)
            .map_or_else(String::new, |cluster| format!(" {ip} daddr != {cluster}"));
        lines.push(format!("{ip} saddr {vip}{outside} oifname != \"{device}\" masquerade"));
    }
    if !plan.masquerades_pods {
        return lines;
    }
    lines.push("meta mark and 0x4000 == 0x4000 return".to_owned());
    for family in families {
        let ip = keyword(*family);
        let (cluster, own) = (networks(*family, &plan.cluster_cidrs), networks(*family, &plan.pod_cidrs));
        let Some((cluster, own)) = cluster.zip(own) else { continue };
        let multicast = if *family == Family::V4 { "224.0.0.0/4" } else { "ff00::/8" };
        lines.extend([
            format!("{ip} saddr {cluster} oifname \"{device}\" return"),
            format!("{ip} saddr {own} {ip} daddr {cluster} return"),
            format!("{ip} saddr {cluster} {ip} daddr {own} return"),
            format!("{ip} saddr != {cluster} {ip} daddr {own} return"),
            format!("{ip} saddr {cluster} {ip} daddr != {multicast} masquerade fully-random"),
            format!("{ip} saddr != {cluster} {ip} daddr {cluster} masquerade fully-random"),
        ]);
    }
    lines
}

/// The networks of a family as an anonymous set, if there are any.
fn networks(family: Family, all: &[IpNet]) -> Option<String> {
    let of_family = all.iter().filter(|net| Family::of(&net.addr()) == family);
    // Sets refuse intervals that overlap.
    let nets = IpNet::aggregate(&of_family.copied().collect());
    let nets = nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    (!nets.is_empty()).then(|| format!("{{ {nets} }}"))
}

/// A family's sets that control fills, by name.
fn sets(family: Family, entrances: &Entrances) -> [(String, &BTreeSet<Vip>); 3] {
    let suffix = suffix(family);
    let Entrances { node_ports, external, kept } = entrances;
    [("node_ports", node_ports), ("external", external), ("kept", kept)]
        .map(|(name, vips)| (format!("{name}_{suffix}"), vips))
}

fn declared_sets(family: Family, entrances: &Entrances) -> String {
    let address = if family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
    let kind = format!("type {address} . inet_proto . inet_service;");
    let mut text = format!("  set clients_{} {{ {kind} {CLIENTS}; }}\n", suffix(family));
    for (name, vips) in sets(family, entrances) {
        let elements = of_family(family, vips);
        let elements = if elements.is_empty() { elements } else { format!(" elements = {{ {elements} }};") };
        let _ = writeln!(text, "  set {name} {{ {kind}{elements} }}");
    }
    text
}

fn difference<'a>(all: &'a BTreeSet<Vip>, but: &'a BTreeSet<Vip>) -> impl IntoIterator<Item = &'a Vip> {
    all.difference(but)
}

/// The elements of a family, as nft reads them.
fn of_family<'a>(family: Family, vips: impl IntoIterator<Item = &'a Vip>) -> String {
    let elements = vips.into_iter().filter(|vip| Family::of(&vip.addr) == family);
    let element = |vip: &Vip| format!("{} . {} . {}", vip.addr, vip.protocol, vip.port);
    elements.map(element).collect::<Vec<_>>().join(", ")
}

fn suffix(family: Family) -> &'static str {
    if family == Family::V4 { "v4" } else { "v6" }
}

fn keyword(family: Family) -> &'static str {
    if family == Family::V4 { "ip" } else { "ip6" }
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
    use crate::wire::flow::Protocol;

    #[test]
    fn e5_no_vxlan_is_forwarded_and_source_vips_are_masqueraded_outside_the_cluster() {
        let node_port = Vip { addr: "192.0.2.1".parse().unwrap(), port: 30_080, protocol: Protocol::TCP };
        let plan = HostPlan {
            device: "windlass0".to_owned(),
            pod_cidrs: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
            cluster_cidrs: vec![
                "10.244.0.0/16".parse().unwrap(),
                "10.244.1.0/24".parse().unwrap(),
                "fd00::/48".parse().unwrap(),
            ],
            source_vips: vec!["169.254.77.1".parse().unwrap(), "fd77::1".parse().unwrap()],
            node_port_vips: vec!["169.254.77.2".parse().unwrap()],
            entrances: Entrances { node_ports: [node_port].into(), ..Entrances::default() },
            masquerades_pods: true,
            vtep_port: 8472,
            ..HostPlan::default()
        };
        let rules = ruleset(&plan);
        for line in [
            "oifname != \"windlass0\" udp dport 8472 drop",
            "ip saddr 169.254.77.1 ip daddr != { 10.244.0.0/16 } oifname != \"windlass0\" masquerade",
            "ip6 saddr fd77::1 ip6 daddr != { fd00::/48 } oifname != \"windlass0\" masquerade",
            "ip daddr . meta l4proto . th dport @node_ports_v4 dnat ip to 169.254.77.2",
        ] {
            assert!(rules.lines().any(|found| found.trim() == line), "{line} is not in\n{rules}");
        }
        let masquerading = "meta mark and 0x4000 == 0x4000 return
    ip saddr { 10.244.0.0/16 } oifname \"windlass0\" return
    ip saddr { 10.244.1.0/24 } ip daddr { 10.244.0.0/16 } return
    ip saddr { 10.244.0.0/16 } ip daddr { 10.244.1.0/24 } return
    ip saddr != { 10.244.0.0/16 } ip daddr { 10.244.1.0/24 } return
    ip saddr { 10.244.0.0/16 } ip daddr != 224.0.0.0/4 masquerade fully-random
    ip saddr != { 10.244.0.0/16 } ip daddr { 10.244.0.0/16 } masquerade fully-random
";
        assert!(rules.contains(masquerading), "flannel's order:\n{rules}");
    }
}
