//! What a worker does while somebody captures: one packet at a time, so that the end of each is known.

use std::mem;

use super::Worker;
use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::engine::decap::gro_parts;
use crate::packet::Datagram;
use crate::tap::{Outer, Side, Sighting};
use crate::time::Instant;

/// A packet before the engine changes it in place, and what had been counted and made by then.
#[derive(Debug, Default)]
pub(super) struct Before {
    bytes: Vec<u8>,
    drops: Drops,
    packets: usize,
    datagrams: usize,
}

#[derive(Clone, Copy, Debug)]
struct Drops([u64; DropReason::COUNT]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; DropReason::COUNT])
    }
}

impl Drops {
    fn of(counters: &Counters) -> Self {
        let mut drops = Self::default();
        for (count, reason) in drops.0.iter_mut().zip(DropReason::ALL) {
            *count = counters.dropped(*reason);
        }
        drops
    }

    /// The first reason whose count has grown since.
    fn first_since(&self, before: &Self) -> Option<DropReason> {
        let grown = self.0.iter().zip(before.0).position(|(after, before)| *after > before);
        grown.map(|index| DropReason::ALL[index])
    }
}

impl Worker {
    /// Has the engine process what the overlay device has given.
    pub(super) fn encap(&mut self, now: Instant) {
        if self.tap.is_on() {
            self.encap_watched(now);
        } else {
            self.forwarder.encap(&mut self.packets, now, &mut self.out);
        }
    }

    /// Has the engine process what the underlay has given.
    pub(super) fn decap(&mut self, now: Instant) {
        if self.tap.is_on() {
            self.decap_watched(now);
        } else {
            self.forwarder.decap(&mut self.datagrams, now, &mut self.out);
        }
    }

    #[cold]
    fn encap_watched(&mut self, now: Instant) {
        let packets = mem::take(&mut self.packets.packets);
        for packet in &packets {
            self.before.bytes.clear();
            self.before.bytes.extend_from_slice(self.packets.pool.bytes(packet));
            self.note_counts();
            self.packets.packets.push(*packet);
            self.forwarder.encap(&mut self.packets, now, &mut self.out);
            self.packets.packets.clear();
            self.show(Side::Overlay, None, now);
        }
        self.packets.packets = packets;
    }

    #[cold]
    fn decap_watched(&mut self, now: Instant) {
        let datagrams = mem::take(&mut self.datagrams.datagrams);
        for datagram in &datagrams {
            for packet in gro_parts(&self.datagrams.pool, &datagram.packet) {
                self.before.bytes.clear();
                self.before.bytes.extend_from_slice(self.datagrams.pool.bytes(&packet));
                self.note_counts();
                self.datagrams.datagrams.push(Datagram { packet, ..*datagram });
                self.forwarder.decap(&mut self.datagrams, now, &mut self.out);
                self.datagrams.datagrams.clear();
                self.show(Side::Underlay, Some(Outer::of(datagram)), now);
            }
        }
        self.datagrams.datagrams = datagrams;
    }

    fn note_counts(&mut self) {
        self.before.drops = Drops::of(self.forwarder.counters());
        (self.before.packets, self.before.datagrams) = (self.out.packets.len(), self.out.datagrams.len());
    }

    /// Shows the packet that was noted, and what was made of it.
    fn show(&self, side: Side, outer: Option<Outer>, at: Instant) {
        let Before { bytes, drops, packets, datagrams } = &self.before;
        let dropped = Drops::of(self.forwarder.counters()).first_since(drops);
        self.tap.see(&Sighting { side, received: true, at, outer, bytes, dropped });
        let pool = match side {
            Side::Overlay => &self.packets.pool,
            Side::Underlay => &self.datagrams.pool,
        };
        for packet in &self.out.packets[*packets..] {
            self.tap.see(&Sighting::sent(Side::Overlay, None, pool.bytes(packet), at));
        }
        for datagram in &self.out.datagrams[*datagrams..] {
            let outer = Some(Outer::of(datagram));
            match pool.pieces(&datagram.packet) {
                [[], bytes] => self.tap.see(&Sighting::sent(Side::Underlay, outer, bytes, at)),
                pieces => self.tap.see(&Sighting::sent(Side::Underlay, outer, &pieces.concat(), at)),
            }
        }
    }
}
