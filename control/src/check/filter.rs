//! Rules of others: kube-proxy's left-overs, a FORWARD policy that drops, masquerading of pods inside the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use windlass_dataplane::device::Survey;

use super::network::pod_interfaces;
use super::rules::{ChainName, Condition, Rules};
use super::sample::{Outcome, Packet, follow, sees};
use super::{Finding, Subject};
use crate::catalog;
use crate::node::NodeSettings;

pub(super) fn findings(subject: &Subject<'_>, host: &Survey) -> Vec<Finding> {
    let mut findings = ipvs(host);
    let mut rules = Rules::default();
    let parsed = host.ruleset.as_deref().map_err(Clone::clone).and_then(|text| rules.add_nftables(text));
    let legacy = host.iptables_rules.as_deref().map(|text| rules.add_iptables(text)).map_err(Clone::clone);
    findings.extend(kube_proxy_rules(&rules));
    if let Some(node) = subject.node {
        let dropping = forward_policies(subject, node, host, &rules);
        findings.extend(bridge_netfilter(host, &dropping));
        findings.extend(dropping);
        findings.extend(masquerading(subject, node, host, &rules));
    } else {
        findings.extend(policies_without_node(subject, &rules));
        findings.push(Finding::without_node(&catalog::IP_MASQ));
    }
    let unseen: Vec<String> = [parsed.err(), legacy.err()].into_iter().flatten().collect();
    if !unseen.is_empty() {
        for check in [&catalog::KUBE_PROXY_RULES, &catalog::FORWARD_POLICY, &catalog::IP_MASQ] {
            findings.push(Finding::unseen(check, &unseen.join("; ")));
        }
    }
    findings
}

fn ipvs(host: &Survey) -> Vec<Finding> {
    match &host.ipvs {
        Ok(services) if services.is_empty() => Vec::new(),
        Ok(services) => {
            let count = services.len();
            let seen = format!("IPVS has {count} virtual service{}", if count == 1 { "" } else { "s" });
            vec![Finding::error(&catalog::KUBE_PROXY_IPVS, seen, "kube-proxy --cleanup, or ipvsadm --clear")]
        }
        Err(why) => vec![Finding::unseen(&catalog::KUBE_PROXY_IPVS, why)],
    }
}

/// Chains that only kube-proxy makes. kubelet makes KUBE-FIREWALL, KUBE-KUBELET-CANARY and KUBE-MARK chains.
const TRANSLATING: [&str; 5] = ["KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-NODEPORTS"];
const ACCOMPANYING: [&str; 4] =
    ["KUBE-FORWARD", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY", "KUBE-PROXY-FIREWALL"];

fn kube_proxy_rules(rules: &Rules) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (family, table) in rules.tables.iter().filter(|(_, table)| table == "kube-proxy") {
        let seen = format!("there is kube-proxy's nftables table {family} {table}");
        let remedy = format!("kube-proxy --cleanup, or nft delete table {family} {table}");
        findings.push(Finding::error(&catalog::KUBE_PROXY_RULES, seen, remedy));
    }
    let made_by = |prefixes: &[&str]| -> Vec<&ChainName> {
        let named = |name: &&ChainName| prefixes.iter().any(|prefix| name.chain.starts_with(prefix));
        rules.chains.keys().filter(|name| name.table != "kube-proxy").filter(named).collect()
    };
    let remedy = "kube-proxy --cleanup, or a restart of the host";
    let describe = |chains: &[&ChainName]| {
        let first = chains.first().map(|name| name.chain.as_str()).unwrap_or_default();
        match chains.len() {
            1 => format!("there is an iptables chain of kube-proxy, {first}"),
            count => format!("there are {count} iptables chains of kube-proxy, {first} among them"),
        }
    };
    let (translating, accompanying) = (made_by(&TRANSLATING), made_by(&ACCOMPANYING));
    if !translating.is_empty() {
        findings.push(Finding::error(&catalog::KUBE_PROXY_RULES, describe(&translating), remedy));
    } else if !accompanying.is_empty() {
        findings.push(Finding::warning(&catalog::KUBE_PROXY_RULES, describe(&accompanying), remedy));
    }
    findings
}

/// Of each family one packet from a pod into the overlay, and one back.
fn forward_policies(
    subject: &Subject<'_>,
    node: &NodeSettings,
    host: &Survey,
    rules: &Rules,
) -> Vec<Finding> {
    let samples = samples(subject, node, host);
    let mut findings = Vec::new();
    for (name, chain) in rules.base("filter", "forward") {
        let packets = samples.iter().flat_map(|sample| [sample.packet(), sample.answer()]);
        let verdicts =
            packets.filter(|packet| sees(&name.family, packet)).map(|packet| follow(rules, name, &packet));
        let dropped: Vec<_> = verdicts
            .filter(|verdict| match verdict.outcome {
                Outcome::Dropped => true,
                Outcome::Undecided => chain.drops,
                Outcome::Accepted | Outcome::Masqueraded => false,
            })
            .collect();
        if dropped.is_empty() {
            continue;
        }
        let what = if chain.drops { "has policy DROP" } else { "drops by a rule" };
        let remedy = accept_remedy(subject, name);
        findings.push(if dropped.iter().all(|verdict| verdict.may_accept) {
            let seen = format!("{} {what}, and rules before that are too intricate to judge", shown(name));
            Finding::warning(&catalog::FORWARD_POLICY, seen, remedy)
        } else {
            let seen = format!("{} {what}, and no rule accepts what pods and peers send", shown(name));
            Finding::error(&catalog::FORWARD_POLICY, seen, remedy)
        });
    }
    findings
}

/// Without a node nobody knows what its pods send, and so which rules accept it; a policy is seen nevertheless.
fn policies_without_node(subject: &Subject<'_>, rules: &Rules) -> Vec<Finding> {
    let dropping = rules.base("filter", "forward").filter(|(_, chain)| chain.drops);
    let warning = |(name, _): (&ChainName, _)| {
        let seen = format!(
            "{} has policy DROP; whether rules accept what pods and peers send is known with the node",
            shown(name)
        );
        Finding::warning(&catalog::FORWARD_POLICY, seen, accept_remedy(subject, name))
    };
    let warnings: Vec<_> = dropping.map(warning).collect();
    if warnings.is_empty() { vec![Finding::without_node(&catalog::FORWARD_POLICY)] } else { warnings }
}

fn accept_remedy(subject: &Subject<'_>, name: &ChainName) -> String {
    let device = &subject.config.device;
    let program = match name.family.as_str() {
        "legacy-ip" => "iptables-legacy",
        "legacy-ip6" => "ip6tables-legacy",
        "ip" if name.chain == "FORWARD" => "iptables",
        "ip6" if name.chain == "FORWARD" => "ip6tables",
        family => {
            let place = format!("{family} {} {}", name.table, name.chain);
            return format!(
                "nft insert rule {place} iifname {device} accept && nft insert rule {place} oifname {device} accept"
            );
        }
    };
    format!("{program} -I FORWARD -i {device} -j ACCEPT && {program} -I FORWARD -o {device} -j ACCEPT")
}

fn shown(name: &ChainName) -> String {
    match name.family.strip_prefix("legacy-") {
        Some(family) => format!("the {family}tables chain {} of {}", name.chain, name.table),
        None => format!("the chain {} of table {} {}", name.chain, name.family, name.table),
    }
}

fn bridge_netfilter(host: &Survey, dropping: &[Finding]) -> Option<Finding> {
    let settings = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];
    let on = settings.into_iter().find(|path| host.sysctls.get(*path).is_some_and(|value| value == "1"))?;
    (!dropping.is_empty()).then(|| {
        let setting = on.replace('/', ".");
        let seen =
            format!("{setting} is 1, so forward-policy's rules also meet packets between pods of this node");
        let remedy = format!("sysctl -w {setting}=0, or accept them as forward-policy says");
        Finding::warning(&catalog::BRIDGE_NETFILTER, seen, remedy)
    })
}

/// A pod's packet to a service address, and one to a pod of another node, which must keep the pod's address.
fn masquerading(subject: &Subject<'_>, node: &NodeSettings, host: &Survey, rules: &Rules) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, _) in rules.base("nat", "postrouting") {
        let masqueraded = samples(subject, node, host).into_iter().find_map(|sample| {
            let sources = mentioned(rules, name, sample.pods).into_iter().chain([sample.source]);
            let mut packets = sources.map(|source| Packet { source, ..sample.packet() });
            let hit = packets.any(|packet| {
                sees(&name.family, &packet) && follow(rules, name, &packet).outcome == Outcome::Masqueraded
            });
            hit.then_some(sample.what)
        });
        if let Some(what) = masqueraded {
            let seen = format!("{} masquerades what this node's pods send to {what}", shown(name));
            findings.push(Finding::warning(&catalog::IP_MASQ, seen, exempt_remedy(subject, name)));
        }
    }
    findings
}

fn exempt_remedy(subject: &Subject<'_>, name: &ChainName) -> String {
    let device = &subject.config.device;
    match (name.family.as_str(), name.chain.as_str()) {
        ("ip" | "legacy-ip", "POSTROUTING") => {
            format!("iptables -t nat -I POSTROUTING -o {device} -j RETURN")
        }
        ("ip6" | "legacy-ip6", "POSTROUTING") => {
            format!("ip6tables -t nat -I POSTROUTING -o {device} -j RETURN")
        }
        (family, chain) => {
            format!("nft insert rule {family} {} {chain} oifname {device} return", name.table)
        }
    }
}

/// Single pods that rules of that table name as a source: CNI plugins make one rule for each pod.
fn mentioned(rules: &Rules, base: &ChainName, pods: &IpNet) -> Vec<IpAddr> {
    const ENOUGH: usize = 16;
    let same = rules.chains.iter().filter(|(name, _)| name.family == base.family && name.table == base.table);
    let conditions = same.flat_map(|(_, chain)| &chain.rules).flat_map(|rule| &rule.conditions);
    let sources = conditions.filter_map(|condition| match condition {
        Condition::Source(nets, false) => Some(nets),
        _ => None,
    });
    sources.flatten().filter(|net| pods.contains(*net)).map(IpNet::addr).take(ENOUGH).collect()
}

/// A packet that a pod of ours could send into the overlay.
struct Sample<'a> {
    pods: &'a IpNet,
    source: IpAddr,
    destination: IpAddr,
    bridge: &'a str,
    device: &'a str,
    what: &'static str,
}

impl Sample<'_> {
    fn packet(&self) -> Packet<'_> {
        Packet { source: self.source, destination: self.destination, from: self.bridge, to: self.device }
    }

    fn answer(&self) -> Packet<'_> {
        Packet { source: self.destination, destination: self.source, from: self.device, to: self.bridge }
    }
}

fn samples<'a>(subject: &'a Subject<'_>, node: &'a NodeSettings, host: &'a Survey) -> Vec<Sample<'a>> {
    let device = subject.config.device.as_str();
    let bridge = pod_interfaces(node, host).find(|name| *name != device && !name.starts_with("flannel"));
    let bridge = bridge.unwrap_or("cni0");
    let mut samples = Vec::new();
    for pods in &node.pod_cidrs {
        let source = inside(pods);
        let same = |net: &&IpNet| net.addr().is_ipv4() == source.is_ipv4();
        let peers = subject.cluster.nodes.iter().filter(|(name, _)| **name != node.node);
        let peer = peers.flat_map(|(_, peer)| &peer.pod_cidrs).find(same);
        let vips = subject.cluster.services.values().flat_map(|service| &service.cluster_ips);
        let vip = vips.copied().find(|vip| vip.is_ipv4() == source.is_ipv4());
        let vip = vip.or_else(|| node.service_cidrs.iter().find(same).map(inside));
        let destinations = [(peer.map(inside), "pods of other nodes"), (vip, "service addresses")];
        samples.extend(destinations.into_iter().filter_map(|(destination, what)| {
            Some(Sample { pods, source, destination: destination?, bridge, device, what })
        }));
    }
    samples
}

/// An address that a range may give to somebody: its tenth.
fn inside(net: &IpNet) -> IpAddr {
    const TENTH: u8 = 10;
    match net.network() {
        IpAddr::V4(base) => Ipv4Addr::from(u32::from(base).saturating_add(TENTH.into())).into(),
        IpAddr::V6(base) => Ipv6Addr::from(u128::from(base).saturating_add(TENTH.into())).into(),
    }
}
