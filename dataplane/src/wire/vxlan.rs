//! VXLAN.
//!
//! Read first: RFC 7348 section 5.

use std::fmt;
use std::str::FromStr;

use super::bytes::{Malformed, array, put_u32, u32_at};

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 8;

/// The destination port IANA assigned; flannel on Linux defaults to 8472 instead.
pub const DEFAULT_PORT: u16 = 4789;

/// The I flag of the first byte: the VNI is valid.
pub const HAS_VNI: u8 = 0x08;

const FLAGS: usize = 0;
const VNI: usize = 4;

/// The 39 bits of the header that are neither the I flag nor the VNI, its two words joined.
const RESERVED: u64 = 0xf7ff_ffff_0000_00ff;

/// A 24-bit VXLAN network identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// `None` above 0xFFFFFF.
    pub const fn new(vni: u32) -> Option<Self> {
        if vni <= 0xff_ffff { Some(Self(vni)) } else { None }
    }

    /// The number, at most 0xFFFFFF.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is not a decimal number of at most 24 bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a VNI: a number from 0 to 16777215")]
pub struct InvalidVni(String);

impl FromStr for Vni {
    type Err = InvalidVni;

    fn from_str(text: &str) -> Result<Self, InvalidVni> {
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { text.parse().ok() } else { None };
        number.and_then(Self::new).ok_or_else(|| InvalidVni(text.to_owned()))
    }
}

/// A VXLAN header and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Vxlan<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Vxlan<T> {
    /// # Errors
    /// [`Malformed::Truncated`] for fewer than [`HEADER_LEN`] bytes. The I flag is the caller's to check.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(Self { bytes }) }
    }

    /// The first byte.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.bytes.as_ref()[FLAGS]
    }

    /// The I flag: without it the VNI means nothing.
    #[inline]
    pub fn has_vni(&self) -> bool {
        self.flags() & HAS_VNI != 0
    }

    /// Whether any of the 39 reserved bits is set: zero on sending, ignored on receipt.
    #[inline]
    pub fn reserved_bits(&self) -> bool {
        u64::from_be_bytes(array(self.bytes.as_ref(), 0)) & RESERVED != 0
    }

    /// The network identifier.
    #[inline]
    pub fn vni(&self) -> Vni {
        Vni(u32_at(self.bytes.as_ref(), VNI) >> 8)
    }

    /// The inner frame.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }
}

/// Writes a header to the first [`HEADER_LEN`] bytes: the I flag, the VNI, all else zero.
///
/// # Panics
/// If `out` is shorter.
#[inline]
pub fn emit(out: &mut [u8], vni: Vni) {
    put_u32(out, FLAGS, u32::from(HAS_VNI) << 24);
    put_u32(out, VNI, vni.0 << 8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_flags_are_exactly_the_i_flag() {
        // A1, A8
        for vni in [0, 1, 0x12_3456, 0xff_ffff] {
            let mut out = [0xff; 9];
            emit(&mut out, Vni::new(vni).unwrap());
            let [_, a, b, c] = vni.to_be_bytes();
            assert_eq!(out, [8, 0, 0, 0, a, b, c, 0, 0xff]);
            let view = Vxlan::new_checked(&out).unwrap();
            assert!(view.has_vni() && !view.reserved_bits());
            assert_eq!((view.vni().get(), view.payload()), (vni, &[0xff][..]));
        }
    }

    #[test]
    fn every_reserved_bit_is_noticed_alone() {
        // A3
        let mut reserved = 0;
        for bit in 0..64 {
            let bytes = (0x0800_0000_0000_2a00u64 ^ 1 << bit).to_be_bytes();
            reserved += usize::from(Vxlan::new_checked(&bytes).unwrap().reserved_bits());
        }
        assert_eq!(reserved, 39);
        let bytes = 0xffff_ffff_0001_00ffu64.to_be_bytes();
        assert_eq!(Vxlan::new_checked(&bytes).unwrap().vni(), Vni(0x100));
    }

    #[test]
    fn a_vni_is_a_plain_number_of_24_bits() {
        assert_eq!("0".parse(), Ok(Vni(0)));
        assert_eq!("16777215".parse(), Ok(Vni(0xff_ffff)));
        for text in ["", "+1", "-1", "0x1", "16777216", "99999999999", " 1"] {
            assert!(text.parse::<Vni>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_short_header_is_truncated() {
        // A12
        for len in 0..HEADER_LEN {
            assert_eq!(Vxlan::new_checked(&[8; 8][..len]).unwrap_err(), Malformed::Truncated);
        }
    }
}
