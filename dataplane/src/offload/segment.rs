//! Splits a superpacket into the wire-size segments it stands for.
//!
//! Read first: RFC 9293 section 3.1 for what of a TCP header belongs to which byte, RFC 3168 section 6.1.2 for
//! CWR, RFC 6864 for IPv4 identifications; Documentation/networking/segmentation-offloads.rst of Linux.

use std::ops::Range;

use crate::wire::bytes::put_u16;
use crate::wire::checksum::{fold, never_zero, pseudo_header, sum};
use crate::wire::flow::FlowKey;
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::L4;
use crate::wire::{ipv4, ipv6, tcp, udp};

/// How many wire-size segments a packet of `total_len` bytes stands for, whose IP and transport headers take
/// `headers_len` and whose segments carry `segment_len` bytes of payload (0: it is an ordinary packet). At
/// least 1.
#[inline]
pub fn count(total_len: usize, headers_len: usize, segment_len: u16) -> usize {
    if segment_len == 0 {
        return 1;
    }
    total_len.saturating_sub(headers_len).div_ceil(usize::from(segment_len)).max(1)
}

/// Writes the `index`-th wire-size segment of the IP packet `packet`, which `inner` describes, to `out` and
/// returns its length; `None` past the last one, or when `out` is too short. See [`write_headers`].
pub fn segment(
    packet: &[u8],
    inner: &InnerPacket,
    segment_len: u16,
    index: usize,
    out: &mut [u8],
) -> Option<usize> {
    let payload = write_headers(packet, inner, segment_len, index, out)?;
    let (headers_len, payload) = (inner.headers_len(), packet.get(payload)?);
    let len = headers_len + payload.len();
    out.get_mut(headers_len..len)?.copy_from_slice(payload);
    Some(len)
}

/// Writes the headers of the `index`-th wire-size segment to the first [`headers_len`](InnerPacket::headers_len)
/// bytes of `out`, and returns where in `packet` the payload lies that follows them; `None` past the last segment,
/// or when `out` is too short.
///
/// IPv4 identifications count up from the packet's own; checksums are complete, whatever state the packet's was in,
/// except that a UDP checksum of zero over IPv4 stays zero. What cannot be split, neither TCP nor UDP or a
/// fragment, is its own only segment and stays as it is.
pub fn write_headers(
    packet: &[u8],
    inner: &InnerPacket,
    segment_len: u16,
    index: usize,
    out: &mut [u8],
) -> Option<Range<usize>> {
    let packet = packet.get(..inner.total_len as usize)?;
    let headers_len = inner.headers_len();
    let (headers, payload) = packet.split_at_checked(headers_len)?;
    let splits = matches!(inner.l4, L4::Tcp { .. } | L4::Udp) && inner.fragment == Fragment::Whole;
    let count = if splits { count(packet.len(), headers_len, segment_len) } else { 1 };
    if index >= count {
        return None;
    }
    let out = out.get_mut(..headers_len)?;
    out.copy_from_slice(headers);
    let step = if count == 1 { payload.len() } else { usize::from(segment_len) };
    let start = index * step;
    let end = payload.len().min(start + step);
    if splits {
        let part = &payload[start..end];
        write_ip(out, part.len(), index as u16)?;
        let l4 = &mut out[usize::from(inner.l4_offset)..];
        match inner.l4 {
            L4::Tcp { flags } => write_tcp(l4, part, inner, flags, start as u32, index + 1 == count),
            _ => write_udp(l4, part, inner, count > 1),
        }?;
    }
    Some(headers_len + start..headers_len + end)
}

fn write_ip(headers: &mut [u8], payload_len: usize, index: u16) -> Option<()> {
    let len = u16::try_from(headers.len() + payload_len).ok()?;
    if let Ok(mut ip) = ipv4::Ipv4::new_header(&mut *headers) {
        ip.set_total_len(len);
        ip.set_ident(ip.ident().wrapping_add(index));
        ip.fill_checksum();
    } else {
        ipv6::Ipv6::new_header(headers).ok()?.set_payload_len(len - ipv6::HEADER_LEN as u16);
    }
    Some(())
}

fn write_tcp(
    l4: &mut [u8],
    payload: &[u8],
    inner: &InnerPacket,
    flags: u8,
    start: u32,
    last: bool,
) -> Option<()> {
    let mut header = tcp::Tcp::new_checked(&mut *l4).ok()?;
    let not_last = if last { 0 } else { tcp::FIN | tcp::PSH };
    let not_first = if start == 0 { 0 } else { tcp::CWR };
    header.set_flags(flags & !(not_last | not_first));
    header.set_seq(header.seq().wrapping_add(start));
    put_u16(l4, tcp::CHECKSUM, 0);
    let checksum = !fold(transport_sum(inner, l4, payload));
    put_u16(l4, tcp::CHECKSUM, checksum);
    Some(())
}

fn write_udp(l4: &mut [u8], payload: &[u8], inner: &InnerPacket, one_of_many: bool) -> Option<()> {
    let len = u16::try_from(l4.len() + payload.len()).ok()?;
    let mut header = udp::Udp::new_header(&mut *l4).ok()?;
    if one_of_many {
        header.set_datagram_len(len);
    }
    if header.checksum() != 0 || inner.flow.src.is_ipv6() {
        // A lone datagram may end before its packet does.
        let covered = usize::from(header.datagram_len()).checked_sub(udp::HEADER_LEN)?;
        put_u16(l4, udp::CHECKSUM, 0);
        let checksum = never_zero(!fold(transport_sum(inner, l4, payload.get(..covered)?)));
        put_u16(l4, udp::CHECKSUM, checksum);
    }
    Some(())
}

/// The sum of pseudo-header, transport header (always even in length) and payload, not complemented.
fn transport_sum(inner: &InnerPacket, l4: &[u8], payload: &[u8]) -> u32 {
    let len = (l4.len() + payload.len()) as u32;
    let FlowKey { src, dst, protocol, .. } = inner.flow;
    pseudo_header(src, dst, protocol, len) + sum(l4) + sum(payload)
}

#[cfg(test)]
mod tests;
