//! The L2 engine: frames of Ethernet segments instead of routed packets.
//!
//! Read first: RFC 7348 sections 4 and 6.1. `encap` and `decap` hold the two journeys, each one function from top to
//! bottom; [`forward`] says what the tables mean for a frame. There are no connections, no routes and no flow cache:
//! a frame costs one or two lookups of MACs. MACs and TTLs of frames are never changed: a segment does not route.
//!
//! Frames lie in a batch with a VXLAN header before them, from the L2 device to the socket and back: it names the segment,
//! and is sent as it is.

mod decap;
mod encap;
pub mod forward;
pub mod frame;
pub mod learned;
mod suppress;

use std::sync::Arc;
use std::time::Duration;

use super::{Settings, rate_limit};
use crate::counters::Counters;
use crate::device::{Quote, TooLong};
use crate::engine::path_mtu::QuotedFrame;
use crate::tables::{ForwardingTables, Place, Reader, RemoteVtep, Segment};
use crate::time::Instant;
use frame::Frame;
use learned::{Heard, LearnedStations, Outcome};

/// One worker's L2 engine.
pub struct Bridge {
    reader: Reader,
    learned: Arc<LearnedStations>,
    counters: Arc<Counters>,
    settings: Settings,
    limit: rate_limit::RateLimit,
    /// The part of the learned stations that is swept next, and when.
    sweep: (usize, Instant),
}

/// A sixty-fourth of what was learned is swept at a time.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Bridge {
    /// An engine for worker number `worker`, which shares `learned` with the others.
    pub fn new(
        reader: Reader,
        learned: Arc<LearnedStations>,
        counters: Arc<Counters>,
        settings: Settings,
        worker: usize,
    ) -> Self {
        let limit = rate_limit::RateLimit::default();
        Self { reader, learned, counters, settings, limit, sweep: (worker, Instant::ZERO) }
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Forgets silent stations, a part of them at a time; to be called once per wake-up.
    pub fn expire(&mut self, now: Instant) {
        let (part, at) = self.sweep;
        if now >= at {
            let tables = Arc::clone(self.reader.load());
            self.learned.sweep(part, tables.segments(), now);
            self.sweep = (part.wrapping_add(1), now + SWEEP_EVERY);
        }
    }

    /// When [`expire`](Self::expire) wants to be called next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (!self.learned.is_empty()).then_some(self.sweep.1)
    }

    /// Lowers the path MTU of the VTEP that `too_long` is about. An ICMP error of a router counts only if it quotes what
    /// this node would have sent: anybody can send one (C5).
    pub fn learn_path_mtu(&mut self, too_long: &TooLong, now: Instant) {
        let tables = Arc::clone(self.reader.load());
        let TooLong { remote, mtu, .. } = *too_long;
        match &too_long.quote {
            None => tables
                .segments()
                .vteps_at(remote.ip())
                .for_each(|vtep| vtep.path_mtu.learn(remote.ip(), mtu, now)),
            Some(quote) => {
                if let Some(vtep) = self.quoted_vtep(&tables, too_long, quote, now) {
                    vtep.path_mtu.learn(remote.ip(), mtu, now);
                }
            }
        }
    }

    /// The VTEP that the quoted datagram was for, if it can have been ours: a segment of ours, toward a station that is
    /// known at that VTEP, from one that is at none.
    fn quoted_vtep(
        &self,
        tables: &ForwardingTables,
        too_long: &TooLong,
        quote: &Quote,
        now: Instant,
    ) -> Option<Arc<RemoteVtep>> {
        let frame = QuotedFrame::parse(quote)?;
        let segment = tables.segments().lookup(frame.vni)?;
        let place = |mac| forward::place(segment, &self.learned, frame.vni, mac, now);
        let Place::Vtep(vtep) = place(frame.dst)? else { return None };
        let was_sent = !matches!(place(frame.src), Some(Place::Vtep(_)))
            && frame.can_have_failed(too_long, &vtep, tables.local().overlay_mtu);
        was_sent.then_some(vtep)
    }

    /// Learns a frame's source, where the segment learns and no static entry says where it is.
    fn learn(&self, segment: &Segment, frame: &Frame, heard: Heard, segments: u64, now: Instant) {
        let Some(learning) = &segment.learning else { return };
        if segment.place(frame.src).is_none()
            && self.learned.learn(frame.vni, frame.src, heard, learning, now) == Outcome::Full
        {
            self.counters.stations_refused.add(segments);
        }
    }
}
