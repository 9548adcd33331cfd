//! `windlass run`: everything that can be checked is checked before anything of the host is touched.

mod drops;
pub(super) mod inspect;
pub(super) mod platform;
mod readings;
mod reload;

use std::time::Instant;

use anyhow::Context;
use clap::ArgMatches;
use windlass_control::admin::Admin;
use windlass_control::compile::{Compiler, Update};
use windlass_control::config::{Config, ConfigError, Settings};
use windlass_control::inspect::Origin;
use windlass_control::node::{self, NodeSettings};
use windlass_control::source::manifests;
use windlass_control::source::manifests::watch::Watch;
use windlass_control::system::{self, Signals};
use windlass_dataplane::tables::TableSet;

use self::drops::DropLog;
use self::inspect::Known;
use self::reload::Reload;

/// Runs until SIGINT or SIGTERM, and undoes what it made.
pub(super) fn run(arguments: &ArgMatches) -> anyhow::Result<()> {
    let config = Config::new(&Settings::from_matches(arguments)?, system::node_name)?;
    super::log::start(&config);
    let watch = Watch::new(&config.manifests);
    let Prepared { host, compiler, update, known } = prepare(&config)?;
    let signals = Signals::install().context("cannot listen for SIGINT and SIGTERM")?;
    let admin = Admin::bind(config.metrics, &config.admin_socket)?;
    let mut running =
        platform::start(&config, &known.current().settings, update.draft.tables(), known.clone())?;
    let mut reload = Reload::new(&config, host, watch, compiler, known);
    let admin = admin.serve(running.readings(reload.record())).context("cannot start the admin thread")?;
    tracing::info!(node = config.node, device = config.device, "forwarding");
    let mut drops = DropLog::default();
    let ended = signals.wait_while(reload::LOOK_EVERY, || {
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

/// Reads the cluster, finds this node in it, and compiles its tables. Touches nothing.
fn prepare(config: &Config) -> anyhow::Result<Prepared> {
    if config.manifests.is_empty() {
        let remedy = "give files or folders with the cluster's objects, as `kubectl get \
                      nodes,services,endpointslices,servicecidrs -A -o yaml` prints them";
        return Err(ConfigError::Missing { name: "manifests", remedy }.into());
    }
    let loaded = manifests::load(&config.manifests, &config.annotation_prefix)?;
    for problem in &loaded.problems {
        tracing::warn!("{problem}");
    }
    if loaded.passed_over > 0 {
        tracing::debug!("{} objects of other kinds are passed over", loaded.passed_over);
    }
    let host = platform::Host::observe()?;
    let (settings, found) = node::resolve(&loaded.state, config, &host)?;
    let mut compiler = Compiler::new(settings.clone());
    compiler.follow(&loaded.state);
    let update = compiler.update();
    for problem in found.iter().chain(&update.problems) {
        tracing::warn!("{problem}");
    }
    say(&settings, update.draft.tables());
    super::check::gate(config, &loaded.state, &settings)?;
    let problems = [loaded.problems, found, update.problems.clone()].concat();
    let known = Known::new(Origin { state: loaded.state, settings, problems });
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
        tables.routes.iter().count(),
        tables.services.len(),
    );
}
