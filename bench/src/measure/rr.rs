//! Request and response: how long an answer takes, alone, and beside bulk traffic.

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{tcp, udp};
use crate::figures::{Figures, Span};
use crate::protocol::{ECHO, REQUEST_LEN, Wish};
use crate::stats::percentile;

/// Beside load, requests are meant to be sent this far apart, whatever became of the ones before.
const INTERVAL: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_millis(200);
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// What carries requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// One connection.
    Tcp,
    /// One flow; a request without an answer after 200 ms is lost.
    Udp,
}

/// Latencies, in nanoseconds, and how many requests had no answer.
#[derive(Debug, Default)]
struct Latencies {
    nanos: Vec<u64>,
    lost: usize,
}

/// One request after the other.
///
/// # Errors
/// When the server is not reached, or no request was answered.
pub fn measure(server: SocketAddr, transport: Transport, span: Span) -> Result<Figures> {
    let mut latencies = Latencies::default();
    let mut exchange: Box<dyn FnMut() -> Result<bool>> = match transport {
        Transport::Tcp => {
            let mut stream = tcp::open(server)?;
            stream.write_all(&Wish::Echo.head(span)?)?;
            Box::new(move || {
                stream.write_all(&[ECHO; REQUEST_LEN])?;
                stream.read_exact(&mut [0; REQUEST_LEN]).context("the answer")?;
                Ok(true)
            })
        }
        Transport::Udp => {
            let socket = udp::connected(server)?;
            socket.set_read_timeout(Some(PATIENCE))?;
            let mut number = 0;
            Box::new(move || {
                number += 1;
                ask(&socket, number)
            })
        }
    };
    let begun = Instant::now();
    let end = span.warm_up + span.duration;
    // On a crowded machine one answer may take the whole span: the first is waited for.
    while begun.elapsed() < end || (latencies.nanos.is_empty() && begun.elapsed() < end + FIRST_ANSWER) {
        let asked = Instant::now();
        let answered = exchange()?;
        let took = asked.elapsed();
        if asked.duration_since(begun) >= span.warm_up {
            latencies.add(answered.then_some(took));
        }
    }
    latencies.figures()
}

fn ask(socket: &UdpSocket, number: u64) -> Result<bool> {
    if !sent(socket, number)? {
        return Ok(false);
    }
    loop {
        match answer(socket)? {
            Some(got) if got == number => return Ok(true),
            // The answer to a request given up meanwhile.
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

/// UDP requests in an open loop beside one bulk TCP stream: latency counts from when each was meant to be sent.
///
/// # Errors
/// As [`measure`].
pub fn measure_loaded(server: SocketAddr, span: Span) -> Result<Figures> {
    let load = thread::spawn(move || tcp::measure(server, 1, false, span));
    let socket = udp::connected(server)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let requests = u64::try_from((span.warm_up + span.duration).as_nanos() / INTERVAL.as_nanos())?;
    let asking = socket.try_clone()?;
    let begun = Instant::now();
    let meant = move |number: u64| begun + INTERVAL * u32::try_from(number).unwrap_or(u32::MAX);
    let asker = thread::spawn(move || {
        for number in 0..requests {
            thread::sleep(meant(number).saturating_duration_since(Instant::now()));
            sent(&asking, number)?;
        }
        Ok::<(), anyhow::Error>(())
    });
    let mut latencies = Latencies::default();
    let first_counted = u64::try_from(span.warm_up.as_nanos() / INTERVAL.as_nanos())?;
    let mut counted = 0;
    while let Some(number) = next_answer(&socket, meant(requests))? {
        if number >= first_counted {
            counted += 1;
            latencies.add(Some(Instant::now().saturating_duration_since(meant(number))));
        }
        if number + 1 == requests {
            break;
        }
    }
    latencies.lost = usize::try_from(requests - first_counted)?.saturating_sub(counted);
    asker.join().map_err(|_| anyhow!("the asking thread panicked"))??;
    load.join().map_err(|_| anyhow!("the loading thread panicked"))??;
    latencies.figures()
}

/// Waits for an answer, and beyond `end` only as long as the socket's patience.
fn next_answer(socket: &UdpSocket, end: Instant) -> Result<Option<u64>> {
    loop {
        let answer = answer(socket)?;
        if answer.is_some() || Instant::now() > end {
            return Ok(answer);
        }
    }
}

fn sent(socket: &UdpSocket, number: u64) -> Result<bool> {
    let mut request = [ECHO; REQUEST_LEN];
    request[1..9].copy_from_slice(&number.to_be_bytes());
    match socket.send(&request) {
        Ok(_) => Ok(true),
        Err(error) if udp::only_lost(error.kind()) => Ok(false),
        Err(error) => Err(error).context("sending a request"),
    }
}

fn answer(socket: &UdpSocket) -> Result<Option<u64>> {
    let mut answer = [0; REQUEST_LEN];
    match socket.recv(&mut answer) {
        Ok(_) => {
            let [_, a, b, c, d, e, f, g, h, ..] = answer;
            Ok(Some(u64::from_be_bytes([a, b, c, d, e, f, g, h])))
        }
        Err(error) if udp::only_lost(error.kind()) => Ok(None),
        Err(error) => Err(error).context("receiving an answer"),
    }
}

impl Latencies {
    fn add(&mut self, took: Option<Duration>) {
        match took {
            Some(took) => self.nanos.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
            None => self.lost += 1,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn figures(mut self) -> Result<Figures> {
        self.nanos.sort_unstable();
        let mut figures = Figures::new();
        for (key, share) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
            let nanos = percentile(&self.nanos, share).context("no request was answered")?;
            figures.insert(key.to_owned(), nanos as f64 / 1e3);
        }
        let all = self.nanos.len() + self.lost;
        figures.insert("lost".to_owned(), self.lost as f64 / all as f64 * 100.0);
        Ok(figures)
    }
}
