//! The Internet checksum, in full and incrementally.
//!
//! Read first: RFC 1071 sections 1 and 2, RFC 1624 sections 3 and 4 (equation 3; RFC 1141's equation turns a
//! checksum of 0x0000 into 0xFFFF), RFC 768 and RFC 8200 section 8.1 for the zero of UDP.
//!
//! Ones-complement arithmetic has two zeroes. The sum of bytes that are not all zero is never 0x0000, so
//! a computed checksum is never 0xFFFF; everything below keeps that, so that an incremental update and a full
//! computation give the same bits and not only equivalent ones.

use std::net::IpAddr;

use super::bytes::put_u16;
use super::protocol::Protocol;

/// The ones-complement sum of big-endian 16-bit words, folded to 16 bits and not complemented; an odd last
/// byte is padded with zero. Sums of parts may be added when every part but the last is even in length.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    // The sum does not care for byte order as long as the result is swapped back (RFC 1071 section 2 B), nor
    // for the width of the words: 32-bit words into a 64-bit sum is what compilers turn into vector code.
    let (words, tail) = bytes.as_chunks::<4>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    sum += u64::from(u32::from_ne_bytes(last));
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    sum = (sum >> 32) + (sum & 0xffff_ffff);
    u32::from(u16::from_be(fold(sum as u32)))
}

/// Adds the carries back in: 16 bits.
#[inline]
pub fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + (sum & 0xffff)) as u16
}

/// The checksum of bytes whose checksum field is zero; 0 for bytes that hold a right one.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// The sum of the pseudo-header that TCP, UDP and ICMPv6 cover (RFC 9293 section 3.1, RFC 8200 section 8.1),
/// not complemented. `l4_len` is the length of the transport header and payload in bytes.
#[inline]
pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: Protocol, l4_len: u32) -> u32 {
    let addr = |addr| match addr {
        IpAddr::V4(v4) => {
            let bits = v4.to_bits();
            (bits >> 16) + (bits & 0xffff)
        }
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    addr(src) + addr(dst) + u32::from(protocol.0) + (l4_len >> 16) + (l4_len & 0xffff)
}

/// The checksum of a transport header and payload whose checksum field is zero, pseudo-header included. UDP's
/// 0 is given as 0xFFFF.
pub fn transport(src: IpAddr, dst: IpAddr, protocol: Protocol, segment: &[u8]) -> u16 {
    let checksum = !fold(pseudo_header(src, dst, protocol, segment.len() as u32) + sum(segment));
    if protocol == Protocol::UDP { never_zero(checksum) } else { checksum }
}

/// What replacing fields does to a ones-complement sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta(u16);

impl Delta {
    /// Also replaces `old` with `new`, which are of the same even length and lie at an even offset.
    #[inline]
    pub fn replace(self, old: &[u8], new: &[u8]) -> Self {
        debug_assert!(old.len() == new.len() && old.len().is_multiple_of(2));
        Self(fold(u32::from(self.0) + u32::from(!(sum(old) as u16)) + sum(new)))
    }

    /// Also replaces one 16-bit word.
    #[inline]
    pub fn replace_u16(self, old: u16, new: u16) -> Self {
        Self(fold(u32::from(self.0) + u32::from(!old) + u32::from(new)))
    }

    /// The new value of a complete checksum (RFC 1624 equation 3). For UDP use [`Self::apply_udp`].
    #[inline]
    pub fn apply(self, checksum: u16) -> u16 {
        !fold(u32::from(!checksum) + u32::from(self.0))
    }

    /// The new value of a complete UDP checksum: over IPv4 a zero, which means none, stays; a computed zero
    /// becomes 0xFFFF. Over IPv6 a zero means nothing and is updated like any other value (RFC 8200 8.1).
    #[inline]
    pub fn apply_udp(self, checksum: u16, ipv6: bool) -> u16 {
        if checksum == 0 && !ipv6 { 0 } else { never_zero(self.apply(checksum)) }
    }

    /// The new value of the uncomplemented pseudo-header sum that stands in a partial checksum's field.
    #[inline]
    pub fn apply_partial(self, sum: u16) -> u16 {
        fold(u32::from(sum) + u32::from(self.0))
    }
}

/// Turns a partial checksum into a complete one: the field at `start + offset` holds the pseudo-header's sum,
/// and the bytes from `start` to the packet's end are added to it. With `udp` a computed 0 becomes 0xFFFF.
/// A field outside the packet is left alone.
pub fn complete(packet: &mut [u8], start: usize, offset: usize, udp: bool) {
    let Some(covered) = packet.get_mut(start..).filter(|covered| offset + 2 <= covered.len()) else {
        return;
    };
    // At an odd offset the field's bytes would count in the wrong half; no protocol has one.
    debug_assert!(offset.is_multiple_of(2));
    let checksum = checksum(covered);
    put_u16(covered, offset, if udp { never_zero(checksum) } else { checksum });
}

/// Whether a transport checksum is right: `segment` is the transport header and payload with its checksum.
pub fn verify(src: IpAddr, dst: IpAddr, protocol: Protocol, segment: &[u8]) -> bool {
    fold(pseudo_header(src, dst, protocol, segment.len() as u32) + sum(segment)) == 0xffff
}

/// Where a protocol's checksum lies, in bytes from its header's start; `None` for those without one.
pub fn field_offset(protocol: Protocol) -> Option<usize> {
    match protocol {
        Protocol::TCP => Some(16),
        Protocol::UDP => Some(6),
        Protocol::ICMP | Protocol::ICMPV6 => Some(2),
        _ => None,
    }
}

/// A UDP checksum of 0 would mean none: a computed 0 is sent as 0xFFFF (RFC 768).
#[inline]
pub(crate) fn never_zero(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Word by word, as RFC 1071 section 4.1 has it.
    fn plain_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while sum >> 16 != 0 {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum as u16
    }

    #[test]
    fn the_sum_of_rfc_1071_section_3_is_ddf2() {
        assert_eq!(fold(sum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624_section_4_gives_0000_and_not_ffff() {
        // Word 0x5555 becomes 0x3285 under the checksum 0xDD2F: RFC 1141 would give 0xFFFF.
        assert_eq!(Delta::default().replace_u16(0x5555, 0x3285).apply(0xdd2f), 0x0000);
    }

    #[test]
    fn a_long_run_of_ones_overflows_nothing() {
        assert_eq!(fold(sum(&vec![0xff; 65_535])), plain_sum(&vec![0xff; 65_535]));
        assert_eq!(sum(&[0; 4096]), 0);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn an_empty_delta_changes_no_checksum() {
        for checksum in 0..=u16::MAX {
            assert_eq!(Delta::default().apply(checksum), checksum);
            assert_eq!(Delta::default().apply_partial(checksum), checksum);
        }
    }

    #[test]
    fn udp_zero_stays_for_ipv4_and_a_computed_zero_becomes_ffff() {
        // D2
        let delta = Delta::default().replace_u16(0x5555, 0x3285);
        assert_eq!(delta.apply_udp(0xdd2f, false), 0xffff);
        assert_eq!(delta.apply_udp(0xdd2f, true), 0xffff);
        assert_eq!(delta.apply_udp(0, false), 0);
        assert_ne!(delta.apply_udp(0, true), 0);
        // A sum of 0xFFFF: the field holds 0x0001 and the rest 0xFFFE.
        let mut packet = [0xff, 0xfe, 0, 0, 0, 0, 0, 1];
        complete(&mut packet, 0, 6, true);
        assert_eq!(packet[6..], [0xff, 0xff]);
        let mut packet = [0xff, 0xfe, 0, 0, 0, 0, 0, 1];
        complete(&mut packet, 0, 6, false);
        assert_eq!(packet[6..], [0, 0]);
    }

    #[test]
    fn a_partial_checksum_whose_field_is_outside_is_left_alone() {
        let mut packet = [1, 2, 3, 4];
        for (start, offset) in [(0, 3), (4, 0), (5, 0), (usize::MAX, 0), (0, 4)] {
            complete(&mut packet, start, offset, true);
        }
        assert_eq!(packet, [1, 2, 3, 4]);
    }

    #[test]
    fn incremental_equals_full_for_every_sum_and_the_words_near_both_zeroes() {
        // D1: 4.2 million, twice cases. `rest` is the sum of all the words that stay.
        const WORDS: [u16; 8] = [0, 1, 2, 0x7fff, 0x8000, 0xfffd, 0xfffe, 0xffff];
        for (old, new) in WORDS.iter().flat_map(|old| WORDS.iter().map(move |new| (*old, *new))) {
            let delta = Delta::default().replace_u16(old, new);
            for rest in 1..=u16::MAX {
                let before = fold(u32::from(rest) + u32::from(old));
                let after = fold(u32::from(rest) + u32::from(new));
                assert_eq!(delta.apply(!before), !after, "{old:x} {new:x} {rest:x}");
                assert_eq!(delta.apply_partial(before), after, "{old:x} {new:x} {rest:x}");
            }
        }
    }

    /// Words in which the two zeroes of ones-complement arithmetic are common.
    fn word() -> impl Strategy<Value = u16> {
        prop_oneof![Just(0u16), Just(0xffff), Just(1), Just(0xfffe), any::<u16>()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn the_fast_sum_is_the_plain_sum(bytes in prop::collection::vec(any::<u8>(), 0..200), skip in 0usize..8) {
            let bytes = &bytes[skip.min(bytes.len())..];
            prop_assert_eq!(fold(sum(bytes)), plain_sum(bytes));
        }

        /// D1, each case 64 successive replacements: incremental equals full, for complete and for partial
        /// checksums, bit for bit.
        #[test]
        fn incremental_equals_full(
            start in prop::collection::vec(word(), 1..24),
            changes in prop::collection::vec((any::<prop::sample::Index>(), word()), 64),
        ) {
            // A header is never all zero: this word stands for the version, or the pseudo-header's protocol.
            let mut words = start;
            words.push(0x4500);
            let bytes = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
            let first_complete = checksum(&bytes(&words));
            let first_partial = fold(sum(&bytes(&words)));
            let (mut complete, mut partial) = (first_complete, first_partial);
            let mut all = Delta::default();
            for (index, new) in changes {
                let index = index.index(words.len() - 1);
                let old = std::mem::replace(&mut words[index], new);
                let one = Delta::default().replace_u16(old, new);
                prop_assert_eq!(one, Delta::default().replace(&old.to_be_bytes(), &new.to_be_bytes()));
                all = all.replace_u16(old, new);
                complete = one.apply(complete);
                partial = one.apply_partial(partial);
                let bytes = bytes(&words);
                prop_assert_eq!(complete, checksum(&bytes));
                prop_assert_eq!(partial, fold(sum(&bytes)));
                prop_assert_eq!(all.apply(first_complete), complete);
                prop_assert_eq!(all.apply_partial(first_partial), partial);
            }
        }
    }
}
