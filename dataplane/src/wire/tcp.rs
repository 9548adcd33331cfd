//! TCP headers.
//!
//! Read first: RFC 9293 section 3.1.

use std::net::IpAddr;

use super::bytes::{Malformed, put_u16, put_u32, u16_at, u32_at};
use super::checksum::{self, Delta};
use super::protocol::Protocol;

/// Length of the header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// No more data from the sender.
pub const FIN: u8 = 0x01;
/// Opens a connection.
pub const SYN: u8 = 0x02;
/// Resets the connection.
pub const RST: u8 = 0x04;
/// Push.
pub const PSH: u8 = 0x08;
/// The acknowledgment number is valid.
pub const ACK: u8 = 0x10;
/// The urgent pointer is valid.
pub const URG: u8 = 0x20;
/// ECN echo (RFC 3168).
pub const ECE: u8 = 0x40;
/// Congestion window reduced (RFC 3168).
pub const CWR: u8 = 0x80;

/// Where the checksum lies, in bytes from the header's start.
pub const CHECKSUM: usize = 16;

const SRC_PORT: usize = 0;
const DST_PORT: usize = 2;
const SEQ: usize = 4;
const ACK_NUMBER: usize = 8;
const DATA_OFFSET: usize = 12;
const FLAGS: usize = 13;
const WINDOW: usize = 14;
const URGENT: usize = 18;

/// A segment from its TCP header on.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Tcp<T> {
    /// # Errors
    /// When the header with its options is not whole, or the data offset is less than 5 words.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let len = bytes.as_ref().len();
        if len < HEADER_LEN {
            return Err(Malformed::Truncated);
        }
        let segment = Self { bytes };
        if segment.header_len() < HEADER_LEN {
            Err(Malformed::Invalid)
        } else if segment.header_len() > len {
            Err(Malformed::Truncated)
        } else {
            Ok(segment)
        }
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

    /// Sequence number.
    #[inline]
    pub fn seq(&self) -> u32 {
        u32_at(self.bytes.as_ref(), SEQ)
    }

    /// Acknowledgment number.
    #[inline]
    pub fn ack(&self) -> u32 {
        u32_at(self.bytes.as_ref(), ACK_NUMBER)
    }

    /// Length of the header with its options, in bytes.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes.as_ref()[DATA_OFFSET] >> 4) * 4
    }

    /// The four bits between data offset and flags.
    #[inline]
    pub fn reserved_bits(&self) -> u8 {
        self.bytes.as_ref()[DATA_OFFSET] & 0x0f
    }

    /// Flags: CWR, ECE, URG, ACK, PSH, RST, SYN, FIN.
    #[inline]
    pub fn flags(&self) -> u8 {
        self.bytes.as_ref()[FLAGS]
    }

    /// Window, not scaled.
    #[inline]
    pub fn window(&self) -> u16 {
        u16_at(self.bytes.as_ref(), WINDOW)
    }

    /// Checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes.as_ref(), CHECKSUM)
    }

    /// Urgent pointer.
    #[inline]
    pub fn urgent(&self) -> u16 {
        u16_at(self.bytes.as_ref(), URGENT)
    }

    /// Options with their padding.
    #[inline]
    pub fn options(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..self.header_len()]
    }

    /// Payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Tcp<T> {
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

    /// Writes the sequence number.
    #[inline]
    pub fn set_seq(&mut self, seq: u32) {
        put_u32(self.bytes.as_mut(), SEQ, seq);
    }

    /// Writes the flags.
    #[inline]
    pub fn set_flags(&mut self, flags: u8) {
        self.bytes.as_mut()[FLAGS] = flags;
    }

    /// Writes the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.bytes.as_mut(), CHECKSUM, checksum);
    }

    /// Options with their padding, to change.
    #[inline]
    pub fn options_mut(&mut self) -> &mut [u8] {
        let end = self.header_len();
        &mut self.bytes.as_mut()[HEADER_LEN..end]
    }

    /// Lowers the MSS option to `mss` bytes if it names more; without one the peer assumes 536 (RFC 9293 section 3.7.1). A
    /// complete checksum follows; with `partial` the field holds the pseudo-header's sum, which no option touches.
    pub fn clamp_mss(&mut self, mss: u16, partial: bool) {
        let Some(at) = mss_offset(self.options_mut()) else { return };
        let at = HEADER_LEN + at;
        let bytes = self.bytes.as_mut();
        let old = u16_at(bytes, at);
        if old <= mss {
            return;
        }
        put_u16(bytes, at, mss);
        if !partial {
            let delta = if at.is_multiple_of(2) {
                Delta::default().replace_u16(old, mss)
            } else {
                Delta::default().replace_u16(old.swap_bytes(), mss.swap_bytes())
            };
            let sum = delta.apply(self.checksum());
            self.set_checksum(sum);
        }
    }

    /// Computes the checksum over all the bytes, which end where the segment does, and writes it.
    pub fn fill_checksum(&mut self, src: IpAddr, dst: IpAddr) {
        self.set_checksum(0);
        self.set_checksum(checksum::transport(src, dst, Protocol::TCP, self.bytes.as_ref()));
    }
}

/// Where the value of the MSS option lies among the options (RFC 9293 section 3.2).
fn mss_offset(options: &[u8]) -> Option<usize> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    const MSS: u8 = 2;
    let mut at = 0;
    loop {
        match options.get(at..)? {
            [NO_OPERATION, ..] => at += 1,
            [MSS, 4, _, _, ..] => return Some(at + 2),
            [END, ..] => return None,
            [_, len, ..] if *len >= 2 => at += usize::from(*len),
            _ => return None,
        }
    }
}

/// The fields of a header without options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Flags.
    pub flags: u8,
    /// Window, not scaled.
    pub window: u16,
}

/// Writes a header with a checksum of zero to the first [`HEADER_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit(out: &mut [u8], header: Header) {
    let out = &mut out[..HEADER_LEN];
    put_u16(out, SRC_PORT, header.src_port);
    put_u16(out, DST_PORT, header.dst_port);
    put_u32(out, SEQ, header.seq);
    put_u32(out, ACK_NUMBER, header.ack);
    out[DATA_OFFSET] = (HEADER_LEN as u8 / 4) << 4;
    out[FLAGS] = header.flags;
    put_u16(out, WINDOW, header.window);
    put_u32(out, CHECKSUM, 0);
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, TcpHeader};

    use super::*;

    fn segment() -> Vec<u8> {
        let mut header = TcpHeader::new(4000, 80, 0xffff_fff0, 1024);
        header.acknowledgment_number = 77;
        header.ack = true;
        let mut packet = Vec::new();
        let ip = PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        ip.tcp_header(header).write(&mut packet, b"payload").unwrap();
        packet.split_off(20)
    }

    #[test]
    fn a_bad_data_offset_is_malformed() {
        // A13
        let header = &segment()[..HEADER_LEN];
        for (offset, expected) in [(4, Err(Malformed::Invalid)), (5, Ok(())), (6, Err(Malformed::Truncated))]
        {
            let mut segment = header.to_vec();
            segment[DATA_OFFSET] = offset << 4;
            assert_eq!(Tcp::new_checked(&segment).map(|_| ()), expected);
        }
    }

    #[test]
    fn c6_only_a_larger_mss_is_lowered_wherever_it_stands_and_the_checksum_follows() {
        let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for (options, place, mss) in [
            (&[2, 4, 5, 0xb4][..], 2, Some(1410)),
            (&[1, 2, 4, 5, 0xb4, 0, 0, 0], 3, Some(1410)),
            (&[3, 3, 7, 1, 2, 4, 5, 0xb4], 6, Some(1410)),
            (&[2, 4, 5, 0x82], 2, None),
            (&[2, 3, 5, 0xb4], 2, None),
            (&[8, 0, 2, 4, 5, 0xb4, 0, 0], 4, None),
            (&[0, 0, 2, 4, 5, 0xb4, 0, 0], 4, None),
        ] {
            let mut bytes = [&segment()[..HEADER_LEN], options].concat();
            bytes[DATA_OFFSET] = ((HEADER_LEN + options.len()) as u8 / 4) << 4;
            Tcp::new_checked(&mut bytes).unwrap().fill_checksum(src, dst);
            let before = bytes.clone();
            Tcp::new_checked(&mut bytes).unwrap().clamp_mss(1410, false);
            assert!(checksum::verify(src, dst, Protocol::TCP, &bytes), "{options:?}");
            match mss {
                Some(mss) => assert_eq!(u16_at(&bytes, HEADER_LEN + place), mss),
                None => assert_eq!(bytes, before),
            }
        }
    }

    #[test]
    fn setters_write_what_accessors_read() {
        let mut bytes = segment();
        let mut segment = Tcp::new_checked(&mut bytes).unwrap();
        segment.set_src_port(1);
        segment.set_dst_port(2);
        segment.set_seq(3);
        segment.set_flags(PSH | URG);
        segment.set_checksum(4);
        assert_eq!((segment.src_port(), segment.dst_port(), segment.seq(), segment.ack()), (1, 2, 3, 77));
        assert_eq!((segment.flags(), segment.checksum(), segment.window()), (PSH | URG, 4, 1024));
        assert_eq!((segment.urgent(), segment.options().len(), segment.payload()), (0, 0, &b"payload"[..]));
    }
}
