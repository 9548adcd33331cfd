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
    pub(super) fn encap(&mut self, batch: &mut PacketBatch, now: Instant, out: &mut Outbox) {
        match self {
            Self::Router(engine) => engine.encap(batch, now, out),
            Self::Bridge(bridge) => bridge.encap(batch, now, out),
        }
    }

    pub(super) fn decap(&mut self, batch: &mut DatagramBatch, now: Instant, out: &mut Outbox) {
        match self {
            Self::Router(engine) => engine.decap(batch, now, out),
            Self::Bridge(bridge) => bridge.decap(batch, now, out),
        }
    }

    pub(super) fn expire(&mut self, now: Instant) {
        match self {
            Self::Router(engine) => engine.expire(now),
            Self::Bridge(bridge) => bridge.expire(now),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Router(engine) => engine.poll_timeout(),
            Self::Bridge(bridge) => bridge.poll_timeout(),
        }
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        match self {
            Self::Router(engine) => engine.counters(),
            Self::Bridge(bridge) => bridge.counters(),
        }
    }

    pub(super) fn learn_path_mtu(&mut self, too_long: &TooLong, now: Instant) {
        match self {
            Self::Router(engine) => engine.learn_path_mtu(too_long, now),
            Self::Bridge(bridge) => bridge.learn_path_mtu(too_long, now),
        }
    }
}
