//! What a cluster takes in memory.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{Entry, ForwardingTables, RemoteVtep, Service};
use windlass_tests::large::{self, Size};

use super::node::Node;
use crate::stats::Summary;

/// Rounds of compiling all of it.
const ROUNDS: usize = 7;

/// What a cluster takes, from objects in memory.
#[derive(Clone, Debug, Serialize)]
pub struct First {
    /// Until the first tables are published, in seconds.
    pub tables_s: Summary,
    /// Growth of this process by the objects, in bytes.
    pub objects_bytes: u64,
    /// Growth of this process by what the compiler remembers and the tables, in bytes.
    pub compiled_bytes: u64,
    /// The tables alone, as their entries add up, in bytes.
    pub tables_bytes: usize,
}

/// Compiles a cluster of `size` again and again. To be measured before anything else has made this process grow.
///
/// # Errors
/// When the kernel does not tell how large this process is.
pub fn first_tables(size: Size) -> Result<First> {
    let before = resident_bytes()?;
    let state = size.cluster();
    let with_objects = resident_bytes()?;
    let start = || Node::start(&state, large::settings(), Arc::new(Conntrack::new(0, 1)));
    let node = start();
    let with_tables = resident_bytes()?;
    let tables_bytes = tables_bytes(&node.writer.current());
    drop(node);
    let seconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            let node = start();
            let took = begun.elapsed();
            drop(node);
            took.as_secs_f64()
        })
        .collect();
    Ok(First {
        tables_s: Summary::of(&seconds).context("no rounds")?,
        objects_bytes: with_objects.saturating_sub(before),
        compiled_bytes: with_tables.saturating_sub(with_objects),
        tables_bytes,
    })
}

/// What the system has given this process of its memory.
///
/// # Errors
/// When it does not tell.
pub fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

/// The bytes of all entries, without what the allocator and free places in maps add.
fn tables_bytes(tables: &ForwardingTables) -> usize {
    let service = |service: &Service| {
        let addrs = service.backends.len() + service.draining.len();
        // Each backend has a hash.
        size_of_val(service)
            + service.name.len()
            + addrs * size_of::<std::net::SocketAddr>()
            + service.backends.len() * 8
    };
    let services: usize = tables.services().iter().map(|known| service(known) + place(known.vip)).sum();
    let vtep = |vtep: &RemoteVtep| {
        size_of_val(vtep)
            + vtep.node.len()
            + size_of_val(&vtep.prefixes[..])
            + size_of_val(&vtep.addresses[..])
    };
    // Each stands by its MAC and by its address.
    let vteps: usize = tables.fdb().iter().map(|(vni, mac, known)| vtep(known) + 2 * place((vni, mac))).sum();
    let neighbors: usize = tables.neighbors().iter().map(size_of_val_of).sum();
    let routes: usize = tables.routes().iter().map(size_of_val_of).sum();
    services + vteps + neighbors + routes + entries(tables) * (size_of::<(Entry, u32)>() + size_of::<u32>())
}

/// Entries, each of which has a slot and an epoch.
fn entries(tables: &ForwardingTables) -> usize {
    tables.services().len()
        + 2 * tables.fdb().len()
        + tables.neighbors().iter().count()
        + tables.routes().len()
}

/// A place in a map, and the counts of a shared value.
fn place<K>(_key: K) -> usize {
    size_of::<(K, usize)>() + 2 * size_of::<usize>()
}

fn size_of_val_of<T>(_value: T) -> usize {
    size_of::<T>()
}
