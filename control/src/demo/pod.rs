//! Pods: smoltcp's TCP/IP stack on an interface of a node's bridge, and an application on top.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::bridge::{Bridge, Packet};
use super::tally::Tally;

/// What runs in a pod.
pub(super) trait App: Send {
    /// Opens what must be open before the first packet comes.
    fn start(&mut self, _stack: &mut Stack) {}

    /// Acts on what has arrived and on what is due. Returns when it wants to act again if nothing arrives.
    fn step(&mut self, stack: &mut Stack, now: Instant) -> Option<Instant>;
}

/// A pod's TCP/IP stack.
pub(super) struct Stack {
    pub(super) iface: Interface,
    pub(super) sockets: SocketSet<'static>,
    port: Port,
}

/// One pod.
pub(super) struct Pod {
    addr: Ipv4Addr,
    stack: Stack,
    app: Box<dyn App>,
    wake_at: Option<Instant>,
}

impl Pod {
    /// A pod with one address, whose gateway is its node.
    pub(super) fn new(addr: Ipv4Addr, gateway: Ipv4Addr, mtu: usize, mut app: Box<dyn App>) -> Self {
        let mut port = Port { mtu, received: VecDeque::new(), sent: VecDeque::new() };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(u32::from(addr));
        let mut iface = Interface::new(config, &mut port, Instant::ZERO);
        // Both lists have room: they are new and hold at least one entry.
        iface.update_ip_addrs(|addrs| {
            let _ = addrs.push(IpCidr::new(addr.into(), 24));
        });
        let _ = iface.routes_mut().add_default_ipv4_route(gateway);
        let mut stack = Stack { iface, sockets: SocketSet::new(Vec::new()), port };
        app.start(&mut stack);
        Self { addr, stack, app, wake_at: Some(Instant::ZERO) }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.stack.port.received.is_empty() || self.wake_at.is_some_and(|at| at <= now)
    }

    fn turn(&mut self, now: Instant) {
        self.stack.poll(now);
        let due = self.app.step(&mut self.stack, now);
        self.stack.poll(now);
        let timer = self.stack.iface.poll_at(now, &self.stack.sockets);
        self.wake_at = due.into_iter().chain(timer).min();
    }
}

impl Stack {
    fn poll(&mut self, now: Instant) {
        self.iface.poll(now, &mut self.port, &mut self.sockets);
    }
}

/// The pods of one node and the host's part in carrying their packets.
pub(super) struct Pods {
    pub(super) pods: Vec<Pod>,
    pub(super) bridge: Arc<Bridge>,
    pub(super) tally: Arc<Tally>,
    pub(super) origin: std::time::Instant,
}

/// How long pods sleep when no timer of theirs is due: how soon they notice that the demo is over.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);

impl Pods {
    /// Runs the pods until the demo stops.
    pub(super) fn run(mut self) {
        let (mut inbox, mut outbox) = (Vec::new(), Vec::new());
        while !self.tally.is_stopped() {
            self.bridge.receive(&mut inbox, self.sleep());
            inbox.drain(..).for_each(|packet| drop(self.deliver(packet)));
            let now = self.now();
            while self.turn(now, &mut outbox) {}
            self.bridge.send(&mut outbox);
        }
    }

    /// Lets each pod act that has something to do, and carries their packets as a bridge does: to a pod of
    /// this node directly, all others to the overlay device. Returns whether anything was carried directly.
    fn turn(&mut self, now: Instant, outbox: &mut Vec<Packet>) -> bool {
        let mut sent = Vec::new();
        for pod in self.pods.iter_mut().filter(|pod| pod.is_due(now)) {
            pod.turn(now);
            sent.extend(pod.stack.port.sent.drain(..));
        }
        let before = outbox.len();
        let total = sent.len();
        outbox.extend(sent.into_iter().filter_map(|packet| self.deliver(packet).err()));
        outbox.len() - before < total
    }

    /// Gives a packet to the pod it is for; back when that is none of this node's.
    fn deliver(&mut self, packet: Packet) -> Result<(), Packet> {
        let dst = packet.get(16..20).and_then(|dst| <[u8; 4]>::try_from(dst).ok()).map(Ipv4Addr::from);
        match self.pods.iter_mut().find(|pod| Some(pod.addr) == dst) {
            Some(pod) => {
                pod.stack.port.received.push_back(packet);
                Ok(())
            }
            None => Err(packet),
        }
    }

    fn sleep(&self) -> Duration {
        let now = self.now();
        let due = self.pods.iter().filter_map(|pod| pod.wake_at).min();
        let until = due.map(|at| if at > now { (at - now).into() } else { Duration::ZERO });
        until.unwrap_or(LONGEST_SLEEP).min(LONGEST_SLEEP)
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.origin.elapsed().as_micros() as i64)
    }
}

/// A pod's end of its link to the bridge.
struct Port {
    mtu: usize,
    received: VecDeque<Packet>,
    sent: VecDeque<Packet>,
}

impl Device for Port {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sent<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sent<'_>)> {
        Some((Received(self.received.pop_front()?), Sent(&mut self.sent)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sent<'_>> {
        Some(Sent(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

struct Received(Packet);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Sent<'a>(&'a mut VecDeque<Packet>);

impl TxToken for Sent<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push_back(packet);
        result
    }
}
