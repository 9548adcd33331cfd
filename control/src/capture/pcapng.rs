//! The newer format: blocks, of which sections, interfaces and two kinds of packets matter here.

use std::time::Duration;

use super::order::Order;
use super::{CaptureError, Captured};

pub(super) const SECTION: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
pub(super) const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

/// In a section's own byte order.
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

pub(super) const OPTION_END: u16 = 0;
pub(super) const OPTION_COMMENT: u16 = 1;
pub(super) const OPTION_RESOLUTION: u16 = 9;

/// Type, length, and the length again at the end.
const FRAME_LEN: usize = 12;

/// An interface of a section.
#[derive(Clone, Copy)]
struct Interface {
    link: u32,
    units_per_second: u64,
}

/// The packets of a pcapng file, at most `limit`.
pub(super) fn packets(file: &[u8], limit: usize) -> Result<Vec<Captured<'_>>, CaptureError> {
    let (mut order, mut interfaces) = (Order { big: false }, Vec::new());
    let (mut rest, mut packets) = (file, Vec::new());
    while !rest.is_empty() && packets.len() < limit {
        let is_section = order.u32(rest, 0) == Some(SECTION);
        if is_section {
            order = Order { big: rest.get(8..12) == Some(&BYTE_ORDER_MAGIC.to_be_bytes()) };
            interfaces.clear();
        }
        let len = block_len(order, rest).ok_or_else(|| CaptureError::new("a block is cut off"))?;
        let (kind, body) = (order.u32(rest, 0), &rest[8..len - 4]);
        match kind {
            Some(INTERFACE) => interfaces.push(interface(order, body).ok_or_else(no_block)?),
            Some(ENHANCED_PACKET) => packets.push(enhanced(order, &interfaces, body)?),
            Some(SIMPLE_PACKET) => packets.push(simple(order, &interfaces, body)?),
            _ => {}
        }
        rest = &rest[len..];
    }
    Ok(packets)
}

fn no_block() -> CaptureError {
    CaptureError::new("a block is shorter than its fields")
}

/// The length of the block at the start of `bytes`, if all of it is there.
fn block_len(order: Order, bytes: &[u8]) -> Option<usize> {
    let len = order.u32(bytes, 4)? as usize;
    (len >= FRAME_LEN && len <= bytes.len()).then_some(len)
}

fn interface(order: Order, body: &[u8]) -> Option<Interface> {
    let link = u32::from(order.u16(body, 0)?);
    let resolution = option(order, body.get(8..)?, OPTION_RESOLUTION).and_then(|value| value.first());
    let units_per_second = match resolution {
        None => 1_000_000,
        Some(power) if power & 0x80 == 0 => 10_u64.checked_pow((*power).into())?,
        Some(power) => 2_u64.checked_pow((power & 0x7f).into())?,
    };
    Some(Interface { link, units_per_second })
}

fn enhanced<'a>(
    order: Order,
    interfaces: &[Interface],
    body: &'a [u8],
) -> Result<Captured<'a>, CaptureError> {
    let field = |at| order.u32(body, at).ok_or_else(no_block);
    let interface = *interfaces
        .get(field(0)? as usize)
        .ok_or_else(|| CaptureError::new("a packet names an interface that is not described"))?;
    let units = u64::from(field(4)?) << 32 | u64::from(field(8)?);
    let (captured_len, original_len) = (field(12)? as usize, field(16)?);
    let bytes = body.get(20..).and_then(|rest| rest.get(..captured_len)).ok_or_else(no_block)?;
    let options = body.get(20 + captured_len.next_multiple_of(4)..).unwrap_or_default();
    let comment = option(order, options, OPTION_COMMENT).and_then(|text| std::str::from_utf8(text).ok());
    Ok(Captured { link: interface.link, at: interface.time(units), bytes, original_len, comment })
}

fn simple<'a>(order: Order, interfaces: &[Interface], body: &'a [u8]) -> Result<Captured<'a>, CaptureError> {
    let interface =
        interfaces.first().ok_or_else(|| CaptureError::new("a packet comes before any interface"))?;
    let original_len = order.u32(body, 0).ok_or_else(no_block)?;
    let bytes = &body[4..];
    let bytes = &bytes[..bytes.len().min(original_len as usize)];
    Ok(Captured { link: interface.link, at: Duration::ZERO, bytes, original_len, comment: None })
}

impl Interface {
    fn time(self, units: u64) -> Duration {
        let per_second = self.units_per_second;
        let nanos = u128::from(units % per_second) * 1_000_000_000 / u128::from(per_second);
        // Less than a second's worth, by the remainder.
        Duration::from_secs(units / per_second) + Duration::from_nanos(nanos as u64)
    }
}

/// The value of the first option of that number.
fn option(order: Order, mut options: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let (code, len) = (order.u16(options, 0)?, usize::from(order.u16(options, 2)?));
        match code {
            OPTION_END => return None,
            _ if code == wanted => return options.get(4..4 + len),
            _ => options = options.get(4 + len.next_multiple_of(4)..)?,
        }
    }
}
