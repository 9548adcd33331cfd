//! IPv6 and those of its extension headers that lead to a transport header.
//!
//! Read first: RFC 8200 sections 3 and 4 (4.5 for fragments), RFC 6946 for atomic fragments.

use std::net::Ipv6Addr;

use super::bytes::{Malformed, array, put, put_u16, put_u32, u16_at, u32_at};
use super::protocol::Protocol;

/// Length of the fixed header, in bytes.
pub const HEADER_LEN: usize = 40;

/// Length of a fragment header, in bytes.
pub const FRAGMENT_HEADER_LEN: usize = 8;

/// The smallest MTU a link may have, in bytes (RFC 8200 section 5).
pub const MIN_MTU: u32 = 1280;

/// Extension headers looked through; a packet with more is malformed. Real packets have one or two.
const MAX_EXTENSIONS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;

const VERSION: usize = 0;
const PAYLOAD_LEN: usize = 4;
const NEXT_HEADER: usize = 6;
const HOP_LIMIT: usize = 7;
pub(super) const SRC: usize = 8;
const DST: usize = 24;

/// A packet from its IPv6 header on.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ipv6<T> {
    /// A whole packet; bytes beyond its length are Ethernet padding. Jumbograms are not known.
    ///
    /// # Errors
    /// As [`Self::new_header`], and when the payload length exceeds the bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let packet = Self::new_header(bytes)?;
        if packet.total_len() > packet.bytes.as_ref().len() { Err(Malformed::Truncated) } else { Ok(packet) }
    }

    /// A packet whose header is whole but whose end may be cut off, as ICMP errors quote it.
    ///
    /// # Errors
    /// When there are fewer than 40 bytes or the version is not 6.
    #[inline]
    pub fn new_header(bytes: T) -> Result<Self, Malformed> {
        let data = bytes.as_ref();
        if data.len() < HEADER_LEN {
            Err(Malformed::Truncated)
        } else if data[VERSION] >> 4 != 6 {
            Err(Malformed::Invalid)
        } else {
            Ok(Self { bytes })
        }
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (u16_at(self.bytes.as_ref(), VERSION) >> 4) as u8
    }

    /// Flow label, 20 bits.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.bytes.as_ref(), VERSION) & 0xf_ffff
    }

    /// Length of what follows the fixed header, in bytes.
    #[inline]
    pub fn payload_len(&self) -> u16 {
        u16_at(self.bytes.as_ref(), PAYLOAD_LEN)
    }

    /// Length of the fixed header and what follows, in bytes.
    #[inline]
    pub fn total_len(&self) -> usize {
        HEADER_LEN + usize::from(self.payload_len())
    }

    /// What follows the fixed header: an extension header or the transport.
    #[inline]
    pub fn next_header(&self) -> Protocol {
        Protocol(self.bytes.as_ref()[NEXT_HEADER])
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.bytes.as_ref()[HOP_LIMIT]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.bytes.as_ref(), SRC))
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.bytes.as_ref(), DST))
    }

    /// What follows the fixed header, without Ethernet padding.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        &bytes[HEADER_LEN..self.total_len().min(bytes.len())]
    }

    /// Looks through the extension headers, as far as the packet or its quoted part goes.
    ///
    /// # Errors
    /// When one is cut off, or there are more than eight.
    #[inline(always)]
    pub fn upper_layer(&self) -> Result<UpperLayer, Malformed> {
        let mut upper = UpperLayer { protocol: self.next_header(), offset: HEADER_LEN, fragment: None };
        for _ in 0..=MAX_EXTENSIONS {
            match upper.protocol.0 {
                HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING | FRAGMENT => {}
                _ => return Ok(upper),
            }
            if !upper.step(self.payload())? {
                return Ok(upper);
            }
        }
        Err(Malformed::Invalid)
    }
}

/// What stands behind the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// The transport protocol; that of the first fragmented header in a later fragment; an extension header's
    /// own number where looking further would mislead.
    pub protocol: Protocol,
    /// Bytes from the fixed header's start to it.
    pub offset: usize,
    /// The fragment header passed on the way, also that of an atomic fragment.
    pub fragment: Option<FragmentHeader>,
}

impl UpperLayer {
    /// Goes behind one extension header; `false` when there is no going on. `payload` follows the fixed header.
    #[inline]
    fn step(&mut self, payload: &[u8]) -> Result<bool, Malformed> {
        let header = payload.get(self.offset - HEADER_LEN..).unwrap_or_default();
        if header.len() < 8 {
            return Err(Malformed::Truncated);
        }
        // With segments left, the destination is not yet the one the transport checksum covers.
        if self.protocol.0 == ROUTING && header[3] != 0 {
            return Ok(false);
        }
        let mut len = 8;
        if self.protocol.0 == FRAGMENT {
            let offset_and_more = u16_at(header, 2);
            self.fragment = Some(FragmentHeader {
                ident: u32_at(header, 4),
                offset: usize::from(offset_and_more & !7),
                more: offset_and_more & 1 != 0,
            });
        } else {
            len = (usize::from(header[1]) + 1) * 8;
        }
        if len > header.len() {
            return Err(Malformed::Truncated);
        }
        self.protocol = Protocol(header[0]);
        self.offset += len;
        Ok(self.fragment.is_none_or(|fragment| fragment.offset == 0))
    }
}

/// The fields of a fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentHeader {
    /// Identification, which the fragments of one packet share.
    pub ident: u32,
    /// Where this fragment's payload lies in the whole one's, in bytes.
    pub offset: usize,
    /// Whether more fragments follow.
    pub more: bool,
}

impl FragmentHeader {
    /// A whole packet that has a fragment header all the same (RFC 6946).
    #[inline]
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ipv6<T> {
    /// Writes DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        let kept = u16_at(self.bytes.as_ref(), VERSION) & 0xf00f;
        put_u16(self.bytes.as_mut(), VERSION, kept | u16::from(traffic_class) << 4);
    }

    /// Writes the length of what follows the fixed header, in bytes.
    #[inline]
    pub fn set_payload_len(&mut self, payload_len: u16) {
        put_u16(self.bytes.as_mut(), PAYLOAD_LEN, payload_len);
    }

    /// Writes the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.bytes.as_mut()[HOP_LIMIT] = hop_limit;
    }

    /// Writes the source address.
    #[inline]
    pub fn set_src(&mut self, src: Ipv6Addr) {
        put(self.bytes.as_mut(), SRC, &src.octets());
    }

    /// Writes the destination address.
    #[inline]
    pub fn set_dst(&mut self, dst: Ipv6Addr) {
        put(self.bytes.as_mut(), DST, &dst.octets());
    }

    /// What follows the fixed header, without Ethernet padding, to change.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let end = self.total_len().min(self.bytes.as_ref().len());
        &mut self.bytes.as_mut()[HEADER_LEN..end]
    }
}

/// A fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What follows.
    pub next_header: Protocol,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label; its upper 12 bits are ignored.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Length of what follows, in bytes.
    pub payload_len: u16,
}

/// Writes a fixed header to the first [`HEADER_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit(out: &mut [u8], header: Header) {
    let out = &mut out[..HEADER_LEN];
    let first = 6 << 28 | u32::from(header.traffic_class) << 20 | header.flow_label & 0xf_ffff;
    put_u32(out, VERSION, first);
    put_u16(out, PAYLOAD_LEN, header.payload_len);
    out[NEXT_HEADER] = header.next_header.0;
    out[HOP_LIMIT] = header.hop_limit;
    put(out, SRC, &header.src.octets());
    put(out, DST, &header.dst.octets());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0; HEADER_LEN];
        let header = Header {
            src: "fd00::1".parse().unwrap(),
            dst: "fd00::2".parse().unwrap(),
            next_header: Protocol(next_header),
            traffic_class: 0xb9,
            flow_label: 0xfff1_2345,
            hop_limit: 64,
            payload_len: payload.len() as u16,
        };
        emit(&mut out, header);
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn a_header_reads_back_as_it_is_emitted() {
        let mut bytes = packet(17, &[7; 8]);
        assert_eq!(bytes[..8], [0x6b, 0x91, 0x23, 0x45, 0, 8, 17, 64]);
        bytes.extend([0; 6]);
        let mut view = Ipv6::new_checked(&mut bytes).unwrap();
        assert_eq!((view.traffic_class(), view.flow_label(), view.hop_limit()), (0xb9, 0x1_2345, 64));
        assert_eq!(view.payload(), [7; 8], "padding is not payload");
        view.set_traffic_class(0x46);
        view.set_hop_limit(3);
        view.set_src("fd00::3".parse().unwrap());
        view.set_dst("fd00::4".parse().unwrap());
        view.set_payload_len(4);
        view.payload_mut().fill(1);
        assert_eq!((view.traffic_class(), view.flow_label(), view.hop_limit()), (0x46, 0x1_2345, 3));
        assert_eq!((view.src().segments()[7], view.dst().segments()[7]), (3, 4));
        assert_eq!((view.total_len(), view.payload()), (44, &[1; 4][..]));
    }

    #[test]
    fn extension_headers_are_walked_to_the_transport() {
        // Hop-by-hop of 8 bytes, destination options of 16, an atomic fragment header, UDP.
        let mut chain = vec![60, 0, 1, 4, 0, 0, 0, 0];
        chain.extend([44, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        chain.extend([17, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef]);
        chain.extend([0; 8]);
        let bytes = packet(0, &chain);
        let upper = Ipv6::new_checked(&bytes).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.offset), (Protocol::UDP, 72));
        let fragment = upper.fragment.unwrap();
        assert!(fragment.is_atomic() && fragment.ident == 0xdead_beef);
        for len in 0..32 {
            let bytes = packet(0, &chain[..len]);
            assert_eq!(Ipv6::new_checked(&bytes).unwrap().upper_layer(), Err(Malformed::Truncated), "{len}");
        }
    }

    #[test]
    fn headers_behind_a_fragment_header_are_walked_in_the_first_fragment_only() {
        let mut chain = [60, 0, 0, 1, 0, 0, 0, 9, 17, 0, 1, 4, 0, 0, 0, 0].to_vec();
        chain.extend([0; 8]);
        let upper = Ipv6::new_checked(packet(44, &chain)).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.offset), (Protocol::UDP, 56));
        chain[3] = 8;
        let upper = Ipv6::new_checked(packet(44, &chain)).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol.0, upper.offset, upper.fragment.unwrap().offset), (60, 48, 8));
    }

    #[test]
    fn a_chain_without_end_is_malformed() {
        let chain = |len: usize| [60u8, 0, 1, 4, 0, 0, 0, 0].repeat(len);
        let mut eight = chain(8);
        eight[56] = 59;
        assert_eq!(Ipv6::new_checked(packet(60, &eight)).unwrap().upper_layer().unwrap().protocol.0, 59);
        let nine = packet(60, &chain(100));
        assert_eq!(Ipv6::new_checked(nine).unwrap().upper_layer(), Err(Malformed::Invalid));
    }

    #[test]
    fn a_source_route_not_yet_followed_hides_the_transport() {
        let mut chain = [17, 2, 4, 1].to_vec();
        chain.extend([0; 28]);
        let upper = Ipv6::new_checked(packet(43, &chain)).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol.0, upper.offset), (43, 40));
        chain[3] = 0;
        let upper = Ipv6::new_checked(packet(43, &chain)).unwrap().upper_layer().unwrap();
        assert_eq!((upper.protocol, upper.offset), (Protocol::UDP, 64));
    }

    #[test]
    fn a_lying_length_is_malformed() {
        // A13
        let bytes = packet(17, &[0; 8]);
        assert_eq!(Ipv6::new_checked(&bytes[..47]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Ipv6::new_checked(&bytes[..39]).unwrap_err(), Malformed::Truncated);
        assert_eq!(Ipv6::new_checked([0x45; 48]).unwrap_err(), Malformed::Invalid);
    }
}
