//! Socket addresses and control messages as the kernel lays them out.
#![allow(unsafe_code)]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ptr;

use libc::{c_int, msghdr, sockaddr_in, sockaddr_in6};

/// Room for one TOS and one segment size.
pub(super) const CONTROL_LEN: usize = 64;

/// Bytes for control messages, aligned as their headers must be.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_LEN]);

/// A socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union Address {
    family: libc::sa_family_t,
    v4: sockaddr_in,
    v6: sockaddr_in6,
}

/// An address as the kernel has written it; `None` for another family's.
pub(super) fn socket_addr(address: &Address) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family, the whole union is initialised, and any bits are values of
    // the integers it is made of.
    unsafe {
        match c_int::from(address.family) {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(address.v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(address.v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = &address.v6;
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Writes an address and returns its length.
pub(super) fn write_address(to: &mut Address, remote: &SocketAddr) -> usize {
    match remote {
        SocketAddr::V4(remote) => {
            to.v4 = sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: remote.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(remote.ip().octets()) },
                sin_zero: [0; 8],
            };
            size_of::<sockaddr_in>()
        }
        SocketAddr::V6(remote) => {
            to.v6 = sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: remote.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: remote.ip().octets() },
                sin6_scope_id: remote.scope_id(),
            };
            size_of::<sockaddr_in6>()
        }
    }
}

/// Writes the control message that sets the TOS, and returns its length: nothing for 0, the socket's own.
pub(super) fn write_tos(control: &mut Control, tos: u8, ipv4: bool) -> usize {
    if tos == 0 {
        return 0;
    }
    let (level, kind) =
        if ipv4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    write(control, 0, level, kind, &c_int::from(tos).to_ne_bytes())
}

/// Adds the control message that makes the kernel cut a message into datagrams of `segment_len` bytes (udp(7)),
/// behind the `at` bytes that are there, and returns the length of all.
pub(super) fn write_segment_len(control: &mut Control, at: usize, segment_len: u16) -> usize {
    write(control, at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment_len.to_ne_bytes())
}

fn write(control: &mut Control, at: usize, level: c_int, kind: c_int, value: &[u8]) -> usize {
    // SAFETY: CMSG_LEN and CMSG_SPACE only compute.
    let (len, space) =
        unsafe { (libc::CMSG_LEN(value.len() as u32), libc::CMSG_SPACE(value.len() as u32) as usize) };
    let Some(room) = control.0.get_mut(at..at + space) else { return at };
    let header = room.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: the header and its value lie within `room`; `at` is a sum of CMSG_SPACEs, so that the header is aligned
    // in the aligned buffer.
    unsafe {
        (*header).cmsg_len = len as _;
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        ptr::copy_nonoverlapping(value.as_ptr(), libc::CMSG_DATA(header), value.len());
    }
    at + space
}

/// The TOS byte or traffic class and the segment size among the control messages the kernel has written, else 0.
///
/// # Safety
/// The message must be one that recvmsg has filled, and its control buffer must still live.
pub(super) unsafe fn read_control(message: &msghdr) -> (u8, u16) {
    let (mut tos, mut segment_len) = (0, 0);
    // SAFETY: the CMSG macros stay within the control buffer, whose length the kernel has written.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_TOS) => tos = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    tos = ptr::read_unaligned(data.cast::<c_int>()) as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    segment_len = ptr::read_unaligned(data.cast::<c_int>()) as u16;
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    (tos, segment_len)
}

/// The error among the control messages that recvmsg has taken off an error queue.
///
/// # Safety
/// As for [`read_control`].
pub(super) unsafe fn read_error(message: &msghdr) -> Option<libc::sock_extended_err> {
    // SAFETY: as above; whatever its alignment, the error is read as a whole.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if matches!(
                ((*header).cmsg_level, (*header).cmsg_type),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            ) {
                return Some(ptr::read_unaligned(libc::CMSG_DATA(header).cast()));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    None
}
