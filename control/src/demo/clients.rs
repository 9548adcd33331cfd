//! The clients' application: TCP streams and UDP questions, all to service VIPs, every byte compared.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::{tcp, udp};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::IpEndpoint;

use super::pattern;
use super::pod::{App, Stack};
use super::servers::{LONGEST_ANSWER, QUESTION_LEN, answer_len, number, tcp_socket, udp_socket};
use super::tally::Tally;

/// TCP connections that a client has open at a time.
const STREAMS: usize = 2;

/// What one connection sends, and gets back.
const TRANSFER_LEN: u64 = 128 * 1024;

/// Longer than smoltcp delays an acknowledgement: the backend waits for the one of its FIN.
const LINGER: Duration = Duration::from_millis(15);

/// UDP sockets of a client, each a flow of its own.
const ASKERS: usize = 4;

/// Questions that a socket has open at a time.
const QUESTIONS_IN_FLIGHT: usize = 8;

/// Questions after which a socket takes another port, which is another flow and perhaps another backend.
const QUESTIONS_PER_PORT: usize = 256;

/// Far more than a loopback takes: a question without an answer by then is lost.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// Times a question is asked before its client gives up.
const TRIES: u32 = 5;

/// A client of both services.
pub(super) struct Client {
    tally: Arc<Tally>,
    streams: Vec<Stream>,
    askers: Vec<Asker>,
    is_done: bool,
}

impl Client {
    /// A client at `addr` that sends to the TCP service `web` and asks the UDP service `dns`.
    pub(super) fn new(addr: Ipv4Addr, web: SocketAddrV4, dns: SocketAddrV4, tally: &Arc<Tally>) -> Self {
        tally.begin();
        let streams = (0..STREAMS).map(|index| Stream::new(addr, web, index as u16));
        let askers = (0..ASKERS).map(|index| Asker::new(addr, dns, index as u16));
        Self {
            streams: streams.collect(),
            askers: askers.collect(),
            tally: Arc::clone(tally),
            is_done: false,
        }
    }
}

impl App for Client {
    fn step(&mut self, stack: &mut Stack, now: Instant) -> Option<Instant> {
        if self.is_done {
            return None;
        }
        for stream in &mut self.streams {
            stream.step(stack, &self.tally, now);
        }
        let mut due = None;
        for asker in &mut self.askers {
            due = due.into_iter().chain(asker.step(stack, &self.tally, now)).min();
        }
        let is_idle = self.streams.iter().all(|stream| stream.open.is_none())
            && self.askers.iter().all(|asker| asker.in_flight.is_empty());
        if is_idle {
            self.is_done = true;
            self.tally.end();
        }
        due
    }
}

fn endpoint(addr: SocketAddrV4) -> IpEndpoint {
    IpEndpoint::new((*addr.ip()).into(), addr.port())
}

/// One TCP connection after the other.
struct Stream {
    client: SocketAddrV4,
    vip: SocketAddrV4,
    open: Option<Transfer>,
    /// Closed connections whose last acknowledgement is yet to be sent, and until when.
    lingering: VecDeque<(SocketHandle, Instant)>,
    has_failed: bool,
}

struct Transfer {
    handle: SocketHandle,
    seed: u64,
    sent: u64,
    received: u64,
}

impl Stream {
    /// Each stream walks through ports of its own.
    const FIRST_PORT: u16 = 20_000;

    fn new(addr: Ipv4Addr, vip: SocketAddrV4, index: u16) -> Self {
        let client = SocketAddrV4::new(addr, Self::FIRST_PORT + index);
        Self { client, vip, open: None, lingering: VecDeque::new(), has_failed: false }
    }

    fn step(&mut self, stack: &mut Stack, tally: &Tally, now: Instant) {
        while let Some((handle, until)) = self.lingering.front().copied()
            && until <= now
        {
            stack.sockets.remove(handle);
            self.lingering.pop_front();
        }
        if self.open.is_none() && !self.has_failed && !tally.is_over() {
            self.open(stack, tally);
        }
        let Some(transfer) = &mut self.open else { return };
        let outcome = transfer.step(stack.sockets.get_mut(transfer.handle), tally);
        let Some(outcome) = outcome else { return };
        let handle = transfer.handle;
        self.open = None;
        match outcome {
            Ok(()) => {
                Tally::add(&tally.connections, 1);
                self.lingering.push_back((handle, now + LINGER));
            }
            Err(text) => {
                stack.sockets.remove(handle);
                self.has_failed = true;
                tally.fail(format!("TCP {} to {}: {text}", self.client, self.vip));
            }
        }
    }

    fn open(&mut self, stack: &mut Stack, tally: &Tally) {
        let next = self.client.port().checked_add(STREAMS as u16).unwrap_or(Self::FIRST_PORT);
        self.client.set_port(next);
        let mut socket = tcp_socket();
        if let Err(error) = socket.connect(stack.iface.context(), endpoint(self.vip), next) {
            self.has_failed = true;
            return tally.fail(format!("TCP {} to {}: {error}", self.client, self.vip));
        }
        let seed = u64::from(u32::from(*self.client.ip())) << 16 | u64::from(next);
        let handle = stack.sockets.add(socket);
        self.open = Some(Transfer { handle, seed, sent: 0, received: 0 });
    }
}

impl Transfer {
    /// `Some` when the connection is over: well if all came back and both sides closed.
    fn step(&mut self, socket: &mut tcp::Socket<'_>, tally: &Tally) -> Option<Result<(), String>> {
        while self.sent < TRANSFER_LEN && socket.can_send() {
            let (seed, sent) = (self.seed, self.sent);
            let filled = socket.send(|room| {
                let len = room.len().min((TRANSFER_LEN - sent) as usize);
                pattern::fill(seed, sent, &mut room[..len]);
                (len, len)
            });
            self.sent += filled.unwrap_or(0) as u64;
            if self.sent == TRANSFER_LEN {
                socket.close();
            }
        }
        while socket.can_recv() {
            let (seed, received) = (self.seed, self.received);
            let compared =
                socket.recv(|bytes| (bytes.len(), (bytes.len(), pattern::matches(seed, received, bytes))));
            match compared {
                Ok((len, true)) => {
                    self.received += len as u64;
                    Tally::add(&tally.tcp_bytes, len);
                }
                _ => return Some(Err(format!("what came back differs after {received} bytes"))),
            }
        }
        match socket.state() {
            tcp::State::TimeWait | tcp::State::Closed if self.received == TRANSFER_LEN => Some(Ok(())),
            tcp::State::TimeWait | tcp::State::Closed => {
                Some(Err(format!("ended after {} of {TRANSFER_LEN} bytes came back", self.received)))
            }
            _ => None,
        }
    }
}

/// One UDP socket that asks questions.
struct Asker {
    client: SocketAddrV4,
    vip: SocketAddrV4,
    socket: Option<SocketHandle>,
    in_flight: Vec<Question>,
    asked_from_port: usize,
    next_number: u64,
    has_failed: bool,
}

struct Question {
    number: u64,
    asked_at: Instant,
    tries: u32,
}

impl Asker {
    /// Each asker walks through ports of its own.
    const FIRST_PORT: u16 = 20_000;

    fn new(addr: Ipv4Addr, vip: SocketAddrV4, index: u16) -> Self {
        let client = SocketAddrV4::new(addr, Self::FIRST_PORT + index);
        let next_number = (u64::from(u32::from(addr)) << 8 | u64::from(index)) << 32;
        Self {
            client,
            vip,
            socket: None,
            in_flight: Vec::with_capacity(QUESTIONS_IN_FLIGHT),
            asked_from_port: 0,
            next_number,
            has_failed: false,
        }
    }

    fn step(&mut self, stack: &mut Stack, tally: &Tally, now: Instant) -> Option<Instant> {
        let handle = *self
            .socket
            .get_or_insert_with(|| stack.sockets.add(udp_socket(QUESTIONS_IN_FLIGHT * 2, LONGEST_ANSWER)));
        let socket = stack.sockets.get_mut::<udp::Socket<'_>>(handle);
        self.collect(socket, tally);
        self.ask_again(socket, tally, now);
        if self.in_flight.is_empty() && !tally.is_over() && !self.has_failed {
            self.rebind(socket);
        }
        while self.in_flight.len() < QUESTIONS_IN_FLIGHT
            && self.asked_from_port < QUESTIONS_PER_PORT
            && !tally.is_over()
            && !self.has_failed
        {
            let question = Question { number: self.next_number, asked_at: now, tries: 1 };
            self.next_number += 1;
            self.asked_from_port += 1;
            Tally::add(&tally.questions, 1);
            self.ask(socket, tally, &question);
            self.in_flight.push(question);
        }
        self.in_flight.iter().map(|question| question.asked_at + ANSWER_TIMEOUT).min()
    }

    fn rebind(&mut self, socket: &mut udp::Socket<'_>) {
        if socket.is_open() && self.asked_from_port < QUESTIONS_PER_PORT {
            return;
        }
        socket.close();
        let next = self.client.port().checked_add(ASKERS as u16).unwrap_or(Self::FIRST_PORT);
        self.client.set_port(next);
        self.asked_from_port = 0;
        // A closed socket and a port that is not zero: binding refuses nothing else.
        let _ = socket.bind(next);
    }

    /// Takes answers; one to a question that is no longer open is the second to a question asked twice.
    fn collect(&mut self, socket: &mut udp::Socket<'_>, tally: &Tally) {
        while let Ok((answer, _)) = socket.recv() {
            let open = |number| self.in_flight.iter().position(|question| question.number == number);
            let Some((number, index)) = number(answer).and_then(|number| Some((number, open(number)?)))
            else {
                continue;
            };
            if answer.len() != answer_len(number) || !pattern::matches(!number, 8, &answer[8..]) {
                tally.fail(format!("UDP {} from {}: answer {number} is damaged", self.client, self.vip));
            } else {
                Tally::add(&tally.answers, 1);
            }
            self.in_flight.swap_remove(index);
        }
    }

    fn ask_again(&mut self, socket: &mut udp::Socket<'_>, tally: &Tally, now: Instant) {
        let mut in_flight = std::mem::take(&mut self.in_flight);
        for question in in_flight.iter_mut().filter(|question| question.asked_at + ANSWER_TIMEOUT <= now) {
            if question.tries == TRIES {
                self.has_failed = true;
                let number = question.number;
                tally.fail(format!("UDP {} to {}: no answer to {number}", self.client, self.vip));
            } else {
                Tally::add(&tally.retried, 1);
                self.ask(socket, tally, question);
            }
            question.asked_at = now;
            question.tries += 1;
        }
        in_flight.retain(|question| question.tries <= TRIES);
        self.in_flight = in_flight;
    }

    fn ask(&self, socket: &mut udp::Socket<'_>, tally: &Tally, question: &Question) {
        let mut datagram = [0; QUESTION_LEN];
        datagram[..8].copy_from_slice(&question.number.to_be_bytes());
        pattern::fill(question.number, 8, &mut datagram[8..]);
        if let Err(error) = socket.send_slice(&datagram, endpoint(self.vip)) {
            tally.fail(format!("UDP {} to {}: {error}", self.client, self.vip));
        }
    }
}
