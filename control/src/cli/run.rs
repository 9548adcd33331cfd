//! `windlass run`: everything that can be checked is checked before anything of the host is touched.

mod drops;
mod follow;
pub(super) mod inspect;
mod join;
pub(super) mod platform;
mod readings;
mod record;
mod reload;

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
use self::inspect::Known;
use self::reload::Reload;

/// Runs until SIGINT or SIGTERM, and undoes what it made.
pub(super) fn run(arguments: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::new(&Settings::from_matches(arguments)?, system::node_name)?;
    super::log::start(&config);
    match forward(&config) {
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
    let mut running =
        platform::start(config, &known.current().settings, update.draft.tables(), known.clone())?;
    followed.announce(&known.current());
    let mut reload = Reload::new(config, host, followed, compiler, known);
    let admin = admin.serve(running.readings(reload.record())).context("cannot start the admin thread")?;
    tracing::info!(node = config.node, device = config.device, "forwarding");
    let mut drops = DropLog::default();
    let ended = signals.wait_while(reload::LOOK_EVERY, &wake, || {
        reload.look(&mut running);
        running.reap();
        running.look_for_pods();
        drops.look(Instant::now(), |reason| running.dropped(reason));
        running.is_well()
    });
    match ended {
        Some(signal) => tracing::info!("{signal}: stopping"),
        None => tracing::error!("a worker has ended: stopping"),
    }
    drop(admin);
    running.stop()
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
    let known = Known::new(Origin { state: cluster.state, settings, problems });
    Ok(Prepared { host, compiler, update, known })
}

fn say(settings: &NodeSettings, tables: &TableSet) {
    for choice in &settings.underlay {
        tracing::info!("underlay address {choice}");
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
