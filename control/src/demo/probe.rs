//! A pod that tries the small things once: a ping to a VIP, and a connection that must be refused.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use smoltcp::iface::SocketHandle;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::{icmp, tcp};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpAddress, IpEndpoint};

use super::pod::{App, Stack};
use super::servers::tcp_socket;
use super::tally::Tally;

/// "At once" with every margin for a busy machine; a SYN that is ignored is sent again only after 1 s.
const AT_ONCE: Duration = Duration::from_millis(900);

const PING_IDENT: u16 = 0x77;
const PING_TEXT: &[u8] = b"who is there?";

/// A pod's curiosity.
pub(super) struct Probe {
    tally: Arc<Tally>,
    ping_vip: Ipv4Addr,
    empty: SocketAddrV4,
    stage: Stage,
}

enum Stage {
    Idle,
    Pinging(SocketHandle, Instant),
    Connecting(SocketHandle, Instant),
    Done,
}

impl Probe {
    /// A probe that pings `ping_vip` and connects to `empty`, which has no endpoint.
    pub(super) fn new(ping_vip: Ipv4Addr, empty: SocketAddrV4, tally: &Arc<Tally>) -> Self {
        tally.begin();
        Self { tally: Arc::clone(tally), ping_vip, empty, stage: Stage::Idle }
    }
}

impl App for Probe {
    fn step(&mut self, stack: &mut Stack, now: Instant) -> Option<Instant> {
        let next = match self.stage {
            Stage::Idle => self.ping(stack, now),
            Stage::Pinging(handle, since) => self.await_reply(stack, handle, since, now),
            Stage::Connecting(handle, since) => self.await_refusal(stack, handle, since, now),
            Stage::Done => return None,
        };
        match next {
            Some(Stage::Done) => {
                self.stage = Stage::Done;
                self.tally.end();
                None
            }
            Some(stage) => {
                self.stage = stage;
                Some(now + AT_ONCE)
            }
            None => Some(now + AT_ONCE),
        }
    }
}

impl Probe {
    fn ping(&self, stack: &mut Stack, now: Instant) -> Option<Stage> {
        let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 2], vec![0; 256]);
        let mut socket = icmp::Socket::new(buffer(), buffer());
        let request = Icmpv4Repr::EchoRequest { ident: PING_IDENT, seq_no: 1, data: PING_TEXT };
        let vip = IpAddress::Ipv4(self.ping_vip);
        let bound = socket.bind(icmp::Endpoint::Ident(PING_IDENT)).is_ok();
        match socket.send(request.buffer_len(), vip) {
            Ok(bytes) if bound => {
                let checksums = ChecksumCapabilities::default();
                request.emit(&mut Icmpv4Packet::new_unchecked(bytes), &checksums);
                Some(Stage::Pinging(stack.sockets.add(socket), now))
            }
            _ => {
                self.tally.fail(format!("ping to {vip} could not be sent"));
                Some(Stage::Done)
            }
        }
    }

    fn await_reply(
        &self,
        stack: &mut Stack,
        handle: SocketHandle,
        since: Instant,
        now: Instant,
    ) -> Option<Stage> {
        let socket = stack.sockets.get_mut::<icmp::Socket<'_>>(handle);
        let expected = Icmpv4Repr::EchoReply { ident: PING_IDENT, seq_no: 1, data: PING_TEXT };
        let answered = match socket.recv() {
            Ok((bytes, from)) => {
                let packet = Icmpv4Packet::new_checked(bytes);
                let repr =
                    packet.and_then(|packet| Icmpv4Repr::parse(&packet, &ChecksumCapabilities::default()));
                from == IpAddress::Ipv4(self.ping_vip) && repr == Ok(expected)
            }
            Err(_) if now < since + AT_ONCE => return None,
            Err(_) => false,
        };
        if answered {
            let _ = self.tally.ping.set((now - since).into());
        } else {
            self.tally.fail(format!("ping to {} was not answered rightly", self.ping_vip));
        }
        Some(self.connect(stack, now))
    }

    fn connect(&self, stack: &mut Stack, now: Instant) -> Stage {
        let mut socket = tcp_socket();
        let empty = IpEndpoint::new((*self.empty.ip()).into(), self.empty.port());
        match socket.connect(stack.iface.context(), empty, 20_000) {
            Ok(()) => Stage::Connecting(stack.sockets.add(socket), now),
            Err(error) => {
                self.tally.fail(format!("TCP to {}: {error}", self.empty));
                Stage::Done
            }
        }
    }

    fn await_refusal(
        &self,
        stack: &mut Stack,
        handle: SocketHandle,
        since: Instant,
        now: Instant,
    ) -> Option<Stage> {
        let state = stack.sockets.get_mut::<tcp::Socket<'_>>(handle).state();
        match state {
            tcp::State::SynSent if now < since + AT_ONCE => return None,
            tcp::State::Closed => {
                let _ = self.tally.refused.set((now - since).into());
            }
            _ => self
                .tally
                .fail(format!("TCP to {}, which has no endpoint, was not refused: {state}", self.empty)),
        }
        Some(Stage::Done)
    }
}
