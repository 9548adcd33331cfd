//! Whole nodes in network namespaces: Windlass beside nodes that use the kernel's own vxlan device.
//!
//! A test takes a [`topology::Topology`] (node namespaces on one wire), makes each node either a
//! [`peer::KernelPeer`], programmed exactly as flannel programs a stock node, or a [`node::WindlassNode`],
//! the real `windlass run`, puts [`pod::Pod`]s on them and sends [`traffic`] between them. Everything is made
//! with `ip`, `nft` and `sysctl`, lives in namespaces of this process's own names, and goes when it is
//! dropped; what a killed run left behind is swept by the next one.
//!
//! Without root, or without the tools, [`start`] says `SKIPPED: <why>` and the test passes.

pub mod api_server;
pub mod binary;
pub mod dns;
pub mod engine_node;
pub mod large;
pub mod model;
pub mod netns;
pub mod node;
pub mod objects;
pub mod packets;
pub mod peer;
pub mod pod;
pub mod process;
pub mod real_cluster;
pub mod scrapers;
pub mod segments;
pub mod sim;
pub mod topology;
pub mod traffic;
pub mod windows;

use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};

use anyhow::Result;

/// How many topologies may stand at once, whatever libtest's thread count is.
const PARALLEL_TOPOLOGIES: usize = 3;

static STANDING: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

/// A permit to build one topology; dropping it lets the next test begin.
#[derive(Debug)]
pub struct Permit(());

impl Drop for Permit {
    fn drop(&mut self) {
        *STANDING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}

/// Waits for a free place and sweeps dead runs; `None`, said as `SKIPPED: ...`, where the tests cannot run.
pub fn start() -> Result<Option<Permit>> {
    if let Some(why) = netns::missing_ability() {
        skipped(&why);
        return Ok(None);
    }
    let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
    while *standing >= PARALLEL_TOPOLOGIES {
        standing = FREED.wait(standing).unwrap_or_else(PoisonError::into_inner);
    }
    *standing += 1;
    drop(standing);
    let permit = Permit(());
    netns::sweep_dead_runs()?;
    Ok(Some(permit))
}

/// Says `SKIPPED: why` on the real stderr, past libtest's capture of the print macros.
pub fn skipped(why: &str) {
    say(&format!("SKIPPED: {why}"));
}

/// Writes one line to the real stderr, past libtest's capture; a closed stderr is of no concern.
pub fn say(line: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let _ = std::io::stderr().write_all(format!("{line} ({name})\n").as_bytes());
}
