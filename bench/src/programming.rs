//! How long services take until they are in force.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::process::wait_until;
use windlass_tests::topology::{Host, Topology};

use crate::contestants::MANY_SERVICES;
use crate::kube_proxy;
use crate::services::{Filler, fillers};

const RELOAD_LIMIT: Duration = Duration::from_secs(60);
/// What `windlass run` logs of a reload, before and after the milliseconds.
const RELOADED: (&str, &str) = ("lines of changes, in ", " ms");

/// Seconds until services are in force.
#[derive(Clone, Debug, Serialize)]
pub struct Programming {
    /// Who programmed them.
    pub title: String,
    /// Number of services.
    pub services: usize,
    /// Until all are, from nothing.
    pub all_s: f64,
    /// Until one more is.
    pub one_more_s: f64,
    /// What the time spans.
    pub spans: &'static str,
}

/// Loads the nftables rules of that many services, and of one more.
///
/// # Errors
/// When `nft` refuses them.
pub fn kernel(host: &Host, services: usize, backend: Ipv4Addr) -> Result<Programming> {
    let rules = kube_proxy::rules(services, backend);
    let all_s = timed(|| kube_proxy::load(&host.netns, &rules))?;
    let one_more = fillers(services + 1).pop().context("one more")?;
    let rules = kube_proxy::filler_rules(&one_more);
    let one_more_s = timed(|| kube_proxy::load(&host.netns, &rules))?;
    let title = format!("nftables, {services} services");
    Ok(Programming { title, services, all_s, one_more_s, spans: "nft -f, one transaction each" })
}

/// Gives a running `windlass run` a file with 10,000 services, and one with one more, and reads from its log how
/// long each reload took.
///
/// # Errors
/// When it does not run, or says nothing of a reload.
pub fn windlass(topology: &Topology) -> Result<Programming> {
    let node = WindlassNode::start(topology.host(0)?, &Objects::cluster(&topology.specs()), &["-v"])?;
    let backend_node = topology.host(1)?.spec.name;
    let mut fillers = fillers(MANY_SERVICES + 1);
    let one_more = fillers.split_off(MANY_SERVICES);
    let reloads = [("services.json", fillers), ("one-more.json", one_more)].map(|(file, fillers)| {
        let before = reloads_logged(&node.log()).len();
        put(&node.manifests(), file, &fillers, backend_node)?;
        wait_until("a reload", RELOAD_LIMIT, || Ok(reloads_logged(&node.log()).len() > before))?;
        reloads_logged(&node.log()).last().copied().context("a reload in the log")
    });
    node.dismiss();
    let [all_s, one_more_s] = reloads;
    let spans = "a reload as logged: all manifests read anew, compiled, published (it begins within 0.5 s)";
    let title = format!("Windlass, {MANY_SERVICES} services");
    Ok(Programming { title, services: MANY_SERVICES, all_s: all_s?, one_more_s: one_more_s?, spans })
}

/// The file is there whole or not at all.
fn put(manifests: &Path, file: &str, fillers: &[Filler], node: &str) -> Result<()> {
    let items: Vec<_> =
        fillers.iter().flat_map(|filler| [filler.service(), filler.endpoint_slice(node)]).collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let unseen = manifests.join(format!(".{file}"));
    fs::write(&unseen, serde_json::to_vec(&list)?)?;
    fs::rename(&unseen, manifests.join(file)).context("putting a manifest in place")
}

/// Seconds that each reload in the log took.
fn reloads_logged(log: &str) -> Vec<f64> {
    let times = log.lines().filter_map(|line| line.split_once(RELOADED.0)?.1.split_once(RELOADED.1));
    times.filter_map(|(millis, _)| Some(millis.parse::<f64>().ok()? / 1e3)).collect()
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    #[test]
    fn reloads_are_read_from_the_log() {
        let log = "INFO forwarding\nDEBUG windlass: reload: 21 lines of changes, in 87 ms\n";
        assert_eq!(super::reloads_logged(log), [0.087]);
    }
}
