//! The cluster of a node that runs: read at start, and followed from then on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windlass_control::cluster::{ClusterState, Difference};
use windlass_control::config::Config;
use windlass_control::inspect::Origin;
use windlass_control::node::NodeSettings;
use windlass_control::snapshot;
use windlass_control::source::kube::{Kind, SourceError};
use windlass_control::source::{Changed, Cluster};

use super::join::Membership;
use crate::cli::input::{Files, Input};

/// How long the API server is waited for where there is something to forward by until it answers (G5).
const PATIENCE: Duration = Duration::from_millis(300);

/// What is followed.
pub(super) enum Followed<'a> {
    /// Files and folders.
    Manifests(Files),
    /// The API server of a cluster that we are a member of.
    Api(Box<Membership<'a>>),
}

impl<'a> Followed<'a> {
    /// Reads the cluster that the configuration names, which may mean to wait for its API server and for our
    /// place in it for as long as `go_on` says so. `wake` is notified of changes.
    pub(super) fn begin(
        config: &'a Config,
        wake: Arc<Notify>,
        mut go_on: impl FnMut() -> bool,
    ) -> anyhow::Result<(Self, Cluster)> {
        let mut input = Input::open(config, wake)?;
        let (mut cluster, is_remembered) = read_or_remember(config, &mut input, &mut go_on)?;
        let followed = match input {
            Input::Manifests(files) => Self::Manifests(files),
            Input::Api(source) => {
                let member = Membership::find(config, source, &mut cluster, is_remembered, go_on)?;
                Self::Api(Box::new(member))
            }
        };
        Ok((followed, cluster))
    }

    /// Makes this node known to the others, before it is set up.
    pub(super) fn register(
        &mut self,
        origin: &Origin,
        go_on: impl FnMut() -> bool,
    ) -> Result<(), SourceError> {
        match self {
            Self::Manifests(..) => Ok(()),
            Self::Api(member) => member.register(origin, go_on),
        }
    }

    /// Says that this node forwards.
    pub(super) fn announce(&self, origin: &Origin) {
        if let Self::Api(member) = self {
            member.announce(origin);
        }
    }

    /// Whether the cluster still has our node as it was remembered, where it was.
    pub(super) fn is_ours(&self) -> bool {
        match self {
            Self::Manifests(..) => true,
            Self::Api(member) => member.is_ours(),
        }
    }

    /// How long ago something was last heard of each kind of object, where one waits to be told.
    pub(super) fn staleness(&self) -> Vec<(Kind, Duration)> {
        match self {
            Self::Manifests(..) => Vec::new(),
            Self::Api(member) => member.staleness(),
        }
    }

    /// What has become of the cluster since it was `before`, for a node that runs with `settings`. What cannot be read
    /// any more is as it was.
    pub(super) fn changed(
        &mut self,
        before: &ClusterState,
        settings: &NodeSettings,
    ) -> anyhow::Result<Option<Changed>> {
        match self {
            Self::Manifests(files) => {
                if !files.have_changed() {
                    return Ok(None);
                }
                let mut loaded = files.load()?;
                loaded.keep_last_good(before);
                let difference = Difference::between(before, &loaded.state);
                Ok(Some(Changed { difference, problems: loaded.problems, ..Changed::default() }))
            }
            Self::Api(member) => Ok(member.changed(before, settings)),
        }
    }
}

/// Reads the cluster, or, while its API server does not answer, what was known of it when this node last ran. True
/// when it is that.
fn read_or_remember(
    config: &Config,
    input: &mut Input,
    go_on: impl FnMut() -> bool,
) -> anyhow::Result<(Cluster, bool)> {
    let remembered = match input {
        Input::Manifests(_) => None,
        Input::Api(_) => snapshot::read_cluster(&config.state_dir, &config.node).unwrap_or_else(|refused| {
            tracing::warn!("{refused}: the API server is waited for");
            None
        }),
    };
    let Some(state) = remembered else { return Ok((input.read(config.wait, go_on)?, false)) };
    match input.read(PATIENCE.min(config.wait), go_on) {
        Ok(cluster) => Ok((cluster, false)),
        Err(error) if matches!(error.downcast_ref(), Some(SourceError::NotListed { .. })) => {
            tracing::warn!("{error}; until it answers, the cluster is as this node last knew it");
            Ok((Cluster { state, ..Cluster::default() }, true))
        }
        Err(error) => Err(error),
    }
}
