//! One translated flow, as every worker sees it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use super::tcp_state::{FlowDirection, TcpState};
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol, Vip};
use crate::wire::tcp::ACK;

/// A connection without traffic for so many ticks is in no flow cache that would be used without asking it.
const IDLE_TICKS: u32 = 2;

/// RFC 4787 REQ-5 recommends 5 minutes.
pub const UDP_TIMEOUT: Duration = Duration::from_secs(300);

/// One translated flow.
#[derive(Debug)]
pub struct Connection {
    /// Client to VIP, as the client sends it.
    pub original: FlowKey,
    /// Backend to (translated) client, as the backend sends it.
    pub reply: FlowKey,
    /// The service it was opened to.
    pub vip: Vip,
    pub(super) tcp_state: AtomicU8,
    pub(super) replied: AtomicBool,
    pub(super) last_seen: AtomicU32,
    /// The tick under which it stands in a due queue; another entry of it is stale.
    pub(super) due: AtomicU32,
    pub(super) stage: AtomicU8,
    pub(super) opened: u32,
}

pub(super) const CLAIMED: u8 = 0;
pub(super) const LIVE: u8 = 1;
pub(super) const GONE: u8 = 2;

impl Connection {
    /// A connection that is not in a table yet.
    pub fn new(original: FlowKey, reply: FlowKey, now: Instant) -> Self {
        Self {
            original,
            reply,
            vip: original.vip(),
            tcp_state: AtomicU8::new(TcpState::Opening as u8),
            replied: AtomicBool::new(false),
            last_seen: AtomicU32::new(now.tick()),
            due: AtomicU32::new(0),
            stage: AtomicU8::new(CLAIMED),
            opened: now.tick(),
        }
    }

    /// Notes the TCP `flags` (0 for UDP) of the packet that opens it, before anybody else knows it.
    pub fn open(&self, flags: u8) {
        if self.original.protocol == Protocol::TCP {
            let state = TcpState::Opening.after(FlowDirection::Original, flags);
            self.tcp_state.store(state as u8, Ordering::Relaxed);
        }
    }

    /// The backend it goes to.
    pub fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.reply.src, self.reply.src_port)
    }

    /// The flow that a packet of `direction` becomes.
    pub fn translated(&self, direction: FlowDirection) -> FlowKey {
        match direction {
            FlowDirection::Original => self.reply.reversed(),
            FlowDirection::Reply => self.original.reversed(),
        }
    }

    /// How far TCP has come; meaningless for UDP.
    pub fn tcp_state(&self) -> TcpState {
        TcpState::from_u8(self.tcp_state.load(Ordering::Relaxed))
    }

    /// Whether the backend has ever answered.
    pub fn is_replied(&self) -> bool {
        self.replied.load(Ordering::Relaxed)
    }

    /// Whether it still stands in the table.
    pub fn is_live(&self) -> bool {
        self.stage.load(Ordering::SeqCst) == LIVE
    }

    /// The tick of its last packet.
    pub fn last_seen_tick(&self) -> u32 {
        self.last_seen.load(Ordering::SeqCst)
    }

    /// The tick of its first packet.
    pub fn opened_tick(&self) -> u32 {
        self.opened
    }

    /// The tick at which it is forgotten unless another packet comes.
    pub fn expires_tick(&self) -> u32 {
        self.due_tick()
    }

    /// Whether plain traffic can change nothing but the timer. The first packets of a TCP connection decide
    /// how long it is remembered, so each of them must be seen.
    pub fn is_settled(&self) -> bool {
        self.original.protocol != Protocol::TCP
            || !matches!(self.tcp_state(), TcpState::Opening | TcpState::Replied | TcpState::Reset)
    }

    /// Traffic without a flag that matters: refreshes the timer. Whether the connection was still live is to be asked
    /// afterwards.
    pub fn touch(&self, direction: FlowDirection, tick: u32) {
        self.last_seen.store(tick, Ordering::SeqCst);
        if direction == FlowDirection::Reply {
            self.replied.store(true, Ordering::Relaxed);
        }
        if self.original.protocol == Protocol::TCP {
            let state = self.tcp_state();
            let after = state.after(direction, ACK);
            if after != state {
                self.tcp_state.store(after as u8, Ordering::Relaxed);
            }
        }
    }

    /// Whether a reminder of `tick` says nothing any more.
    pub(super) fn is_stale(&self, tick: u32) -> bool {
        !self.is_live() || self.due.load(Ordering::Relaxed) != tick
    }

    /// Whether another connection may take its place in a full table at `tick`. One that is over gets the time in which
    /// traffic would show a reset to be forged; and no flow cache may still hold what goes.
    pub(super) fn gives_way(&self, tick: u32) -> bool {
        let is_idle = tick.saturating_sub(self.last_seen_tick()) >= IDLE_TICKS;
        let is_over = self.original.protocol == Protocol::TCP && self.tcp_state().is_over();
        is_over && is_idle || !self.is_replied() && (is_idle || !self.is_settled())
    }

    pub(super) fn timeout(&self) -> Duration {
        if self.original.protocol == Protocol::TCP { self.tcp_state().timeout() } else { UDP_TIMEOUT }
    }

    pub(super) fn due_tick(&self) -> u32 {
        self.last_seen_tick().saturating_add(self.timeout().as_secs() as u32).saturating_add(1)
    }
}
