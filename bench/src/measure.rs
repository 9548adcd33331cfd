//! What is measured: each [`Measure`] is one run of traffic from a client pod to a server, and gives figures.

mod catalogue;
pub mod connect;
pub mod cross_check;
pub mod loss_free;
pub mod raw;
pub mod rr;
pub mod tcp;
pub mod udp;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::cpu;
use crate::figures::{Figures, Span};

pub use catalogue::{FLOWS, Kind, LOSS_FREE, MEASURES, Measure, PACKET_SIZES, PEERS, all};

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
        Kind::CrossCheck(checked) => cross_check::measure(server, checked, span),
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
        let here = |measure: &Measure| !matches!(measure.kind, Kind::CrossCheck(_) | Kind::Raw(_));
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
