//! Hot reload: a changed cluster becomes tables by the same path as at start, and what cannot change under way
//! stays as it was, which is said.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_control::changes;
use windlass_control::cluster::{Difference, Problem};
use windlass_control::compile::Compiler;
use windlass_control::config::Config;
use windlass_control::node::{self, NodeSettings};
use windlass_control::source::Changed;

use super::follow::Followed;
use super::inspect::Known;
use super::platform::{Host, Running};
use super::record::Record;

/// How often manifests are looked at, and changes from the API that nobody woke us for. A change of manifests is
/// read at the second look that finds it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Problems and pinned settings named after one reload before the rest is summed up.
const LINES_PER_RELOAD: usize = 20;

/// Follows the cluster of a node that runs.
pub(super) struct Reload<'a> {
    config: &'a Config,
    /// The host as it was at start: an address that flaps must not keep a change out.
    host: Host,
    followed: Followed<'a>,
    compiler: Compiler,
    /// The cluster as it was last good, and what the node runs with, for everybody else.
    known: Known,
    /// What of the cluster is not known there yet, since it could not be applied.
    untold: Difference,
    settings: NodeSettings,
    /// What is to be said of this node; `None` until it was looked at.
    found: Option<Found>,
    said: BTreeSet<String>,
    record: Arc<Record>,
}

/// What is to be said of this node.
#[derive(Clone, Debug, Default)]
struct Found {
    problems: Vec<Problem>,
    /// What needs a restart.
    pinned: Vec<String>,
}

impl<'a> Reload<'a> {
    /// Goes on with what is `followed`, from what was read at start and compiled by `compiler`.
    pub(super) fn new(
        config: &'a Config,
        host: Host,
        followed: Followed<'a>,
        compiler: Compiler,
        known: Known,
    ) -> Self {
        let origin = known.current();
        Self {
            config,
            host,
            followed,
            compiler,
            known,
            untold: Difference::default(),
            settings: origin.settings.clone(),
            found: None,
            said: origin.problems.iter().map(what_it_says).collect(),
            record: Arc::default(),
        }
    }

    /// What metrics show of reloads.
    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }

    /// Whether the cluster still has our node as it was remembered, where it was.
    pub(super) fn is_ours(&self) -> bool {
        self.followed.is_ours()
    }

    /// Applies the cluster if it has changed. To be called every [`LOOK_EVERY`], and when woken.
    pub(super) fn look(&mut self, running: &mut Running) {
        let started = Instant::now();
        let applied = match self.followed.changed(self.compiler.state(), &self.settings) {
            Ok(None) => return self.record.looked(self.followed.staleness()),
            Ok(Some(mut changed)) => {
                let changes = std::mem::take(&mut changed.changes);
                self.apply(running, changed).map(|lines| (lines, changes))
            }
            Err(error) => Err(error),
        };
        match applied {
            Ok((changed, changes)) => {
                let took = started.elapsed();
                self.record.succeeded(took, &changes);
                self.record.looked(self.followed.staleness());
                say_changes(&changed, took);
            }
            Err(error) => {
                self.record.failed();
                tracing::error!(
                    "reload: {error:#}; everything stays as it was until the cluster changes again"
                );
            }
        }
    }

    fn apply(&mut self, running: &mut Running, changed: Changed) -> anyhow::Result<Vec<String>> {
        let Changed { difference, mut problems, .. } = changed;
        self.untold.extend(difference.clone());
        self.compiler.apply(difference);
        let Found { problems: found, pinned } = self.resolve()?;
        let update = self.compiler.update();
        problems.extend(found);
        problems.extend(update.problems);
        let change = running.change(&self.settings, &update.draft);
        self.say(pinned, &problems, change.host.err());
        self.known.advance(std::mem::take(&mut self.untold), &self.settings, problems, update.health_checks);
        if change.purged > 0 {
            tracing::debug!("{} UDP connections of backends that have gone are forgotten", change.purged);
        }
        Ok(changes::lines(&change.before, &change.after, update.draft.touched()))
    }

    /// Finds our node in the cluster again, if something has changed that bears on it.
    fn resolve(&mut self) -> anyhow::Result<Found> {
        if let Some(found) = self.found.as_ref().filter(|_| !self.untold.bears_on_settings()) {
            return Ok(found.clone());
        }
        let (wanted, problems) = node::resolve(self.compiler.state(), self.config, &self.host)?;
        let (settings, pinned) = pin(&self.settings, wanted);
        self.compiler.set_settings(&settings);
        self.settings = settings;
        Ok(self.found.insert(Found { problems, pinned }).clone())
    }

    /// Warns of what was not said after the reload before.
    fn say(&mut self, pinned: Vec<String>, problems: &[Problem], host: Option<impl Display>) {
        let keyed = problems.iter().map(|problem| (what_it_says(problem), problem.to_string()));
        let host = host.map(|error| format!("the host's routes are not all as they should be: {error}"));
        let all: Vec<(String, String)> =
            pinned.into_iter().chain(host).map(|text| (text.clone(), text)).chain(keyed).collect();
        let new: Vec<_> = all.iter().filter(|(key, _)| !self.said.contains(key)).collect();
        for (_, text) in new.iter().take(LINES_PER_RELOAD) {
            tracing::warn!("{text}");
        }
        if new.len() > LINES_PER_RELOAD {
            tracing::warn!("and {} more problems; `windlass check` lists all", new.len() - LINES_PER_RELOAD);
        }
        self.said = all.into_iter().map(|(key, _)| key).collect();
    }
}

/// A problem without file and line, which move with every edit.
fn what_it_says(problem: &Problem) -> String {
    let object = problem.subject.rsplit(": ").next().unwrap_or_default();
    format!("{object}: {}", problem.text)
}

fn say_changes(lines: &[String], took: Duration) {
    for line in lines {
        tracing::info!("{line}");
    }
    tracing::debug!("reload: {} lines of changes, in {} ms", lines.len(), took.as_millis());
}

/// Gives `wanted` what the device, the sockets and the peers' entries for us rest on as it is in `running`, and
/// names what would have been otherwise.
fn pin(running: &NodeSettings, wanted: NodeSettings) -> (NodeSettings, Vec<String>) {
    let mut needs_restart = Vec::new();
    let mut compare = |what: &str, old: String, new: String| {
        if old != new {
            needs_restart.push(format!("needs a restart: {what} changed from {old} to {new}"));
        }
    };
    let number = |mtu: u32| mtu.to_string();
    let mac = |mac: &Option<_>| {
        mac.map_or("none".to_owned(), |mac: windlass_dataplane::wire::ethernet::Mac| mac.to_string())
    };
    compare("VNI", running.vni.to_string(), wanted.vni.to_string());
    compare("the VXLAN port", running.port.to_string(), wanted.port.to_string());
    compare("this node's podCIDR", list(&running.pod_cidrs), list(&wanted.pod_cidrs));
    compare("this node's IPv4 VtepMAC", mac(&running.mac_v4), mac(&wanted.mac_v4));
    compare("this node's IPv6 VtepMAC", mac(&running.mac_v6), mac(&wanted.mac_v6));
    let addrs = |settings: &NodeSettings| list(settings.underlay.iter().map(|choice| choice.addr));
    compare("the underlay address", addrs(running), addrs(&wanted));
    let devices = |settings: &NodeSettings| {
        list(settings.segments.iter().map(|segment| format!("{} of VNI {}", segment.name, segment.vni)))
    };
    compare("the segments' devices", devices(running), devices(&wanted));
    compare("the overlay MTU", number(running.overlay_mtu), number(wanted.overlay_mtu));
    let mut addresses = wanted.addresses;
    addresses.extend(running.underlay.iter().map(|choice| choice.addr));
    addresses.sort_unstable();
    addresses.dedup();
    let pinned = NodeSettings {
        addresses,
        cluster_cidrs: wanted.cluster_cidrs,
        service_cidrs: wanted.service_cidrs,
        node_port_addrs: wanted.node_port_addrs,
        zone: wanted.zone,
        ..running.clone()
    };
    (pinned, needs_restart)
}

fn list<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}
