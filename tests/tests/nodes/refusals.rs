//! What a node cannot run with is said clearly, with the remedy, before anything is touched.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use windlass_tests::node::{Ended, Hindrance, run_refused};
use windlass_tests::objects::Objects;
use windlass_tests::peer::KernelPeer;
use windlass_tests::topology::{NodeSpec, Topology, VXLAN_PORT};

use crate::traffic;

#[test]
fn a_port_held_by_a_kernel_vxlan_device_is_named() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let _flannel_runs_here = KernelPeer::new(ours, &topology.specs())?;
    let ended = run_refused(ours, &Objects::cluster(&topology.specs()), &[], Hindrance::None)?;
    expect(&ended, &[1, 2], &["4789", "flannel.4096"])
}

#[test]
fn a_port_held_by_a_process_is_named() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let holder = traffic().serve(&ours.netns, Ipv4Addr::UNSPECIFIED.into(), VXLAN_PORT)?;
    let ended = run_refused(ours, &Objects::cluster(&topology.specs()), &[], Hindrance::None)?;
    expect(&ended, &[1, 2], &["4789", &holder.id().to_string()])
}

#[test]
fn a_missing_privilege_or_tun_is_named() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let objects = Objects::cluster(&topology.specs());
    for (hindrance, word) in [(Hindrance::NoNetAdmin, "CAP_NET_ADMIN"), (Hindrance::NoTun, "/dev/net/tun")] {
        expect(&run_refused(ours, &objects, &[], hindrance)?, &[1, 2], &[word])?;
    }
    Ok(())
}

#[test]
fn overlapping_cidrs_are_exit_code_2() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let objects = Objects::cluster(&topology.specs());
    let flags = ["--service-cidr", "10.244.0.0/17"];
    let ended = run_refused(topology.host(0)?, &objects, &flags, Hindrance::None)?;
    expect(&ended, &[2], &["10.244.0.0/17", "10.244.0.0/16"])
}

#[test]
fn objects_a_node_cannot_run_with_are_exit_code_2() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::pair()?;
    let ours = topology.host(0)?;
    let own = ours.spec.name;
    let flannel = "flannel.alpha.coreos.com";
    let cases: [(&str, Change, &[&str]); 4] = [
        (
            "no podCIDR",
            |node| {
                node["spec"] = json!({});
            },
            &[own, "--allocate-node-cidrs"],
        ),
        (
            "no VTEP annotation",
            |node| {
                node["metadata"]["annotations"] = json!({});
            },
            &[own, flannel],
        ),
        (
            "another name",
            |node| {
                node["metadata"]["name"] = json!("elsewhere");
            },
            &[own],
        ),
        (
            "podCIDR inside the service CIDR",
            |node| {
                node["spec"] = json!({ "podCIDR": "10.96.0.0/24", "podCIDRs": ["10.96.0.0/24"] });
            },
            &["10.96.0.0"],
        ),
    ];
    for (what, change, words) in cases {
        let mut objects = Objects::cluster(&topology.specs());
        change(objects.node_mut(own)?);
        let ended = run_refused(ours, &objects, &[], Hindrance::None)?;
        expect(&ended, &[2], words).map_err(|error| error.context(what))?;
    }
    Ok(())
}

#[test]
fn wrong_usage_is_exit_code_2() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let topology = Topology::new([NodeSpec::first()])?;
    let objects = Objects::cluster(&topology.specs());
    for flags in [["--vni", "16777216"], ["--workers", "many"], ["--no-such-flag", "1"]] {
        let ended = run_refused(topology.host(0)?, &objects, &flags, Hindrance::None)?;
        expect(&ended, &[2], &[flags[0].trim_start_matches('-')])?;
    }
    Ok(())
}

type Change = fn(&mut Value);

fn expect(ended: &Ended, codes: &[i32], words: &[&str]) -> Result<()> {
    ensure!(codes.contains(&ended.code), "exit code {}, not {codes:?}: {}", ended.code, ended.said);
    for word in words {
        ensure!(ended.said.contains(word), "does not say {word:?}: {}", ended.said);
    }
    ensure!(!ended.said.contains("panicked"), "{}", ended.said);
    Ok(())
}
