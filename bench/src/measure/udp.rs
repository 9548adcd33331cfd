//! A flood of datagrams, as fast as one thread can send them: what arrives, and what is lost.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, sendmmsg, setsockopt, sockopt};

use super::{Figures, Span, tcp};
use crate::serve::{COUNTED, Wish};

/// Datagrams that one call of `sendmmsg` sends on one flow before the next flow's turn, by number of flows.
const BATCH_OF_ONE_FLOW: usize = 64;
const BATCH_OF_MANY_FLOWS: usize = 16;
/// Segments of one message: UDP_MAX_SEGMENTS of kernels before 6.9.
const SEGMENTS: usize = 64;
/// Messages of one call when each has segments.
const SEGMENTED_BATCH: usize = 4;
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
    /// Payload bytes of a datagram.
    pub size: usize,
    /// How they are sent.
    pub sender: Sender,
}

/// Packets and Gbit per second that arrived in the span, and the share of all that was lost.
///
/// # Errors
/// When the server is not reached or sending fails for good.
#[allow(clippy::cast_precision_loss)]
pub fn measure(server: SocketAddr, flood: Flood, span: Span) -> Result<Figures> {
    let mut watch = tcp::open(server)?;
    watch.write_all(&Wish::Watch.head(span)?)?;
    watch.read_exact(&mut [0])?;
    let sent = flood.send(server, span)?;
    let [received, nanos, all] = read_numbers(&mut watch)?;
    let kpps = received as f64 * 1e6 / nanos.max(1) as f64;
    let loss = sent.saturating_sub(all) as f64 / sent.max(1) as f64 * 100.0;
    let gbit = kpps * flood.size as f64 * 8.0 / 1e6;
    Ok([("kpps", kpps), ("gbit", gbit), ("loss", loss)].map(|(key, value)| (key.to_owned(), value)).into())
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
    /// Sends until the span is over, and gives how many datagrams the kernel took.
    fn send(self, server: SocketAddr, span: Span) -> Result<u64> {
        let flows: Vec<UdpSocket> = (0..self.flows).map(|_| self.flow(server)).collect::<Result<_>>()?;
        let (per_message, messages) = match self.sender {
            Sender::Mmsg if self.flows == 1 => (1, BATCH_OF_ONE_FLOW),
            Sender::Mmsg => (1, BATCH_OF_MANY_FLOWS),
            Sender::Segment => (SEGMENTS, SEGMENTED_BATCH),
        };
        let payload = vec![COUNTED; self.size * per_message];
        let slices = vec![[IoSlice::new(&payload)]; messages];
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(messages, None);
        let nowhere = vec![None; messages];
        let end = Instant::now() + span.whole();
        let (mut sent, mut refused) = (0, 0);
        for flow in flows.iter().cycle() {
            if Instant::now() >= end {
                break;
            }
            match sendmmsg(flow.as_raw_fd(), &mut headers, &slices, &nowhere, [], MsgFlags::empty()) {
                Ok(taken) => {
                    sent += taken.count();
                    refused = 0;
                }
                Err(Errno::ENOBUFS | Errno::EAGAIN | Errno::ECONNREFUSED) if refused < REFUSALS_BORNE => {
                    refused += 1;
                }
                Err(error) => bail!("sendmmsg: {error}"),
            }
        }
        Ok(u64::try_from(sent * per_message)?)
    }

    fn flow(self, server: SocketAddr) -> Result<UdpSocket> {
        let socket = connected(server)?;
        if self.sender == Sender::Segment {
            setsockopt(&socket, sockopt::UdpGsoSegment, &i32::try_from(self.size)?).context("UDP_SEGMENT")?;
        }
        Ok(socket)
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
