//! Nodes in network namespaces; see the crate's documentation for what they need.

mod api;
mod checks;
mod dns;
mod harness;
mod health;
mod hops;
mod inspect;
mod kernel_peer;
mod lifecycle;
mod node_ports;
mod persist;
mod refusals;
mod reload;
mod scrape;
mod seeds;
mod segments;
mod services;
mod take_over;
mod tuning;
mod tunnel_gso;
mod windlass_pair;

use windlass_tests::traffic::Traffic;

fn traffic() -> Traffic {
    Traffic::new(env!("CARGO_BIN_EXE_windlass-traffic"))
}

/// Enough for TCP to leave slow start and for superpackets to form.
const TCP_BYTES: usize = 4 << 20;
