//! The targets, one file each.

pub mod admin;
pub mod annotations;
pub mod bridge;
pub mod capture;
pub mod coalesce;
pub mod decap;
pub mod encap;
pub mod fragments;
pub mod icmp_errors;
pub mod manifests;
pub mod nat;
pub mod net_conf;
pub mod objects;
pub mod round_trip;
pub mod segment;
pub mod trace;
pub mod virtio;
