//! Node ports as sockets, on hosts that bring no such packets to the overlay device.

use std::collections::BTreeSet;

use anyhow::Context;
use windlass_control::compile::{NodePorts, node_ports};
use windlass_control::node::NodeSettings;
use windlass_control::node_ports::NodePortRelays;
use windlass_dataplane::tables::TableSet;

/// Problems named after one change before the rest is summed up.
const LINES: usize = 20;

/// The sockets, and what was said of them.
pub(super) struct NodePortSockets {
    relays: NodePortRelays,
    said: BTreeSet<String>,
}

impl NodePortSockets {
    /// Listens on the node ports of these tables.
    pub(super) fn start(settings: &NodeSettings, tables: &TableSet) -> anyhow::Result<Self> {
        let relays = NodePortRelays::start().context("cannot start the node ports' thread")?;
        let mut sockets = Self { relays, said: BTreeSet::new() };
        sockets.follow(settings, tables);
        Ok(sockets)
    }

    /// Listens on the node ports of these tables, and says what is new of those that are not served.
    pub(super) fn follow(&mut self, settings: &NodeSettings, tables: &TableSet) {
        let NodePorts { served, problems } = node_ports(settings, tables);
        let before = self.relays.count();
        let refused = self.relays.follow(&served);
        let count = self.relays.count();
        if count != before {
            tracing::info!(
                "{count} node ports are sockets of Windlass: backends see this node, not the client"
            );
        }
        let all: BTreeSet<String> = problems.iter().map(ToString::to_string).chain(refused).collect();
        let new: Vec<_> = all.difference(&self.said).collect();
        new.iter().take(LINES).for_each(|text| tracing::warn!("{text}"));
        if new.len() > LINES {
            tracing::warn!("and {} more; `windlass check` lists all", new.len() - LINES);
        }
        self.said = all;
    }
}
