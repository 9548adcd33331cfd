//! What `windlass run` does with a changed cluster, without a host.

use std::sync::Arc;
use std::time::Instant;

use windlass_control::changes;
use windlass_control::cluster::{ClusterState, Difference};
use windlass_control::compile::{Compiler, HostSide};
use windlass_control::node::NodeSettings;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::Writer;

/// A node's control side.
pub struct Node {
    settings: NodeSettings,
    compiler: Compiler,
    /// What workers follow.
    pub writer: Writer,
    side: HostSide,
    /// The connections of its workers.
    pub connections: Arc<Conntrack>,
    /// When the workers' clock stood at zero.
    pub origin: Instant,
}

impl Node {
    /// A node that starts with that cluster: its first tables are there for workers to look at.
    #[must_use]
    pub fn start(state: &ClusterState, settings: NodeSettings, connections: Arc<Conntrack>) -> Self {
        let mut compiler = Compiler::new(settings.clone());
        compiler.follow(state);
        let writer = Writer::new(compiler.update().draft.tables().clone());
        let side = HostSide::new(&settings, writer.current().services());
        Self { settings, compiler, writer, side, connections, origin: Instant::now() }
    }

    /// Makes tables of what has changed and publishes them; gives their generation. What no worker looks at any more
    /// is freed.
    pub fn change(&mut self, difference: Difference) -> u32 {
        self.compiler.apply(difference);
        let update = self.compiler.update();
        let before = self.writer.current();
        let after = self.writer.publish_draft(&update.draft);
        let touched = update.draft.touched();
        if after.may_strand(&before, touched) {
            self.connections.purge(|connection| after.strands(connection));
        }
        self.side.follow(&self.settings, &before, &after, touched);
        changes::lines(&before, &after, touched);
        drop((before, update));
        self.writer.reap();
        after.generation()
    }

    /// The cluster as it was given.
    #[must_use]
    pub fn state(&self) -> &ClusterState {
        self.compiler.state()
    }
}
