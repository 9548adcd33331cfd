//! Which flow the later fragments of a packet belong to: they carry no ports.
//!
//! One table per worker is enough: senders and kernels steer all fragments of a packet alike, by addresses alone.

use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::conntrack::{Connection, FlowDirection};
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol};

/// What all fragments of one packet share (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    src: IpAddr,
    dst: IpAddr,
    protocol: Protocol,
    ident: u32,
}

impl FragmentKey {
    /// The key of a fragment of `flow`.
    pub fn new(flow: &FlowKey, ident: u32) -> Self {
        Self { src: flow.src, dst: flow.dst, protocol: flow.protocol, ident }
    }
}

/// Which bytes of its packet's payload a fragment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first one.
    pub start: u32,
    /// The one behind the last one.
    pub end: u32,
    /// Whether none follow.
    pub is_last: bool,
}

/// The connection whose packet it is; `None` for a packet that is not translated.
pub type Owner = Option<(Arc<Connection>, FlowDirection)>;

/// Why a later fragment cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFollowed {
    /// Its first fragment has not been seen.
    Unknown,
    /// It repeats or overlaps another fragment (RFC 5722), or there are more gaps than are kept in mind.
    Overlap,
}

/// Linux's reassembly time (net.ipv4.ipfrag_time): a receiver waits no longer for the rest.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Packets whose fragments are followed at once.
const CAPACITY: usize = 4_096;

/// Places that one packet may stand in; the one that began first makes room.
const WAYS: usize = 4;

/// Separate ranges of one packet: with fragments in order there is one, and reordering makes few more.
const RANGES: usize = 8;

/// The fragmented packets that pass one worker.
#[derive(Debug)]
pub struct FragmentTable {
    packets: Box<[Option<Followed>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Followed {
    key: FragmentKey,
    owner: Owner,
    ranges: Ranges,
    expires_at: Instant,
}

impl Default for FragmentTable {
    fn default() -> Self {
        Self { packets: (0..CAPACITY).map(|_| None).collect(), hasher: RandomState::default() }
    }
}

impl FragmentTable {
    /// Remembers whose packet it is that begins with a first fragment.
    pub fn begin(&mut self, key: FragmentKey, owner: Owner, piece: Piece, now: Instant) {
        let mut ranges = Ranges::default();
        ranges.add(piece);
        let packets = &self.packets;
        let way = self.find(&key, now).unwrap_or_else(|| {
            let began = |way: &usize| packets[*way].as_ref().map(|packet| packet.expires_at);
            self.ways(&key).min_by_key(began).unwrap_or_default()
        });
        self.packets[way] = Some(Followed { key, owner, ranges, expires_at: now + KEPT_FOR });
    }

    /// Whether the first fragment has been seen.
    pub fn knows(&self, key: &FragmentKey, now: Instant) -> bool {
        self.find(key, now).is_some()
    }

    /// Whose packet a later fragment belongs to. With the last piece the packet is forgotten, and with one that overlaps
    /// others: what is left of it could only be put together wrongly.
    ///
    /// # Errors
    /// See [`NotFollowed`].
    pub fn follow(&mut self, key: &FragmentKey, piece: Piece, now: Instant) -> Result<Owner, NotFollowed> {
        let way = self.find(key, now).ok_or(NotFollowed::Unknown)?;
        let place = &mut self.packets[way];
        let packet = place.as_mut().ok_or(NotFollowed::Unknown)?;
        match packet.ranges.add(piece) {
            Added::Complete => Ok(place.take().and_then(|packet| packet.owner)),
            Added::Fits => Ok(packet.owner.clone()),
            Added::Repeats => Err(NotFollowed::Overlap),
            Added::Overlaps => {
                *place = None;
                Err(NotFollowed::Overlap)
            }
        }
    }

    fn find(&self, key: &FragmentKey, now: Instant) -> Option<usize> {
        let is_it = |packet: &Followed| {
            let lives = packet.owner.as_ref().is_none_or(|(connection, _)| connection.is_live());
            packet.key == *key && packet.expires_at > now && lives
        };
        self.ways(key).find(|way| self.packets[*way].as_ref().is_some_and(is_it))
    }

    fn ways(&self, key: &FragmentKey) -> impl Iterator<Item = usize> + use<> {
        let first = self.hasher.hash_one(key) as usize % CAPACITY;
        (0..WAYS).map(move |way| first ^ way)
    }
}

/// The parts of a payload that have been seen: disjoint, and none next to another.
#[derive(Debug, Default)]
struct Ranges {
    list: [(u32, u32); RANGES],
    len: usize,
    total_len: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    Fits,
    Complete,
    /// All of it has been seen: a duplicate, which changes nothing.
    Repeats,
    Overlaps,
}

impl Ranges {
    fn add(&mut self, piece: Piece) -> Added {
        let Piece { mut start, mut end, is_last } = piece;
        let ranges = &self.list[..self.len];
        if ranges.iter().any(|range| range.0 <= start && end <= range.1) {
            return Added::Repeats;
        }
        let ends_elsewhere = |total: u32| end > total || is_last && end != total;
        let follows_last = is_last && ranges.iter().any(|range| range.1 > end);
        let overlaps = ranges.iter().any(|range| start < range.1 && range.0 < end);
        if overlaps || follows_last || self.total_len.is_some_and(ends_elsewhere) {
            return Added::Overlaps;
        }
        if is_last {
            self.total_len = Some(end);
        }
        let mut kept = 0;
        for at in 0..self.len {
            let range = self.list[at];
            if range.1 == start {
                start = range.0;
            } else if range.0 == end {
                end = range.1;
            } else {
                self.list[kept] = range;
                kept += 1;
            }
        }
        let Some(place) = self.list.get_mut(kept) else { return Added::Overlaps };
        *place = (start, end);
        self.len = kept + 1;
        if start == 0 && self.total_len == Some(end) { Added::Complete } else { Added::Fits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ident: u32) -> FragmentKey {
        let addr = IpAddr::from([10, 0, 0, 1]);
        FragmentKey { src: addr, dst: addr, protocol: Protocol::UDP, ident }
    }

    fn piece(start: u32, end: u32) -> Piece {
        Piece { start, end, is_last: false }
    }

    #[test]
    fn d8_a_flood_of_first_fragments_is_bounded_and_the_newest_are_followed() {
        let mut table = FragmentTable::default();
        for ident in 0..100_000 {
            table.begin(key(ident), None, piece(0, 8), Instant::from_nanos(u64::from(ident)));
        }
        let now = Instant::from_nanos(100_000);
        assert_eq!(table.packets.len(), CAPACITY);
        assert!(table.knows(&key(99_999), now) && !table.knows(&key(0), now));
        assert!(!table.knows(&key(99_999), now + KEPT_FOR), "stale ones are forgotten");
    }

    #[test]
    fn d8_pieces_in_any_order_make_a_packet_whole_and_overlaps_end_it() {
        use Added::*;
        let last = |start, end| Piece { start, end, is_last: true };
        for (pieces, expected) in [
            (&[piece(0, 8), piece(8, 16), last(16, 20)][..], &[Fits, Fits, Complete][..]),
            (&[piece(0, 8), last(16, 20), piece(8, 16)], &[Fits, Fits, Complete]),
            (&[piece(0, 16), piece(8, 16)], &[Fits, Repeats]),
            (&[piece(0, 16), piece(8, 24)], &[Fits, Overlaps]),
            (&[piece(0, 8), piece(16, 32), piece(8, 24)], &[Fits, Fits, Overlaps]),
            (&[piece(0, 8), last(16, 20), piece(24, 32)], &[Fits, Fits, Overlaps]),
            (&[piece(0, 8), piece(24, 32), last(16, 20)], &[Fits, Fits, Overlaps]),
            (&[piece(0, 8), last(16, 20), last(8, 12)], &[Fits, Fits, Overlaps]),
        ] {
            let mut ranges = Ranges::default();
            let added: Vec<_> = pieces.iter().map(|piece| ranges.add(*piece)).collect();
            assert_eq!(added, expected, "{pieces:?}");
        }
        let mut ranges = Ranges::default();
        let scattered: Vec<_> =
            (0..=RANGES as u32).map(|at| ranges.add(piece(at * 16, at * 16 + 8))).collect();
        assert_eq!(scattered[..RANGES], [Fits; RANGES]);
        assert_eq!(scattered[RANGES], Overlaps, "more gaps than are kept in mind");
    }
}
