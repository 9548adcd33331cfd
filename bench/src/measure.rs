//! What is measured: each [`Measure`] is one run of traffic from a client pod to a server, and gives figures.

mod catalogue;
pub mod connect;
pub mod cross_check;
pub mod loss_free;
pub mod raw;
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

pub use catalogue::{FLOWS, LOSS_FREE, MEASURES, Measure, PACKET_SIZES, PEERS, all};

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
    /// A flood over so many flows that each has no socket of its own.
    Raw(raw::Spread),
    /// The highest rate of datagrams with so many payload bytes at which no more are lost than the goal allows.
    LossFree(&'static [usize]),
    /// Bulk TCP by iperf3 and then by our own tool.
    CrossCheck,
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
    let measure = all().find(|measure| measure.key == args.key);
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
        Kind::Raw(spread) => raw::measure(server, spread, span),
        Kind::LossFree(sizes) => loss_free::measure(server, sizes, span),
        Kind::CrossCheck => cross_check::measure(server, span),
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

    use super::{Kind, Measure, Span, all, take};
    use crate::serve;

    #[test]
    fn keys_are_unique() {
        let keys: BTreeSet<&str> = all().map(|measure| measure.key).collect();
        assert_eq!(keys.len(), all().count());
    }

    #[test]
    fn every_measure_gives_every_figure_it_promises() -> anyhow::Result<()> {
        // The port is free for both protocols with near certainty once TCP gave it.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, free.port()));
        std::thread::spawn(move || serve::serve(server));
        std::thread::sleep(Duration::from_millis(100));
        let span = Span { warm_up: Duration::from_millis(20), duration: Duration::from_millis(100) };
        // iperf3 and raw sockets want a namespace of their own.
        let here = |measure: &Measure| !matches!(measure.kind, Kind::CrossCheck | Kind::Raw(_));
        for measure in all().filter(here) {
            let figures = take(measure.kind, server, span)?;
            for figure in measure.figures {
                let value = figures.get(figure.key);
                assert!(value.is_some_and(|value| value.is_finite()), "{}: {figures:?}", measure.key);
            }
        }
        Ok(())
    }
}
