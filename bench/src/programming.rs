//! How long services take until they are in force.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::json;
use windlass_control::cluster::ClusterState;
use windlass_control::compile::Compiler;
use windlass_control::config::{Config, Settings};
use windlass_control::node::{self, HostFacts};
use windlass_control::source::manifests::Manifests;
use windlass_dataplane::tables::{TableSet, Writer};
use windlass_tests::netns::scratch_folder;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::process::wait_until;
use windlass_tests::topology::{FAMILIES, Host, NodeSpec, Topology, UNDERLAY_MTU};

use crate::contestants::MANY_SERVICES;
use crate::kube_proxy;
use crate::services::{Filler, fillers};

/// A file and the services in it, for each of three changes.
type Steps = [(&'static str, Vec<Filler>); 3];

const ONE_MORE: &str = "one-more.json";
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
    /// Until one has another endpoint.
    pub change_one_s: f64,
    /// What the time spans.
    pub spans: &'static str,
}

impl Programming {
    fn new(
        title: String,
        services: usize,
        [all_s, one_more_s, change_one_s]: [f64; 3],
        spans: &'static str,
    ) -> Self {
        Self { title, services, all_s, one_more_s, change_one_s, spans }
    }
}

/// Loads the nftables rules of that many services, of one more, and of another endpoint of that one.
///
/// # Errors
/// When `nft` refuses them.
pub fn kernel(host: &Host, services: usize, backend: Ipv4Addr) -> Result<Programming> {
    let (one_more, changed) = one_more(services)?;
    let load = |rules: String| kube_proxy::load(&host.netns, &rules);
    let seconds = [
        timed(|| load(kube_proxy::rules(services, backend)))?,
        timed(|| load(kube_proxy::filler_rules(&one_more)))?,
        timed(|| load(kube_proxy::changed_endpoint(&one_more, &changed)))?,
    ];
    let spans = "rules made of what is in memory, and `nft -f`, one transaction each; in force when it ends";
    Ok(Programming::new(format!("nftables, {services} services"), services, seconds, spans))
}

/// Programs 10,000 services, one more, and another endpoint of that one into Windlass: from a cluster in memory, and
/// as files that a running `windlass run` follows.
///
/// # Errors
/// When manifests are refused, or it does not run, or says nothing of a reload.
pub fn windlass(topology: &Topology) -> Result<Vec<Programming>> {
    let (one_more, changed) = one_more(MANY_SERVICES)?;
    let steps =
        [("services.json", fillers(MANY_SERVICES)), (ONE_MORE, vec![one_more]), (ONE_MORE, vec![changed])];
    let compiled = compiled(topology, &steps)?;
    let (reloaded, seen) = reloaded(topology, &steps)?;
    let row = |how: &str, seconds, spans| {
        Programming::new(format!("Windlass, {MANY_SERVICES} services, {how}"), MANY_SERVICES, seconds, spans)
    };
    Ok(vec![
        row("from memory", compiled, "from objects in memory: what changed is compiled, and published"),
        row("reload", reloaded, "as logged: the manifests that changed are read, compiled, published"),
        row(
            "end to end",
            seen,
            "from writing the file until the reload is logged: it is looked at every 0.25 s, \
             and read at the second look",
        ),
    ])
}

/// Compiles and publishes the tables of each step.
fn compiled(topology: &Topology, steps: &Steps) -> Result<[f64; 3]> {
    let folder = scratch_folder("programming")?;
    Objects::cluster(&topology.specs()).write(folder.path())?;
    let own = topology.host(0)?.spec.clone();
    let config = Config::new(&Settings::default(), || Some(own.name.to_owned()))?;
    let mut manifests = Manifests::new(&[folder.path().to_owned()], &config.annotation_prefix);
    let mut read = |before: &ClusterState| -> Result<ClusterState> {
        let mut state = manifests.read()?.state;
        state.keep_unchanged(before);
        Ok(state)
    };
    let mut state = read(&ClusterState::default())?;
    let mut compiler = Compiler::new(node::resolve(&state, &config, &Facts(own))?.0);
    let mut writer = Writer::new(TableSet::default());
    let mut seconds = [0.0; 3];
    for ((file, fillers), seconds) in steps.iter().zip(&mut seconds) {
        put(folder.path(), file, fillers, topology.host(1)?.spec.name)?;
        state = read(&state)?;
        *seconds = timed(|| {
            compiler.follow(&state);
            writer.publish_draft(&compiler.update().draft);
            Ok(())
        })?;
    }
    Ok(seconds)
}

/// Gives a running `windlass run` each step as a file: how long its reload took by its log, and by the clock.
fn reloaded(topology: &Topology, steps: &Steps) -> Result<([f64; 3], [f64; 3])> {
    let node = WindlassNode::start(topology.host(0)?, &Objects::cluster(&topology.specs()), &["-v"])?;
    let backend_node = topology.host(1)?.spec.name;
    let seconds = steps.iter().map(|(file, fillers)| {
        let before = reloads_logged(&node.log()).len();
        let seen = timed(|| {
            put(&node.manifests(), file, fillers, backend_node)?;
            wait_until("a reload", RELOAD_LIMIT, || Ok(reloads_logged(&node.log()).len() > before))
        })?;
        let reloaded = reloads_logged(&node.log()).last().copied().context("a reload in the log")?;
        Ok((reloaded, seen))
    });
    let seconds: Result<Vec<(f64, f64)>> = seconds.collect();
    node.dismiss();
    match seconds?[..] {
        [all, one_more, change] => Ok(([all.0, one_more.0, change.0], [all.1, one_more.1, change.1])),
        _ => bail!("three steps"),
    }
}

/// A node that has its addresses, and nothing else.
pub(crate) struct Facts(pub(crate) NodeSpec);

impl HostFacts for Facts {
    fn default_route_addr(&self, _ipv6: bool) -> Option<IpAddr> {
        None
    }

    fn has_addr(&self, addr: IpAddr) -> bool {
        FAMILIES.iter().any(|family| self.0.underlay(*family) == addr)
    }

    fn mtu(&self, _addr: IpAddr) -> Option<u32> {
        Some(UNDERLAY_MTU)
    }
}

/// The service after that many fillers, and the same with another endpoint.
fn one_more(services: usize) -> Result<(Filler, Filler)> {
    let one_more = fillers(services + 1).pop().context("one more")?;
    let changed = Filler { endpoint: Ipv4Addr::from(u32::from(one_more.endpoint) + 1), ..one_more.clone() };
    Ok((one_more, changed))
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
