//! Capture files: pcap and pcapng are read, pcapng is written.
//!
//! Read first: draft-ietf-opsawg-pcap sections 4 and 5, draft-ietf-opsawg-pcapng sections 3 and 4.

pub mod live;
mod order;
pub mod outer;
mod pcap;
mod pcapng;
pub mod write;

use std::net::IpAddr;
use std::time::Duration;

use windlass_dataplane::wire::ethernet::{self, Ethernet};
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::wire::protocol::L4;
use windlass_dataplane::wire::udp;

/// Link type of Ethernet frames.
pub const ETHERNET: u32 = 1;
/// Link type of raw IP packets.
pub const RAW_IP: u32 = 101;

/// Other numbers of raw IP: OpenBSD's, and those of IPv4 and IPv6 alone.
const RAW_OTHERS: [u32; 3] = [12, 228, 229];

/// Why a capture cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaptureError(String);

impl CaptureError {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// One captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured<'a> {
    /// What its bytes begin with: [`ETHERNET`], [`RAW_IP`], or a link type this program does not read.
    pub link: u32,
    /// When, since 1970.
    pub at: Duration,
    /// The bytes that were kept.
    pub bytes: &'a [u8],
    /// How many there were.
    pub original_len: u32,
    /// What somebody wrote to it.
    pub comment: Option<&'a str>,
}

/// The packets of a pcap or pcapng file, at most `limit`.
///
/// # Errors
/// When it is neither, or is cut off.
pub fn packets(file: &[u8], limit: usize) -> Result<Vec<Captured<'_>>, CaptureError> {
    match file.get(..4) {
        None => Err(CaptureError::new("it is too short for a capture")),
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => pcapng::packets(file, limit),
        Some(_) => pcap::packets(file, limit),
    }
}

/// The IP packet in the file's packet number `number`, counted from 1.
///
/// # Errors
/// As [`packets`], and when there are fewer packets or this one is no IP packet.
pub fn ip_packet(file: &[u8], number: usize) -> Result<Vec<u8>, CaptureError> {
    let packets = packets(file, number)?;
    match packets.get(number.saturating_sub(1)) {
        Some(captured) => captured.ip_packet().map(<[u8]>::to_vec),
        None => Err(CaptureError(format!(
            "it has {} packets, and number {number} is asked for: give a smaller N in FILE:N",
            packets.len()
        ))),
    }
}

impl<'a> Captured<'a> {
    /// The IP packet in it, from its header on.
    ///
    /// # Errors
    /// When it is none, or its link type is none that is read.
    pub fn ip_packet(&self) -> Result<&'a [u8], CaptureError> {
        if self.link == RAW_IP || RAW_OTHERS.contains(&self.link) {
            return Ok(self.bytes);
        }
        if self.link != ETHERNET {
            return Err(CaptureError(format!(
                "its link type {} is neither Ethernet (1) nor raw IP (101); capture on one interface, not on \"any\"",
                self.link
            )));
        }
        let view = Ethernet::new_checked(self.bytes)
            .map_err(|_| CaptureError::new("the frame is shorter than an Ethernet header"))?;
        let payload = &self.bytes[ethernet::HEADER_LEN..];
        let (ethertype, payload) = match (view.ethertype(), payload) {
            (ethernet::VLAN, [_, _, high, low, rest @ ..]) => (u16::from_be_bytes([*high, *low]), rest),
            other => other,
        };
        match ethertype {
            ethernet::IPV4 | ethernet::IPV6 => Ok(payload),
            other => Err(CaptureError(format!(
                "the frame carries ethertype 0x{other:04x}, not IP; choose another with FILE:N"
            ))),
        }
    }
}

/// A UDP datagram, as far as VXLAN needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpDatagram<'a> {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// TOS byte or traffic class.
    pub tos: u8,
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// The datagram that an IP packet is.
    pub fn in_packet(packet: &'a [u8]) -> Option<Self> {
        let outer = InnerPacket::parse(packet).ok()?;
        let at = usize::from(outer.l4_offset) + udp::HEADER_LEN;
        let flow = outer.flow;
        (outer.l4 == L4::Udp).then(|| Self {
            source: flow.src,
            destination: flow.dst,
            source_port: flow.src_port,
            destination_port: flow.dst_port,
            tos: outer.tos,
            payload: &packet[at..outer.total_len as usize],
        })
    }
}

#[cfg(test)]
mod tests;
