//! What a node remembers between runs, in files of `--state-dir`: the cluster, so that it forwards while its API
//! server is away, and its connections, so that they stay at their backends.
//!
//! The cluster is kept as the [`ClusterState`](crate::cluster::ClusterState) that tables are compiled from, and not as
//! tables: so a snapshot takes the very path that manifests and the API take, with every check on it.
//!
//! A file that was torn, is of another version or of another node is refused, with the reason.

mod cluster;
mod connections;
mod file;

use std::io;
use std::path::PathBuf;

pub use self::cluster::{read_cluster, write_cluster};
pub use self::connections::{Connections, Restored};

/// Why something is not remembered.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file cannot be read.
    #[error("{} cannot be read: {source}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("{} cannot be written: {source}", file.display())]
    Unwritable {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file does not hold what was written.
    #[error("{} is damaged ({what}) and is not used", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// The file was written by another release.
    #[error("{} has version {found} and this program reads version {known}: it is not used", file.display())]
    OtherVersion {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The file is not this node's.
    #[error("{} is of another node, or of another podCIDR, and is not used", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The connections are those of a host that has been started anew since.
    #[error("{} is from before this host was started, and is not used", file.display())]
    BeforeBoot {
        /// The file.
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests;
