//! What a device must do to a packet that leaves on a wire: finish its checksum, split a superpacket.

use crate::offload::segment;
use crate::packet::{Checksum, PacketBuf};
use crate::wire::checksum;
use crate::wire::inner::InnerPacket;

/// Offset of the UDP checksum in its header; TCP's lies at 16, which is how a partial checksum tells its protocol.
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// VXLAN header and inner Ethernet header before the inner IP packet of a sent datagram, in bytes.
pub(crate) const ENCAPSULATION_LEN: usize = 22;

/// Finishes a partial checksum. `ip` is the packet from its IP header on; `false` when the offsets lie outside it.
pub(crate) fn complete_checksum(ip: &mut [u8], start: u16, offset: u16) -> bool {
    let (first, field) = (usize::from(start), usize::from(start) + usize::from(offset));
    if field + 2 > ip.len() {
        return false;
    }
    checksum::complete(ip, first, usize::from(offset), offset == UDP_CHECKSUM_OFFSET);
    true
}

/// A packet that stands for many wire-size segments, with `prefix_len` bytes before its IP header that every
/// segment repeats.
pub(crate) struct Superpacket<'a> {
    prefix: &'a [u8],
    ip: &'a [u8],
    inner: InnerPacket,
    segment_len: u16,
    count: usize,
}

impl<'a> Superpacket<'a> {
    /// Reads the headers of a superpacket; `None` when they are not what can be split.
    pub(crate) fn parse(bytes: &'a [u8], prefix_len: usize, segment_len: u16) -> Option<Self> {
        let (prefix, ip) = bytes.split_at_checked(prefix_len)?;
        let inner = InnerPacket::parse(ip).ok()?;
        let ip = ip.get(..inner.total_len as usize)?;
        let count = segment::count(ip.len(), inner.headers_len(), segment_len);
        Some(Self { prefix, ip, inner, segment_len, count })
    }

    /// How many segments it makes.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes that segment `index` takes, with its prefix.
    pub(crate) fn len(&self, index: usize) -> usize {
        let (headers, segment_len) = (self.inner.headers_len(), usize::from(self.segment_len));
        let payload = self.ip.len().saturating_sub(headers + index * segment_len);
        self.prefix.len() + headers + payload.min(segment_len)
    }

    /// Most bytes a segment takes, with its prefix.
    pub(crate) fn longest(&self) -> usize {
        let segment = self.inner.headers_len() + usize::from(self.segment_len);
        self.prefix.len() + segment.min(self.ip.len())
    }

    /// Length of prefix and headers, which every segment has.
    #[cfg(target_os = "linux")]
    pub(crate) fn headers_len(&self) -> usize {
        self.prefix.len() + self.inner.headers_len()
    }

    /// Writes prefix and headers of segment `index` and returns the payload that follows them; `None` when `out` is
    /// too short.
    #[cfg(target_os = "linux")]
    pub(crate) fn write_headers(&self, index: usize, out: &mut [u8]) -> Option<&'a [u8]> {
        let (prefix, rest) = out.split_at_mut_checked(self.prefix.len())?;
        prefix.copy_from_slice(self.prefix);
        let payload = segment::write_headers(self.ip, &self.inner, self.segment_len, index, rest)?;
        self.ip.get(payload)
    }

    /// Writes segment `index` with its prefix and returns its length; `None` when `out` is too short.
    pub(crate) fn write(&self, index: usize, out: &mut [u8]) -> Option<usize> {
        let (prefix, rest) = out.split_at_mut_checked(self.prefix.len())?;
        prefix.copy_from_slice(self.prefix);
        let len = segment::segment(self.ip, &self.inner, self.segment_len, index, rest)?;
        Some(self.prefix.len() + len)
    }
}

/// Wire-size segments of a packet, by the length of its headers as its checksum state tells it.
pub(crate) fn segment_count(ip: &[u8], packet: &PacketBuf) -> u64 {
    if packet.segment_len == 0 {
        return 1;
    }
    match headers_len(ip, packet.checksum) {
        Some(headers) => segment::count(ip.len(), headers, packet.segment_len) as u64,
        None => {
            Superpacket::parse(ip, 0, packet.segment_len).map_or(1, |superpacket| superpacket.count() as u64)
        }
    }
}

/// Length of the IP and transport headers of a packet with a partial checksum.
pub(crate) fn headers_len(ip: &[u8], checksum: Checksum) -> Option<usize> {
    let Checksum::Partial { start, offset } = checksum else { return None };
    let start = usize::from(start);
    if offset == UDP_CHECKSUM_OFFSET {
        return Some(start + 8);
    }
    ip.get(start + 12).map(|byte| start + usize::from(byte >> 4) * 4)
}
