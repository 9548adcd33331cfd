//! A translated flow as somebody sees it who only looks at the packets that go in and come out.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::tcp::{ACK, FIN, RST, SYN};

use super::view::Backends;

/// The timeouts of REQUIREMENTS D4, less the two seconds that a coarse clock may be off.
const UDP_KEPT: Duration = Duration::from_secs(298);
const TRANSITORY_KEPT: Duration = Duration::from_secs(238);
const ESTABLISHED_KEPT: Duration = Duration::from_secs(7_438);

/// A flow toward a VIP and what it became.
#[derive(Clone, Debug)]
pub struct Tracked {
    /// As the client sends it.
    pub original: FlowKey,
    /// As the backend gets it.
    pub forward: FlowKey,
    last_seen: Instant,
    is_replied: bool,
    is_established: bool,
    has_fin: [bool; 2],
    has_rst: bool,
}

impl Tracked {
    /// A flow whose first packet was seen at `now`.
    pub fn new(original: FlowKey, forward: FlowKey, now: Instant) -> Self {
        Self {
            original,
            forward,
            last_seen: now,
            is_replied: false,
            is_established: false,
            has_fin: [false; 2],
            has_rst: false,
        }
    }

    /// Where it goes.
    pub fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.forward.dst, self.forward.dst_port)
    }

    /// When its last packet was seen.
    pub fn last_seen(&self) -> Instant {
        self.last_seen
    }

    /// Takes note of a packet.
    pub fn saw(&mut self, is_reply: bool, flags: u8, now: Instant) {
        self.last_seen = now;
        self.is_established |= self.is_replied && !is_reply && flags & (SYN | ACK) == ACK;
        self.is_replied |= is_reply;
        self.has_fin[usize::from(is_reply)] |= flags & FIN != 0;
        self.has_rst |= flags & RST != 0;
    }

    /// Whether it must still be known. In a table that was full, one that nobody answered or that is over may have made
    /// way for others.
    pub fn must_be_known(&self, now: Instant, was_full: bool) -> bool {
        let is_over = self.is_over();
        let kept = match self.original.protocol {
            Protocol::TCP if self.is_established && !is_over => ESTABLISHED_KEPT,
            Protocol::TCP => TRANSITORY_KEPT,
            _ => UDP_KEPT,
        };
        (self.is_replied && !is_over || !was_full) && now.since(self.last_seen) < kept
    }

    /// Whether a packet of the client with these flags must go where the ones before went.
    pub fn must_keep(&self, flags: u8, backends: Option<&Backends>) -> bool {
        let nobody = BTreeSet::new();
        let serves = backends.map_or(&nobody, |backends| &backends.serving).contains(&self.backend());
        match self.original.protocol {
            Protocol::TCP if flags & (SYN | ACK) == SYN => !self.is_over() && (self.is_replied || serves),
            Protocol::TCP => true,
            _ => serves,
        }
    }

    fn is_over(&self) -> bool {
        self.has_rst || self.has_fin == [true; 2]
    }
}
