//! What all pods count together while they run.

use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use windlass_dataplane::wire::flow::Protocol;

/// Failures that are kept; more of them say nothing new.
const FAILURES_KEPT: usize = 10;

/// The state of the demo.
#[derive(Default)]
pub(super) struct Tally {
    /// Bytes that came back to a client over TCP as they were sent.
    pub(super) tcp_bytes: AtomicU64,
    /// TCP connections that opened, carried everything and closed.
    pub(super) connections: AtomicU64,
    /// UDP questions asked, each counted once.
    pub(super) questions: AtomicU64,
    /// UDP questions answered rightly.
    pub(super) answers: AtomicU64,
    /// Questions asked again because no answer came in time.
    pub(super) retried: AtomicU64,
    /// How long a ping to a VIP took.
    pub(super) ping: OnceLock<Duration>,
    /// How long a connection to a service without endpoints took to be refused.
    pub(super) refused: OnceLock<Duration>,
    failures: Mutex<Vec<String>>,
    busy: AtomicUsize,
    over: AtomicBool,
    stopped: AtomicBool,
}

impl Tally {
    /// Adds `count` to one of the counters.
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    /// Notes that something went wrong.
    pub(super) fn fail(&self, text: String) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_KEPT {
            failures.push(text);
        }
    }

    /// What went wrong.
    pub(super) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A client begins.
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    /// A client has nothing left to do.
    pub(super) fn end(&self) {
        self.busy.fetch_sub(1, Relaxed);
    }

    /// Clients that still have something to do.
    pub(super) fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }

    /// Whether clients shall finish what they have begun and begin nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    /// Lets clients finish.
    pub(super) fn finish(&self) {
        self.over.store(true, Relaxed);
    }

    /// Whether the pods shall end.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Ends the pods.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Relaxed);
    }
}

/// What one backend has served.
#[derive(Debug)]
pub(super) struct Served {
    /// Where it listens.
    pub(super) addr: SocketAddrV4,
    /// TCP or UDP.
    pub(super) protocol: Protocol,
    /// TCP connections accepted, or UDP questions answered.
    pub(super) requests: AtomicU64,
    /// Payload bytes received.
    pub(super) bytes: AtomicU64,
}

impl Served {
    /// A backend that has served nothing yet.
    pub(super) fn new(addr: SocketAddrV4, protocol: Protocol) -> Self {
        Self { addr, protocol, requests: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}
