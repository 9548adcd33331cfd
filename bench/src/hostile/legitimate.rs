//! What honest pods do meanwhile: a paced flow through the VIP, connections that stay open, new connections, and
//! datagrams that are too long for one packet.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::figures::Span;
use crate::measure::tcp;
use crate::measure::udp::{self, Flood, Sender, connected, only_lost};
use crate::protocol::{ECHO, REQUEST_LEN, Wish};
use crate::stats::percentile;

/// The paced flow: small datagrams from as many ports as an underlay pool has.
const PACED: Flood = Flood { flows: 16, sizes: &[18], sender: Sender::Mmsg };
/// From one exchange, new connection or long datagram to the next.
const EXCHANGE_EVERY: Duration = Duration::from_millis(5);
const CONNECT_EVERY: Duration = Duration::from_millis(20);
const FRAGMENTED_EVERY: Duration = Duration::from_millis(10);
/// Twice what one packet of the overlay carries, and within what the server reads.
const FRAGMENTED_LEN: usize = 2000;
/// After this, what was asked is taken for lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// After the attack, a connection that answers within this is alive.
const LIFE_SIGN: Duration = Duration::from_secs(10);

/// Arguments of `legitimate`.
#[derive(Args, Debug)]
pub struct LegitimateArgs {
    /// Address and port of the service
    server: SocketAddr,
    /// Where to write what became of it, as JSON
    report: PathBuf,
    /// Datagrams per second of the paced flow
    #[arg(long, default_value_t = 20_000.0)]
    rate: f64,
    /// Connections that stay open
    #[arg(long, default_value_t = 200)]
    connections: usize,
    /// How long it is measured
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// How long it runs before
    #[arg(long, default_value_t = 500)]
    warm_up_ms: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    /// The share of the paced flow that arrived, in percent of what was to be sent.
    pub paced: f64,
    /// Thousands of its packets a second that arrived.
    pub kpps: f64,
    /// Connections that were open before.
    pub connections: usize,
    /// Those that were alive after.
    pub alive: usize,
    /// 99th percentile of an exchange on one of them, in milliseconds.
    pub exchange_p99_ms: f64,
    /// The share of new connections that were answered within a second, in percent.
    pub new: f64,
    /// The share of fragmented datagrams that were answered within a second, in percent.
    pub fragmented: f64,
}

/// Opens the connections, prints `ready`, does everything at once for the span, and writes the report.
///
/// # Errors
/// When the connections cannot be opened, or the server cannot be asked what arrived.
#[allow(clippy::cast_precision_loss)]
pub fn run(args: &LegitimateArgs) -> Result<()> {
    let span = Span {
        warm_up: Duration::from_millis(args.warm_up_ms),
        duration: Duration::from_millis(args.duration_ms),
    };
    let (server, rate) = (args.server, args.rate);
    let mut open: Vec<TcpStream> =
        (0..args.connections).map(|_| echoing(server, span)).collect::<Result<_>>()?;
    println!("ready");
    let connecting = thread::spawn(move || shares(CONNECT_EVERY, span, || Ok(is_served(server, span))));
    let fragmented = thread::spawn(move || {
        let socket = connected(server)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        shares(FRAGMENTED_EVERY, span, || is_answered(&socket))
    });
    let paced = thread::spawn(move || udp::watched(server, span, || PACED.send(server, span, Some(rate))));
    let nanos = exchange(&mut open, span)?;
    let joined = |_| anyhow!("a thread panicked");
    let arrived = paced.join().map_err(joined)??;
    let kept = Kept {
        paced: (arrived.kpps * 1e5 / rate).min(100.0),
        kpps: arrived.kpps,
        connections: open.len(),
        new: connecting.join().map_err(joined)??,
        fragmented: fragmented.join().map_err(joined)??,
        exchange_p99_ms: percentile(&nanos, 0.99).unwrap_or_default() as f64 / 1e6,
        alive: open.iter_mut().filter_map(|stream| is_alive(stream).ok()).count(),
    };
    std::fs::write(&args.report, serde_json::to_vec(&kept)?).context("the report")
}

fn echoing(server: SocketAddr, span: Span) -> Result<TcpStream> {
    let mut stream = tcp::open(server)?;
    stream.write_all(&Wish::Echo.head(span)?)?;
    is_alive(&mut stream)?;
    stream.set_read_timeout(Some(LIFE_SIGN))?;
    Ok(stream)
}

fn is_alive(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(&[ECHO; REQUEST_LEN])?;
    stream.read_exact(&mut [0; REQUEST_LEN]).context("the answer")
}

/// One exchange after the other, on each connection in its turn. Gives how long they took, sorted, in nanoseconds.
fn exchange(open: &mut [TcpStream], span: Span) -> Result<Vec<u64>> {
    let begun = Instant::now();
    let mut nanos = Vec::new();
    let count = open.len().max(1);
    for turn in 0.. {
        let asked = Instant::now();
        if asked.duration_since(begun) >= span.whole() {
            break;
        }
        let Some(stream) = open.get_mut(turn % count) else { break };
        // One that has died is told of at the end.
        if is_alive(stream).is_ok() && asked.duration_since(begun) >= span.warm_up {
            nanos.push(u64::try_from(asked.elapsed().as_nanos())?);
        }
        thread::sleep(EXCHANGE_EVERY.saturating_sub(asked.elapsed()));
    }
    nanos.sort_unstable();
    Ok(nanos)
}

/// Tries again and again; the share that went well, in percent.
#[allow(clippy::cast_precision_loss)]
fn shares(every: Duration, span: Span, mut attempt: impl FnMut() -> Result<bool>) -> Result<f64> {
    let begun = Instant::now();
    let (mut tried, mut well) = (0_u32, 0_u32);
    while begun.elapsed() < span.whole() {
        let (asked, counts) = (Instant::now(), begun.elapsed() >= span.warm_up);
        let went_well = attempt()?;
        if counts {
            (tried, well) = (tried + 1, well + u32::from(went_well));
        }
        thread::sleep(every.saturating_sub(asked.elapsed()));
    }
    Ok(f64::from(well) / f64::from(tried.max(1)) * 100.0)
}

fn is_served(server: SocketAddr, span: Span) -> bool {
    let ask = || -> Result<()> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&Wish::Connect.head(span)?)?;
        Ok(stream.read_exact(&mut [0])?)
    };
    ask().is_ok()
}

fn is_answered(socket: &std::net::UdpSocket) -> Result<bool> {
    let asked = socket.send(&[ECHO; FRAGMENTED_LEN]).and_then(|_| socket.recv(&mut [0; FRAGMENTED_LEN]));
    match asked {
        Ok(len) => Ok(len == FRAGMENTED_LEN),
        Err(error) if only_lost(error.kind()) => Ok(false),
        Err(error) => Err(error).context("a fragmented datagram"),
    }
}
