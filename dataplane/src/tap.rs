//! Copies of packets for whoever captures: bounded, and for one relaxed load per batch while nobody does.
//!
//! Workers never wait for a reader: what does not fit, and what comes while a reader takes the rest away, is counted as
//! lost. A reader that is gone is not waited for either: its capture ends when it was not renewed in time.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::drop_reason::DropReason;
use crate::packet::Datagram;
use crate::time::Instant;
use crate::wire::inner::InnerPacket;
use crate::wire::protocol::Protocol;

/// Bytes of packets kept for the reader.
pub const CAPACITY: usize = 8 << 20;

/// Packets kept for the reader.
pub const MAX_PACKETS: usize = 32_768;

/// VXLAN and Ethernet header before the inner packet of a datagram.
const HEADERS_LEN: usize = 22;

/// Which side of the node a packet is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The overlay device: inner packets.
    Overlay,
    /// The underlay: VXLAN payloads.
    Underlay,
}

/// Which packets are wanted, by the inner packet; what is absent is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Its protocol.
    pub protocol: Option<Protocol>,
    /// Its source or its destination.
    pub addr: Option<IpAddr>,
    /// Its source or destination port.
    pub port: Option<u16>,
}

impl Filter {
    /// Whether the inner packet at the start of `ip` is wanted. One that cannot be read is wanted by an empty filter.
    pub fn wants(&self, ip: &[u8]) -> bool {
        let Ok(InnerPacket { flow, .. }) = InnerPacket::parse(ip) else { return *self == Self::default() };
        self.protocol.is_none_or(|protocol| flow.protocol == protocol)
            && self.addr.is_none_or(|addr| [flow.src, flow.dst].contains(&addr))
            && self.port.is_none_or(|port| [flow.src_port, flow.dst_port].contains(&port))
    }
}

/// What a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Packets of the overlay device.
    pub overlay: bool,
    /// Datagrams of the underlay.
    pub underlay: bool,
    /// Only what is dropped.
    pub only_drops: bool,
    /// Bytes kept of a packet.
    pub snap_len: usize,
    /// Which packets.
    pub filter: Filter,
}

/// What is known of the outer headers of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// The VTEP at the other end.
    pub remote: SocketAddr,
    /// TOS byte or traffic class.
    pub tos: u8,
    /// Sent: which socket of the source-port pool, modulo its size.
    pub source_port: u16,
}

impl Outer {
    /// Those of a datagram.
    pub fn of(datagram: &Datagram) -> Self {
        Self { remote: datagram.remote, tos: datagram.tos, source_port: datagram.source_port }
    }
}

/// A packet as a worker sees it.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// Where.
    pub side: Side,
    /// Whether it was received, not sent.
    pub received: bool,
    /// When.
    pub at: Instant,
    /// For datagrams.
    pub outer: Option<Outer>,
    /// The inner packet, or VXLAN header and frame.
    pub bytes: &'a [u8],
    /// Why it goes no further.
    pub dropped: Option<DropReason>,
}

impl<'a> Sighting<'a> {
    /// A packet that is handed to a device or a socket.
    pub fn sent(side: Side, outer: Option<Outer>, bytes: &'a [u8], at: Instant) -> Self {
        Self { side, received: false, at, outer, bytes, dropped: None }
    }
}

/// A packet that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Where.
    pub side: Side,
    /// Whether it was received, not sent.
    pub received: bool,
    /// When.
    pub at: Instant,
    /// For datagrams.
    pub outer: Option<Outer>,
    /// Why it went no further.
    pub dropped: Option<DropReason>,
    /// How long it was.
    pub original_len: u32,
    len: u32,
}

/// What was kept since it was taken last.
#[derive(Debug, Default)]
pub struct Take {
    kept: Vec<Kept>,
    bytes: Vec<u8>,
    /// Packets that did not fit.
    pub lost: u64,
}

impl Take {
    /// An empty one with all its room, so that workers allocate nothing.
    fn roomy() -> Self {
        Self { kept: Vec::with_capacity(MAX_PACKETS), bytes: Vec::with_capacity(CAPACITY), lost: 0 }
    }

    /// The packets in their order, and what was kept of their bytes.
    pub fn packets(&self) -> impl Iterator<Item = (&Kept, &[u8])> {
        let mut rest = &self.bytes[..];
        self.kept.iter().map(move |kept| {
            let (bytes, after) = rest.split_at(kept.len as usize);
            rest = after;
            (kept, bytes)
        })
    }
}

/// Another capture is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another capture is under way; only one can be")]
pub struct Busy;

#[derive(Debug)]
struct Capture {
    owner: u64,
    wanted: Wanted,
    ends_at: Instant,
    take: Take,
}

/// Where the workers of a node put what a reader wants.
#[derive(Debug, Default)]
pub struct Tap {
    is_on: AtomicBool,
    /// Packets that came while the reader took the others away.
    missed: AtomicU64,
    capture: Mutex<Option<Capture>>,
}

impl Tap {
    /// Whether anybody captures.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Begins `owner`'s capture or goes on with it until `ends_at`, and takes away what was kept so far.
    ///
    /// # Errors
    /// When another one's is under way.
    pub fn take(&self, owner: u64, wanted: Wanted, now: Instant, ends_at: Instant) -> Result<Take, Busy> {
        // Made before the lock is taken: workers that find it taken lose packets.
        let empty = Take::roomy();
        let mut capture = self.lock();
        if capture.as_ref().is_some_and(|other| other.owner != owner && other.ends_at > now) {
            return Err(Busy);
        }
        let before = capture.take().filter(|capture| capture.owner == owner);
        *capture = Some(Capture { owner, wanted, ends_at, take: empty });
        self.is_on.store(true, Ordering::Relaxed);
        drop(capture);
        let missed = self.missed.swap(0, Ordering::Relaxed);
        let mut take = before.map(|capture| capture.take).unwrap_or_default();
        take.lost += missed;
        Ok(take)
    }

    /// Ends `owner`'s capture, and takes away what is left of it.
    pub fn end(&self, owner: u64) -> Take {
        let mut capture = self.lock();
        let ended = capture.take_if(|capture| capture.owner == owner);
        if ended.is_some() {
            self.is_on.store(false, Ordering::Relaxed);
        }
        drop(capture);
        ended.map(|capture| capture.take).unwrap_or_default()
    }

    /// Keeps a packet, if it is wanted and fits.
    pub fn see(&self, sighting: &Sighting<'_>) {
        let Ok(mut place) = self.capture.try_lock() else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let Some(capture) = place.as_mut() else { return };
        if capture.ends_at <= sighting.at {
            *place = None;
            self.is_on.store(false, Ordering::Relaxed);
        } else if capture.wanted.wants(sighting) {
            capture.keep(sighting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted {
    fn wants(&self, sighting: &Sighting<'_>) -> bool {
        let (side, inner) = match sighting.side {
            Side::Overlay => (self.overlay, sighting.bytes),
            Side::Underlay => (self.underlay, sighting.bytes.get(HEADERS_LEN..).unwrap_or_default()),
        };
        side && (sighting.dropped.is_some() || !self.only_drops) && self.filter.wants(inner)
    }
}

impl Capture {
    fn keep(&mut self, sighting: &Sighting<'_>) {
        let Take { kept, bytes, lost } = &mut self.take;
        let len = sighting.bytes.len().min(self.wanted.snap_len);
        if kept.len() >= MAX_PACKETS || bytes.len() + len > CAPACITY {
            *lost += 1;
            return;
        }
        bytes.extend_from_slice(&sighting.bytes[..len]);
        let Sighting { side, received, at, outer, dropped, .. } = *sighting;
        let original_len = sighting.bytes.len() as u32;
        kept.push(Kept { side, received, at, outer, dropped, original_len, len: len as u32 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Wanted = Wanted {
        overlay: true,
        underlay: true,
        only_drops: false,
        snap_len: 16,
        filter: Filter { protocol: None, addr: None, port: None },
    };

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn sighting(seconds: u64, bytes: &[u8], dropped: Option<DropReason>) -> Sighting<'_> {
        Sighting { side: Side::Overlay, received: true, at: at(seconds), outer: None, bytes, dropped }
    }

    #[test]
    fn what_is_wanted_is_kept_and_cut_to_the_snap_length() {
        let tap = Tap::default();
        assert!(!tap.is_on());
        tap.take(1, ALL, at(0), at(10)).unwrap();
        tap.see(&sighting(1, &[7; 20], None));
        tap.see(&sighting(1, &[8; 3], Some(DropReason::NoRoute)));
        let take = tap.take(1, Wanted { only_drops: true, ..ALL }, at(2), at(10)).unwrap();
        let packets: Vec<_> =
            take.packets().map(|(kept, bytes)| (kept.original_len, kept.dropped, bytes)).collect();
        let expected = [(20, None, &[7; 16][..]), (3, Some(DropReason::NoRoute), &[8; 3][..])];
        assert_eq!(packets, expected);
        tap.see(&sighting(3, &[7; 20], None));
        assert_eq!((tap.end(1).packets().count(), tap.is_on()), (0, false));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_a_capture_that_is_not_renewed_ends() {
        let tap = Tap::default();
        tap.take(1, ALL, at(0), at(10)).unwrap();
        for _ in 0..MAX_PACKETS + 5 {
            tap.see(&sighting(1, &[1], None));
        }
        assert_eq!(tap.take(2, ALL, at(5), at(20)).err(), Some(Busy));
        assert_eq!(tap.take(1, ALL, at(5), at(20)).unwrap().lost, 5);
        tap.see(&sighting(21, &[1], None));
        assert!(!tap.is_on());
        assert!(tap.take(2, ALL, at(22), at(30)).unwrap().packets().next().is_none());
    }

    #[test]
    fn filters_look_at_the_inner_packet() {
        let mut udp = vec![0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        udp.extend([0x9c, 0x40, 0, 53, 0, 8, 0, 0]);
        let none = Filter::default();
        let wants = |filter: Filter| filter.wants(&udp);
        assert!(wants(none) && wants(Filter { protocol: Some(Protocol::UDP), port: Some(53), ..none }));
        assert!(wants(Filter { addr: Some(IpAddr::from([10, 0, 0, 2])), ..none }));
        assert!(!wants(Filter { protocol: Some(Protocol::TCP), ..none }));
        assert!(!wants(Filter { port: Some(54), ..none }));
        assert!(none.wants(b"junk") && !Filter { port: Some(1), ..none }.wants(b"junk"));
    }
}
