//! UDP.
//!
//! Read first: RFC 768, RFC 8200 section 8.1 for the checksum over IPv6.

use std::net::IpAddr;

use super::bytes::{Malformed, put_u16, u16_at};
use super::checksum;
use super::protocol::Protocol;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 8;

/// Where the checksum lies, in bytes from the header's start.
pub const CHECKSUM: usize = 6;

const SRC_PORT: usize = 0;
const DST_PORT: usize = 2;
const LEN: usize = 4;

/// A datagram from its UDP header on.
#[derive(Clone, Copy, Debug)]
pub struct Udp<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Udp<T> {
    /// # Errors
    /// When the header is not whole, or the length is less than it or exceeds the bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let datagram = Self::new_header(bytes)?;
        let len = usize::from(datagram.datagram_len());
        if len < HEADER_LEN {
            Err(Malformed::Invalid)
        } else if len > datagram.bytes.as_ref().len() {
            Err(Malformed::Truncated)
        } else {
            Ok(datagram)
        }
    }

    /// A datagram whose end may be cut off: a first fragment, or as ICMP errors quote it.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] for fewer than [`HEADER_LEN`] bytes.
    #[inline]
    pub fn new_header(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(Self { bytes }) }
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16_at(self.bytes.as_ref(), SRC_PORT)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.bytes.as_ref(), DST_PORT)
    }

    /// Length of header and payload, in bytes.
    #[inline]
    pub fn datagram_len(&self) -> u16 {
        u16_at(self.bytes.as_ref(), LEN)
    }

    /// The checksum; over IPv4 zero means none.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes.as_ref(), CHECKSUM)
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        let bytes = self.bytes.as_ref();
        &bytes[HEADER_LEN..usize::from(self.datagram_len()).clamp(HEADER_LEN, bytes.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Udp<T> {
    /// Writes the source port.
    #[inline]
    pub fn set_src_port(&mut self, port: u16) {
        put_u16(self.bytes.as_mut(), SRC_PORT, port);
    }

    /// Writes the destination port.
    #[inline]
    pub fn set_dst_port(&mut self, port: u16) {
        put_u16(self.bytes.as_mut(), DST_PORT, port);
    }

    /// Writes the length of header and payload, in bytes.
    #[inline]
    pub fn set_datagram_len(&mut self, len: u16) {
        put_u16(self.bytes.as_mut(), LEN, len);
    }

    /// Writes the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.bytes.as_mut(), CHECKSUM, checksum);
    }

    /// Computes the checksum over all the bytes, which end where the datagram does, and writes it.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        self.set_checksum(checksum::transport(src, dst, Protocol::UDP, self.bytes.as_ref()));
    }
}

/// Writes a header with a checksum of zero to the first [`HEADER_LEN`] bytes; `len` is that of header and
/// payload, in bytes.
///
/// # Panics
/// If `out` is shorter.
#[inline]
pub fn emit(out: &mut [u8], src_port: u16, dst_port: u16, len: u16) {
    let out = &mut out[..HEADER_LEN];
    put_u16(out, SRC_PORT, src_port);
    put_u16(out, DST_PORT, dst_port);
    put_u16(out, LEN, len);
    put_u16(out, CHECKSUM, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_reads_back_as_it_is_emitted() {
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut bytes = *b"........hello";
        emit(&mut bytes, 4000, 53, 13);
        let mut datagram = Udp::new_checked(&mut bytes[..]).unwrap();
        datagram.fill_checksum(src, dst);
        assert_eq!((datagram.src_port(), datagram.dst_port(), datagram.datagram_len()), (4000, 53, 13));
        assert_eq!(datagram.payload(), b"hello");
        let header =
            etherparse::UdpHeader { source_port: 4000, destination_port: 53, length: 13, checksum: 0 };
        let expected = header.calc_checksum_ipv4_raw([10, 0, 0, 1], [10, 0, 0, 2], b"hello").unwrap();
        assert_eq!(datagram.checksum(), expected);
        assert!(checksum::verify(src, dst, Protocol::UDP, &bytes));
    }

    #[test]
    fn a_computed_zero_is_sent_as_ffff() {
        // D2: choose the payload word so that the sum is 0xFFFF.
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut bytes = [0; 10];
        emit(&mut bytes, 1, 2, 10);
        let rest =
            checksum::fold(checksum::pseudo_header(src, dst, Protocol::UDP, 10) + checksum::sum(&bytes));
        bytes[8..].copy_from_slice(&(!rest).to_be_bytes());
        Udp::new_checked(&mut bytes[..]).unwrap().fill_checksum(src, dst);
        assert_eq!(bytes[CHECKSUM..8], [0xff, 0xff]);
        assert!(checksum::verify(src, dst, Protocol::UDP, &bytes));
    }

    #[test]
    fn a_lying_length_is_malformed() {
        // A13
        let mut bytes = [0; 12];
        for (len, expected) in
            [(7, Err(Malformed::Invalid)), (8, Ok(())), (12, Ok(())), (13, Err(Malformed::Truncated))]
        {
            emit(&mut bytes, 1, 2, len);
            assert_eq!(Udp::new_checked(&bytes).map(|_| ()), expected, "{len}");
        }
        assert_eq!(Udp::new_checked(&bytes[..7]).unwrap_err(), Malformed::Truncated);
    }
}
