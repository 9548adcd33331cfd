//! Ethernet II.
//!
//! Read first: IEEE 802.3 clause 3.1.1, IEEE 802.1Q clause 9.5 for the tags, RFC 894 for IP over Ethernet.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use super::bytes::{Malformed, array, put, put_u16, u16_at};

/// Length of the header without tags, in bytes.
pub const HEADER_LEN: usize = 14;

/// Length of one 802.1Q tag, in bytes.
pub const VLAN_TAG_LEN: usize = 4;

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of an 802.1Q tag.
pub const VLAN: u16 = 0x8100;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;
/// EtherType of an 802.1ad service tag.
pub const QINQ: u16 = 0x88a8;

const DST: usize = 0;
const SRC: usize = 6;
const ETHERTYPE: usize = 12;

/// A 48-bit Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// As one word.
impl Hash for Mac {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f] = self.0;
        state.write_u64(u64::from_be_bytes([0, 0, a, b, c, d, e, f]));
    }
}

impl Mac {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Group bit set: multicast, broadcast included.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The broadcast address.
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is not six hexadecimal bytes joined by colons, or by hyphens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a MAC address like ce:7a:e5:af:6a:e9")]
pub struct InvalidMac(String);

impl FromStr for Mac {
    type Err = InvalidMac;

    fn from_str(text: &str) -> Result<Self, InvalidMac> {
        parse_mac(text.as_bytes()).ok_or_else(|| InvalidMac(text.to_owned()))
    }
}

fn parse_mac(text: &[u8]) -> Option<Mac> {
    let separator = *text.get(2).filter(|byte| matches!(byte, b':' | b'-'))?;
    let mut mac = Mac::default();
    let mut groups = text.split(|byte| *byte == separator);
    for byte in &mut mac.0 {
        let [high, low] = *groups.next()? else { return None };
        *byte = hex_digit(high)? << 4 | hex_digit(low)?;
    }
    groups.next().is_none().then_some(mac)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// A frame from its destination address on.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ethernet<T> {
    /// # Errors
    /// [`Malformed::Truncated`] for fewer than [`HEADER_LEN`] bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(Self { bytes }) }
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Mac {
        Mac(array(self.bytes.as_ref(), DST))
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Mac {
        Mac(array(self.bytes.as_ref(), SRC))
    }

    /// EtherType; below 1,536 an 802.3 length.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        u16_at(self.bytes.as_ref(), ETHERTYPE)
    }

    /// What follows the header, padding included.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Ethernet<T> {
    /// Writes the destination address.
    #[inline]
    pub fn set_dst(&mut self, dst: Mac) {
        put(self.bytes.as_mut(), DST, &dst.0);
    }

    /// Writes the source address.
    #[inline]
    pub fn set_src(&mut self, src: Mac) {
        put(self.bytes.as_mut(), SRC, &src.0);
    }
}

/// Writes a header to the first [`HEADER_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
#[inline]
pub fn emit(out: &mut [u8], dst: Mac, src: Mac, ethertype: u16) {
    let out = &mut out[..HEADER_LEN];
    put(out, DST, &dst.0);
    put(out, SRC, &src.0);
    put_u16(out, ETHERTYPE, ethertype);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_reads_back_as_it_is_written() {
        let mac = Mac([0xce, 0x7a, 0xe5, 0xaf, 0x6a, 0x09]);
        assert_eq!(mac.to_string(), "ce:7a:e5:af:6a:09");
        for text in ["ce:7a:e5:af:6a:09", "CE:7A:E5:AF:6A:09", "ce-7a-e5-af-6a-09"] {
            assert_eq!(text.parse(), Ok(mac));
        }
    }

    #[test]
    fn what_is_not_a_mac_is_refused() {
        for text in [
            "",
            ":",
            "ce:7a:e5:af:6a",
            "ce:7a:e5:af:6a:09:01",
            "ce:7a:e5:af:6a:09:",
            "ce:7a-e5:af:6a:09",
            "ce:7a:e5:af:6a:9",
            "ce:7a:e5:af:6a:+9",
            "+e:7a:e5:af:6a:09",
            "ce7ae5af6a09",
            "ce 7a e5 af 6a 09",
            "ce:7a:e5:af:6a:0g",
            "ce:7a:e5:af:6a:é",
            " ce:7a:e5:af:6a:09",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_group_bit_tells_multicast() {
        assert!(Mac::BROADCAST.is_broadcast() && Mac::BROADCAST.is_multicast());
        assert!(Mac([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
        assert!(!Mac([0xfe; 6]).is_multicast());
        assert!(!Mac([0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]).is_broadcast());
    }

    #[test]
    fn a_header_reads_back_as_it_is_emitted() {
        let mut frame = [0; 16];
        emit(&mut frame, Mac([1, 2, 3, 4, 5, 6]), Mac([7, 8, 9, 10, 11, 12]), IPV6);
        assert_eq!(frame, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x86, 0xdd, 0, 0]);
        let mut view = Ethernet::new_checked(&mut frame).unwrap();
        assert_eq!((view.dst(), view.src()), (Mac([1, 2, 3, 4, 5, 6]), Mac([7, 8, 9, 10, 11, 12])));
        assert_eq!((view.ethertype(), view.payload()), (IPV6, &[0, 0][..]));
        view.set_dst(Mac::BROADCAST);
        view.set_src(Mac([9; 6]));
        assert_eq!(frame[..12], [255, 255, 255, 255, 255, 255, 9, 9, 9, 9, 9, 9]);
        assert_eq!(Ethernet::new_checked(&frame[..13]).unwrap_err(), Malformed::Truncated);
    }
}
