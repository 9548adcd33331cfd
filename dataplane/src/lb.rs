//! The service load balancer's parts: who is chosen, what is remembered, how a packet is rewritten.
//!
//! Pure functions and one shared store; nothing here knows tables or devices.

mod affinities;
mod connection;
pub mod conntrack;
mod direct_flows;
mod due_queue;
pub mod flow_index;
pub mod fragment;
pub mod icmp_error;
mod occupancy;
pub mod rewrite;
pub mod select;
pub mod sharded;
pub mod tcp_state;
