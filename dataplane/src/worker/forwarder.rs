//! What a worker does with a batch: route its packets, or bridge its frames.

use std::sync::Arc;

use crate::counters::Counters;
use crate::device::TooLong;
use crate::engine::bridge::Bridge;
use crate::engine::{Engine, Outbox};
use crate::packet::{DatagramBatch, PacketBatch};
use crate::time::Instant;

/// One worker's engine. Which of the two it is, is asked once per batch.
pub enum Forwarder {
    /// Pods' packets, over a TUN device.
    Router(Box<Engine>),
    /// Frames of L2 segments, over TAP devices.
    Bridge(Box<Bridge>),
}

impl From<Engine> for Forwarder {
    fn from(engine: Engine) -> Self {
        Self::Router(Box::new(engine))
    }
}

impl From<Bridge> for Forwarder {
    fn from(bridge: Bridge) -> Self {
        Self::Bridge(Box::new(bridge))
    }
}

impl Forwarder {
    /// Processes what the overlay device has received.
    pub fn encap(&mut self, batch: &mut PacketBatch, now: Instant, out: &mut Outbox) {
        match self {
            Self::Router(engine) => engine.encap(batch, now, out),
            Self::Bridge(bridge) => bridge.encap(batch, now, out),
        }
    }

    /// Processes what the underlay socket has received.
    pub fn decap(&mut self, batch: &mut DatagramBatch, now: Instant, out: &mut Outbox) {
        match self {
            Self::Router(engine) => engine.decap(batch, now, out),
            Self::Bridge(bridge) => bridge.decap(batch, now, out),
        }
    }

    /// Forgets what has timed out, within a budget; to be called once per wake-up.
    pub fn expire(&mut self, now: Instant) {
        match self {
            Self::Router(engine) => engine.expire(now),
            Self::Bridge(bridge) => bridge.expire(now),
        }
    }

    /// When [`expire`](Self::expire) wants to be called next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Router(engine) => engine.poll_timeout(),
            Self::Bridge(bridge) => bridge.poll_timeout(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<Counters> {
        match self {
            Self::Router(engine) => engine.counters(),
            Self::Bridge(bridge) => bridge.counters(),
        }
    }

    /// Believes, or not, what the underlay says of a datagram that was too long.
    pub fn learn_path_mtu(&mut self, too_long: &TooLong, now: Instant) {
        match self {
            Self::Router(engine) => engine.learn_path_mtu(too_long, now),
            Self::Bridge(bridge) => bridge.learn_path_mtu(too_long, now),
        }
    }
}
