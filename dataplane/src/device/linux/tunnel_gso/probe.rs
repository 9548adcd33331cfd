//! Sends one superpacket through the lane and looks how it leaves.
//!
//! The frame harms nobody: its Ethernet destination is the uplink's own address, so that a switch, which has learned
//! where that is, gives it to no one; its IP destination is this host too, its port is discard's.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::frame::{self, Outer};
use super::tap::Tap;
use super::{Unavailable, Uplink};
use crate::device::linux::capture::Capture;
use crate::device::segments::ENCAPSULATION_LEN;
use crate::packet::Checksum;
use crate::wire::bytes::put_u16;
use crate::wire::checksum::{fold, pseudo_header};
use crate::wire::protocol::Protocol;
use crate::wire::{ethernet, ipv4, tcp, vxlan};

/// RFC 863.
const DISCARD_PORT: u16 = 9;

/// Payload of the inner TCP packet and of its segments, in bytes: nearly as long as an IP packet can be.
const PAYLOAD_LEN: usize = 60_000;
const SEGMENT_LEN: u16 = 1000;

const TCP_DATA_OFFSET: usize = 12;

/// How long the frame may take from the TAP to the uplink: less than a microsecond is usual.
const PATIENCE: Duration = Duration::from_millis(300);

/// How the superpacket left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// In one piece.
    Whole,
    /// The kernel had to cut it.
    InPieces,
}

/// Writes a superpacket to the TAP, whose program must pass it on unchanged, and sees it leave the uplink.
pub(super) fn send(tap: &Tap, uplink: &Uplink) -> Result<Seen, Unavailable> {
    let watching = format!("watching {} (needs CAP_NET_RAW)", uplink.name);
    let capture = Capture::between(uplink.index, uplink.mac, uplink.mac)
        .map_err(|error| Unavailable::system(&watching, error))?;
    let address = SocketAddr::new(uplink.address, DISCARD_PORT);
    let outer = Outer { mac: uplink.mac, source: address, remote: address, tos: 0 };
    let (payload, checksum) = superpacket();
    let headers = frame::headers(&outer, &payload, SEGMENT_LEN, checksum)
        .ok_or_else(|| Unavailable("the probe cannot be described".to_owned()))?;
    tap.write(headers.bytes(), &payload)
        .map_err(|error| Unavailable::system(&format!("a superpacket to {}", tap.name()), error))?;
    match capture.next_len(PATIENCE).map_err(|error| Unavailable::system(&watching, error))? {
        None => Err(Unavailable(format!("what is written to {} does not leave {}", tap.name(), uplink.name))),
        Some(len) if len < payload.len() => Ok(Seen::InPieces),
        Some(_) => Ok(Seen::Whole),
    }
}

/// A VXLAN payload with a TCP packet between addresses for documentation (RFC 5737).
fn superpacket() -> (Vec<u8>, Checksum) {
    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    let l4_len = tcp::HEADER_LEN + PAYLOAD_LEN;
    let mut payload = vec![0; ENCAPSULATION_LEN + ipv4::HEADER_LEN + l4_len];
    payload[0] = vxlan::HAS_VNI;
    let (frame, ip) = payload.split_at_mut(ENCAPSULATION_LEN);
    let nobody = ethernet::Mac([2, 0, 0, 0, 0, 0]);
    ethernet::emit(&mut frame[vxlan::HEADER_LEN..], nobody, nobody, ethernet::IPV4);
    ipv4::emit(
        ip,
        ipv4::Header {
            src,
            dst,
            protocol: Protocol::TCP,
            tos: 0,
            ttl: 1,
            ident: 0,
            dont_fragment: true,
            total_len: (ipv4::HEADER_LEN + l4_len) as u16,
        },
    );
    let segment = &mut ip[ipv4::HEADER_LEN..];
    segment[TCP_DATA_OFFSET] = (tcp::HEADER_LEN as u8 / 4) << 4;
    let pseudo = pseudo_header(src.into(), dst.into(), Protocol::TCP, l4_len as u32);
    put_u16(segment, tcp::CHECKSUM, fold(pseudo));
    (payload, Checksum::Partial { start: ipv4::HEADER_LEN as u16, offset: tcp::CHECKSUM as u16 })
}
