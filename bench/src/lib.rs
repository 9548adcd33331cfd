//! Measurements of Windlass.
//!
//! `benches/engine.rs` measures the packet path in memory ([`engine`]), `benches/ring.rs` with a device's memory at its end
//! ([`ring`]). The program `windlass-bench` measures whole nodes:
//! [`compare`] stands every [`contestants`] entry up in network namespaces of its own, then goes through the
//! rounds, and within a round through the [`measure`]s, and within a measure through the contestants, so that
//! what the machine does meanwhile meets them all alike. The traffic is made by this same program inside the
//! pods' namespaces ([`serve`] and [`measure`]), reckoned by [`stats`] and told by [`report`]. [`scale`] measures what a large
//! cluster costs, without namespaces.
//!
//! Network namespaces are Linux's: elsewhere this crate is empty.
#![cfg(target_os = "linux")]

pub mod compare;
pub mod contestants;
pub mod cpu;
pub mod cycles;
pub mod engine;
pub mod figures;
pub mod hostile;
pub mod interrupt;
pub mod kube_proxy;
pub mod machine;
pub mod measure;
pub mod nuisance;
pub mod ovs;
pub mod peers;
pub mod programming;
pub mod protocol;
pub mod report;
pub mod ring;
pub mod scale;
pub mod serve;
pub mod services;
pub mod stand;
pub mod stats;
pub mod sweep;
pub mod veth;
