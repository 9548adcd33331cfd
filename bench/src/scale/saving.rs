//! What it costs to write the connections down for the next run, and what packets feel of it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use windlass_control::registration::Owner;
use windlass_control::snapshot::Connections;
use windlass_control::system::HostMoment;
use windlass_dataplane::lb::conntrack::{Conntrack, SavedConnection};
use windlass_dataplane::lb::tcp_state::TcpState;
use windlass_dataplane::time::Instant as WorkerInstant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::large::{self, Size};
use windlass_tests::netns::scratch_folder;

use super::forwarding::Forwarding;
use super::gaps::Evenness;
use super::memory::resident_bytes;
use super::node::Node;

/// What one snapshot of connections costs.
#[derive(Clone, Debug, Serialize)]
pub struct Saving {
    /// Connections in the table.
    pub connections: usize,
    /// What they take in memory, in bytes.
    pub memory_bytes: u64,
    /// Until all are copied out of the table, in seconds.
    pub gathered_s: f64,
    /// From then on until they are written, in seconds.
    pub written_s: f64,
    /// The file, in bytes.
    pub file_bytes: u64,
    /// How evenly a worker forwarded before.
    pub still: Evenness,
    /// How evenly it did meanwhile.
    pub saving: Evenness,
}

/// Fills a table with so many connections, and writes them down while a worker forwards.
///
/// # Errors
/// When they do not fit, or cannot be written.
pub fn measure(size: Size, connections: u32, span: Duration) -> Result<Saving> {
    let before = resident_bytes()?;
    let table = Arc::new(Conntrack::new(connections as usize + 100_000, 1));
    for number in 0..connections {
        ensure!(
            table.restore(&connection(number), Duration::ZERO, WorkerInstant::ZERO, 0),
            "connection {number} does not fit"
        );
    }
    let memory_bytes = resident_bytes()?.saturating_sub(before);
    let node = Node::start(&size.cluster(), large::settings(), Arc::clone(&table));
    let forwarding = Forwarding::start(size, &node, 1)?;
    thread::sleep(span);
    let still = Evenness::of(&forwarding.stop()?);

    let folder = scratch_folder("scale-state")?;
    let (owner, moment) = (Owner::of("own", &large::peer(0, 0)), HostMoment::now().context("no uptime")?);
    let forwarding = Forwarding::start(size, &node, 1)?;
    let begun = Instant::now();
    let gathered = Connections::of(&table, WorkerInstant::since_origin(node.origin));
    let gathered_in = begun.elapsed();
    gathered.fingerprint();
    gathered.write(folder.path(), &owner, &moment)?;
    let lasted = begun.elapsed();
    let saving = Evenness::of(&forwarding.stop()?);
    let files = std::fs::read_dir(folder.path())?.flatten();
    let file_bytes = files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum();
    Ok(Saving {
        connections: gathered.connections.len(),
        memory_bytes,
        gathered_s: gathered_in.as_secs_f64(),
        written_s: (lasted - gathered_in).as_secs_f64(),
        file_bytes,
        still,
        saving,
    })
}

/// An established connection of a client outside, to one of 1,000 services.
fn connection(number: u32) -> SavedConnection {
    let client = std::net::Ipv4Addr::from(0xc000_0000 + number / 20_000).into();
    let port = u16::try_from(1_024 + number % 20_000).unwrap_or(0);
    let backend = std::net::Ipv4Addr::from(0x0a80_0001 + ((number % 1_000) << 8)).into();
    let original = FlowKey {
        src: client,
        dst: large::cluster_ip(number % 1_000).into(),
        protocol: Protocol::TCP,
        src_port: port,
        dst_port: large::PORT,
    };
    let reply =
        FlowKey { src: backend, dst: client, protocol: Protocol::TCP, src_port: 8_080, dst_port: port };
    SavedConnection {
        original,
        reply,
        tcp_state: TcpState::Established,
        is_replied: true,
        idle: Duration::ZERO,
    }
}
