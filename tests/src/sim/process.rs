//! `windlass run` of one node: the real compile step, tables, workers and connections, fed packet by packet.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use windlass_control::compile::Compiler;
use windlass_control::node::NodeSettings;
use windlass_dataplane::counters::{Counters, Totals};
use windlass_dataplane::device::Ready;
use windlass_dataplane::device::memory::{MemoryDatagram, MemoryDevice, MemorySocket, worker_io};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::{Engine, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{ForwardingTables, Writer};
use windlass_dataplane::time::Instant;
use windlass_dataplane::worker::Worker;

use super::cluster::Update;
use super::invariant::{Invariant, Violation};
use super::oracle::Oracle;
use super::rng::mixed;
use super::tamper::Tamper;
use super::view::View;
use crate::packets::completed;

/// Flows that each worker's cache holds: few, so that some are crowded out.
const FLOW_CACHE_ENTRIES: usize = 64;

/// Connections that a node remembers: few enough for a flood to fill the table.
pub const CONNECTIONS: usize = 400;

/// A packet on its way into a node.
#[derive(Clone, Debug)]
pub enum Input {
    /// From a pod or the host.
    Overlay(Vec<u8>),
    /// From the underlay.
    Underlay {
        /// VXLAN header and frame.
        payload: Vec<u8>,
        /// Who sent it.
        from: SocketAddr,
        /// The outer TOS byte.
        tos: u8,
    },
}

/// What a node made of one packet.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// Written to the device.
    pub packets: Vec<Vec<u8>>,
    /// Sent to VTEPs.
    pub datagrams: Vec<MemoryDatagram>,
    /// Drops by reason.
    pub drops: Vec<DropReason>,
}

/// One worker and the other ends of its queues.
struct Lane {
    worker: Worker,
    device: MemoryDevice,
    socket: MemorySocket,
    counters: Arc<Counters>,
}

/// One node's process.
pub struct Process {
    /// Who we are.
    pub settings: NodeSettings,
    compiler: Compiler,
    writer: Writer,
    connections: Arc<Conntrack>,
    lanes: Vec<Lane>,
    /// Decides which worker sees which flow; see [`steer`](Self::steer).
    steering: u64,
    /// What the tables were compiled from.
    pub view: View,
    /// Heard of, and not published yet.
    pending: Vec<Update>,
    oracle: Oracle,
    tamper: Option<Tamper>,
    count: u64,
}

impl Process {
    /// A process with `workers` workers that has been told nothing yet.
    pub fn start(settings: NodeSettings, workers: usize, seed: u64, tamper: Option<Tamper>) -> Self {
        let writer = Writer::default();
        let connections = Arc::new(Conntrack::new(CONNECTIONS, workers));
        let lane = |number: usize| {
            let (io, device, socket, _) = worker_io();
            let counters = Arc::<Counters>::default();
            let engine_settings = Settings {
                flow_cache_entries: FLOW_CACHE_ENTRIES,
                seed: seed ^ number as u64,
                ..Settings::default()
            };
            let engine = Engine::new(
                writer.reader(),
                Arc::clone(&connections),
                Arc::clone(&counters),
                engine_settings,
                number,
            );
            Lane { worker: Worker::new(io, engine), device, socket, counters }
        };
        let lanes = (0..workers).map(lane).collect();
        let mut process = Self {
            compiler: Compiler::new(settings.clone()),
            settings,
            writer,
            connections,
            lanes,
            steering: mixed(seed),
            view: View::default(),
            pending: Vec::new(),
            oracle: Oracle::default(),
            tamper,
            count: 0,
        };
        process.publish_compiled();
        process
    }

    /// Hears of a change; it is published with the next ones.
    pub fn hear(&mut self, update: Update) {
        self.pending.push(update);
    }

    /// Starts from all of `truth`, as after a list; nothing was heard before.
    pub fn know(&mut self, truth: &View) {
        self.compiler.follow(&truth.state);
        self.view = truth.clone();
        self.publish_compiled();
    }

    /// Compiles and publishes what was heard, if anything was, and forgets UDP connections whose backend has gone, as
    /// `windlass run` does.
    pub fn publish(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        for update in std::mem::take(&mut self.pending) {
            if self.tamper.is_none_or(|tamper| tamper.update(&update, &self.view.state)) {
                match update.clone() {
                    Update::Node(name, node) => self.compiler.set_node(&name, node),
                    Update::Service(name, service) => self.compiler.set_service(&name, service),
                    Update::Slice(name, slice) => self.compiler.set_endpoint_slice(&name, slice),
                }
            }
            self.view.apply(&update);
        }
        self.publish_compiled();
    }

    fn publish_compiled(&mut self) {
        let update = self.compiler.update();
        self.count += 1;
        if !self.is_tampered(Tamper::SkipPublication) {
            let tables = self.writer.publish_draft(&update.draft);
            self.connections.purge(|connection| tables.strands(connection));
        }
        self.oracle.tables_changed(&self.settings.node, &self.view);
    }

    /// The tables that the workers go by.
    pub fn tables(&self) -> Arc<ForwardingTables> {
        self.writer.current()
    }

    /// Lets flows go to other workers than before, as when queues or CPUs change.
    pub fn steer(&mut self, key: u64) {
        self.steering = key;
    }

    /// One packet through the worker that its `flow_hash` leads to; every invariant of a single node is checked.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn feed(&mut self, input: Input, flow_hash: u64, now: Instant) -> Result<Outputs, Violation> {
        self.count += 1;
        let lane = (mixed(flow_hash ^ self.steering) % self.lanes.len() as u64) as usize;
        let injected = match self.tamper.filter(|tamper| tamper.strikes(self.count)) {
            Some(tamper) => tamper.input(input.clone()),
            None => input.clone(),
        };
        if self.is_tampered(Tamper::CountTwice) {
            self.lanes[lane].counters.overlay.received.add(1);
        }
        if self.is_tampered(Tamper::ForgetConnections) {
            self.connections.purge(|_| true);
        }
        let lane = &mut self.lanes[lane];
        let before = lane.counters.totals();
        let mut outputs = lane.feed(injected, now)?;
        if let Some(tamper) = self.tamper.filter(|tamper| tamper.strikes(self.count)) {
            let own = self.settings.addresses[0];
            tamper.outputs(&input, &mut outputs, &self.view.state, own);
        }
        lane.check_sums(before, &outputs)?;
        self.check_memory()?;
        if self.connections.len() >= CONNECTIONS / 2
            || outputs.drops.contains(&DropReason::ConnectionTableFull)
        {
            self.oracle.table_is_full();
        }
        self.oracle.judge(&self.settings, &self.view, &input, &outputs, now)?;
        Ok(outputs)
    }

    /// Lets every worker wake up with nothing to receive.
    ///
    /// # Errors
    /// A worker that ends.
    pub fn wake(&mut self, now: Instant) -> Result<(), Violation> {
        if self.tamper != Some(Tamper::NeverExpire) {
            for lane in &mut self.lanes {
                lane.turn(now)?;
            }
        }
        self.writer.reap();
        self.oracle.forget_old(now);
        Ok(())
    }

    /// Connections that are remembered.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// The sums of all workers.
    pub fn totals(&self) -> Totals {
        self.lanes.iter().map(|lane| lane.counters.totals()).sum()
    }

    fn check_memory(&self) -> Result<(), Violation> {
        let connections = self.connections.len();
        if connections > CONNECTIONS {
            return Err(Violation::new(
                Invariant::Memory,
                format!("{connections} connections in a table of {CONNECTIONS}"),
            ));
        }
        Ok(())
    }

    fn is_tampered(&self, with: Tamper) -> bool {
        self.tamper == Some(with) && with.strikes(self.count)
    }
}

impl Lane {
    fn feed(&mut self, input: Input, now: Instant) -> Result<Outputs, Violation> {
        match input {
            Input::Overlay(packet) => self.device.inject(packet),
            Input::Underlay { payload, from, tos } => self.socket.inject(payload, from, tos),
        }
        let before: Vec<u64> = self.drops();
        self.turn(now)?;
        let counts = before.into_iter().zip(self.drops()).zip(DropReason::ALL);
        let drops = counts.filter(|((before, after), _)| after > before).map(|(_, reason)| *reason);
        // What looks like a partial checksum, as one in 65,536 whole ones does, is finished by the kernel.
        let packets = self.device.take_all().into_iter();
        Ok(Outputs {
            drops: drops.collect(),
            packets: packets.map(|packet| completed(packet.bytes, packet.checksum)).collect(),
            datagrams: self.socket.take_all(),
        })
    }

    fn turn(&mut self, now: Instant) -> Result<(), Violation> {
        let ended = |error| Violation::new(Invariant::Sums, format!("a worker ended: {error}"));
        self.worker.turn(Ready::ALL, now).map(drop).map_err(ended)
    }

    fn drops(&self) -> Vec<u64> {
        DropReason::ALL.iter().map(|reason| self.counters.dropped(*reason)).collect()
    }

    /// One packet went in; what was counted must be that and what came out.
    fn check_sums(&self, before: Totals, outputs: &Outputs) -> Result<(), Violation> {
        let after = self.counters.totals();
        let sent = (outputs.packets.len() + outputs.datagrams.len()) as u64;
        let is_right = after.difference() == 0
            && after.received - before.received == 1
            && after.sent - before.sent == sent
            && after.dropped - before.dropped + sent == 1 + after.generated - before.generated;
        if is_right {
            return Ok(());
        }
        let drops = &outputs.drops;
        Err(Violation::new(
            Invariant::Sums,
            format!("one packet in, {sent} out, dropped {drops:?}, counted {after:?} after {before:?}"),
        ))
    }
}

/// How often a worker wakes up by itself.
pub const WAKE_EVERY: Duration = Duration::from_secs(1);
