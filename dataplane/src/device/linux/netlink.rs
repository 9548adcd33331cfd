//! Synchronous routing netlink: requests, their acknowledgements, and dumps.
//!
//! Read first: RFC 3549, rtnetlink(7). Messages are in the host's byte order.
#![allow(unsafe_code)]

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::sys;
use crate::device::host::Family;

/// Netlink aligns messages and attributes to this many bytes.
const ALIGN: usize = 4;
const HEADER_LEN: usize = 16;
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// The kernel never sends a larger part of a dump than the reader's buffer, and at most 32 KB.
const BUFFER_LEN: usize = 64 << 10;

/// A request under construction.
#[derive(Clone, Debug)]
pub(super) struct Request(Vec<u8>);

impl Request {
    /// A message of a type, with its family header.
    pub(super) fn new(kind: u16, flags: i32, family_header: &[u8]) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(family_header);
        let mut request = Self(bytes);
        request.pad();
        request
    }

    /// Adds an attribute.
    pub(super) fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (ATTRIBUTE_HEADER_LEN + value.len()) as u16;
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.pad();
        self
    }

    /// Adds an attribute that is a number.
    pub(super) fn number(self, kind: u16, value: u32) -> Self {
        self.attribute(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute that is an address.
    pub(super) fn address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.attribute(kind, &address.octets()),
        }
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
    }

    fn seal(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        self.0
    }
}

/// A netlink socket of the network namespace of the thread that opens it.
#[derive(Debug)]
pub(super) struct Netlink(OwnedFd);

impl Netlink {
    /// Opens one for routing.
    pub(super) fn open() -> io::Result<Self> {
        Self::open_protocol(libc::NETLINK_ROUTE)
    }

    /// Opens one of another protocol.
    pub(super) fn open_protocol(protocol: libc::c_int) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: takes integers only.
        sys::owned(unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) }).map(Self)
    }

    /// Sends a request and waits for its acknowledgement.
    pub(super) fn execute(&self, request: Request) -> io::Result<()> {
        self.exchange(request, |_, _| {})
    }

    /// Sends a dump request and hands each message's type and body to `each`.
    pub(super) fn dump(&self, request: Request, each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.exchange(request, each)
    }

    fn exchange(&self, request: Request, mut each: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let bytes = request.seal();
        // SAFETY: the bytes live during the call.
        sys::check(unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) })?;
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            let len = match sys::read(self.0.as_raw_fd(), &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                len => len?,
            };
            for (kind, body) in messages(&buffer[..len]) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return acknowledgement(body),
                    _ => each(kind, body),
                }
            }
        }
    }
}

fn acknowledgement(body: &[u8]) -> io::Result<()> {
    match body.first_chunk::<4>().map_or(0, |bytes| i32::from_ne_bytes(*bytes)) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(-errno)),
    }
}

/// The messages in what one read has returned: type and body each.
fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<HEADER_LEN>()?;
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let body = rest.get(HEADER_LEN..len)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The attributes in bytes: type (without its flags) and value each. Ends at the first that is cut.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let header = rest.first_chunk::<ATTRIBUTE_HEADER_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        let kind = u16::from_ne_bytes([header[2], header[3]]) & 0x3fff;
        rest = rest.get(len.next_multiple_of(ALIGN)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a type.
pub(super) fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// A number attribute.
pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// An address attribute.
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A string attribute, without its final zero.
pub(super) fn string(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The kernel's number of a family.
pub(super) fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written_and_cut_ones_end_the_list() {
        let request = Request::new(1, 0, &[0; 8]).attribute(3, b"abc").number(0x8004, 7).seal();
        let (_, body) = messages(&request).next().unwrap();
        let read: Vec<_> = attributes(&body[8..]).collect();
        assert_eq!(read, [(3, &b"abc"[..]), (4, &7_u32.to_ne_bytes()[..])]);
        for len in 0..body.len() - 8 {
            assert!(attributes(&body[8..8 + len]).count() < 2);
        }
        assert_eq!(messages(&request[..request.len() - 1]).count(), 0);
    }
}
