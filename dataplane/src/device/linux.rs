//! Linux: TUN, UDP sockets, epoll, and the host's addresses, routes, settings and filter rules.

mod affinity;
mod capture;
mod conntrack;
mod control;
mod errors;
mod ethtool;
mod host;
mod joined;
mod leftover;
mod links;
mod mark_rule;
mod messages;
mod netlink;
mod nft;
mod offloads;
mod open;
mod outgoing;
mod patience;
mod pods;
mod port;
mod route_table;
mod routes;
mod send;
mod socket;
mod source_ports;
mod survey;
mod sys;
mod sysctl;
mod tap;
mod tun;
mod tunnel_gso;
mod udp;
mod wait;

use super::virtio;

pub use affinity::{stay_on, usable_cpus};
pub use host::HostState;
pub use leftover::{DeviceKeeper, cleanup};
pub use links::{default_route_interface, local_addresses};
pub use open::open;
pub use pods::PodTuning;
pub use survey::{managed_by, probe_vxlan_port, survey};
pub use tun::{Tun, TunConfig, TunOffload};

/// A batch that holds so many bytes takes no more: what is read is sent on before it has left the core's cache, and
/// the other direction gets its turn. Two superpackets: a packet behind a bulk flow waits for turns of this length.
const BATCH_LEN: usize = 128 << 10;

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod kernel_peer_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tun_tests;
#[cfg(test)]
mod udp_tests;
