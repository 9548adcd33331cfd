//! How the demo ends: one report, as tables or as JSON.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use windlass_dataplane::counters::{Counters, SideCounters, Totals};
use windlass_dataplane::drop_reason::DropReason;

use super::scene::{Scene, SceneNode, Service};
use super::tally::{Served, Tally};

/// Everything the demo found out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether everything arrived and every packet is accounted for.
    pub passed: bool,
    /// What did not go as it should.
    pub failures: Vec<String>,
    /// How long there was load, in seconds.
    pub seconds: f64,
    tcp: Tcp,
    udp: Udp,
    /// Round trip of a ping to a VIP, in microseconds.
    ping_us: Option<u64>,
    /// How soon a connection to a service without endpoints was refused, in microseconds.
    refused_us: Option<u64>,
    services: Vec<ServiceReport>,
    nodes: Vec<NodeReport>,
    /// Datagrams that one node sent and the other did not receive.
    lost_on_underlay: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Tcp {
    connections: u64,
    /// Bytes that went to a backend and came back the same.
    bytes: u64,
    /// Of those bytes, each way.
    mbit_per_s: f64,
}

#[derive(Clone, Debug, Serialize)]
struct Udp {
    questions: u64,
    answers: u64,
    retried: u64,
    /// Questions and answers.
    packets_per_s: f64,
}

#[derive(Clone, Debug, Serialize)]
struct ServiceReport {
    name: String,
    vip: String,
    protocol: &'static str,
    backends: Vec<BackendReport>,
}

#[derive(Clone, Debug, Serialize)]
struct BackendReport {
    address: String,
    node: String,
    /// TCP connections or UDP questions.
    requests: u64,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
struct NodeReport {
    name: String,
    received: u64,
    generated: u64,
    sent: u64,
    dropped: u64,
    sums_agree: bool,
    overlay: Side,
    underlay: Side,
    flow_cache_hits: u64,
    flow_cache_misses: u64,
    flow_cache_hit_rate: f64,
    drops: Vec<Drops>,
}

#[derive(Clone, Debug, Serialize)]
struct Side {
    received: u64,
    sent: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Drops {
    reason: &'static str,
    segments: u64,
    meaning: &'static str,
}

impl Report {
    /// Judges what the pods and the counters of each node say after `load` of load.
    pub(super) fn new(
        scene: &Scene,
        tally: &Tally,
        served: &[Arc<Served>],
        counters: &[Vec<Arc<Counters>>],
        load: Duration,
    ) -> Self {
        let seconds = load.as_secs_f64();
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let micros = |time: Option<&Duration>| time.map(|time| time.as_micros() as u64);
        let (bytes, answers) = (get(&tally.tcp_bytes), get(&tally.answers));
        let mut report = Self {
            passed: false,
            failures: tally.failures(),
            seconds,
            tcp: Tcp {
                connections: get(&tally.connections),
                bytes,
                mbit_per_s: bytes as f64 * 8.0 / 1e6 / seconds,
            },
            udp: Udp {
                questions: get(&tally.questions),
                answers,
                retried: get(&tally.retried),
                packets_per_s: answers as f64 * 2.0 / seconds,
            },
            ping_us: micros(tally.ping.get()),
            refused_us: micros(tally.refused.get()),
            services: [&scene.web, &scene.dns, &scene.empty]
                .map(|service| ServiceReport::new(scene, service, served))
                .to_vec(),
            nodes: scene.nodes.iter().zip(counters).map(|(node, of)| NodeReport::new(node, of)).collect(),
            lost_on_underlay: lost_on_underlay(counters),
        };
        report.judge();
        report
    }

    fn judge(&mut self) {
        let mut fail = |failed: bool, text: String| {
            if failed {
                self.failures.push(text);
            }
        };
        fail(self.tcp.connections == 0, "no TCP connection carried everything".to_owned());
        fail(self.udp.answers == 0, "no UDP question was answered".to_owned());
        fail(
            self.udp.questions != self.udp.answers,
            format!("{} UDP questions, {} right answers", self.udp.questions, self.udp.answers),
        );
        for node in &self.nodes {
            fail(!node.sums_agree, format!("{}: received + generated is not sent + dropped", node.name));
        }
        self.passed = self.failures.is_empty();
    }
}

/// Datagrams between the nodes that are neither received nor waiting to be.
pub(super) fn lost_on_underlay(counters: &[Vec<Arc<Counters>>]) -> u64 {
    let sum = |side: fn(&SideCounters) -> u64| -> u64 {
        counters.iter().flatten().map(|counters| side(&counters.underlay)).sum()
    };
    sum(|side| side.sent.get()).saturating_sub(sum(|side| side.received.get()))
}

impl ServiceReport {
    fn new(scene: &Scene, service: &Service, served: &[Arc<Served>]) -> Self {
        let here = service.backends.iter().filter_map(|addr| {
            served.iter().find(|served| served.addr == *addr && served.protocol == service.protocol)
        });
        let backends = here.map(|served| BackendReport {
            address: served.addr.to_string(),
            node: scene
                .nodes
                .iter()
                .find(|node| node.has_pod(*served.addr.ip()))
                .map(|node| node.settings.node.clone())
                .unwrap_or_default(),
            requests: served.requests.load(Relaxed),
            bytes: served.bytes.load(Relaxed),
        });
        Self {
            name: service.name.clone(),
            vip: service.vip.to_string(),
            protocol: super::protocol_name(service.protocol),
            backends: backends.collect(),
        }
    }
}

impl NodeReport {
    fn new(node: &SceneNode, counters: &[Arc<Counters>]) -> Self {
        let totals: Totals = counters.iter().map(|counters| counters.totals()).sum();
        let sum =
            |value: &dyn Fn(&Counters) -> u64| counters.iter().map(|counters| value(counters)).sum::<u64>();
        let (hits, misses) = (sum(&|of| of.cache_hits.get()), sum(&|of| of.cache_misses.get()));
        let drops = DropReason::ALL.iter().map(|reason| Drops {
            reason: reason.name(),
            segments: sum(&|of| of.dropped(*reason)),
            meaning: reason.meaning(),
        });
        Self {
            name: node.settings.node.clone(),
            received: totals.received,
            generated: totals.generated,
            sent: totals.sent,
            dropped: totals.dropped,
            sums_agree: totals.difference() == 0,
            overlay: Side {
                received: sum(&|of| of.overlay.received.get()),
                sent: sum(&|of| of.overlay.sent.get()),
            },
            underlay: Side {
                received: sum(&|of| of.underlay.received.get()),
                sent: sum(&|of| of.underlay.sent.get()),
            },
            flow_cache_hits: hits,
            flow_cache_misses: misses,
            flow_cache_hit_rate: hits as f64 / (hits + misses).max(1) as f64,
            drops: drops.filter(|drops| drops.segments > 0).collect(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n{}\n{}", self.load_table(), self.spread_table(), self.node_table())?;
        writeln!(f, "{}", self.drop_table())?;
        for failure in &self.failures {
            writeln!(f, "FAILED: {failure}")?;
        }
        if self.passed {
            write!(f, "Everything arrived: every byte was compared, and every packet is accounted for.")?;
        }
        Ok(())
    }
}

impl Report {
    fn load_table(&self) -> Table {
        let Self { tcp, udp, .. } = self;
        let mut table = table(&[&format!("{:.1} s of load", self.seconds), "result"]);
        let mbytes = tcp.bytes as f64 / 1e6;
        let tcp_text = format!("{} connections, {mbytes:.1} MB there and back", tcp.connections);
        let udp_text =
            format!("{} questions, {} answers, {} asked again", udp.questions, udp.answers, udp.retried);
        let micros = |time: Option<u64>| time.map_or("never".to_owned(), |time| format!("after {time} us"));
        table.add_row(["TCP through a VIP", &tcp_text]);
        table.add_row(["TCP throughput", &format!("{:.1} Mbit/s each way", tcp.mbit_per_s)]);
        table.add_row(["UDP through a VIP", &udp_text]);
        table.add_row(["UDP throughput", &format!("{:.0} packets/s", udp.packets_per_s)]);
        table.add_row(["ping to a VIP answered", &micros(self.ping_us)]);
        table.add_row(["connection without endpoint refused", &micros(self.refused_us)]);
        table.add_row(["datagrams lost between the nodes", &self.lost_on_underlay.to_string()]);
        table
    }

    fn spread_table(&self) -> Table {
        let mut table = table(&["service", "VIP", "backend", "on", "requests", "KB"]);
        for service in &self.services {
            let vip = format!("{} {}", service.vip, service.protocol);
            for backend in &service.backends {
                let (requests, kbytes) = (backend.requests.to_string(), (backend.bytes / 1000).to_string());
                table.add_row([&service.name, &vip, &backend.address, &backend.node, &requests, &kbytes]);
            }
            if service.backends.is_empty() {
                table.add_row([&service.name, &vip, "none", "", "", ""]);
            }
        }
        align_right(&mut table, 4);
        table
    }

    fn node_table(&self) -> Table {
        let mut table =
            table(&["node", "received", "+ generated", "= sent", "+ dropped", "sums", "flow cache hits"]);
        for node in &self.nodes {
            table.add_row([
                node.name.clone(),
                node.received.to_string(),
                node.generated.to_string(),
                node.sent.to_string(),
                node.dropped.to_string(),
                if node.sums_agree { "agree" } else { "DIFFER" }.to_owned(),
                format!("{:.2} %", node.flow_cache_hit_rate * 100.0),
            ]);
        }
        align_right(&mut table, 1);
        table
    }

    fn drop_table(&self) -> Table {
        let mut table = table(&["dropped on", "packets", "reason", "meaning"]);
        for node in &self.nodes {
            for drops in &node.drops {
                let segments = drops.segments.to_string();
                table.add_row([&node.name, segments.as_str(), drops.reason, drops.meaning.trim()]);
            }
        }
        if self.nodes.iter().all(|node| node.drops.is_empty()) {
            table.add_row(["no node", "0", "", ""]);
        }
        table
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header.iter().copied());
    table
}

fn align_right(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}
