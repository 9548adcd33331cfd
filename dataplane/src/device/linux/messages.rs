//! Message vectors for recvmmsg, allocated once.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::ptr;

use libc::{c_void, iovec, mmsghdr, msghdr};

use super::control::{Address, CONTROL_LEN, Control, read_control, socket_addr};
use super::sys::check;

/// What is known of one received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    /// Payload bytes.
    pub(super) len: usize,
    /// Where it came from.
    pub(super) remote: SocketAddr,
    /// TOS byte or traffic class.
    pub(super) tos: u8,
    /// Bytes of each datagram that the kernel has joined to this message; 0 for a message that is one datagram.
    pub(super) segment_len: u16,
}

/// A fixed number of messages with their addresses and control messages.
pub(super) struct Messages {
    headers: Vec<mmsghdr>,
    vectors: Vec<iovec>,
    addresses: Vec<Address>,
    controls: Vec<Control>,
}

// SAFETY: the pointers in `headers` and `vectors` are written and used only within calls that hold `&mut self`
// and the buffers; between calls nobody reads them.
unsafe impl Send for Messages {}

impl Messages {
    /// Room for `capacity` messages.
    pub(super) fn new(capacity: usize) -> Self {
        // SAFETY: all of these are integers, arrays of them and null pointers, for which zero is a value.
        let (header, vector, address) =
            unsafe { (zeroed::<mmsghdr>(), zeroed::<iovec>(), zeroed::<Address>()) };
        Self {
            headers: vec![header; capacity],
            vectors: vec![vector; capacity],
            addresses: vec![address; capacity],
            controls: vec![Control([0; CONTROL_LEN]); capacity],
        }
    }

    /// How many messages fit.
    pub(super) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Receives up to `count` messages, each into the area that `area` names, without waiting. Returns how many.
    ///
    /// # Errors
    /// The system's; WouldBlock when nothing waits.
    pub(super) fn receive<'a>(
        &mut self,
        socket: &impl AsRawFd,
        count: usize,
        mut area: impl FnMut(usize) -> &'a mut [u8],
    ) -> io::Result<usize> {
        let count = count.min(self.capacity());
        for index in 0..count {
            let area = area(index);
            self.vectors[index] = iovec { iov_base: area.as_mut_ptr().cast(), iov_len: area.len() };
            self.point(index, size_of::<Address>(), CONTROL_LEN);
        }
        // SAFETY: the first `count` headers point to areas, addresses and controls that live during the call and
        // are not aliased: `area` hands out exclusive borrows of distinct receive areas.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        check(received as isize)
    }

    /// What is known of received message `index`; `None` for an address of another family.
    pub(super) fn received(&self, index: usize) -> Option<Received> {
        let message = &self.headers[index];
        let remote = socket_addr(&self.addresses[index])?;
        // SAFETY: the message is as the kernel has left it, and its control buffer is one of `controls`.
        let (tos, segment_len) = unsafe { read_control(&message.msg_hdr) };
        Some(Received { len: message.msg_len as usize, remote, tos, segment_len })
    }

    fn point(&mut self, index: usize, address_len: usize, control_len: usize) {
        let header: &mut msghdr = &mut self.headers[index].msg_hdr;
        header.msg_name = (&raw mut self.addresses[index]).cast::<c_void>();
        header.msg_namelen = address_len as libc::socklen_t;
        header.msg_iov = &raw mut self.vectors[index];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[index]).cast::<c_void>();
        header.msg_controllen = control_len as _;
        header.msg_flags = 0;
    }
}
