//! What compiling and publishing cost: `cargo run --release -p windlass-control --example compile_cost [SERVICES] [ENDPOINTS] [NODES]`.
//!
//! Services of one port each, from objects in memory: all of them at once, and then one change at a time, as an API
//! watch brings them. "Compile" takes the changed object and makes tables of it, "publish" puts these before the
//! workers and frees the snapshot before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_control::cluster::ClusterState;
use windlass_control::compile::{Compiler, compile};
use windlass_control::node::NodeSettings;
use windlass_dataplane::tables::Writer;
use windlass_tests::large::{Size, name, node_name, peer, service, settings};

/// Full compilations.
const FULL_ROUNDS: u32 = 9;

/// Changes of each kind.
const ROUNDS: u32 = 200;

fn main() {
    let mut counts = std::env::args().skip(1).filter_map(|count| count.parse().ok());
    let mut count = |default| counts.next().unwrap_or(default);
    let size = Size { services: count(10_000), endpoints: count(10), nodes: count(5_000).clamp(1, 32_000) };
    println!("{} services of {} endpoints, {} nodes; medians", size.services, size.endpoints, size.nodes);
    println!("{:<18}{:>12}{:>12}{:>12}", "", "compile", "publish", "total");
    let (state, settings) = (size.cluster(), settings());
    print("everything", (0..FULL_ROUNDS).map(|_| full(&state, &settings)).collect());
    let mut node = Running::new(&state, &settings);
    let rounds = |change: &mut dyn FnMut(u32) -> Cost| (0..ROUNDS).map(change).collect();
    let mut endpoint_added = |round| {
        let number = round % size.services;
        let slice = Arc::new(size.slice(number, Some(round)));
        node.change(|compiler| compiler.set_endpoint_slice(&name(number), Some(slice)))
    };
    print("endpoint added", rounds(&mut endpoint_added));
    let mut added = |round| {
        let number = size.services + round;
        let (service, slice) = (Arc::new(service(number)), Arc::new(size.slice(number, None)));
        node.change(|compiler| {
            compiler.set_service(&name(number), Some(service));
            compiler.set_endpoint_slice(&name(number), Some(slice));
        })
    };
    print("service added", rounds(&mut added));
    let mut removed = |round| {
        let name = name(size.services + round);
        node.change(|compiler| {
            compiler.set_service(&name, None);
            compiler.set_endpoint_slice(&name, None);
        })
    };
    print("service removed", rounds(&mut removed));
    let mut moved = |round| {
        let number = round % size.nodes;
        let peer = Arc::new(peer(number, 40_000 + round));
        node.change(|compiler| compiler.set_node(&node_name(number), Some(peer)))
    };
    print("node changed", rounds(&mut moved));
}

/// What one change cost.
struct Cost {
    compile: Duration,
    publish: Duration,
}

fn print(what: &str, costs: Vec<Cost>) {
    let column = |cost: fn(&Cost) -> Duration| {
        let mut times: Vec<_> = costs.iter().map(cost).collect();
        times.sort_unstable();
        format!("{:.3} ms", times[times.len() / 2].as_secs_f64() * 1e3)
    };
    let (compile, publish) = (column(|cost| cost.compile), column(|cost| cost.publish));
    let total = column(|cost| cost.compile + cost.publish);
    println!("{what:<18}{compile:>12}{publish:>12}{total:>12}");
}

/// Everything at once, from nothing.
fn full(state: &ClusterState, settings: &NodeSettings) -> Cost {
    let started = Instant::now();
    let tables = compile(state, settings).tables;
    let compiled = Instant::now();
    let writer = Writer::new(tables);
    let published = Instant::now();
    assert_eq!(writer.current().services().len(), state.services.len());
    Cost { compile: compiled - started, publish: published - compiled }
}

/// A compiler and what it publishes to.
struct Running {
    compiler: Compiler,
    writer: Writer,
}

impl Running {
    fn new(state: &ClusterState, settings: &NodeSettings) -> Self {
        let mut compiler = Compiler::new(settings.clone());
        compiler.follow(state);
        let writer = Writer::new(compiler.update().draft.tables().clone());
        Self { compiler, writer }
    }

    fn change(&mut self, change: impl FnOnce(&mut Compiler)) -> Cost {
        let started = Instant::now();
        change(&mut self.compiler);
        let update = self.compiler.update();
        let compiled = Instant::now();
        let before = self.writer.current().generation();
        let published = self.writer.publish_draft(&update.draft);
        // The draft holds the tables before: they are freed with it.
        drop(update);
        let cost = Cost { compile: compiled - started, publish: compiled.elapsed() };
        assert_ne!(published.generation(), before);
        cost
    }
}
