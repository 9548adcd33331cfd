//! `scale`: what a large cluster costs a node, in memory and in time, and what its packets feel of changes.
//!
//! Workers are real, over a device that the same packets come from again and again and a socket that takes
//! everything: no network takes part, and no root is needed.

pub mod events;
pub mod forwarding;
pub mod gaps;
pub mod memory;
pub mod node;
pub mod saving;
pub mod table;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use windlass_tests::large;

use crate::machine::Machine;
use events::{Events, Followed};
use memory::First;
use saving::Saving;

/// Name and version of the form of `--json`; the number grows when a reader of the old form would misread the new.
pub const SCHEMA: &str = "windlass-scale/1";

/// Arguments of `scale`.
#[derive(Args, Clone, Debug)]
pub struct ScaleArgs {
    /// Nodes
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=32_000))]
    nodes: u32,
    /// Services
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    services: u32,
    /// Endpoints of each service
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    endpoints: u32,
    /// Connections that a snapshot is taken of
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    connections: u32,
    /// EndpointSlices that change in a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    changes_per_second: u32,
    /// Numbers of workers, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    workers: Vec<usize>,
    /// How long each part lasts
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    duration_ms: u64,
    /// Write the raw figures there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name and version of this form.
    pub schema: &'static str,
    /// The machine.
    pub machine: Machine,
    /// How large the cluster is.
    pub size: Counts,
    /// From objects in memory.
    pub first: First,
    /// From nothing until all objects of the API server were read, in seconds.
    pub listed_s: f64,
    /// Changes a second.
    pub changes_per_second: u32,
    /// With each number of workers.
    pub events: Vec<Events>,
    /// A snapshot of connections.
    pub saving: Saving,
}

/// How large a cluster is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counts {
    /// Nodes.
    pub nodes: u32,
    /// Services.
    pub services: u32,
    /// Endpoints of all of them.
    pub endpoints: u32,
}

/// Measures, prints what was found and writes it down.
///
/// # Errors
/// When something of it cannot be measured here.
pub fn run(args: &ScaleArgs) -> Result<()> {
    let report = measure(args)?;
    print!("{}", table::render(&report));
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(file, text).with_context(|| format!("writing {}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}

fn measure(args: &ScaleArgs) -> Result<Report> {
    let ScaleArgs { nodes, services, endpoints, .. } = *args;
    let size = large::Size { services, endpoints, nodes };
    let span = Duration::from_millis(args.duration_ms);
    let machine = Machine::read();
    eprintln!("first tables, from objects in memory");
    let first = memory::first_tables(size)?;
    eprintln!("a snapshot of {} connections", args.connections);
    let saving = saving::measure(size, args.connections, span)?;
    eprintln!("an API server with the cluster");
    let mut followed = Followed::start(size)?;
    let mut events = Vec::new();
    for workers in &args.workers {
        eprintln!(
            "{workers} workers, still and while {} EndpointSlices change a second",
            args.changes_per_second
        );
        events.push(followed.measure(*workers, span, args.changes_per_second)?);
    }
    Ok(Report {
        schema: SCHEMA,
        machine,
        size: Counts { nodes, services, endpoints: services * endpoints },
        first,
        listed_s: followed.listed_in.as_secs_f64(),
        changes_per_second: args.changes_per_second,
        events,
        saving,
    })
}
