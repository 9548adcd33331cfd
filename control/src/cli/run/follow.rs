//! The cluster of a node that runs: read at start, and followed from then on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use windlass_control::config::Config;
use windlass_control::inspect::Origin;
use windlass_control::source::Cluster;
use windlass_control::source::kube::SourceError;

use super::join::Membership;
use crate::cli::input::{Files, Input};

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
        let mut cluster = input.read(config.wait, &mut go_on)?;
        let followed = match input {
            Input::Manifests(files) => Self::Manifests(files),
            Input::Api(source) => Self::Api(Box::new(Membership::find(config, source, &mut cluster, go_on)?)),
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
            member.announce(&origin.settings);
        }
    }

    /// How long ago something was last heard of the cluster, where one waits to be told.
    pub(super) fn staleness(&self) -> Option<Duration> {
        match self {
            Self::Manifests(..) => None,
            Self::Api(member) => member.staleness(),
        }
    }

    /// The cluster, if it has changed. What of it cannot be read any more is as it was `before`.
    pub(super) fn changed(&mut self, before: &Origin) -> anyhow::Result<Option<Cluster>> {
        match self {
            Self::Manifests(files) => {
                if !files.have_changed() {
                    return Ok(None);
                }
                let mut loaded = files.load()?;
                loaded.keep_last_good(&before.state);
                Ok(Some(Cluster { state: loaded.state, problems: loaded.problems }))
            }
            Self::Api(member) => Ok(member.changed(&before.settings)),
        }
    }
}
