//! Where a [`ClusterState`](crate::cluster::ClusterState) comes from.

pub mod flannel;
pub mod manifests;
pub mod objects;
