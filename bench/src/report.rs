//! What a comparison found: [`Report`], and its three forms.

pub mod goals;
pub mod html;
pub mod json;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::contestants::Contestant;
use crate::figures::{Figure, Figures};
use crate::machine::Machine;
use crate::measure::Measure;
use crate::programming::Programming;
use crate::report::goals::Goal;
use crate::stats::Summary;
use crate::sweep::Sweep;

/// How it was measured, for whoever doubts the figures.
pub const METHOD: [&str; 17] = [
    "Two nodes in network namespaces of one machine, joined by veths and a bridge; underlay MTU 1500, pods 1450. A veth \
     carries superpackets whole, which flatters everyone who makes them; --no-tunnel-gso takes that from tunnels.",
    "All contestants stand at the same time in namespaces of their own. Within a round every measure goes through all \
     contestants before the next measure begins; each round begins with another contestant. Only ratios within one \
     run count: absolute values drift with what else the machine does.",
    "A figure is the median over the rounds with [smallest-largest]. A ratio is the median of the rounds' ratios to \
     the kernel's vxlan in the same round.",
    "The warm-up is not counted. Throughput and packets are counted where they are received.",
    "Busy cores are of the whole machine (/proc/stat, idle and iowait left out), generator and server included, and \
     whatever else runs on it.",
    "No pinning, neither of the traffic nor of interrupts, and of a contestant only where its name or how it is set up \
     says so.",
    "TCP: one thread a connection, 128 KB writes, the system's buffers and congestion control, which is named above.",
    "UDP floods: one thread, sendmmsg of 64 datagrams (1 flow) or 16 of each flow in turn (64 flows), or of 4 \
     UDP_SEGMENT messages of 64 segments; received by one thread with recvmmsg into an 8 MB buffer. They are not \
     paced, so loss is that of an overload.",
    "Request-response: 64 bytes there and back, one outstanding. Beside load: an open loop of 1,000 UDP requests a \
     second, latency counted from when each was meant to be sent.",
    "Connections: connect, 9 bytes, 1 byte back, closed by the server; 16 clients, each one after the other.",
    "Sizes of UDP packets are of the payload: 18 bytes make a frame of 64. IMIX is 7 x 18, 4 x 548 and 1 x 1,400 bytes.",
    "The sweeps over flows and VTEPs send whole IPv4 packets through one raw socket, 64 a sendmmsg, UDP checksum 0: \
     another generator than that of the floods. Simulated VTEPs are all the second node's, which runs the kernel's \
     vxlan; the first node knows 1,000, and sends to so many of them in turn.",
    "Loss-free rate (RFC 2544 section 26.1): binary search in 7 trials, each of the whole span, below what an unpaced \
     flood brings through; the goal is a loss of 0.1 % at most. Bursts of 16 packets, paced by sleeping.",
    "iperf3 counts whole seconds, one at least, what is received, and our own tool the span, right after it and with the \
     same traffic. iperf3 sends and receives each datagram with a call of its own.",
    "Open vSwitch: routing by OpenFlow between the pod's port and a VXLAN port; no connection tracking. Its pods have TX \
     checksum and segmentation off, since its userspace datapath takes neither with tunnels. What never rests (afxdp \
     ports, poll busy) is stopped while others are measured.",
    "Hostile scrapers (40 silent connections; random bytes; 200 requests a connection, unread) are started with each \
     measure of their contestant, on the client's node, at idle priority (SCHED_IDLE): they belong on other machines. A \
     stalled log reader: the pipe is full before each measure, the log is at its most verbose, and a malformed object \
     gives cause for a line. A stalled capture: of everything, begun and then stopped (SIGSTOP) before each measure.",
    "nftables rules are laid out as kube-proxy's nftables mode does, on the client's node; fillers have one VIP, one TCP \
     port and one endpoint each, the same for Windlass.",
];

/// Everything that a comparison found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Name and version of this form.
    pub schema: &'static str,
    /// The machine.
    pub machine: Machine,
    /// How the comparison was set.
    pub settings: Settings,
    /// How it was measured.
    pub method: [&'static str; METHOD.len()],
    /// Key of the contestant that ratios refer to.
    pub base: &'static str,
    /// What was measured.
    #[serde(serialize_with = "json::measures")]
    pub measures: Vec<Measure>,
    /// The contestants.
    pub rows: Vec<Row>,
    /// How long services took until they were in force, once per run.
    pub programming: Vec<Programming>,
    /// Goals between contestants.
    pub goals: Vec<Goal>,
    /// Measures that were SKIPPED, and why.
    pub left_out: Vec<String>,
}

/// How a comparison was set.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// The command that made it.
    pub command: String,
    /// Number of rounds.
    pub rounds: usize,
    /// How long a measure counted.
    pub duration_ms: u128,
    /// How long it ran before.
    pub warm_up_ms: u128,
    /// Whether the underlay devices segmented tunnelled superpackets.
    pub tunnel_segmentation: bool,
    /// What varied, if this was a sweep.
    pub sweep: Option<Sweep>,
}

impl Settings {
    /// Rounds and times in a line.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { rounds, duration_ms, warm_up_ms, .. } = self;
        let segmentation = if self.tunnel_segmentation { "on" } else { "off" };
        format!(
            "{rounds} rounds; each measure counts {duration_ms} ms after {warm_up_ms} ms; the underlay's tunnel \
             segmentation is {segmentation}"
        )
    }
}

/// What was found of one contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The contestant.
    pub contestant: Contestant,
    /// Why it was not measured, if it was not.
    pub skipped: Option<String>,
    /// MTU and offloads of every device of its nodes, pods and wire.
    pub devices: Vec<String>,
    /// The congestion control of its pods' TCP.
    pub congestion_control: String,
    /// What went wrong, round by round.
    pub failures: Vec<String>,
    /// The values of each round by `<measure>/<figure>`.
    pub values: BTreeMap<String, Vec<Option<f64>>>,
    /// Their medians and ranges.
    pub summaries: BTreeMap<String, Summary>,
    /// The ratios to the base in the same rounds.
    pub ratios: BTreeMap<String, Summary>,
    #[serde(skip)]
    rounds: usize,
}

impl Report {
    /// Reckons medians and ratios.
    #[must_use]
    pub fn new(
        machine: Machine,
        settings: Settings,
        base: &'static str,
        measures: Vec<Measure>,
        mut rows: Vec<Row>,
    ) -> Self {
        let of_base = rows.iter().find(|row| row.contestant.key == base).map(|row| row.values.clone());
        let of_base = of_base.unwrap_or_default();
        for row in &mut rows {
            for (key, values) in &row.values {
                let present: Vec<f64> = values.iter().flatten().copied().collect();
                row.summaries.extend(Summary::of(&present).map(|summary| (key.clone(), summary)));
                let ratio = of_base.get(key).and_then(|base| Summary::of_ratios(values, base));
                row.ratios.extend(ratio.map(|ratio| (key.clone(), ratio)));
            }
        }
        let goals = goals::reckon(&measures, &rows);
        Self {
            schema: json::SCHEMA,
            machine,
            settings,
            method: METHOD,
            base,
            measures,
            rows,
            programming: Vec::new(),
            goals,
            left_out: Vec::new(),
        }
    }

    /// The congestion controls that the pods of those measured had.
    #[must_use]
    pub fn congestion_control(&self) -> String {
        let of_pods: BTreeSet<&str> = self.rows.iter().map(|row| row.congestion_control.as_str()).collect();
        of_pods.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(", ")
    }

    /// Every figure with its measure, in the order of the measures.
    pub fn figures(&self) -> impl Iterator<Item = (&Measure, &'static Figure)> {
        self.measures.iter().flat_map(|measure| measure.figures.iter().map(move |figure| (measure, figure)))
    }
}

impl Row {
    /// Nothing found as yet.
    #[must_use]
    pub fn new(contestant: Contestant, rounds: usize) -> Self {
        Self {
            contestant,
            skipped: None,
            devices: Vec::new(),
            congestion_control: String::new(),
            failures: Vec::new(),
            values: BTreeMap::new(),
            summaries: BTreeMap::new(),
            ratios: BTreeMap::new(),
            rounds,
        }
    }

    /// Notes what a measure gave in a round.
    pub fn record(&mut self, measure: &Measure, round: usize, figures: &Figures) {
        for figure in measure.figures {
            let values = self.values.entry(key(measure, figure)).or_insert_with(|| vec![None; self.rounds]);
            if let Some(slot) = values.get_mut(round) {
                *slot = figures.get(figure.key).copied();
            }
        }
    }
}

/// The key of a figure among a row's values.
#[must_use]
pub fn key(measure: &Measure, figure: &Figure) -> String {
    format!("{}/{}", measure.key, figure.key)
}

/// A number in as many digits as tell something.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// What stands in a row's place for a figure that it lacks.
#[must_use]
pub fn absent(row: &Row) -> String {
    if row.failures.is_empty() { "-" } else { "FAILED" }.to_owned()
}

/// A median with its range.
#[must_use]
pub fn range(summary: &Summary) -> String {
    format!("{} [{}-{}]", number(summary.median), number(summary.min), number(summary.max))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Report, Row, Settings};
    use crate::contestants::{BASE, CONTESTANTS};
    use crate::machine::Machine;
    use crate::measure::MEASURES;

    /// Three contestants, two rounds of one measure; the last one is skipped.
    pub(crate) fn sample() -> Report {
        let machine = Machine {
            processor: "a <fast> processor".to_owned(),
            cores: 2,
            allowed_cores: "0-1".to_owned(),
            kernel: "6.18".to_owned(),
            network_cards: vec!["eth0 (virtio_net)".to_owned()],
            version: "0.1.0",
            commit: "0123456789ab".to_owned(),
            began: "2026-01-01T00:00:00Z".to_owned(),
            load_before: "0.10".to_owned(),
        };
        let settings = Settings {
            command: "compare --quick".to_owned(),
            rounds: 2,
            duration_ms: 300,
            warm_up_ms: 60,
            tunnel_segmentation: true,
            sweep: None,
        };
        let mut rows: Vec<Row> =
            [0, 6, 4].map(|index: usize| Row::new(CONTESTANTS[index], 2)).into_iter().collect();
        for (row, gbit) in rows.iter_mut().zip([10.0, 8.0]) {
            for round in 0..2_u8 {
                let drift = 1.0 + f64::from(round);
                row.record(&MEASURES[0], round.into(), &[("gbit".to_owned(), gbit * drift)].into());
            }
        }
        rows[2].skipped = Some("openvswitch-switch is not installed".to_owned());
        Report::new(machine, settings, BASE, vec![MEASURES[0]], rows)
    }

    #[test]
    fn ratios_do_not_see_what_drifts_from_round_to_round() {
        let report = sample();
        let ratio = report.rows[1].ratios["tcp-1/gbit"];
        assert!((ratio.min - 0.8).abs() < 1e-9 && (ratio.max - 0.8).abs() < 1e-9);
        assert!((report.rows[1].summaries["tcp-1/gbit"].median - 12.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_have_the_digits_that_tell_something() {
        assert_eq!([1234.5, 12.34, 0.123].map(super::number), ["1234", "12.3", "0.12"]);
    }
}
