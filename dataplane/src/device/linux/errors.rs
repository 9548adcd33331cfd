//! The error queue of a sending socket (ip(7), IP_RECVERR).
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use libc::{iovec, msghdr, sock_extended_err};

use super::control::{Address, CONTROL_LEN, Control, read_error, socket_addr};
use super::sys::check;
use crate::device::{QUOTE_LEN, Quote, TooLong};

/// Takes everything off the error queue of a socket, tells what is said of paths' MTUs, and returns how many errors there
/// were.
///
/// With IP_RECVERR an ICMP error about one peer fails the next send to any peer, and stays until it is read.
pub(super) fn read_errors(socket: &impl AsRawFd, mut too_long: impl FnMut(TooLong)) -> usize {
    let mut read = 0;
    loop {
        match next_error(socket) {
            Ok(found) => {
                read += 1;
                found.into_iter().for_each(&mut too_long);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return read,
        }
    }
}

/// Takes the first error off the queue; `None` when it says nothing of a path's MTU.
fn next_error(socket: &impl AsRawFd) -> io::Result<Option<TooLong>> {
    let mut control = Control([0; CONTROL_LEN]);
    let mut bytes = [0; QUOTE_LEN];
    let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: both are integers, arrays of them and null pointers, for which zero is a value.
    let (mut header, mut remote) = unsafe { (zeroed::<msghdr>(), zeroed::<Address>()) };
    header.msg_name = (&raw mut remote).cast();
    header.msg_namelen = size_of::<Address>() as libc::socklen_t;
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_LEN as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: every buffer the header names lives during the call.
    let len = check(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) })?;
    // SAFETY: the message is as recvmsg has left it, and its control buffer lives.
    let error = unsafe { read_error(&header) };
    let told = error.zip(socket_addr(&remote));
    Ok(told.and_then(|(error, remote)| about_a_path(&error, remote, Quote { bytes, len })))
}

fn about_a_path(error: &sock_extended_err, remote: SocketAddr, quote: Quote) -> Option<TooLong> {
    let is_too_long = error.ee_errno == libc::EMSGSIZE as u32 && error.ee_info > 0;
    let quote = match error.ee_origin {
        libc::SO_EE_ORIGIN_LOCAL => None,
        libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6 => Some(quote),
        _ => return None,
    };
    is_too_long.then_some(TooLong { remote, mtu: error.ee_info, quote })
}
