//! The cluster as it was last known.

use std::path::Path;

use super::SnapshotError;
use super::file::Format;
use crate::cluster::ClusterState;
use crate::registration::{Kept, Owner};

/// Version 1: [`ClusterState`] as JSON. Objects of the API may gain keys; a key that is missing is damage.
const FORMAT: Format = Format { name: "cluster.snapshot", version: 1, is_durable: true };

/// Keeps the cluster of that node in `folder`.
///
/// # Errors
/// When it cannot be written; what was there stays.
pub fn write_cluster(folder: &Path, name: &str, state: &ClusterState) -> Result<(), SnapshotError> {
    let unwritable = |source| SnapshotError::Unwritable { file: FORMAT.path(folder), source };
    let content = serde_json::to_vec(state).map_err(|error| unwritable(error.into()))?;
    let owner = state.nodes.get(name).map(|node| Owner::of(name, node)).unwrap_or_default();
    FORMAT.write(folder, &owner, &content)
}

/// The cluster as that node last knew it; `None` when nothing was kept.
///
/// # Errors
/// When what was kept is damaged, or of another node than this one was when it last ran.
pub fn read_cluster(folder: &Path, name: &str) -> Result<Option<ClusterState>, SnapshotError> {
    let Some((owner, content)) = FORMAT.read(folder)? else { return Ok(None) };
    let file = FORMAT.path(folder);
    let state: ClusterState = serde_json::from_slice(&content)
        .map_err(|error| SnapshotError::Damaged { file: file.clone(), what: error.to_string() })?;
    let node = state.nodes.get(name).filter(|node| Owner::of(name, node) == owner);
    match node.map(|node| Kept::read(folder, name, node)) {
        Some(Ok(_)) => Ok(Some(state)),
        None | Some(Err(_)) => Err(SnapshotError::Foreign { file }),
    }
}
