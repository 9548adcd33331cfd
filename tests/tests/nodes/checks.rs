//! `windlass check` on hosts in real trouble, and `windlass run` after the same checks.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use windlass_tests::netns::{Netns, on_path};
use windlass_tests::node::{Hindrance, WindlassNode, run_check, run_refused};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::Guarded;
use windlass_tests::topology::{Family, Host, Topology, VNI, VXLAN_PORT};
use windlass_tests::traffic::ping;

use crate::services::WEB;

/// What is found, by the name of the check.
struct Found {
    code: i32,
    findings: BTreeMap<String, Value>,
}

impl Found {
    fn expect(&self, check: &str, severity: &str, words: &[&str]) -> Result<()> {
        let finding = self.findings.get(check).with_context(|| format!("no {check}: {:?}", self.findings))?;
        ensure!(finding["severity"] == severity, "{finding}");
        let text = format!("{} {}", finding["seen"], finding["remedy"]);
        for word in words {
            ensure!(text.contains(word), "{word:?} is not in {text}");
        }
        ensure!((self.code == 1) == self.has_errors(), "exit code {}: {:?}", self.code, self.findings);
        Ok(())
    }

    fn has_errors(&self) -> bool {
        self.findings.values().any(|finding| finding["severity"] == "error" && finding["ignored"] == false)
    }
}

fn check(host: &Host, objects: &Objects, flags: &[&str], hindrance: Hindrance) -> Result<Found> {
    let flags: Vec<&str> = [&["--output", "json"], flags].concat();
    let ended = run_check(host, objects, &flags, hindrance)?;
    let report: Value = serde_json::from_str(&ended.said).with_context(|| ended.said.clone())?;
    let mut findings = BTreeMap::new();
    for finding in report["findings"].as_array().context("findings")? {
        let name = finding["check"].as_str().context("a name")?;
        findings.entry(name.to_owned()).or_insert_with(|| finding.clone());
    }
    Ok(Found { code: ended.code, findings })
}

#[test]
fn a_healthy_node_fails_no_check_and_is_left_as_it_is() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let _pods = Pods::with_pods(ours, 1)?;
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &[]);
    let found = check(ours, &objects, &[], Hindrance::None)?;
    ensure!(found.code == 0 && !found.has_errors(), "{:?}", found.findings);
    let unseen: Vec<_> = found.findings.values().filter(|finding| finding["severity"] == "unseen").collect();
    ensure!(unseen.is_empty(), "{unseen:?}");
    Ok(())
}

#[test]
fn a_left_over_flannel_device_and_its_routes_are_found() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let _flannel_ran_here = KernelPeer::new(ours, &topology.specs())?;
    let found = check(ours, &Objects::cluster(&topology.specs()), &[], Hindrance::None)?;
    found.expect("flannel-device", "error", &["ip link delete flannel", &VNI.to_string()])?;
    found.expect("routes", "error", &["10.244.2.0/24"])?;
    found.expect("vxlan-port", "error", &[&VXLAN_PORT.to_string(), "flannel.4096"])
}

#[test]
fn a_forward_policy_that_drops_refuses_the_run_unless_it_is_ignored() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let objects = Objects::cluster(&topology.specs());
    rules(
        &ours.netns,
        "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; } }",
    )?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("forward-policy", "error", &["iptables -I FORWARD -i windlass0 -j ACCEPT"])?;
    let ended = run_refused(ours, &objects, &[], Hindrance::None)?;
    ensure!(ended.code == 1 && ended.said.contains("--ignore forward-policy"), "{}", ended.said);

    let ignore = ["--ignore", "forward-policy"];
    ensure!(check(ours, &objects, &ignore, Hindrance::None)?.code == 0);
    let node = WindlassNode::start(ours, &objects, &ignore)?;
    ping(&ours.netns, stock.spec.pod_base(Family::V4))?;
    node.stop()?;

    // The remedy that the finding gives, in nftables' words.
    for direction in ["iifname", "oifname"] {
        ours.netns.exec(&format!("nft insert rule ip filter FORWARD {direction} windlass0 accept"))?;
    }
    ensure!(check(ours, &objects, &[], Hindrance::None)?.code == 0);
    Ok(())
}

#[test]
fn what_kube_proxy_has_left_is_found() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs());
    rules(&ours.netns, "table ip kube-proxy { chain services { } }")?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("kube-proxy-rules", "error", &["nft delete table ip kube-proxy"])?;
    rules(&ours.netns, "delete table ip kube-proxy")?;
    ensure!(check(ours, &objects, &[], Hindrance::None)?.code == 0);

    rules(&ours.netns, "table ip nat { chain KUBE-SVC-ERIFXISQEP7F7OF4 { ip daddr 10.96.0.10 accept; } }")?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("kube-proxy-rules", "error", &["KUBE-SVC-ERIFXISQEP7F7OF4"])
}

#[test]
fn rules_that_the_older_iptables_has_are_found() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !on_path("iptables-legacy") {
        windlass_tests::skipped("`iptables-legacy` is not installed");
        return Ok(());
    }
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    if let Err(error) = ours.netns.exec("iptables-legacy -P FORWARD DROP") {
        windlass_tests::skipped(&format!("this kernel has no legacy iptables: {error}"));
        return Ok(());
    }
    let found = check(ours, &Objects::cluster(&topology.specs()), &[], Hindrance::None)?;
    found.expect("forward-policy", "error", &["iptables-legacy -I FORWARD"])
}

#[test]
fn a_firewall_of_iptables_nft_is_understood_with_its_extensions() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !on_path("iptables-nft") {
        windlass_tests::skipped("`iptables-nft` is not installed");
        return Ok(());
    }
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs());
    let iptables = |line: &str| ours.netns.exec(&format!("iptables-nft {line}"));
    iptables("-P FORWARD DROP")?;
    iptables("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("forward-policy", "error", &["iptables -I FORWARD -o windlass0 -j ACCEPT"])?;
    iptables("-I FORWARD -i windlass0 -j ACCEPT")?;
    iptables("-I FORWARD -o windlass0 -j ACCEPT")?;
    ensure!(check(ours, &objects, &[], Hindrance::None)?.code == 0);
    Ok(())
}

#[test]
fn masquerading_of_service_addresses_is_found() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &[]);
    let masquerade = |exempt: &str| {
        format!(
            "table ip masq {{ chain post {{ type nat hook postrouting priority 100; \
             ip saddr 10.244.0.0/16 ip daddr != {{ {exempt} }} masquerade; }} }}"
        )
    };
    rules(&ours.netns, &masquerade("10.244.0.0/16"))?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("ip-masq", "warning", &["service addresses", "oifname windlass0 return"])?;
    rules(&ours.netns, "delete table ip masq")?;
    rules(&ours.netns, &masquerade("10.244.0.0/16, 10.96.0.0/12"))?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    ensure!(!found.findings.contains_key("ip-masq"), "{:?}", found.findings);
    Ok(())
}

#[test]
fn a_running_kube_proxy_of_this_namespace_alone_is_found() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let (ours, other) = (topology.host(0)?, topology.host(1)?);
    let objects = Objects::cluster(&topology.specs());
    let elsewhere = named_process(&other.netns, "kube-proxy")?;
    ensure!(check(ours, &objects, &[], Hindrance::None)?.code == 0);
    drop(elsewhere);
    let here = named_process(&ours.netns, "kube-proxy")?;
    let found = check(ours, &objects, &[], Hindrance::None)?;
    found.expect("kube-proxy", "error", &[&format!("process {} (kube-proxy)", here.0.id())])
}

#[test]
fn a_node_that_lacks_everything_is_told_all_of_it_at_once() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let mut objects = Objects::cluster(&topology.specs());
    objects.node_mut(ours.spec.name)?["spec"] = serde_json::json!({});
    let found = check(ours, &objects, &["--metrics", "192.0.2.1:10249"], Hindrance::NoNetAdmin)?;
    found.expect("pod-cidr", "error", &["--allocate-node-cidrs"])?;
    found.expect("privilege", "error", &["CAP_NET_ADMIN"])?;
    found.expect("metrics-port", "error", &["192.0.2.1:10249"])?;
    found.expect("kube-proxy-rules", "unseen", &["nft"])?;
    found.expect("vxlan-port", "unseen", &["nothing is known yet of this node"])?;
    let found = check(ours, &objects, &[], Hindrance::NoTun)?;
    found.expect("tun", "error", &["/dev/net/tun", "modprobe tun"])
}

fn rules(netns: &Netns, text: &str) -> Result<()> {
    let folder = windlass_tests::netns::scratch_folder("rules")?;
    let file = folder.path().join("rules.nft");
    // nft wants a chain's end to be a line's.
    std::fs::write(&file, text.replace("} }", "}\n}\n"))?;
    netns.exec(&format!("nft -f {}", file.display())).map(drop)
}

/// A process that the kernel calls by that name; its program lies in the folder.
fn named_process(netns: &Netns, name: &str) -> Result<(Guarded, tempfile::TempDir)> {
    let folder = windlass_tests::netns::scratch_folder("process")?;
    let program = folder.path().join(name);
    std::fs::copy("/bin/sleep", &program)?;
    let script = format!("echo ready; exec {} 60", program.display());
    Ok((Guarded::spawn_ready(netns.command("sh").args(["-c", &script]))?, folder))
}
