//! D14: what a packet waits while a million connections time out at once.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use windlass_dataplane::lb::conntrack::UDP_TIMEOUT;

use super::attack::Attack;
use super::in_memory::{Arriving, Attacked, BATCH};
use crate::stats::percentile;

const CONNECTIONS: usize = 1_000_000;
/// Turns with one packet each while nothing times out.
const TURNS: usize = 50_000;
/// Longer than any of the connections is older than another.
const ALL_OVER: Duration = Duration::from_secs(60);

/// How long a worker's turn with one packet took, in nanoseconds, sorted.
#[derive(Clone, Debug)]
pub struct Outcome {
    calm: Vec<u64>,
    sweeping: Vec<u64>,
    forgotten: usize,
}

/// Floods a table until a million connections are in it, and lets them time out.
///
/// # Errors
/// When the tables cannot be compiled.
pub fn measure() -> Result<Outcome> {
    let mut node = Attacked::new(Attack::UdpVip, CONNECTIONS * 2)?;
    let mut number = 0;
    while node.connections.len() < CONNECTIONS {
        let flood = (number..number + BATCH).map(|number| node.hostile(number));
        let flood: Vec<Arriving> = flood.collect::<Option<_>>().context("a packet")?;
        node.run(&flood);
        number += BATCH;
    }
    let flow = [node.legitimate(0)];
    let mut calm: Vec<u64> = (0..TURNS).map(|_| turn(&mut node, &flow)).collect();
    node.now = node.now + UDP_TIMEOUT + ALL_OVER;
    let before = node.connections.len();
    let mut sweeping = Vec::new();
    // The flow opens its connection anew, and keeps it.
    while node.connections.len() > 1 {
        sweeping.push(turn(&mut node, &flow));
    }
    calm.sort_unstable();
    sweeping.sort_unstable();
    Ok(Outcome { calm, sweeping, forgotten: before - node.connections.len() })
}

fn turn(node: &mut Attacked, flow: &[Arriving]) -> u64 {
    node.run(flow).0.as_nanos() as u64
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a turn with one packet, us | p50 | p99 | p99.9 | most")?;
        for (name, nanos) in [("nothing times out", &self.calm), ("connections time out", &self.sweeping)] {
            let at = |share| percentile(nanos, share).unwrap_or_default() as f64 / 1e3;
            let [p50, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(at);
            writeln!(f, "{name} | {p50:.1} | {p99:.1} | {p999:.1} | {most:.1}")?;
        }
        writeln!(f, "{} connections forgotten in {} turns", self.forgotten, self.sweeping.len())
    }
}
