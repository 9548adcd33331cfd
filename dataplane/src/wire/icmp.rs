//! ICMP and ICMPv6 headers.
//!
//! Read first: RFC 792, RFC 4443 section 2.1 and RFC 4884 (which types are errors), RFC 1191 for the MTU of a
//! Fragmentation Needed.

use super::bytes::{Malformed, put_u16, put_u32, u16_at, u32_at};
use super::protocol::{L4, Protocol};

/// Length of the header in bytes: type, code, checksum and the word that depends on the type.
pub const HEADER_LEN: usize = 8;

/// Where the checksum lies, in bytes from the header's start.
pub const CHECKSUM: usize = 2;

const TYPE: usize = 0;
const CODE: usize = 1;
const REST: usize = 4;
const IDENT: usize = 4;

/// The types of ICMP for IPv4 that the engine knows.
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Source quench.
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// The types of ICMPv6 that the engine knows; all below [`ECHO_REQUEST`](v6::ECHO_REQUEST) are errors.
pub mod v6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Redirect.
    pub const REDIRECT: u8 = 137;
}

/// A message from its ICMP or ICMPv6 header on.
#[derive(Clone, Copy, Debug)]
pub struct Icmp<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Icmp<T> {
    /// # Errors
    /// [`Malformed::Truncated`] for fewer than [`HEADER_LEN`] bytes.
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < HEADER_LEN { Err(Malformed::Truncated) } else { Ok(Self { bytes }) }
    }

    /// Type, whose numbers differ between [`v4`] and [`v6`].
    #[inline]
    pub fn message_type(&self) -> u8 {
        self.bytes.as_ref()[TYPE]
    }

    /// Code.
    #[inline]
    pub fn code(&self) -> u8 {
        self.bytes.as_ref()[CODE]
    }

    /// Checksum.
    #[inline]
    pub fn checksum(&self) -> u16 {
        u16_at(self.bytes.as_ref(), CHECKSUM)
    }

    /// The identifier of an echo.
    #[inline]
    pub fn ident(&self) -> u16 {
        u16_at(self.bytes.as_ref(), IDENT)
    }

    /// The next-hop MTU of an IPv4 Fragmentation Needed (16 bits) or of a Packet Too Big (32 bits), as it stands.
    #[inline]
    pub fn mtu(&self) -> u32 {
        u32_at(self.bytes.as_ref(), REST)
    }

    /// What follows the header: an error's quoted packet, an echo's data.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.bytes.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Icmp<T> {
    /// Writes the type.
    #[inline]
    pub fn set_message_type(&mut self, message_type: u8) {
        self.bytes.as_mut()[TYPE] = message_type;
    }

    /// Writes the checksum.
    #[inline]
    pub fn set_checksum(&mut self, checksum: u16) {
        put_u16(self.bytes.as_mut(), CHECKSUM, checksum);
    }

    /// Writes the identifier of an echo.
    #[inline]
    pub fn set_ident(&mut self, ident: u16) {
        put_u16(self.bytes.as_mut(), IDENT, ident);
    }
}

/// What a type of [`Protocol::ICMP`] or [`Protocol::ICMPV6`] is to the engine.
#[inline]
pub fn classify(protocol: Protocol, message_type: u8) -> L4 {
    if protocol == Protocol::ICMP {
        match message_type {
            v4::ECHO_REQUEST => L4::EchoRequest,
            v4::ECHO_REPLY => L4::EchoReply,
            v4::UNREACHABLE
            | v4::SOURCE_QUENCH
            | v4::REDIRECT
            | v4::TIME_EXCEEDED
            | v4::PARAMETER_PROBLEM => L4::IcmpError,
            _ => L4::Icmp,
        }
    } else {
        match message_type {
            v6::ECHO_REQUEST => L4::EchoRequest,
            v6::ECHO_REPLY => L4::EchoReply,
            0..v6::ECHO_REQUEST | v6::REDIRECT => L4::IcmpError,
            _ => L4::Icmp,
        }
    }
}

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type, whose numbers differ between [`v4`] and [`v6`].
    pub message_type: u8,
    /// Code.
    pub code: u8,
    /// The word that depends on the type: an echo's identifier and sequence number, a Packet Too Big's MTU.
    pub rest: u32,
}

/// Writes a header with a checksum of zero to the first [`HEADER_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit(out: &mut [u8], header: Header) {
    let out = &mut out[..HEADER_LEN];
    out[TYPE] = header.message_type;
    out[CODE] = header.code;
    put_u16(out, CHECKSUM, 0);
    put_u32(out, REST, header.rest);
}
