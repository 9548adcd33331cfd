//! A cluster on virtual time, in one thread, decided by a seed.
//!
//! Nodes run the real compile step, tables, workers and connection table ([`process`]); pods speak smoltcp's TCP and
//! UDP ([`pod`]); links lose, repeat, delay, cut and forge ([`network`]); and an API server adds, removes and moves
//! everything, of which each node hears late and out of order ([`edits`], [`world`]). Whatever a node does with a packet
//! is judged at once by what it was told and has seen ([`oracle`]), and in the end everything must work ([`settle`]).
//!
//! [`run`] takes a [`Plan`]. A [`Failure`] says which [`invariant`] did not hold, what was done before, and how to see it
//! again. That the judges can tell right from wrong is proved by [`tamper`].

pub mod cluster;
pub mod edits;
pub mod flows;
pub mod invariant;
pub mod network;
pub mod oracle;
pub mod pod;
pub mod process;
pub mod rng;
pub mod schedule;
pub mod settle;
pub mod tamper;
pub mod tracked;
pub mod turns;
pub mod view;
pub mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use invariant::{Invariant, Violation};
use tamper::Tamper;
use world::{Event, World};

/// How large a cluster, and how long it is not left alone.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Nodes at the start.
    pub nodes: usize,
    /// Pods of each.
    pub pods_per_node: usize,
    /// Services.
    pub services: usize,
    /// How long things are done to it.
    pub active: Duration,
    /// From one thing to the next, about.
    pub edit_every: Duration,
    /// From one new flow to the next, about.
    pub flow_every: Duration,
    /// Processes that may run at a time, where not all fit: see [`turns`].
    pub awake: Option<usize>,
    /// Flows that must all work in the end.
    pub probes: usize,
}

impl Scale {
    /// Some nodes and services, for many seeds.
    pub fn small() -> Self {
        Self {
            nodes: 4,
            pods_per_node: 3,
            services: 5,
            active: Duration::from_secs(20),
            edit_every: Duration::from_millis(400),
            flow_every: Duration::from_millis(120),
            awake: None,
            probes: 24,
        }
    }

    /// What still fits a few seconds.
    pub fn large() -> Self {
        Self {
            nodes: 20,
            pods_per_node: 4,
            services: 40,
            active: Duration::from_secs(8),
            edit_every: Duration::from_millis(150),
            flow_every: Duration::from_millis(20),
            awake: None,
            probes: 80,
        }
    }
}

impl Scale {
    /// More than fits one machine's memory at a time.
    pub fn largest() -> Self {
        Self {
            nodes: 1_000,
            pods_per_node: 3,
            services: 10_000,
            active: Duration::from_secs(60),
            edit_every: Duration::from_millis(500),
            flow_every: Duration::from_millis(15),
            awake: Some(60),
            probes: 400,
        }
    }
}

/// One simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides everything.
    pub seed: u64,
    /// How large.
    pub scale: Scale,
    /// A fault that every node has.
    pub tamper: Option<Tamper>,
    /// A port whose packets are told of on stderr.
    pub watch: Option<u16>,
}

/// What a simulation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Flows opened.
    pub flows: u64,
    /// Flows that ended well.
    pub done: u64,
    /// Packets through engines.
    pub packets: u64,
    /// Datagrams that the links lost.
    pub lost: u64,
    /// Follows from every packet that every node was given, and when.
    pub digest: u64,
}

impl std::ops::AddAssign for Summary {
    fn add_assign(&mut self, other: Self) {
        self.flows += other.flows;
        self.done += other.done;
        self.packets += other.packets;
        self.lost += other.lost;
        self.digest ^= other.digest;
    }
}

/// An invariant that did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Which, and how.
    pub violation: Violation,
    seed: u64,
    at: Duration,
    log: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { violation, seed, at, log } = self;
        writeln!(f, "seed {seed}, after {:.6} s: {violation}", at.as_secs_f64())?;
        writeln!(f, "what was done last:")?;
        log.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        write!(f, "again: WINDLASS_SIM_SEED={seed} cargo test -p windlass-tests --test simulation")
    }
}

/// Runs a simulation to its end.
///
/// # Errors
/// The first invariant that does not hold; a panic is one too.
pub fn run(plan: &Plan) -> Result<Summary, Box<Failure>> {
    let mut world = World::new(plan);
    let outcome = catch_unwind(AssertUnwindSafe(|| live(&mut world)));
    let violation = match outcome {
        Ok(Ok(summary)) => return Ok(summary),
        Ok(Err(violation)) => violation,
        Err(panic) => Violation::new(Invariant::Sums, format!("a panic: {}", message(&*panic))),
    };
    let at = Duration::from_nanos(world.now().as_nanos());
    Err(Box::new(Failure { violation, seed: plan.seed, at, log: world.log().cloned().collect() }))
}

fn live(world: &mut World) -> Result<Summary, Violation> {
    world.schedule.after(Duration::from_millis(500), Event::Edit);
    world.schedule.after(Duration::ZERO, Event::OpenFlow);
    world.run_for(world.scale.active)?;
    world.settle()?;
    Ok(Summary {
        flows: world.flows.opened(),
        done: world.flows.done,
        packets: world.packets,
        lost: world.network.lost,
        digest: world.digest,
    })
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
