//! Where packets stand between the two passes over a batch. The first pass reads them and begins to fetch what the flow
//! cache holds of their flows; the second decides and sends. By then the entries have come, side by side, and what was
//! noted of a packet is not read while it is still on its way into the cache.

use crate::packet::PacketBuf;
use crate::wire::inner::InnerPacket;

/// A packet that has been read, and what else is known of how it came.
#[derive(Clone, Copy, Default)]
pub(super) struct Staged<T> {
    /// Cut to the length of its IP packet.
    pub(super) packet: PacketBuf,
    pub(super) inner: InnerPacket,
    /// The flow cache's hash of its flow.
    pub(super) hash: u64,
    pub(super) came: T,
}

/// So many entries are fetched at once: they, the packets and their places fit in half of the nearest cache.
pub(super) const STAGED: usize = 32;

/// After a packet of a new flow others often follow: the cache is asked for all the places of the packet that comes so many
/// later. By then they have come from memory.
pub(super) const AHEAD: usize = 2;

/// Up to [`STAGED`] packets.
#[derive(Default)]
pub(super) struct Stage<T> {
    places: Box<[Staged<T>]>,
    taken: usize,
}

impl<T: Copy + Default> Stage<T> {
    pub(super) fn new() -> Self {
        Self { places: vec![Staged::default(); STAGED].into_boxed_slice(), taken: 0 }
    }

    /// The place of the next packet, written in place: 100 bytes that were handed on by value would be written and
    /// read back. The packet is there when it has been [kept](Self::keep).
    #[inline]
    pub(super) fn next(&mut self) -> Option<&mut Staged<T>> {
        self.places.get_mut(self.taken)
    }

    #[inline]
    pub(super) fn keep(&mut self) {
        self.taken += 1;
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.taken == self.places.len()
    }

    /// The packets, in the order in which they came.
    #[inline]
    pub(super) fn packets(&mut self) -> &mut [Staged<T>] {
        self.places.get_mut(..self.taken).unwrap_or_default()
    }

    pub(super) fn clear(&mut self) {
        self.taken = 0;
    }
}
