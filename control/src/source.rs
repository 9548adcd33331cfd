//! Where a [`ClusterState`] comes from.

pub mod flannel;
pub mod kube;
pub mod manifests;
pub mod objects;
pub mod segment;

use std::time::SystemTime;

use crate::cluster::{Announcement, ClusterState, Difference, Node, Problem};

/// A cluster as it was read.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// What of it can be used.
    pub state: ClusterState,
    /// What of it cannot.
    pub problems: Vec<Problem>,
    /// What has come since it was read before, where that is told.
    pub changes: Changes,
}

/// What has become of a cluster since it was read before.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// What differs of what can be used.
    pub difference: Difference,
    /// Everything that cannot be used, not only what is new.
    pub problems: Vec<Problem>,
    /// What has come.
    pub changes: Changes,
}

/// What has come from a source, for metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes of Services.
    pub services: u64,
    /// Changes of EndpointSlices.
    pub endpoint_slices: u64,
    /// When what changed EndpointSlices happened, as they say; at most [`MAX_TRIGGERS`].
    pub triggers: Vec<SystemTime>,
}

/// How many times of changes are kept until somebody asks for them.
pub const MAX_TRIGGERS: usize = 10_000;

/// How the problem of an object ends that is left out.
const IS_SKIPPED: &str = "the object is skipped";

/// How the problem of an object ends that was good before.
const IS_KEPT: &str = "it is kept as it last was";

/// Why nothing can be sent to a node any more that could be sent to before.
fn has_become_unreadable<'a>(known: &Node, node: &'a Node) -> Option<&'a str> {
    let families =
        [(&known.flannel.vtep_v4, &node.flannel.vtep_v4), (&known.flannel.vtep_v6, &node.flannel.vtep_v6)];
    families.into_iter().find_map(|family| match family {
        (Announcement::Ready { .. }, Announcement::Malformed(reason)) => Some(reason.as_str()),
        _ => None,
    })
}
