//! The backends' applications: a TCP echo, and a UDP server that answers numbered questions.

use std::sync::Arc;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::{tcp, udp};
use smoltcp::time::Instant;

use super::pattern;
use super::pod::{App, Stack};
use super::tally::{Served, Tally};

/// Bytes that a TCP endpoint keeps per direction, and so its window. All windows together fit the default
/// receive buffer of a Linux UDP socket: nothing needs to be lost on the cable.
pub(super) const WINDOW: usize = 32 * 1024;

/// Sockets that listen at a time: more than all clients of both nodes open together.
const LISTENERS: usize = 24;

/// A question: its number, then bytes that follow from it.
pub(super) const QUESTION_LEN: usize = 40;

/// Longest answer: about what a DNS answer takes over UDP.
pub(super) const LONGEST_ANSWER: usize = 512;

/// The answer to question `number` begins with the number and is as long as this says.
pub(super) fn answer_len(number: u64) -> usize {
    64 + (number % (LONGEST_ANSWER as u64 - 64)) as usize
}

/// A new TCP socket.
pub(super) fn tcp_socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    // Else the last piece of each burst waits for a delayed acknowledgement.
    socket.set_nagle_enabled(false);
    socket
}

/// A new UDP socket for this many datagrams of `len` bytes each way.
pub(super) fn udp_socket(datagrams: usize, len: usize) -> udp::Socket<'static> {
    let buffer = || {
        let metadata = vec![udp::PacketMetadata::EMPTY; datagrams];
        udp::PacketBuffer::new(metadata, vec![0; datagrams * len])
    };
    udp::Socket::new(buffer(), buffer())
}

/// Sends back what it receives, and closes when the client does.
pub(super) struct Echo {
    served: Arc<Served>,
    listeners: Vec<Listener>,
    scratch: Vec<u8>,
}

struct Listener {
    handle: SocketHandle,
    accepted: bool,
}

impl Echo {
    /// An echo that counts into `served`.
    pub(super) fn new(served: Arc<Served>) -> Self {
        Self { served, listeners: Vec::new(), scratch: vec![0; WINDOW] }
    }
}

impl App for Echo {
    fn start(&mut self, stack: &mut Stack) {
        for _ in 0..LISTENERS {
            let mut socket = tcp_socket();
            listen(&mut socket, &self.served);
            let handle = stack.sockets.add(socket);
            self.listeners.push(Listener { handle, accepted: false });
        }
    }

    fn step(&mut self, stack: &mut Stack, _now: Instant) -> Option<Instant> {
        for listener in &mut self.listeners {
            let socket = stack.sockets.get_mut::<tcp::Socket<'_>>(listener.handle);
            if !socket.is_open() {
                listener.accepted = false;
                listen(socket, &self.served);
            }
            if !listener.accepted && matches!(socket.state(), tcp::State::Established | tcp::State::CloseWait)
            {
                listener.accepted = true;
                Tally::add(&self.served.requests, 1);
            }
            let echoed = echo(socket, &mut self.scratch);
            Tally::add(&self.served.bytes, echoed);
            if socket.state() == tcp::State::CloseWait && socket.recv_queue() == 0 {
                socket.close();
            }
        }
        None
    }
}

fn listen(socket: &mut tcp::Socket<'_>, served: &Served) {
    // The socket is closed, and the port is the service's and never zero: listening refuses nothing else.
    let _ = socket.listen(served.addr.port());
}

/// Moves what was received to what is to be sent, as far as there is room. Returns how many bytes.
fn echo(socket: &mut tcp::Socket<'_>, scratch: &mut [u8]) -> usize {
    let mut echoed = 0;
    while socket.can_recv() && socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(scratch.len());
        let Ok(len) = socket.recv_slice(&mut scratch[..room]) else { break };
        let Ok(sent) = socket.send_slice(&scratch[..len]) else { break };
        echoed += sent;
    }
    echoed
}

/// Answers numbered questions.
pub(super) struct Answerer {
    served: Arc<Served>,
    tally: Arc<Tally>,
    socket: Option<SocketHandle>,
}

impl Answerer {
    /// Datagrams that wait: more than all clients of both nodes ask at a time.
    const BACKLOG: usize = 512;

    /// A server that counts into `served`.
    pub(super) fn new(served: Arc<Served>, tally: Arc<Tally>) -> Self {
        Self { served, tally, socket: None }
    }
}

impl App for Answerer {
    fn start(&mut self, stack: &mut Stack) {
        let mut socket = udp_socket(Self::BACKLOG, LONGEST_ANSWER);
        // The port is the service's and never zero, which is all that binding refuses.
        let _ = socket.bind(self.served.addr.port());
        self.socket = Some(stack.sockets.add(socket));
    }

    fn step(&mut self, stack: &mut Stack, _now: Instant) -> Option<Instant> {
        let handle = self.socket?;
        let socket = stack.sockets.get_mut::<udp::Socket<'_>>(handle);
        let mut answer = [0; LONGEST_ANSWER];
        while let Ok((question, asker)) = socket.recv() {
            let Some(number) = number(question) else { continue };
            if question.len() != QUESTION_LEN || !pattern::matches(number, 8, &question[8..]) {
                self.tally.fail(format!("question {number} reached {} damaged", self.served.addr));
                continue;
            }
            Tally::add(&self.served.requests, 1);
            Tally::add(&self.served.bytes, question.len());
            let answer = &mut answer[..answer_len(number)];
            answer[..8].copy_from_slice(&number.to_be_bytes());
            pattern::fill(!number, 8, &mut answer[8..]);
            if socket.send_slice(answer, asker).is_err() {
                self.tally.fail(format!("{} has no room for answer {number}", self.served.addr));
            }
        }
        None
    }
}

/// The number a question or an answer begins with.
pub(super) fn number(datagram: &[u8]) -> Option<u64> {
    datagram.first_chunk().map(|number| u64::from_be_bytes(*number))
}
