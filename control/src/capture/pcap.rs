//! The classic format: a header of 24 bytes, then a header of 16 bytes before each packet.

use std::time::Duration;

use super::order::Order;
use super::{CaptureError, Captured};

const HEADER_LEN: usize = 24;
const PACKET_HEADER_LEN: usize = 16;

/// Whether the file's numbers are big-endian, and nanoseconds per unit of its time stamps.
fn format(file: &[u8]) -> Option<(Order, u32)> {
    match file {
        [0xa1, 0xb2, 0xc3, 0xd4, ..] => Some((Order { big: true }, 1_000)),
        [0xd4, 0xc3, 0xb2, 0xa1, ..] => Some((Order { big: false }, 1_000)),
        [0xa1, 0xb2, 0x3c, 0x4d, ..] => Some((Order { big: true }, 1)),
        [0x4d, 0x3c, 0xb2, 0xa1, ..] => Some((Order { big: false }, 1)),
        _ => None,
    }
}

/// The packets of a pcap file, at most `limit`.
pub(super) fn packets(file: &[u8], limit: usize) -> Result<Vec<Captured<'_>>, CaptureError> {
    let (order, unit) =
        format(file).ok_or_else(|| CaptureError::new("it is neither a pcap nor a pcapng file"))?;
    let header = file.get(..HEADER_LEN).ok_or_else(|| CaptureError::new("its header is cut off"))?;
    let link = order.u32(header, 20).unwrap_or_default() & 0xffff;
    let (mut rest, mut packets) = (&file[HEADER_LEN..], Vec::new());
    while !rest.is_empty() && packets.len() < limit {
        let (captured, len) = packet(order, unit, link, rest)
            .ok_or_else(|| CaptureError(format!("its packet number {} is cut off", packets.len() + 1)))?;
        packets.push(captured);
        rest = &rest[len..];
    }
    Ok(packets)
}

/// The packet at the start of `bytes`, and how long it is with its header.
fn packet(order: Order, unit: u32, link: u32, bytes: &[u8]) -> Option<(Captured<'_>, usize)> {
    let (seconds, fraction) = (order.u32(bytes, 0)?, order.u32(bytes, 4)?);
    let end = PACKET_HEADER_LEN.checked_add(order.u32(bytes, 8)? as usize)?;
    let captured = Captured {
        link,
        at: Duration::from_secs(seconds.into()) + Duration::from_nanos(u64::from(fraction) * u64::from(unit)),
        bytes: bytes.get(PACKET_HEADER_LEN..end)?,
        original_len: order.u32(bytes, 12)?,
        comment: None,
    };
    Some((captured, end))
}
