//! Stations that frames have shown, where a segment learns: bounded for each VTEP, forgotten when silent, never in the
//! place of a static entry (E6).

use std::collections::hash_map::Entry as Slot;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use foldhash::HashMap;
use foldhash::fast::RandomState;
use std::hash::BuildHasher;

use crate::tables::{Learning, SegmentTable};
use crate::time::Instant;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// Where a station was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Heard {
    /// At the segment's overlay device.
    Device,
    /// From the VTEP at this underlay address.
    Vtep(IpAddr),
}

/// A learned station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Learned {
    /// Network.
    pub vni: Vni,
    /// The station.
    pub mac: Mac,
    /// Where it was heard last.
    pub heard: Heard,
    /// Whole seconds since.
    pub silent_for: u32,
}

/// What became of a frame's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was known there already.
    Known,
    /// It is known from now on.
    New,
    /// It was known at another place until now.
    Moved,
    /// It is not learned: as many as may be are known there.
    Full,
}

/// The learned stations of all segments, shared by the workers. A place's stations are counted, so that one VTEP that
/// makes up MACs takes nobody else's room.
#[derive(Debug)]
pub struct LearnedStations {
    shards: Box<[RwLock<Shard>]>,
    counts: Mutex<HashMap<(Vni, Heard), u32>>,
    hasher: RandomState,
}

type Shard = HashMap<(Vni, Mac), Station>;

#[derive(Debug)]
struct Station {
    heard: Heard,
    /// The tick of its last frame.
    at: AtomicU32,
}

/// Each is swept as a whole.
const SHARDS: usize = 64;

impl Default for LearnedStations {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, counts: Mutex::default(), hasher: RandomState::default() }
    }
}

impl LearnedStations {
    /// Where a station was heard, if that is not too long ago.
    pub fn lookup(&self, vni: Vni, mac: Mac, learning: &Learning, now: Instant) -> Option<Heard> {
        let shard = self.shard(vni, mac).read().unwrap_or_else(PoisonError::into_inner);
        let station = shard.get(&(vni, mac))?;
        (!station.is_stale(learning, now)).then_some(station.heard)
    }

    /// A station has been heard. Whether a static entry forbids to learn it is the caller's to know.
    pub fn learn(&self, vni: Vni, mac: Mac, heard: Heard, learning: &Learning, now: Instant) -> Outcome {
        let shard = self.shard(vni, mac);
        if let Some(station) = shard.read().unwrap_or_else(PoisonError::into_inner).get(&(vni, mac))
            && station.heard == heard
        {
            station.at.store(now.tick(), Ordering::Relaxed);
            return Outcome::Known;
        }
        if !self.take_room(vni, heard, learning.per_vtep) {
            return Outcome::Full;
        }
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        let before = match shard.entry((vni, mac)) {
            Slot::Vacant(slot) => {
                slot.insert(Station { heard, at: AtomicU32::new(now.tick()) });
                None
            }
            Slot::Occupied(mut slot) => {
                Some(slot.insert(Station { heard, at: AtomicU32::new(now.tick()) }).heard)
            }
        };
        drop(shard);
        match before {
            None => Outcome::New,
            Some(before) => {
                self.give_room(vni, before);
                if before == heard { Outcome::Known } else { Outcome::Moved }
            }
        }
    }

    /// Forgets what is stale, or of a segment that learns no more, or of a VTEP that has left it: in one of `SHARDS`
    /// parts, by number.
    pub fn sweep(&self, part: usize, segments: &SegmentTable, now: Instant) {
        let Some(shard) = self.shards.get(part % SHARDS) else { return };
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        shard.retain(|(vni, _), station| {
            let segment = segments.lookup(*vni);
            let stays = segment.is_some_and(|segment| {
                let is_there = match station.heard {
                    Heard::Device => true,
                    Heard::Vtep(addr) => segment.vtep_at(addr).is_some(),
                };
                is_there && segment.learning.is_some_and(|learning| !station.is_stale(&learning, now))
            });
            if !stays {
                self.give_room(*vni, station.heard);
            }
            stays
        });
    }

    /// How many there are, stale ones that have not been swept yet included.
    pub fn len(&self) -> usize {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().map(|count| *count as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, sorted.
    pub fn all(&self, now: Instant) -> Vec<Learned> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            all.extend(shard.iter().map(|((vni, mac), station)| Learned {
                vni: *vni,
                mac: *mac,
                heard: station.heard,
                silent_for: station.silent_for(now),
            }));
        }
        all.sort_unstable();
        all
    }

    fn shard(&self, vni: Vni, mac: Mac) -> &RwLock<Shard> {
        &self.shards[self.hasher.hash_one((vni, mac)) as usize % SHARDS]
    }

    fn take_room(&self, vni: Vni, heard: Heard, most: u32) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&(vni, heard)).copied().unwrap_or(0);
        if count < most {
            counts.insert((vni, heard), count + 1);
        }
        count < most
    }

    fn give_room(&self, vni: Vni, heard: Heard) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&(vni, heard)) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(&(vni, heard));
            }
        }
    }
}

impl Station {
    fn silent_for(&self, now: Instant) -> u32 {
        now.tick().saturating_sub(self.at.load(Ordering::Relaxed))
    }

    fn is_stale(&self, learning: &Learning, now: Instant) -> bool {
        u64::from(self.silent_for(now)) >= learning.lasts.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tables::{RemoteVtep, Segment};

    const LEARNING: Learning = Learning { per_vtep: 3, lasts: Duration::from_secs(300) };

    fn vni() -> Vni {
        Vni::new(100).unwrap()
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn vtep(last: u8) -> Heard {
        Heard::Vtep([192, 0, 2, last].into())
    }

    fn segments(vteps: &[u8]) -> SegmentTable {
        let vteps = vteps.iter().map(|last| RemoteVtep::new("n", ([192, 0, 2, *last], 4789).into()).into());
        let mut segment = Segment::new("blue", vteps.collect());
        segment.learning = Some(LEARNING);
        let mut table = SegmentTable::default();
        table.insert(vni(), segment);
        table
    }

    #[test]
    fn e6_each_vtep_has_room_of_its_own_and_no_more() {
        let learned = LearnedStations::default();
        let hear =
            |last: u8, place| learned.learn(vni(), Mac([2, 0, 0, 0, 0, last]), place, &LEARNING, at(0));
        for last in 0..3 {
            assert_eq!(hear(last, vtep(1)), Outcome::New);
        }
        assert_eq!(hear(3, vtep(1)), Outcome::Full);
        assert_eq!(hear(0, vtep(1)), Outcome::Known, "what is known goes on");
        assert_eq!(hear(3, vtep(2)), Outcome::New, "others have theirs");
        assert_eq!(hear(0, vtep(2)), Outcome::Moved);
        assert_eq!(hear(4, vtep(1)), Outcome::New, "what moved away has left room");
        assert_eq!(learned.len(), 5);
        assert_eq!(learned.all(at(7))[0].silent_for, 7);
    }

    #[test]
    fn e6_silent_stations_are_forgotten_and_leave_room() {
        let (learned, segments) = (LearnedStations::default(), segments(&[1, 2]));
        for last in 0..3 {
            learned.learn(vni(), Mac([2, 0, 0, 0, 0, last]), vtep(1), &LEARNING, at(0));
        }
        learned.learn(vni(), Mac([2, 0, 0, 0, 0, 0]), vtep(1), &LEARNING, at(200));
        let lookup = |last, now| learned.lookup(vni(), Mac([2, 0, 0, 0, 0, last]), &LEARNING, now);
        assert_eq!((lookup(1, at(299)), lookup(1, at(300))), (Some(vtep(1)), None));
        (0..SHARDS).for_each(|part| learned.sweep(part, &segments, at(300)));
        assert_eq!((learned.len(), lookup(0, at(300))), (1, Some(vtep(1))));
    }

    #[test]
    fn stations_of_a_vtep_that_has_left_are_forgotten() {
        let learned = LearnedStations::default();
        learned.learn(vni(), Mac([2; 6]), vtep(1), &LEARNING, at(0));
        learned.learn(vni(), Mac([4; 6]), Heard::Device, &LEARNING, at(0));
        (0..SHARDS).for_each(|part| learned.sweep(part, &segments(&[2]), at(1)));
        assert_eq!(learned.all(at(1)).iter().map(|known| known.mac).collect::<Vec<_>>(), [Mac([4; 6])]);
        (0..SHARDS).for_each(|part| learned.sweep(part, &SegmentTable::default(), at(1)));
        assert!(learned.is_empty());
    }
}
