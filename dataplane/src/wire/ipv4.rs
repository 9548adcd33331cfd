//! IPv4.
//!
//! Read first: RFC 791 section 3.1, RFC 6864 for the identification field, RFC 3168 section 5 for ECN.

use std::net::Ipv4Addr;

use super::bytes::{Malformed, array, put, put_u16, u16_at};
use super::checksum;
use super::protocol::Protocol;

/// Length of the header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// The Don't Fragment flag, in the word of the fragment offset.
pub const DONT_FRAGMENT: u16 = 0x4000;
/// The More Fragments flag, in the word of the fragment offset.
pub const MORE_FRAGMENTS: u16 = 0x2000;

const VERSION_IHL: usize = 0;
const TOS: usize = 1;
const TOTAL_LEN: usize = 2;
const IDENT: usize = 4;
const FRAGMENT: usize = 6;
const TTL: usize = 8;
const PROTOCOL: usize = 9;
pub(crate) const CHECKSUM: usize = 10;
pub(super) const SRC: usize = 12;
const DST: usize = 16;

/// A packet from its IPv4 header on.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv4<T> {
    /// A whole packet; bytes beyond its length are Ethernet padding.
    ///
    /// # Errors
    /// As [`Self::new_header`], and when the total length exceeds the bytes or is less than the header.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let packet = Self::new_header(bytes)?;
        let total_len = usize::from(packet.total_len());
        if total_len < packet.header_len() {
            Err(Malformed::Invalid)
        } else if total_len > packet.bytes.as_ref().len() {
            Err(Malformed::Truncated)
        } else {
            Ok(packet)
        }
    }

    /// A packet whose header is whole but whose end may be cut off, as ICMP errors quote it.
    ///
    /// # Errors
    /// When the header is not whole, its version is not 4 or its length is less than 20 bytes.
    #[inline]
    pub fn new_header(bytes: T) -> Result<Self, Malformed> {
        let data = bytes.as_ref();
        if data.len() < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        let header_len = usize::from(data[VERSION_IHL] & 0xf) * 4;
        if data[VERSION_IHL] >> 4 != 4 || header_len < HEADER_LEN {
            return Err(Malformed::Invalid);
        }
        if data.len() < header_len { Err(Malformed::Truncated) } else { Ok(Self { bytes }) }
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes.as_ref()[VERSION_IHL] & 0xf) * 4
    }

    /// DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.bytes.as_ref()[TOS]
    }

    /// Length of header and payload, in bytes.
    #[inline]
    pub fn total_len(&self) -> u16 {
        u16_at(self.bytes.as_ref(), TOTAL_LEN)
    }

    /// Identification, which the fragments of one packet share.
    #[inline]
    pub fn ident(&self) -> u16 {
        u16_at(self.bytes.as_ref(), IDENT)
    }

    /// The Don't Fragment flag.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.bytes.as_ref(), FRAGMENT) & DONT_FRAGMENT != 0
    }

    /// The More Fragments flag.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        u16_at(self.bytes.as_ref(), FRAGMENT) & MORE_FRAGMENTS != 0
    }

    /// Where this fragment's payload lies in the whole one's, in bytes.
    #[inline]
    pub fn fragment_offset(&self) -> usize {
        usize::from(u16_at(self.bytes.as_ref(), FRAGMENT) & 0x1fff) * 8
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.bytes.as_ref()[TTL]
    }

    /// The payload's protocol.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        Protocol(self.bytes.as_ref()[PROTOCOL])
    }

    /// The header's checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes.as_ref(), CHECKSUM)
    }

    /// Whether the header's checksum is right.
    pub fn verify_checksum(&self) -> bool {
        checksum::checksum(&self.bytes.as_ref()[..self.header_len()]) == 0
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.bytes.as_ref(), SRC))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.bytes.as_ref(), DST))
    }

    /// What follows the header, without Ethernet padding.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        let start = self.header_len();
        &bytes[start..usize::from(self.total_len()).clamp(start, bytes.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv4<T> {
    /// Writes DSCP and ECN.
    #[inline]
    pub fn set_tos(&mut self, tos: u8) {
        self.bytes.as_mut()[TOS] = tos;
    }

    /// Writes the total length, in bytes.
    #[inline]
    pub fn set_total_len(&mut self, total_len: u16) {
        put_u16(self.bytes.as_mut(), TOTAL_LEN, total_len);
    }

    /// Writes the identification.
    #[inline]
    pub fn set_ident(&mut self, ident: u16) {
        put_u16(self.bytes.as_mut(), IDENT, ident);
    }

    /// Writes the fragment's offset in bytes (a multiple of 8) and whether more follow, keeping Don't Fragment.
    pub fn set_fragment(&mut self, offset: usize, more: bool) {
        let kept = u16_at(self.bytes.as_ref(), FRAGMENT) & DONT_FRAGMENT;
        let more = if more { MORE_FRAGMENTS } else { 0 };
        put_u16(self.bytes.as_mut(), FRAGMENT, kept | more | (offset / 8) as u16 & 0x1fff);
    }

    /// Writes the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        self.bytes.as_mut()[TTL] = ttl;
    }

    /// Writes the header's checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.bytes.as_mut(), CHECKSUM, checksum);
    }

    /// Computes and writes the header's checksum.
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let len = self.header_len();
        self.set_checksum(checksum::checksum(&self.bytes.as_ref()[..len]));
    }

    /// Writes the source address.
    #[inline]
    pub fn set_src(&mut self, src: Ipv4Addr) {
        put(self.bytes.as_mut(), SRC, &src.octets());
    }

    /// Writes the destination address.
    #[inline]
    pub fn set_dst(&mut self, dst: Ipv4Addr) {
        put(self.bytes.as_mut(), DST, &dst.octets());
    }

    /// What follows the header, without Ethernet padding, to change.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_len();
        let end = usize::from(self.total_len()).clamp(start, self.bytes.as_ref().len());
        &mut self.bytes.as_mut()[start..end]
    }
}

/// A header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// The payload's protocol.
    pub protocol: Protocol,
    /// DSCP and ECN.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub ident: u16,
    /// The Don't Fragment flag.
    pub dont_fragment: bool,
    /// Length of header and payload, in bytes.
    pub total_len: u16,
}

/// Writes a header with its checksum to the first [`HEADER_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit(out: &mut [u8], header: Header) {
    let out = &mut out[..HEADER_LEN];
    out[VERSION_IHL] = 0x45;
    out[TOS] = header.tos;
    put_u16(out, TOTAL_LEN, header.total_len);
    put_u16(out, IDENT, header.ident);
    put_u16(out, FRAGMENT, if header.dont_fragment { DONT_FRAGMENT } else { 0 });
    out[TTL] = header.ttl;
    out[PROTOCOL] = header.protocol.0;
    put_u16(out, CHECKSUM, 0);
    put(out, SRC, &header.src.octets());
    put(out, DST, &header.dst.octets());
    let checksum = checksum::checksum(out);
    put_u16(out, CHECKSUM, checksum);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header seen on a wire, whose checksum is 0xB861.
    const SEEN: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn a_known_header_is_emitted_byte_for_byte() {
        let mut out = [0xff; 20];
        let header = Header {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            protocol: Protocol::UDP,
            tos: 0,
            ttl: 64,
            ident: 0,
            dont_fragment: true,
            total_len: 0x73,
        };
        emit(&mut out, header);
        assert_eq!(out, SEEN);
        assert!(Ipv4::new_header(&out).unwrap().verify_checksum());
    }

    #[test]
    fn lying_lengths_are_malformed() {
        // A13
        let with = |at: usize, byte: u8| {
            let mut bytes = SEEN;
            bytes[at] = byte;
            Ipv4::new_checked(bytes).map(|_| ())
        };
        assert_eq!(with(0, 0x45), Err(Malformed::Truncated), "total length beyond the bytes");
        assert_eq!(with(0, 0x44), Err(Malformed::Invalid), "IHL < 5");
        assert_eq!(with(0, 0x46), Err(Malformed::Truncated), "options missing");
        assert_eq!(with(0, 0x65), Err(Malformed::Invalid), "version");
        assert_eq!(with(3, 19), Err(Malformed::Invalid), "total length within the header");
        assert_eq!(with(3, 20), Ok(()));
        for len in 0..20 {
            assert!(Ipv4::new_checked(&SEEN[..len]).is_err());
        }
    }

    #[test]
    fn setters_write_what_accessors_read() {
        let mut bytes = [0; 28];
        bytes[..20].copy_from_slice(&SEEN);
        let mut packet = Ipv4::new_header(&mut bytes[..]).unwrap();
        packet.set_total_len(24);
        packet.set_ident(7);
        packet.set_fragment(1480, true);
        packet.set_ttl(9);
        packet.set_tos(0xb9);
        packet.set_src(Ipv4Addr::new(1, 2, 3, 4));
        packet.set_dst(Ipv4Addr::new(5, 6, 7, 8));
        packet.fill_checksum();
        assert!(packet.verify_checksum() && packet.dont_fragment() && packet.more_fragments());
        assert_eq!((packet.total_len(), packet.ident(), packet.fragment_offset()), (24, 7, 1480));
        assert_eq!((packet.ttl(), packet.tos(), packet.protocol()), (9, 0xb9, Protocol::UDP));
        assert_eq!((packet.src().octets(), packet.dst().octets()), ([1, 2, 3, 4], [5, 6, 7, 8]));
        assert_eq!(packet.payload().len(), 4, "padding is not payload");
        packet.payload_mut().fill(3);
        assert_eq!(bytes[20..], [3, 3, 3, 3, 0, 0, 0, 0]);
    }
}
