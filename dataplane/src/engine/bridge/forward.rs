//! What a segment's tables say of a frame: pure, for the two journeys and for whoever asks.

use std::net::IpAddr;
use std::sync::Arc;

use super::frame::Frame;
use super::learned::{Heard, LearnedStations};
use super::suppress::{self, Claim};
use crate::drop_reason::DropReason;
use crate::engine::Settings;
use crate::tables::{Place, RemoteVtep, Segment};
use crate::time::Instant;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// Where a frame from an L2 device goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toward {
    /// To the VTEP behind which its station is.
    Vtep(Arc<RemoteVtep>),
    /// To every VTEP of the segment: head-end replication (RFC 7348 section 4.2 without multicast on the underlay).
    Everybody,
    /// Back to who asked: the address is at this MAC.
    Answer(IpAddr, Mac),
}

/// Decides about a frame from the segment's device. `bytes` begin with its VXLAN header, tags taken away.
///
/// # Errors
/// The reason to drop it.
pub fn from_device(
    segment: &Segment,
    learned: &LearnedStations,
    frame: &Frame,
    bytes: &[u8],
    now: Instant,
) -> Result<Toward, DropReason> {
    check_source(segment, frame, &Place::Device)?;
    let claim = suppress::claim(frame, bytes);
    check_claim(segment, claim.as_ref())?;
    if frame.dst.is_multicast() {
        return to_group(segment, frame, claim.and_then(|claim| claim.asks));
    }
    match place(segment, learned, frame.vni, frame.dst, now) {
        Some(Place::Device) => Err(DropReason::DestinationOnDevice),
        Some(Place::Vtep(vtep)) => Ok(Toward::Vtep(vtep)),
        None if segment.floods_unknown => everybody(segment),
        None => Err(DropReason::UnknownUnicast),
    }
}

/// To everybody, unless it asks for an address whose MAC is known: then whoever asks is answered. A station that asks for its
/// own address wants to hear of others who have it.
fn to_group(segment: &Segment, frame: &Frame, asks: Option<IpAddr>) -> Result<Toward, DropReason> {
    let known = asks.and_then(|addr| Some((addr, segment.neighbor(addr)?)));
    let Some((addr, mac)) = known.filter(|(_, mac)| *mac != frame.src) else {
        return everybody(segment);
    };
    match segment.place(mac) {
        Some(Place::Device) => Err(DropReason::DestinationOnDevice),
        Some(Place::Vtep(_)) => Ok(Toward::Answer(addr, mac)),
        None => everybody(segment),
    }
}

/// Decides about a frame from the underlay address `source`. It goes to the device or nowhere: what came from the
/// underlay never goes back there. Returns the VTEP that sent it, or nothing when that is not known and tolerated.
///
/// # Errors
/// The reason to drop it.
pub fn from_vtep<'a>(
    segment: &'a Segment,
    learned: &LearnedStations,
    settings: &Settings,
    source: IpAddr,
    frame: &Frame,
    bytes: &[u8],
    now: Instant,
) -> Result<Option<&'a Arc<RemoteVtep>>, DropReason> {
    let sender = segment.vtep_at(source);
    match sender {
        Some(sender) => check_source(segment, frame, &Place::Vtep(Arc::clone(sender)))?,
        None if !settings.allow_unknown_vteps => return Err(DropReason::UnknownVtep),
        None if segment.place(frame.src).is_some() => return Err(DropReason::SourceMacSpoofed),
        None => check_mac(frame.src)?,
    }
    check_claim(segment, suppress::claim(frame, bytes).as_ref())?;
    check_destination(segment, learned, frame, now).map(|()| sender)
}

/// It is here, or may be.
fn check_destination(
    segment: &Segment,
    learned: &LearnedStations,
    frame: &Frame,
    now: Instant,
) -> Result<(), DropReason> {
    match segment.place(frame.dst) {
        _ if frame.dst.is_multicast() => Ok(()),
        Some(Place::Device) => Ok(()),
        Some(Place::Vtep(_)) => Err(DropReason::InnerMacNotOurs),
        None if segment.floods_unknown => Ok(()),
        None => match place(segment, learned, frame.vni, frame.dst, now) {
            Some(Place::Device) => Ok(()),
            _ => Err(DropReason::InnerMacNotOurs),
        },
    }
}

/// Where a station is: by its static entry, else as it was learned.
pub fn place(
    segment: &Segment,
    learned: &LearnedStations,
    vni: Vni,
    mac: Mac,
    now: Instant,
) -> Option<Place> {
    if let Some(place) = segment.place(mac) {
        return Some(place.clone());
    }
    match learned.lookup(vni, mac, &segment.learning?, now)? {
        Heard::Device => Some(Place::Device),
        Heard::Vtep(addr) => segment.vtep_at(addr).map(|vtep| Place::Vtep(Arc::clone(vtep))),
    }
}

/// A station of a static entry speaks from there and from nowhere else.
fn check_source(segment: &Segment, frame: &Frame, from: &Place) -> Result<(), DropReason> {
    check_mac(frame.src)?;
    let is_elsewhere = match (segment.place(frame.src), from) {
        (None, _) | (Some(Place::Device), Place::Device) => false,
        (Some(Place::Vtep(known)), Place::Vtep(sender)) => known.addr.ip() != sender.addr.ip(),
        (Some(_), _) => true,
    };
    if is_elsewhere { Err(DropReason::SourceMacSpoofed) } else { Ok(()) }
}

fn check_mac(src: Mac) -> Result<(), DropReason> {
    let is_none = src == Mac::default();
    if is_none || src.is_multicast() { Err(DropReason::SourceMacInvalid) } else { Ok(()) }
}

/// An address of a static entry is at its MAC and at no other: else anybody could draw its traffic.
fn check_claim(segment: &Segment, claim: Option<&Claim>) -> Result<(), DropReason> {
    let said = claim.and_then(|claim| claim.says);
    let is_false = said.is_some_and(|(addr, mac)| segment.neighbor(addr).is_some_and(|known| known != mac));
    if is_false { Err(DropReason::NeighborSpoofed) } else { Ok(()) }
}

fn everybody(segment: &Segment) -> Result<Toward, DropReason> {
    if segment.vteps().is_empty() { Err(DropReason::NoOtherVtep) } else { Ok(Toward::Everybody) }
}
