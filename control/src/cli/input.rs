//! Where a cluster is read from: manifests, or its API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use windlass_control::cluster::{Node, Problem};
use windlass_control::config::{Config, ConfigError};
use windlass_control::node;
use windlass_control::registration::{Kept, OwnNode, Vteps};
use windlass_control::source::Cluster;
use windlass_control::source::kube::{Access, ApiSource, Patience};
use windlass_control::source::manifests::watch::Watch;
use windlass_control::source::manifests::{Loaded, ManifestError, Manifests};

/// How often it is said what is waited for.
pub(super) const SAY_EVERY: Duration = Duration::from_secs(10);

/// How long those who only look wait for the API server at most: they have no log that would say why.
const LOOK_LIMIT: Duration = Duration::from_secs(15);

/// What a cluster is read from.
pub(super) enum Input {
    /// Files and folders.
    Manifests(Files),
    /// The API server.
    Api(ApiSource),
}

impl Input {
    /// What the configuration names; `wake` is notified of changes that need not be looked for.
    pub(super) fn open(config: &Config, wake: Arc<Notify>) -> anyhow::Result<Self> {
        let Some(access) = access(config)? else {
            return Ok(Self::Manifests(Files::open(config)));
        };
        let prefix = &config.annotation_prefix;
        Ok(Self::Api(ApiSource::start(&access, prefix, Patience::default(), wake)?))
    }

    /// Reads the whole cluster, which may mean to wait for the API server, at most `limit` and for as long as
    /// `go_on` says so.
    pub(super) fn read(
        &mut self,
        limit: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> anyhow::Result<Cluster> {
        match self {
            Self::Manifests(files) => {
                let loaded = files.load()?;
                Ok(Cluster { state: loaded.state, problems: loaded.problems, ..Cluster::default() })
            }
            Self::Api(source) => {
                let mut say_at = Instant::now() + SAY_EVERY;
                source.wait(limit, |missing| {
                    if Instant::now() >= say_at {
                        tracing::info!("{missing}; at most {} s (--wait)", limit.as_secs());
                        say_at += SAY_EVERY;
                    }
                    go_on()
                })?;
                Ok(source.take().unwrap_or_default())
            }
        }
    }

    /// As [`Input::read`], and a Node of ours that has not registered yet as if it had: `run` would do so.
    pub(super) fn read_untouched(&mut self, config: &Config) -> anyhow::Result<Cluster> {
        let mut cluster = self.read(config.wait.min(LOOK_LIMIT), || true)?;
        if let Self::Api(_) = self
            && let Some(node) = cluster.state.nodes.get(&config.node).map(|node| Node::clone(node))
            && !node.pod_cidrs.is_empty()
        {
            let kept = Kept::read(&config.state_dir, &config.node, &node).unwrap_or_default();
            let mut own = OwnNode::new(&config.node, &node, Vteps::of(&node, kept.as_ref()));
            let vni = node::vni(&cluster.state, config);
            if own.impose(&mut cluster.state, vni).is_to_be_written {
                let text =
                    "it is not registered yet; `run` does so, with other MACs than these if none are kept";
                cluster.problems.push(Problem::new(format!("Node {}", config.node), text));
            }
        }
        Ok(cluster)
    }
}

/// Manifests that are read, and again when they have changed.
pub(super) struct Files {
    watch: Watch,
    manifests: Manifests,
}

impl Files {
    fn open(config: &Config) -> Self {
        // The watch is made before they are read, so that no change in between is missed.
        let watch = Watch::new(&config.manifests);
        Self { watch, manifests: Manifests::new(&config.manifests, &config.annotation_prefix) }
    }

    /// Whether they are to be read again.
    pub(super) fn have_changed(&mut self) -> bool {
        self.watch.has_changed()
    }

    /// Reads them.
    pub(super) fn load(&mut self) -> Result<Loaded, ManifestError> {
        let loaded = self.manifests.read()?;
        if loaded.passed_over > 0 {
            tracing::debug!("{} objects of other kinds are passed over", loaded.passed_over);
        }
        Ok(loaded)
    }
}

/// The way to the API server; `None` when manifests are to be read.
fn access(config: &Config) -> Result<Option<Access>, ConfigError> {
    match (&config.kubeconfig, config.manifests.is_empty()) {
        (Some(_), false) => Err(ConfigError::Arguments(
            "--kubeconfig and --manifests are both given; give one of them: the cluster is read from one place"
                .to_owned(),
        )),
        (Some(file), true) => Ok(Some(Access::Kubeconfig(file.clone()))),
        (None, false) => Ok(None),
        (None, true) => {
            let remedy = "give files or folders with the cluster's objects, as `kubectl get \
                          nodes,services,endpointslices,servicecidrs -A -o yaml` prints them, or --kubeconfig \
                          (a pod needs neither)";
            Access::in_cluster().map(Some).ok_or(ConfigError::Missing { name: "manifests", remedy })
        }
    }
}
