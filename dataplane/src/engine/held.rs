//! Later fragments that overtook their first one: kept for a moment, since nobody knows whose they are yet.

use std::time::Duration;

use super::decap::OuterHeader;
use crate::lb::fragment::FragmentKey;
use crate::time::Instant;

/// Fragments of one packet are reordered by less than this, or the rest of it is lost.
const HELD_FOR: Duration = Duration::from_secs(1);

/// Fragments held at once, each of up to 64 KB: 4 MB at most, as Linux's net.ipv4.ipfrag_high_thresh. A new one takes the
/// place of the oldest.
const CAPACITY: usize = 64;

/// Where a held fragment came in, and so which bytes of it are kept.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// From the overlay device: the IP packet.
    Overlay,
    /// From a peer: the VXLAN payload.
    Underlay(OuterHeader),
}

/// The fragments that one worker holds.
#[derive(Debug, Default)]
pub(super) struct HeldFragments {
    held: Vec<Held>,
    /// Buffers that held others before.
    spare: Vec<Vec<u8>>,
    /// How many of them wait no longer.
    ready: usize,
}

#[derive(Debug)]
struct Held {
    key: FragmentKey,
    side: Side,
    bytes: Vec<u8>,
    until: Instant,
    is_ready: bool,
}

/// What is let go of: where it came in, and its bytes.
pub(super) type Released = (Side, Vec<u8>);

impl HeldFragments {
    /// Keeps a fragment; returns where the one came in that was given up for it.
    pub(super) fn hold(&mut self, key: FragmentKey, side: Side, bytes: &[u8], now: Instant) -> Option<Side> {
        let oldest = (0..self.held.len()).min_by_key(|at| self.held[*at].until);
        let given_up = oldest.filter(|_| self.held.len() >= CAPACITY).map(|at| self.remove(at));
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        self.held.push(Held { key, side, bytes: buffer, until: now + HELD_FOR, is_ready: false });
        given_up
    }

    /// The first fragment of that packet has come.
    pub(super) fn release(&mut self, key: &FragmentKey) {
        for held in self.held.iter_mut().filter(|held| held.key == *key && !held.is_ready) {
            held.is_ready = true;
            self.ready += 1;
        }
    }

    /// Whether any waits no longer.
    #[inline]
    pub(super) fn is_any_ready(&self) -> bool {
        self.ready > 0
    }

    /// The next one that waits no longer. Its buffer comes back by [`give_back`](Self::give_back).
    pub(super) fn next_ready(&mut self) -> Option<Released> {
        let at = self.held.iter().position(|held| held.is_ready)?;
        let held = self.held.swap_remove(at);
        self.ready -= 1;
        Some((held.side, held.bytes))
    }

    /// Takes a buffer to be used again.
    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.spare.push(buffer);
    }

    /// Gives up the next one whose first fragment does not come, and says where it came in.
    pub(super) fn expire_next(&mut self, now: Instant) -> Option<Side> {
        let at = self.held.iter().position(|held| held.until <= now)?;
        Some(self.remove(at))
    }

    /// When [`expire_next`](Self::expire_next) has something to do.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.held.iter().map(|held| held.until).min()
    }

    fn remove(&mut self, at: usize) -> Side {
        let held = self.held.swap_remove(at);
        self.ready -= usize::from(held.is_ready);
        self.give_back(held.bytes);
        held.side
    }
}
