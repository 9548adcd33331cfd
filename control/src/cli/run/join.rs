//! How a node that reads its cluster from the API takes its place in it, as flannel's does.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use windlass_control::cluster::{ClusterState, Difference, Node, Problem};
use windlass_control::config::Config;
use windlass_control::inspect::Origin;
use windlass_control::node::{self, NodeSettings};
use windlass_control::registration::{self, Drift, Kept, OwnNode, Owner, Vteps, subnet_env};
use windlass_control::source::kube::{ApiSource, Kind, SourceError};
use windlass_control::source::{Changed, Cluster};
use windlass_control::system;

use crate::cli::input::SAY_EVERY;

/// How often is looked whether our Node is there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often what others undo is written again: they may do so for ever.
const WRITE_EVERY: Duration = Duration::from_secs(10);

/// This node's place in the cluster, and what tells us of the cluster.
pub(super) struct Membership<'a> {
    config: &'a Config,
    source: ApiSource,
    own: OwnNode,
    /// Whose the memory was that this node started by, until the cluster says who we are.
    remembered: Option<Owner>,
    is_ours: bool,
    /// Whether what was told so far is what the API server said, and no memory.
    is_followed: bool,
    /// What others have made of our Node.
    drift: Vec<Problem>,
    /// When our annotations were last written, and those that others have undone since.
    written_at: Instant,
    undone: Option<Value>,
}

impl<'a> Membership<'a> {
    /// Waits until our Node is in the cluster and has a podCIDR, and makes `cluster` say of it what is to be
    /// registered. Nothing is written to the API server, which was not there where the cluster `is_remembered`.
    pub(super) fn find(
        config: &'a Config,
        source: ApiSource,
        cluster: &mut Cluster,
        is_remembered: bool,
        go_on: impl FnMut() -> bool,
    ) -> anyhow::Result<Self> {
        wait_for_own_node(config, &source, cluster, go_on)?;
        let owner = Owner::of(&config.node, &own_object(config, &cluster.state));
        let own = own_node(config, &mut cluster.state);
        let remembered = is_remembered.then_some(owner);
        Ok(Self {
            config,
            source,
            own,
            remembered,
            is_ours: true,
            is_followed: !is_remembered,
            drift: Vec::new(),
            written_at: Instant::now(),
            undone: None,
        })
    }

    /// Writes our annotations, so that the other nodes send to us. They know us already where we are remembered.
    pub(super) fn register(
        &mut self,
        origin: &Origin,
        go_on: impl FnMut() -> bool,
    ) -> Result<(), SourceError> {
        let (state, settings) = (&origin.state, &origin.settings);
        let is_vip = |addr: &IpAddr| settings.service_cidrs.iter().any(|cidr| cidr.contains(addr));
        if let Some(vip) = self.source.server_addr().filter(is_vip) {
            tracing::warn!(
                "the API server is reached by the service address {vip}, which this node itself has to translate: \
                 set KUBERNETES_SERVICE_HOST to the server's own address, or no restart finds it while no other \
                 proxy runs here"
            );
        }
        if self.remembered.is_some() {
            return Ok(());
        }
        let patches = vec![self.annotations_patch(&own_object(self.config, state), settings)];
        self.source.patch_node(&self.config.node, patches, self.config.wait, go_on)?;
        self.written_at = Instant::now();
        Ok(())
    }

    /// Tells the CNI plugin and the scheduler that pods can have a network here.
    pub(super) fn announce(&self, origin: &Origin) {
        let settings = &origin.settings;
        if let Some(file) = &self.config.subnet_env {
            match system::write_whole(file, subnet_env(settings, self.config.ip_masq).as_bytes()) {
                Ok(()) => tracing::info!("{} is written for the CNI plugin", file.display()),
                Err(error) => tracing::error!(
                    "{}: {error}; pods get no network from the flannel CNI plugin without it",
                    file.display()
                ),
            }
        }
        let available = registration::network_available_patch(Timestamp::now());
        let node = own_object(self.config, &origin.state);
        let annotations = self.remembered.is_some().then(|| self.annotations_patch(&node, settings));
        let patches = annotations.into_iter().chain([available]).collect();
        self.source.keep_patching_node(&self.config.node, patches);
    }

    /// Whether the cluster has our node as it was when it last ran, where we started by what was known then.
    pub(super) fn is_ours(&self) -> bool {
        self.is_ours
    }

    /// How long ago something was last heard of each kind of object.
    pub(super) fn staleness(&self) -> Vec<(Kind, Duration)> {
        self.source.staleness()
    }

    /// What has become of the cluster since it was `before`, and in it our Node as we have registered it.
    pub(super) fn changed(&mut self, before: &ClusterState, settings: &NodeSettings) -> Option<Changed> {
        let mut changed = self.news(before);
        if let Some(changed) = &mut changed {
            if let Some(found) = changed.difference.nodes.get_mut(&self.config.node) {
                self.recognise(found.as_deref());
                let (node, Drift { problems, is_to_be_written }) =
                    self.own.imposed(found.as_deref(), settings.vni);
                self.undone = is_to_be_written.then(|| self.annotations_patch(&node, settings));
                self.drift = problems;
                *found = Some(node.into());
            }
            changed.problems.extend(self.drift.iter().cloned());
        }
        if self.written_at.elapsed() >= WRITE_EVERY
            && let Some(annotations) = self.undone.take()
        {
            self.write_again(annotations);
        }
        changed
    }

    fn news(&mut self, before: &ClusterState) -> Option<Changed> {
        if self.is_followed {
            return self.source.take_changed();
        }
        let Cluster { state, problems, changes } = self.source.take()?;
        self.is_followed = true;
        Some(Changed { difference: Difference::between(before, &state), problems, changes })
    }

    /// Finds out whether the node that we remember is the one that the cluster has.
    fn recognise(&mut self, found: Option<&Node>) {
        if let Some(node) = found.filter(|node| !node.pod_cidrs.is_empty())
            && let Some(remembered) = self.remembered.take()
        {
            self.is_ours = remembered == Owner::of(&self.config.node, node);
        }
    }

    fn write_again(&mut self, annotations: Value) {
        tracing::warn!(
            "Node {}: its flannel annotations are not ours any more, and are written again; does flanneld still \
             run on this node?",
            self.config.node
        );
        let available = registration::network_available_patch(Timestamp::now());
        self.source.keep_patching_node(&self.config.node, vec![annotations, available]);
        self.written_at = Instant::now();
    }

    fn annotations_patch(&self, node: &Node, settings: &NodeSettings) -> Value {
        let annotations = registration::annotations(&self.config.annotation_prefix, node, settings);
        registration::annotations_patch(&annotations)
    }
}

fn own_object(config: &Config, state: &ClusterState) -> Node {
    state.nodes.get(&config.node).map(|node| Node::clone(node)).unwrap_or_default()
}

/// Our Node as it is to be, which `state` says of it from here on. The MACs are kept for the next run.
fn own_node(config: &Config, state: &mut ClusterState) -> OwnNode {
    let node = own_object(config, state);
    let kept = Kept::read(&config.state_dir, &config.node, &node).unwrap_or_else(|discarded| {
        tracing::warn!("{discarded}");
        None
    });
    let vteps = Vteps::of(&node, kept.as_ref());
    let keep = Kept::new(&config.node, &node, vteps);
    if kept.as_ref() != Some(&keep)
        && let Err(error) = keep.write(&config.state_dir)
    {
        tracing::warn!("{error}; the annotations alone keep our VTEPs' MACs");
    }
    let mut own = OwnNode::new(&config.node, &node, vteps);
    own.impose(state, node::vni(state, config));
    own
}

fn wait_for_own_node(
    config: &Config,
    source: &ApiSource,
    cluster: &mut Cluster,
    mut go_on: impl FnMut() -> bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut say_at = begun;
    loop {
        let Err(missing) = node::expect_pod_cidr(&cluster.state, &config.node) else { return Ok(()) };
        if begun.elapsed() >= config.wait {
            return Err(missing.into());
        }
        if !go_on() {
            return Err(SourceError::Interrupted.into());
        }
        if Instant::now() >= say_at {
            let (waited, limit) = (begun.elapsed().as_secs(), config.wait.as_secs());
            tracing::warn!("{missing}; waiting, for {waited} s so far and at most {limit} s (--wait)");
            say_at += SAY_EVERY;
        }
        std::thread::sleep(LOOK_EVERY);
        *cluster = source.take().unwrap_or(std::mem::take(cluster));
    }
}
