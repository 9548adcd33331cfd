//! A node from the cluster's objects alone, for subcommands that touch nothing.

use std::sync::Arc;

use clap::ArgMatches;
use windlass_control::cluster::ClusterState;
use windlass_control::compile::{Compiled, compile};
use windlass_control::config::{Config, Settings};
use windlass_control::inspect::{Inspection, Origin};
use windlass_control::node::{self, HostFacts, UnknownHost};
use windlass_control::source::Cluster;
use windlass_control::system;
use windlass_dataplane::engine;

use super::input::Input;
use super::run::platform::{self, Host};

/// A node as its settings and manifests describe it.
pub(crate) struct Node {
    /// What its tables are compiled from.
    pub(crate) origin: Origin,
    /// Its tables.
    pub(crate) compiled: Compiled,
    /// Its engine's settings.
    pub(crate) engine: engine::Settings,
}

/// The node that the settings describe, for questions, and what is worth saying about how it was found.
pub(crate) fn inspection(arguments: &ArgMatches) -> anyhow::Result<(Inspection, Vec<String>)> {
    let (node, notes) = node(arguments)?;
    Ok((Inspection::offline(node.origin, node.compiled, node.engine), notes))
}

/// The node that the settings describe, and what is worth saying about how it was found.
pub(crate) fn node(arguments: &ArgMatches) -> anyhow::Result<(Node, Vec<String>)> {
    let config = Config::new(&Settings::from_matches(arguments)?, system::node_name)?;
    let Cluster { state, mut problems, .. } =
        Input::open(&config, Arc::default())?.read_untouched(&config)?;
    let mut notes = Vec::new();
    let host = Host::observe()?;
    let (settings, found) = if is_this_host(&state, &config, &host) {
        node::resolve(&state, &config, &host)?
    } else {
        notes.push(format!(
            "this host has no underlay address of node {}: what follows is as that node would see it, with an \
             underlay MTU of 1500 unless net-conf.json says another",
            config.node
        ));
        node::resolve(&state, &config, &UnknownHost)?
    };
    let compiled = compile(&state, &settings);
    problems.extend(found);
    problems.extend(compiled.problems.iter().cloned());
    notes.extend(problems.iter().map(ToString::to_string));
    let origin = Origin { state, settings, problems };
    // Nothing is hashed that an adversary chose: the seed may be any.
    Ok((Node { origin, compiled, engine: platform::engine_settings(&config, 0) }, notes))
}

/// Whether the node's underlay address, given or announced, is on an interface here. A node that announces
/// none may be any.
fn is_this_host(state: &ClusterState, config: &Config, host: &Host) -> bool {
    if !config.underlay_addrs.is_empty() {
        return config.underlay_addrs.iter().all(|addr| host.has_addr(*addr));
    }
    let Some(node) = state.nodes.get(&config.node) else { return true };
    let flannel = &node.flannel;
    let announced =
        [flannel.public_ip, flannel.public_ipv6, flannel.public_ip_overwrite, flannel.public_ipv6_overwrite];
    let mut addrs = announced.into_iter().flatten().chain(node.internal_ips.iter().copied()).peekable();
    addrs.peek().is_none() || addrs.any(|addr| host.has_addr(addr))
}
