//! Windlass's control plane: from Kubernetes objects to the dataplane's tables.
//!
//! [`source`] reads objects into a plain [`cluster::ClusterState`]; [`node`] finds out which of its nodes we are
//! and checks that what it says can work; [`compile`](mod@compile) makes forwarding tables of it. [`config`] is
//! what people say, [`registration`] what other nodes are told of us, [`inspect`] what they can ask, and [`admin`] where.

pub mod admin;
pub mod capture;
pub mod catalog;
pub mod changes;
pub mod check;
pub mod cluster;
pub mod compile;
pub mod config;
pub mod demo;
pub mod inspect;
pub mod log_file;
pub mod node;
pub mod node_ports;
pub mod registration;
pub mod replay;
pub mod service;
pub mod snapshot;
pub mod source;
pub mod system;
