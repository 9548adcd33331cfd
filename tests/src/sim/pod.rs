//! Pods: smoltcp's TCP, and UDP by hand.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as StackInstant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpEndpoint};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::FlowKey;
use windlass_dataplane::wire::tcp::{ACK, SYN};

use super::cluster::{OVERLAY_MTU, TCP_PORT};
use super::rng::mixed;

/// Bytes that a TCP endpoint keeps per direction.
const WINDOW: usize = 4_096;

/// How a TCP client goes about it.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The flow's number: the stream begins with it, and follows from it.
    pub flow: u64,
    /// Bytes sent at a time, and to be echoed before the next.
    pub chunk_len: usize,
    /// How many times.
    pub chunks: usize,
    /// From one to the next.
    pub pause: Duration,
}

/// What an application in a pod has noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A server was sent the stream of this flow.
    Served(u64),
    /// A client got everything back and closed.
    Done(u64),
    /// A client's connection ended early, when this many bytes had come back.
    Ended(u64, usize),
    /// Bytes came back that were not sent.
    Damaged(u64),
}

struct Client {
    handle: SocketHandle,
    transfer: Transfer,
    sent: usize,
    received: usize,
    next_chunk_at: Instant,
}

struct Served {
    handle: SocketHandle,
    /// The flow's number, as far as it has come.
    begun: Vec<u8>,
}

/// One pod, or a host's own address.
pub struct Pod {
    /// Its addresses, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
    /// The node it runs on.
    pub node: usize,
    /// Whether it still runs.
    pub is_alive: bool,
    /// Whether it is a node's own address and so serves nobody.
    pub is_host: bool,
    /// When it wants to be polled; kept by whoever drives it.
    pub timer_at: Option<Instant>,
    iface: Interface,
    sockets: SocketSet<'static>,
    port: Port,
    listener: SocketHandle,
    served: Vec<Served>,
    clients: Vec<Client>,
}

impl Pod {
    /// A pod that listens.
    pub fn new(addresses: [IpAddr; 2], node: usize, is_host: bool, seed: u64) -> Self {
        let mut port = Port::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut iface = Interface::new(config, &mut port, StackInstant::ZERO);
        // Both lists have room for two: they are new.
        iface.update_ip_addrs(|known| {
            for addr in addresses {
                let _ = known.push(IpCidr::new(addr.into(), if addr.is_ipv4() { 32 } else { 128 }));
            }
        });
        for addr in addresses {
            let _ = match addr {
                IpAddr::V4(addr) => iface.routes_mut().add_default_ipv4_route(addr),
                IpAddr::V6(addr) => iface.routes_mut().add_default_ipv6_route(addr),
            };
        }
        let mut sockets = SocketSet::new(Vec::new());
        let listener = sockets.add(listening());
        Self {
            addresses,
            node,
            is_alive: true,
            is_host,
            timer_at: None,
            iface,
            sockets,
            port,
            listener,
            served: Vec::new(),
            clients: Vec::new(),
        }
    }

    /// Its address of the family of `other`.
    pub fn address_like(&self, other: IpAddr) -> IpAddr {
        self.addresses[usize::from(other.is_ipv6())]
    }

    /// Opens a connection from `local_port` to `target`.
    pub fn connect(&mut self, local_port: u16, target: SocketAddr, transfer: Transfer, now: Instant) {
        let mut socket = tcp_socket();
        let local = SocketAddr::new(self.address_like(target.ip()), local_port);
        let remote = IpEndpoint::new(target.ip().into(), target.port());
        // Neither port is zero and the socket is new: connecting refuses nothing else.
        let _ =
            socket.connect(self.iface.context(), remote, IpEndpoint::new(local.ip().into(), local.port()));
        let handle = self.sockets.add(socket);
        self.clients.push(Client { handle, transfer, sent: 0, received: 0, next_chunk_at: now });
    }

    /// Takes in a TCP packet of `flow`. A SYN that comes again is the connection's that it opened, and not, as smoltcp
    /// would have it, the listener's.
    pub fn receive(&mut self, packet: Vec<u8>, flow: &FlowKey, flags: u8) {
        let client = IpEndpoint::new(flow.src.into(), flow.src_port);
        let is_known = |served: &Served| {
            let socket = self.sockets.get::<tcp::Socket<'_>>(served.handle);
            socket.remote_endpoint() == Some(client)
                && socket.local_endpoint().is_some_and(|at| at.addr == flow.dst.into())
        };
        if flags & (SYN | ACK) != SYN || !self.served.iter().any(is_known) {
            self.port.received.push_back(packet);
        }
    }

    /// Lets stack and applications act. Returns the packets they send and what they noticed.
    pub fn poll(&mut self, now: Instant) -> (Vec<Vec<u8>>, Vec<Notice>) {
        let stack_now = StackInstant::from_micros((now.as_nanos() / 1_000) as i64);
        let mut notices = Vec::new();
        self.iface.poll(stack_now, &mut self.port, &mut self.sockets);
        self.serve(&mut notices);
        self.act(now, &mut notices);
        self.iface.poll(stack_now, &mut self.port, &mut self.sockets);
        (self.port.sent.drain(..).collect(), notices)
    }

    /// When it wants to be polled again if nothing arrives.
    pub fn wants_poll_at(&mut self, now: Instant) -> Option<Instant> {
        let stack_now = StackInstant::from_micros((now.as_nanos() / 1_000) as i64);
        let stack = self.iface.poll_at(stack_now, &self.sockets);
        let stack = stack.map(|at| Instant::from_nanos(at.total_micros().max(0) as u64 * 1_000));
        let unfinished = |client: &&Client| client.sent < client.transfer.chunk_len * client.transfer.chunks;
        let chunks = self.clients.iter().filter(unfinished).map(|client| client.next_chunk_at);
        let soonest = now + Duration::from_micros(100);
        stack.into_iter().chain(chunks.filter(|at| *at > now)).min().map(|at| at.max(soonest))
    }

    fn serve(&mut self, notices: &mut Vec<Notice>) {
        if self.sockets.get::<tcp::Socket<'_>>(self.listener).state() != tcp::State::Listen {
            self.served.push(Served { handle: self.listener, begun: Vec::new() });
            self.listener = self.sockets.add(listening());
        }
        let sockets = &mut self.sockets;
        self.served.retain_mut(|served| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(served.handle);
            echo(socket, &mut served.begun, notices);
            let is_over = matches!(socket.state(), tcp::State::Closed | tcp::State::TimeWait);
            if is_over {
                sockets.remove(served.handle);
            }
            !is_over
        });
    }

    fn act(&mut self, now: Instant, notices: &mut Vec<Notice>) {
        let sockets = &mut self.sockets;
        self.clients.retain_mut(|client| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(client.handle);
            let notice = client.act(socket, now);
            let is_closed = socket.state() == tcp::State::Closed;
            if is_closed {
                sockets.remove(client.handle);
            }
            notices.extend(notice);
            !is_closed
        });
    }
}

impl Client {
    fn act(&mut self, socket: &mut tcp::Socket<'_>, now: Instant) -> Option<Notice> {
        let Transfer { flow, chunk_len, chunks, pause } = self.transfer;
        let total = chunk_len * chunks;
        let mut notice = None;
        while socket.can_recv() {
            let from = self.received;
            let is_right = |(at, byte): (usize, &u8)| *byte == stream_byte(flow, from + at);
            let right =
                socket.recv(|bytes| (bytes.len(), (bytes.len(), bytes.iter().enumerate().all(is_right))));
            let Ok((len, true)) = right else { return Some(Notice::Damaged(flow)) };
            self.received += len;
            if self.received == total && from < total {
                socket.close();
                notice = Some(Notice::Done(flow));
            }
        }
        if self.sent < total && self.sent == self.received && now >= self.next_chunk_at && socket.can_send() {
            let chunk: Vec<u8> = (self.sent..self.sent + chunk_len).map(|at| stream_byte(flow, at)).collect();
            self.sent += socket.send_slice(&chunk).unwrap_or_default();
            self.next_chunk_at = now + pause;
        }
        if socket.state() == tcp::State::Closed && self.received < total {
            notice = Some(Notice::Ended(flow, self.received));
        }
        notice
    }
}

/// Sends back what came, and tells when it is known whose stream it is.
fn echo(socket: &mut tcp::Socket<'_>, begun: &mut Vec<u8>, notices: &mut Vec<Notice>) {
    while socket.can_recv() && socket.can_send() {
        let room = socket.send_capacity() - socket.send_queue();
        let received = socket.recv(|bytes| {
            let len = bytes.len().min(room);
            (len, bytes[..len].to_vec())
        });
        let Ok(bytes) = received else { break };
        if begun.len() < 8 {
            begun.extend(&bytes[..bytes.len().min(8 - begun.len())]);
            if let Some(number) = begun.first_chunk() {
                notices.push(Notice::Served(u64::from_be_bytes(*number)));
            }
        }
        // There was room for all of it.
        let _ = socket.send_slice(&bytes);
    }
    if socket.state() == tcp::State::CloseWait && socket.recv_queue() == 0 {
        socket.close();
    }
}

/// The byte at `at` of a flow's stream.
fn stream_byte(flow: u64, at: usize) -> u8 {
    match flow.to_be_bytes().get(at) {
        Some(byte) => *byte,
        None => mixed(flow ^ (at as u64) << 20) as u8,
    }
}

fn tcp_socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; WINDOW]);
    let mut socket = tcp::Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket
}

fn listening() -> tcp::Socket<'static> {
    let mut socket = tcp_socket();
    // The socket is new and the port is not zero.
    let _ = socket.listen(TCP_PORT);
    socket
}

/// The pod's end of its veth.
#[derive(Debug, Default)]
struct Port {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

impl Device for Port {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _: StackInstant) -> Option<(Received, Sent<'_>)> {
        let packet = self.received.pop_front()?;
        Some((Received(packet), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _: StackInstant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = OVERLAY_MTU as usize;
        capabilities
    }
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

struct Sent<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        self.0.push_back(packet);
        result
    }
}
