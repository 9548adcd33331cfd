//! What is measured: each [`Measure`] is one run of traffic from a client pod to a server, and gives figures.

pub mod connect;
pub mod rr;
pub mod tcp;
pub mod udp;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::Serialize;

use crate::cpu;

/// Which way a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The higher.
    Higher,
    /// The lower.
    Lower,
}

/// One number that a measure gives.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figure {
    /// Its name within the measure.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way it is better.
    pub better: Better,
    /// Whether the printed table shows it; the report shows all.
    pub headline: bool,
}

/// The traffic of a measure.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Bulk TCP over that many connections, from the client or, in reverse, from the server.
    Tcp {
        /// Number of connections.
        streams: usize,
        /// Whether the server sends.
        reverse: bool,
    },
    /// A flood of datagrams.
    Udp(udp::Flood),
    /// One request after the other.
    RoundTrip(rr::Transport),
    /// UDP requests at a fixed rate beside one bulk TCP stream.
    LoadedRoundTrip,
    /// Connections one after the other, by that many clients at once.
    Connect {
        /// Number of clients.
        clients: usize,
    },
}

/// One kind of traffic and the figures that it gives.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name on the command line and in the JSON.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// What it is, for the head of a column.
    pub short: &'static str,
    /// The traffic.
    pub kind: Kind,
    /// The numbers it gives.
    pub figures: &'static [Figure],
}

/// All measures, in the order in which a round takes them.
pub const MEASURES: [Measure; 11] = [
    Measure {
        key: "tcp-1",
        title: "TCP, 1 stream",
        short: "TCP 1",
        kind: Kind::Tcp { streams: 1, reverse: false },
        figures: BULK,
    },
    Measure {
        key: "tcp-4",
        title: "TCP, 4 streams",
        short: "TCP 4",
        kind: Kind::Tcp { streams: 4, reverse: false },
        figures: BULK,
    },
    Measure {
        key: "tcp-reverse",
        title: "TCP, 1 stream, reverse",
        short: "TCP reverse",
        kind: Kind::Tcp { streams: 1, reverse: true },
        figures: BULK,
    },
    Measure {
        key: "udp-small-1",
        title: "UDP 18 B, 1 flow, sendmmsg",
        short: "18 B, 1 flow",
        kind: Kind::Udp(udp::Flood { flows: 1, size: 18, sender: udp::Sender::Mmsg }),
        figures: PACKETS,
    },
    Measure {
        key: "udp-small-64",
        title: "UDP 18 B, 64 flows, sendmmsg",
        short: "18 B, 64 flows",
        kind: Kind::Udp(udp::Flood { flows: 64, size: 18, sender: udp::Sender::Mmsg }),
        figures: PACKETS,
    },
    Measure {
        key: "udp-small-gso",
        title: "UDP 18 B, 1 flow, UDP_SEGMENT",
        short: "18 B, UDP_SEGMENT",
        kind: Kind::Udp(udp::Flood { flows: 1, size: 18, sender: udp::Sender::Segment }),
        figures: PACKETS,
    },
    Measure {
        key: "udp-1400",
        title: "UDP 1,400 B, 1 flow, sendmmsg",
        short: "1,400 B",
        kind: Kind::Udp(udp::Flood { flows: 1, size: 1400, sender: udp::Sender::Mmsg }),
        figures: GOODPUT,
    },
    Measure {
        key: "tcp-rr",
        title: "TCP request-response",
        short: "TCP RR",
        kind: Kind::RoundTrip(rr::Transport::Tcp),
        figures: LATENCY,
    },
    Measure {
        key: "udp-rr",
        title: "UDP request-response",
        short: "UDP RR",
        kind: Kind::RoundTrip(rr::Transport::Udp),
        figures: LATENCY,
    },
    Measure {
        key: "udp-rr-loaded",
        title: "UDP 1,000 requests/s beside a TCP stream",
        short: "UDP RR loaded",
        kind: Kind::LoadedRoundTrip,
        figures: LATENCY,
    },
    Measure {
        key: "connect-16",
        title: "New TCP connections, 16 clients",
        short: "New TCP",
        kind: Kind::Connect { clients: 16 },
        figures: CONNECTIONS,
    },
];

const BUSY: Figure = higher("busy_cores", "busy cores", "cores").lower().hidden();
const BULK: &[Figure] = &[
    higher("gbit", "throughput", "Gbit/s"),
    higher("gbit_per_core", "per busy core", "Gbit/s/core").hidden(),
    BUSY,
];
const PACKETS: &[Figure] = &[
    higher("kpps", "received", "k packets/s"),
    higher("kpps_per_core", "per busy core", "k packets/s/core").hidden(),
    higher("loss", "loss", "%").lower().hidden(),
    BUSY,
];
const GOODPUT: &[Figure] = &[
    higher("gbit", "goodput", "Gbit/s"),
    higher("loss", "loss", "%").lower(),
    higher("gbit_per_core", "per busy core", "Gbit/s/core").hidden(),
    BUSY,
];
const LATENCY: &[Figure] = &[
    higher("p50_us", "p50", "us").lower(),
    higher("p99_us", "p99", "us").lower(),
    higher("p999_us", "p99.9", "us").lower().hidden(),
    higher("lost", "unanswered", "%").lower().hidden(),
    BUSY,
];
const CONNECTIONS: &[Figure] = &[
    higher("per_s", "connections", "1/s"),
    higher("per_s_per_core", "per busy core", "1/s/core").hidden(),
    BUSY,
];

const fn higher(key: &'static str, title: &'static str, unit: &'static str) -> Figure {
    Figure { key, title, unit, better: Better::Higher, headline: true }
}

impl Figure {
    const fn lower(mut self) -> Self {
        self.better = Better::Lower;
        self
    }

    const fn hidden(mut self) -> Self {
        self.headline = false;
        self
    }
}

/// A measure's figures by their keys.
pub type Figures = BTreeMap<String, f64>;

/// How long traffic runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What is not counted, at the beginning.
    pub warm_up: Duration,
    /// What is counted.
    pub duration: Duration,
}

impl Span {
    /// Everything, and a little more, so that the traffic outlasts the counting.
    #[must_use]
    pub fn whole(self) -> Duration {
        self.warm_up + self.duration + Duration::from_millis(20)
    }
}

/// Arguments of `measure`.
#[derive(Args, Debug)]
pub struct MeasureArgs {
    /// Name of the measure
    key: String,
    /// Address and port of the `serve`
    server: SocketAddr,
    /// How long it is measured
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// How long it runs before
    #[arg(long, default_value_t = 200)]
    warm_up_ms: u64,
}

/// Makes the traffic of one measure and prints its figures as a JSON object.
///
/// # Errors
/// When there is no such measure or the traffic fails.
pub fn run(args: &MeasureArgs) -> Result<()> {
    let measure = MEASURES.iter().find(|measure| measure.key == args.key);
    let measure = measure.with_context(|| format!("no measure {:?}", args.key))?;
    let span = Span {
        warm_up: Duration::from_millis(args.warm_up_ms),
        duration: Duration::from_millis(args.duration_ms),
    };
    println!("{}", serde_json::to_string(&take(measure.kind, args.server, span)?)?);
    Ok(())
}

fn take(kind: Kind, server: SocketAddr, span: Span) -> Result<Figures> {
    let watch = thread::spawn(move || cpu::busy_cores(span.warm_up, span.duration));
    let mut figures = match kind {
        Kind::Tcp { streams, reverse } => tcp::measure(server, streams, reverse, span),
        Kind::Udp(flood) => udp::measure(server, flood, span),
        Kind::RoundTrip(transport) => rr::measure(server, transport, span),
        Kind::LoadedRoundTrip => rr::measure_loaded(server, span),
        Kind::Connect { clients } => connect::measure(server, clients, span),
    }?;
    let busy = watch.join().map_err(|_| anyhow!("the thread that watches the cores panicked"))??;
    figures.insert("busy_cores".to_owned(), busy);
    for (total, per_core) in
        [("gbit", "gbit_per_core"), ("kpps", "kpps_per_core"), ("per_s", "per_s_per_core")]
    {
        if let Some(total) = figures.get(total) {
            figures.insert(per_core.to_owned(), total / busy.max(0.01));
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener};
    use std::time::Duration;

    use super::{MEASURES, Span, take};
    use crate::serve;

    #[test]
    fn keys_are_unique() {
        let keys: BTreeSet<&str> = MEASURES.iter().map(|measure| measure.key).collect();
        assert_eq!(keys.len(), MEASURES.len());
    }

    #[test]
    fn every_measure_gives_every_figure_it_promises() -> anyhow::Result<()> {
        // The port is free for both protocols with near certainty once TCP gave it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, free.port()));
        std::thread::spawn(move || serve::serve(server));
        std::thread::sleep(Duration::from_millis(100));
        let span = Span { warm_up: Duration::from_millis(20), duration: Duration::from_millis(100) };
        for measure in MEASURES {
            let figures = take(measure.kind, server, span)?;
            for figure in measure.figures {
                let value = figures.get(figure.key);
                assert!(value.is_some_and(|value| value.is_finite()), "{}: {figures:?}", measure.key);
            }
        }
        Ok(())
    }
}
