//! A flood of datagrams, as fast as one thread can send them: what arrives, and what is lost.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, setsockopt, sockopt};

use super::tcp;
use crate::figures::{Figures, Span};
use crate::protocol::{COUNTED, Wish};

/// Datagrams that one call of `sendmmsg` sends on one flow before the next flow's turn, by number of flows.
const BATCH_OF_ONE_FLOW: usize = 64;
const BATCH_OF_MANY_FLOWS: usize = 16;
/// Segments of one message: UDP_MAX_SEGMENTS of kernels before 6.9.
const SEGMENTS: usize = 64;
/// Messages of one call when each has segments.
const SEGMENTED_BATCH: usize = 4;
/// Times that one call goes through all sizes, where there are several.
const MIXES_OF_ONE_CALL: usize = 5;
/// Messages of one call when they are paced.
const PACED_BATCH: usize = 16;
const REFUSALS_BORNE: usize = 1000;

/// How datagrams are handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// One message a datagram, many messages a call.
    Mmsg,
    /// 64 datagrams a message by UDP_SEGMENT, several messages a call.
    Segment,
}

/// The flood's form.
#[derive(Clone, Copy, Debug)]
pub struct Flood {
    /// Number of source ports.
    pub flows: usize,
    /// Payload bytes of the datagrams, in turn.
    pub sizes: &'static [usize],
    /// How they are sent.
    pub sender: Sender,
}

/// What arrived of a flood within the span, and what of all of it.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Thousands of packets per second within the span.
    pub kpps: f64,
    /// Gbit of payload per second within the span.
    pub gbit: f64,
    /// The share of all packets that was lost, in percent.
    pub loss: f64,
}

impl Arrived {
    /// As a measure's figures.
    #[must_use]
    pub fn figures(self) -> Figures {
        let figures = [("kpps", self.kpps), ("gbit", self.gbit), ("loss", self.loss)];
        figures.map(|(key, value)| (key.to_owned(), value)).into()
    }
}

/// Sends as fast as it goes.
///
/// # Errors
/// As [`watched`].
pub fn measure(server: SocketAddr, flood: Flood, span: Span) -> Result<Figures> {
    Ok(watched(server, span, || flood.send(server, span, None))?.figures())
}

/// Has the server count what arrives while `send` sends; `send` gives how many packets the kernel took.
///
/// # Errors
/// When the server is not reached or sending fails for good.
#[allow(clippy::cast_precision_loss)]
pub fn watched(server: SocketAddr, span: Span, send: impl FnOnce() -> Result<u64>) -> Result<Arrived> {
    let mut watch = tcp::open(server)?;
    watch.write_all(&Wish::Watch.head(span)?)?;
    watch.read_exact(&mut [0])?;
    let sent = send()?;
    let [packets, bytes, nanos, all] = read_numbers(&mut watch)?;
    let nanos = nanos.max(1) as f64;
    Ok(Arrived {
        kpps: packets as f64 * 1e6 / nanos,
        gbit: bytes as f64 * 8.0 / nanos,
        loss: sent.saturating_sub(all) as f64 / sent.max(1) as f64 * 100.0,
    })
}

fn read_numbers<const COUNT: usize>(stream: &mut impl Read) -> Result<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).context("the server's count")?;
        *number = u64::from_be_bytes(bytes);
    }
    Ok(numbers)
}

impl Flood {
    /// Sends until the span is over, at most `rate` datagrams a second, and gives how many the kernel took.
    ///
    /// # Errors
    /// When there is no socket, or the kernel refuses for good.
    pub fn send(self, server: SocketAddr, span: Span, rate: Option<f64>) -> Result<u64> {
        let flows: Vec<UdpSocket> = (0..self.flows).map(|_| self.flow(server)).collect::<Result<_>>()?;
        let per_message = if self.sender == Sender::Segment { SEGMENTS } else { 1 };
        let longest = self.sizes.iter().max().copied().unwrap_or_default();
        let payload = vec![COUNTED; longest * per_message];
        let sizes = self.sizes.iter().map(|size| size * per_message).cycle();
        let slices: Vec<_> =
            sizes.take(self.batch(rate)).map(|len| [IoSlice::new(&payload[..len])]).collect();
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(slices.len(), None);
        let nowhere = vec![None; slices.len()];
        let begun = Instant::now();
        let mut sent = Sent::default();
        for flow in flows.iter().cycle() {
            if begun.elapsed() >= span.whole() {
                break;
            }
            sent.wait_for_turn(begun, rate);
            let taken = sendmmsg(flow.as_raw_fd(), &mut headers, &slices, &nowhere, [], MsgFlags::empty());
            sent.note(taken.map(Iterator::count))?;
        }
        Ok(u64::try_from(sent.packets * per_message)?)
    }

    /// Messages of one call.
    fn batch(self, rate: Option<f64>) -> usize {
        match self.sender {
            _ if rate.is_some() => PACED_BATCH,
            Sender::Mmsg if self.sizes.len() > 1 => self.sizes.len() * MIXES_OF_ONE_CALL,
            Sender::Mmsg if self.flows == 1 => BATCH_OF_ONE_FLOW,
            Sender::Mmsg => BATCH_OF_MANY_FLOWS,
            Sender::Segment => SEGMENTED_BATCH,
        }
    }

    fn flow(self, server: SocketAddr) -> Result<UdpSocket> {
        let socket = connected(server)?;
        if let (Sender::Segment, [size]) = (self.sender, self.sizes) {
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(*size)?).context("UDP_SEGMENT")?;
        }
        Ok(socket)
    }
}

/// What a sender has sent so far.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Messages that the kernel took.
    pub(crate) packets: usize,
    refused: usize,
}

impl Sent {
    /// Sleeps until as many packets as were sent were due at that rate.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn wait_for_turn(&self, begun: Instant, rate: Option<f64>) {
        if let Some(rate) = rate {
            let due = Duration::from_secs_f64(self.packets as f64 / rate.max(1.0));
            thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }

    /// Counts what one call sent; a full queue is borne for a while.
    pub(crate) fn note(&mut self, taken: nix::Result<usize>) -> Result<()> {
        match taken {
            Ok(taken) => (self.packets, self.refused) = (self.packets + taken, 0),
            Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::ECONNREFUSED) if self.refused < REFUSALS_BORNE => {
                self.refused += 1;
            }
            Err(error) => bail!("sendmmsg: {error}"),
        }
        Ok(())
    }
}

/// A socket with a port of its own, that sends to the server.
///
/// # Errors
/// When there is no port or route.
pub fn connected(server: SocketAddr) -> Result<UdpSocket> {
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server).with_context(|| format!("UDP to {server}"))?;
    Ok(socket)
}

/// Whether an error of a datagram means only that this one was lost.
#[must_use]
pub fn only_lost(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused)
}
