//! System calls the standard library lacks, each with its errno as an error.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use libc::{c_int, c_ulong, c_void};

/// The result of a call that returns -1 and sets errno when it fails.
pub(super) fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes the descriptor a call has returned.
pub(super) fn owned(result: c_int) -> io::Result<OwnedFd> {
    check(result as isize)?;
    // SAFETY: the caller hands over the result of a call that opens a descriptor; it is not negative.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// An ioctl whose argument is an integer or the address of something that lives during the call.
pub(super) fn ioctl(fd: &impl AsRawFd, request: c_ulong, argument: c_ulong) -> io::Result<()> {
    // SAFETY: every request of this program takes an integer, or reads and writes only the C structure that
    // the caller lends for the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) } as isize).map(drop)
}

/// Puts the calling thread into a network namespace of its own, which vanishes with the thread.
pub(super) fn leave_network() -> io::Result<()> {
    // SAFETY: takes an integer, and changes only the calling thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWNET) } as isize).map(drop)
}

/// An interface request that asks for nothing.
pub(super) fn empty_ifreq() -> libc::ifreq {
    // SAFETY: an ifreq is integers, arrays of them and null pointers, for which all bits zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Sets an integer socket option.
pub(super) fn set_option(fd: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: the value is an integer that lives during the call, and its length is given.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast::<c_void>(), len) };
    check(result as isize).map(drop)
}

/// The kind (ARPHRD_*) and hardware address that SIOCGIFHWADDR has written.
pub(super) fn hardware_address(request: &libc::ifreq) -> (u16, [u8; 14]) {
    // SAFETY: every member of the union is initialised, and a sockaddr is integers.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    (address.sa_family, address.sa_data.map(|byte| byte as u8))
}

/// Drops whatever arrives at a socket before it takes memory; ICMP errors still come in.
pub(super) fn refuse_input(fd: &impl AsRawFd) -> io::Result<()> {
    let keep_nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    attach_filter(fd, &mut [keep_nothing])
}

/// Lets a socket take only what the filter keeps.
pub(super) fn attach_filter(fd: &impl AsRawFd, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as libc::c_ushort, filter: filter.as_mut_ptr() };
    let len = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the program and its instructions live during the call, which copies them, and their number is given.
    let result = unsafe {
        let program = (&raw const program).cast::<c_void>();
        libc::setsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, len)
    };
    check(result as isize).map(drop)
}

/// Reads into a buffer.
pub(super) fn read(fd: RawFd, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the buffer is writable for its whole length.
    check(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

/// Writes two buffers as one message.
pub(super) fn write_two(fd: RawFd, first: &[u8], second: &[u8]) -> io::Result<usize> {
    let vectors = [first, second]
        .map(|bytes| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() });
    // SAFETY: both vectors name bytes that live during the call, and writev only reads them.
    check(unsafe { libc::writev(fd, vectors.as_ptr(), 2) })
}
