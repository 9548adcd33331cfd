//! From datagrams of a batch to messages: superpackets are cut, checksums finished, neighbours joined, and what the
//! kernel refuses is offered again in another way.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::errors::read_errors;
use super::outgoing::Outgoing;
use super::patience::{Patience, says_full};
use super::source_ports::SourcePorts;
use super::tunnel_gso::Lane;
use crate::device::segments::{ENCAPSULATION_LEN, Superpacket, complete_checksum, segment_count};
use crate::device::{SendReport, TooLong};
use crate::packet::{Checksum, Datagram, PacketBuf, PacketPool};

/// Most messages one sendmmsg takes.
const MESSAGES: usize = 64;

/// Most pieces of them: twenty superpackets of 64 KB.
const PIECES: usize = 2048;

/// Room for the headers of cut superpackets and for copies of short packets whose checksum is finished, in bytes.
const ARENA_LEN: usize = 256 << 10;

/// Up to this length a copy costs less than a second piece, in bytes.
const COPIED_LEN: usize = 512;

/// How often a datagram is offered again after errors about other datagrams. Another worker's peer may fail
/// between draining the errors and sending, so once is not enough.
const RETRIES: u32 = 3;

/// How long a peer toward which the kernel refuses joined datagrams gets single ones, until it is tried again.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// Most such peers remembered.
const REFUSED_PEERS: usize = 64;

/// Errors of one batch that are told.
const TOO_LONG_KEPT: usize = 16;

/// Datagrams on their way into one sendmmsg.
pub(super) struct Sender {
    outgoing: Outgoing,
    arena: Box<[u8]>,
    used: usize,
    /// Socket index and datagram index, sorted: the order within a source port is the batch's.
    order: Vec<(u16, u32)>,
    joins: bool,
    /// Where superpackets leave whole.
    lane: Option<Lane>,
    refused: Refused,
    /// Of the batch being sent.
    patience: Patience,
    too_long: Vec<TooLong>,
}

impl Sender {
    /// Joins datagrams by UDP_SEGMENT when `joins`, and sends superpackets through `lane` where that leads.
    pub(super) fn new(joins: bool, lane: Option<Lane>) -> Self {
        Self {
            outgoing: Outgoing::new(MESSAGES, PIECES),
            arena: vec![0; ARENA_LEN].into_boxed_slice(),
            used: 0,
            order: Vec::new(),
            joins,
            lane,
            refused: Refused::default(),
            patience: Patience::default(),
            too_long: Vec::with_capacity(TOO_LONG_KEPT),
        }
    }

    /// Sends a batch, in order per source port.
    pub(super) fn send_batch(
        &mut self,
        source_ports: &SourcePorts,
        pool: &PacketPool,
        datagrams: &[Datagram],
    ) -> SendReport {
        let mut report = SendReport::default();
        self.refused.forget_old();
        self.patience = Patience::default();
        self.sort(source_ports, datagrams);
        let mut at = 0;
        while let Some(&(port, _)) = self.order.get(at) {
            let socket = source_ports.socket(port);
            while let Some(&(_, index)) = self.order.get(at).filter(|next| next.0 == port) {
                let datagram = &datagrams[index as usize];
                if !self.send_whole(source_ports, port, pool, datagram, &mut report) {
                    self.queue(socket, pool, datagram, &mut report);
                }
                at += 1;
            }
            self.flush(socket, &mut report);
        }
        report
    }

    /// The next thing that sending has shown of a path's MTU.
    pub(super) fn next_too_long(&mut self) -> Option<TooLong> {
        self.too_long.pop()
    }

    /// Reads what errors a socket has kept. What they say of paths' MTUs beyond a few is told again by the next ones.
    fn read_errors(&mut self, socket: &Socket) {
        read_errors(socket, |too_long| {
            if self.too_long.len() < TOO_LONG_KEPT {
                self.too_long.push(too_long);
            }
        });
    }

    fn sort(&mut self, source_ports: &SourcePorts, datagrams: &[Datagram]) {
        self.order.clear();
        let numbered = datagrams.iter().zip(0..);
        self.order.extend(
            numbered.map(|(datagram, index)| (source_ports.index(datagram.source_port) as u16, index)),
        );
        self.order.sort_unstable();
    }

    /// Sends a superpacket through the lane, behind what is queued for its source port; `false` when it has to leave
    /// by its socket.
    fn send_whole(
        &mut self,
        source_ports: &SourcePorts,
        port: u16,
        pool: &PacketPool,
        datagram: &Datagram,
        report: &mut SendReport,
    ) -> bool {
        if datagram.packet.segment_len == 0 || !self.lane.as_mut().is_some_and(Lane::is_open) {
            return false;
        }
        self.flush(source_ports.socket(port), report);
        let payload = pool.bytes(&datagram.packet);
        let source_port = source_ports.port(port);
        let Some(segments) = self.lane.as_mut().and_then(|lane| lane.send(source_port, datagram, payload))
        else {
            return false;
        };
        report.sent += segments.count;
        report.sent_bytes += segments.len;
        true
    }

    /// Queues what a datagram leaves as, sending what was queued before when there is no more room.
    fn queue(&mut self, socket: &Socket, pool: &PacketPool, datagram: &Datagram, report: &mut SendReport) {
        let (bytes, packet) = (pool.bytes(&datagram.packet), &datagram.packet);
        let joins = self.joins && !self.refused.contains(&datagram.remote);
        let queued = match (packet.segment_len, packet.checksum) {
            (0, Checksum::Complete) => {
                self.make_room(socket, 1, 0, report);
                // SAFETY: the bytes lie in the pool, which `send_batch` borrows until the last flush.
                unsafe { self.outgoing.push(&[bytes], &datagram.remote, datagram.tos, joins) };
                Some(())
            }
            (0, _) if bytes.len() <= COPIED_LEN => self.queue_copy(socket, bytes, datagram, joins, report),
            (segment_len, _) => self.queue_segments(socket, bytes, segment_len, datagram, joins, report),
        };
        if queued.is_none() {
            report.refused += refused_count(bytes, packet);
        }
    }

    /// Queues a copy with a finished checksum. `None` when the checksum's place lies outside the packet.
    fn queue_copy(
        &mut self,
        socket: &Socket,
        bytes: &[u8],
        datagram: &Datagram,
        joins: bool,
        report: &mut SendReport,
    ) -> Option<()> {
        let Checksum::Partial { start, offset } = datagram.packet.checksum else { return None };
        self.make_room(socket, 1, bytes.len(), report);
        let end = self.used + bytes.len();
        let copy = self.arena.get_mut(self.used..end)?;
        copy.copy_from_slice(bytes);
        complete_checksum(copy.get_mut(ENCAPSULATION_LEN..)?, start, offset).then_some(())?;
        // SAFETY: the arena is not written below `used` until a flush has sent the messages.
        unsafe { self.outgoing.push(&[copy], &datagram.remote, datagram.tos, joins) };
        self.used = end;
        Some(())
    }

    /// Queues the headers of each segment, made in the arena, with its payload where it lies. `None` when it cannot
    /// be cut at all; a segment that cannot be written is counted by itself.
    fn queue_segments(
        &mut self,
        socket: &Socket,
        bytes: &[u8],
        segment_len: u16,
        datagram: &Datagram,
        joins: bool,
        report: &mut SendReport,
    ) -> Option<()> {
        let superpacket = Superpacket::parse(bytes, ENCAPSULATION_LEN, segment_len)?;
        let headers_len = superpacket.headers_len();
        for index in 0..superpacket.count() {
            self.make_room(socket, 2, headers_len, report);
            let end = self.used + headers_len;
            let headers = self.arena.get_mut(self.used..end)?;
            let Some(payload) = superpacket.write_headers(index, headers) else {
                report.refused += 1;
                continue;
            };
            // SAFETY: the payload lies in the pool, which `send_batch` borrows until the last flush, and the arena is
            // not written below `used` until a flush has sent the messages.
            unsafe { self.outgoing.push(&[headers, payload], &datagram.remote, datagram.tos, joins) };
            self.used = end;
        }
        Some(())
    }

    fn make_room(&mut self, socket: &Socket, pieces: usize, len: usize, report: &mut SendReport) {
        if !self.outgoing.has_room(pieces) || self.used + len > self.arena.len() {
            self.flush(socket, report);
        }
    }

    /// Sends everything queued. A message that finds no room waits for a while, one that fails is counted, and the rest
    /// go on (G10).
    fn flush(&mut self, socket: &Socket, report: &mut SendReport) {
        let (mut next, mut retries) = (0, 0);
        while next < self.outgoing.queued().len() {
            let error = match self.outgoing.send(socket, next) {
                Ok(sent) => {
                    for queued in &self.outgoing.queued()[next..next + sent] {
                        report.sent += queued.segments as u64;
                        report.sent_bytes += queued.len as u64;
                    }
                    (next, retries) = (next + sent, 0);
                    continue;
                }
                Err(error) => error.raw_os_error().unwrap_or_default(),
            };
            let queued = self.outgoing.queued()[next];
            match Failure::of(error, retries) {
                Failure::Interrupted => continue,
                Failure::Stale => {
                    retries += 1;
                    self.read_errors(socket);
                    continue;
                }
                Failure::QueueFull if self.patience.waited(socket, error) => continue,
                Failure::QueueFull => report.queue_full += queued.segments as u64,
                _ if queued.segments > 1 => {
                    if matches!(error, libc::EIO | libc::EINVAL) {
                        self.refused.insert(queued.remote);
                    }
                    self.send_singly(socket, next, report);
                }
                Failure::TooLong => report.too_long += 1,
                Failure::Refused => report.refused += 1,
            }
            (next, retries) = (next + 1, 0);
        }
        self.outgoing.clear();
        self.used = 0;
    }

    /// Sends the datagrams of a message that was refused one by one (G11).
    fn send_singly(&mut self, socket: &Socket, index: usize, report: &mut SendReport) {
        let (mut segment, mut retries) = (0, 0);
        while segment < self.outgoing.queued()[index].segments {
            let (pieces, len) = self.outgoing.datagram(index, segment);
            match self.outgoing.send_singly(socket, index, pieces) {
                Ok(()) => {
                    report.sent += 1;
                    report.sent_bytes += len as u64;
                }
                Err(error) => {
                    let error = error.raw_os_error().unwrap_or_default();
                    match Failure::of(error, retries) {
                        Failure::Interrupted => continue,
                        Failure::Stale => {
                            retries += 1;
                            self.read_errors(socket);
                            continue;
                        }
                        Failure::QueueFull if self.patience.waited(socket, error) => continue,
                        Failure::QueueFull => report.queue_full += 1,
                        Failure::TooLong => report.too_long += 1,
                        Failure::Refused => report.refused += 1,
                    }
                }
            }
            (segment, retries) = (segment + 1, 0);
        }
    }
}

/// What an error of a send means.
enum Failure {
    /// A signal came.
    Interrupted,
    /// It may be about an earlier datagram to another peer: drain, and offer this one again.
    Stale,
    /// No room now.
    QueueFull,
    /// Longer than the path allows.
    TooLong,
    /// Anything else.
    Refused,
}

impl Failure {
    fn of(error: i32, retries: u32) -> Self {
        match error {
            libc::EINTR => Self::Interrupted,
            full if says_full(full) => Self::QueueFull,
            libc::EMSGSIZE if retries > 0 => Self::TooLong,
            // No ICMP error is reported as either.
            libc::EIO | libc::EINVAL => Self::Refused,
            _ if retries < RETRIES => Self::Stale,
            _ => Self::Refused,
        }
    }
}

/// Peers toward which joined datagrams were refused, because the device on the way computes no checksums (EIO) or
/// the path is too narrow (EINVAL).
#[derive(Default)]
struct Refused {
    peers: Vec<(SocketAddr, Instant)>,
}

impl Refused {
    fn contains(&self, peer: &SocketAddr) -> bool {
        self.peers.iter().any(|(refused, _)| refused == peer)
    }

    fn insert(&mut self, peer: SocketAddr) {
        self.peers.retain(|(refused, _)| *refused != peer);
        if self.peers.len() == REFUSED_PEERS {
            self.peers.remove(0);
        }
        self.peers.push((peer, Instant::now()));
        tracing::debug!("UDP segmentation toward {peer} is refused: sending single datagrams");
    }

    fn forget_old(&mut self) {
        if !self.peers.is_empty() {
            self.peers.retain(|(_, since)| since.elapsed() < REFUSED_FOR);
        }
    }
}

fn refused_count(bytes: &[u8], packet: &PacketBuf) -> u64 {
    bytes.get(ENCAPSULATION_LEN..).map_or(1, |ip| segment_count(ip, packet))
}
