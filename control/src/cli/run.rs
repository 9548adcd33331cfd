//! `windlass run`: everything that can be checked is checked before anything of the host is touched.

mod drops;
mod follow;
mod health;
pub(super) mod inspect;
mod join;
mod node_ports;
pub(super) mod platform;
mod readings;
mod record;
mod reload;
mod saving;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use clap::ArgMatches;
use tokio::sync::Notify;
use windlass_control::admin::Admin;
use windlass_control::compile::{Compiler, Update};
use windlass_control::config::{Config, Settings};
use windlass_control::inspect::Origin;
use windlass_control::node::{self, NodeSettings};
use windlass_control::source::Cluster;
use windlass_control::source::kube::SourceError;
use windlass_control::system::{self, Signals};
use windlass_dataplane::tables::TableSet;

use self::drops::DropLog;
use self::follow::Followed;
use self::health::HealthFollower;
use self::inspect::Known;
use self::platform::Running;
use self::reload::Reload;
use self::saving::Saving;

/// Runs as the command line says.
pub(super) fn begin(arguments: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::new(&Settings::from_matches(arguments)?, system::node_name)?;
    super::log::start(&config)?;
    run(&config)
}

/// Runs until SIGINT or SIGTERM, or until the service is stopped, and undoes what it made.
pub(super) fn run(config: &Config) -> anyhow::Result<()> {
    match forward(config) {
        Err(error) if matches!(error.downcast_ref(), Some(SourceError::Interrupted)) => {
            tracing::info!("{error}");
            Ok(())
        }
        outcome => outcome,
    }
}

fn forward(config: &Config) -> anyhow::Result<()> {
    let mut signals = Signals::install().context("cannot listen for SIGINT and SIGTERM")?;
    let wake = Arc::new(Notify::new());
    let (mut followed, cluster) = Followed::begin(config, Arc::clone(&wake), || !signals.have_come())?;
    let Prepared { host, compiler, update, known } = prepare(config, cluster)?;
    followed.register(&known.current(), || !signals.have_come())?;
    let admin = Admin::bind(config.metrics, config.health, &config.admin_socket)?;
    let mut running = start(config, &known, &update)?;
    followed.announce(&known.current());
    let saving = Saving::start(running.saved(config, known.clone())).context("cannot start a thread")?;
    let known_to_health = known.clone();
    let mut reload = Reload::new(config, host, followed, compiler, known);
    let readings = running.readings(reload.record());
    let admin = admin.serve(Arc::clone(&readings) as _).context("cannot start the admin thread")?;
    tracing::info!(node = config.node, device = config.device, "forwarding");
    let mut service_health = HealthFollower::new(known_to_health, readings, &admin);
    let mut drops = DropLog::default();
    let ended = signals.wait_while(reload::LOOK_EVERY, &wake, || {
        reload.look(&mut running);
        service_health.look();
        running.reap();
        running.look_for_pods();
        drops.look(Instant::now(), |reason| running.dropped(reason));
        running.is_well() && reload.is_ours()
    });
    let is_ours = reload.is_ours();
    match ended {
        Some(signal) => tracing::info!("{signal}: stopping"),
        None if is_ours => tracing::error!("a worker has ended: stopping"),
        None => {}
    }
    drop((service_health, admin));
    let stopped = running.stop();
    // Once no worker changes them any more.
    drop(saving);
    anyhow::ensure!(is_ours, ANOTHER_NODE);
    stopped
}

const ANOTHER_NODE: &str = "this node has joined the cluster anew since it last ran, with another UID or podCIDR: what \
     was remembered of it is discarded; start again";

/// Starts what forwards, with the connections that the last run has left.
fn start(config: &Config, known: &Known, update: &Update) -> anyhow::Result<Running> {
    let origin = known.current();
    let remembered = saving::remembered(config, &origin);
    let tables = update.draft.tables();
    platform::start(config, &origin.settings, tables, known.clone(), remembered.as_ref())
}

/// What was read before anything was touched.
struct Prepared {
    host: platform::Host,
    compiler: Compiler,
    update: Update,
    known: Known,
}

/// Finds this node in the cluster, and compiles its tables. Touches nothing.
fn prepare(config: &Config, cluster: Cluster) -> anyhow::Result<Prepared> {
    for problem in &cluster.problems {
        tracing::warn!("{problem}");
    }
    let host = platform::Host::observe()?;
    let (settings, found) = node::resolve(&cluster.state, config, &host)?;
    let mut compiler = Compiler::new(settings.clone());
    compiler.follow(&cluster.state);
    let update = compiler.update();
    for problem in found.iter().chain(&update.problems) {
        tracing::warn!("{problem}");
    }
    say(&settings, update.draft.tables());
    super::check::gate(config, &cluster.state, &settings)?;
    let problems = [cluster.problems, found, update.problems.clone()].concat();
    let origin = Origin { state: cluster.state, settings, problems };
    let known = Known::new(origin, update.health_checks.clone());
    Ok(Prepared { host, compiler, update, known })
}

fn say(settings: &NodeSettings, tables: &TableSet) {
    for choice in &settings.underlay {
        tracing::info!("underlay address {choice}");
    }
    if settings.is_bridge() {
        return say_segments(settings, tables);
    }
    let list = |cidrs: &[ipnet::IpNet]| cidrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    tracing::info!(
        "node {}: VNI {}, port {}, MTU {}, pods {}, cluster {}, services {}",
        settings.node,
        settings.vni,
        settings.port,
        settings.overlay_mtu,
        list(&settings.pod_cidrs),
        list(&settings.cluster_cidrs),
        if settings.service_cidrs.is_empty() { "by VIP".to_owned() } else { list(&settings.service_cidrs) },
    );
    tracing::info!(
        "{} VTEPs, {} neighbors, {} routes, {} services",
        tables.fdb.len(),
        tables.neighbors.len(),
        tables.routes.len(),
        tables.services.len(),
    );
}

fn say_segments(settings: &NodeSettings, tables: &TableSet) {
    tracing::info!("node {}: port {}, MTU {}", settings.node, settings.port, settings.overlay_mtu);
    for device in &settings.segments {
        if let Some(segment) = tables.segments.lookup(device.vni) {
            tracing::info!(
                "segment {}: VNI {}, device {}, {} other VTEPs, {} stations, {}",
                segment.name,
                device.vni,
                device.name,
                segment.vteps().len(),
                segment.stations().count(),
                if segment.learning.is_some() { "learning" } else { "not learning" },
            );
        }
    }
}
