//! Messages for sendmmsg, gathered from pieces and joined where one message can carry several datagrams.
#![allow(unsafe_code)]

use std::io;
use std::mem::zeroed;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::AsRawFd;

use libc::{c_void, iovec, mmsghdr, msghdr};

use super::control::{Address, CONTROL_LEN, Control, write_address, write_segment_len, write_tos};
use super::sys::check;

/// Most datagrams of one message: Linux before 6.9 takes no more.
const MAX_SEGMENTS: usize = 64;

/// Most bytes of one message: 65,535 less an IPv4 and a UDP header.
const MAX_MESSAGE_LEN: usize = 65_507;

const FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// What is known of one queued message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// Where it goes.
    pub(super) remote: SocketAddr,
    tos: u8,
    /// Whether another datagram may follow.
    is_open: bool,
    /// How many datagrams it stands for.
    pub(super) segments: usize,
    /// Bytes of each of them but the last, which may be shorter.
    segment_len: usize,
    /// Bytes of all of them.
    pub(super) len: usize,
    first_piece: usize,
    /// Pieces of each datagram.
    pieces: usize,
    tos_len: usize,
}

/// A fixed number of messages with their pieces, addresses and control messages.
pub(super) struct Outgoing {
    headers: Vec<mmsghdr>,
    addresses: Vec<Address>,
    controls: Vec<Control>,
    /// Never longer than its first capacity: headers point into it.
    pieces: Vec<iovec>,
    queued: Vec<Queued>,
}

// SAFETY: the pointers in `headers` and `pieces` are used only by `send` and `send_singly`, whose callers vouch for
// what they point to.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Room for `messages` of `pieces` together.
    pub(super) fn new(messages: usize, pieces: usize) -> Self {
        // SAFETY: both are integers, arrays of them and null pointers, for which zero is a value.
        let (header, address) = unsafe { (zeroed::<mmsghdr>(), zeroed::<Address>()) };
        Self {
            headers: vec![header; messages],
            addresses: vec![address; messages],
            controls: vec![Control([0; CONTROL_LEN]); messages],
            pieces: Vec::with_capacity(pieces),
            queued: Vec::with_capacity(messages),
        }
    }

    /// The queued messages.
    pub(super) fn queued(&self) -> &[Queued] {
        &self.queued
    }

    /// Whether a datagram of `pieces` finds room, whatever it can be joined to.
    pub(super) fn has_room(&self, pieces: usize) -> bool {
        self.queued.len() < self.headers.len() && self.pieces.len() + pieces <= self.pieces.capacity()
    }

    /// Forgets all queued messages.
    pub(super) fn clear(&mut self) {
        self.queued.clear();
        self.pieces.clear();
    }

    /// Queues a datagram of these pieces, with `joins` as a part of the message before if that goes the same way and
    /// is of the same size; `false` when there is no room.
    ///
    /// # Safety
    /// The pieces must live and stay unchanged until the messages are cleared.
    pub(super) unsafe fn push(
        &mut self,
        pieces: &[&[u8]],
        remote: &SocketAddr,
        tos: u8,
        joins: bool,
    ) -> bool {
        let len = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if !self.has_room(pieces.len()) {
            return false;
        }
        match self.queued.last_mut().filter(|last| joins && last.takes(len, pieces.len(), remote, tos)) {
            Some(last) => {
                last.segments += 1;
                last.len += len;
                last.is_open = len == last.segment_len;
            }
            None => self.start(len, pieces.len(), remote, tos, joins),
        }
        let vector =
            |piece: &&[u8]| iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        self.pieces.extend(pieces.iter().map(vector));
        true
    }

    fn start(&mut self, len: usize, pieces: usize, remote: &SocketAddr, tos: u8, joins: bool) {
        let index = self.queued.len();
        let address_len = write_address(&mut self.addresses[index], remote);
        let tos_len = write_tos(&mut self.controls[index], tos, remote.is_ipv4());
        let header: &mut msghdr = &mut self.headers[index].msg_hdr;
        header.msg_namelen = address_len as libc::socklen_t;
        self.queued.push(Queued {
            remote: *remote,
            tos,
            is_open: joins && len > 0,
            segments: 1,
            segment_len: len,
            len,
            first_piece: self.pieces.len(),
            pieces,
            tos_len,
        });
    }

    /// Sends queued messages from `first` on, and returns how many the kernel took.
    ///
    /// # Errors
    /// Of message `first`, or one that an earlier datagram's ICMP error left on the socket.
    pub(super) fn send(&mut self, socket: &impl AsRawFd, first: usize) -> io::Result<usize> {
        for index in first..self.queued.len() {
            self.point(index);
        }
        let waiting = &mut self.headers[first..self.queued.len()];
        if let [only] = waiting {
            // SAFETY: as below.
            return check(unsafe { libc::sendmsg(socket.as_raw_fd(), &only.msg_hdr, FLAGS) }).map(|_| 1);
        }
        // SAFETY: the headers point to addresses, controls and pieces of `self`, and the pieces to bytes that
        // `push`'s caller keeps alive.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), waiting.as_mut_ptr(), waiting.len() as u32, FLAGS) };
        check(sent as isize)
    }

    /// The pieces and the length of datagram `segment` of message `index`.
    pub(super) fn datagram(&self, index: usize, segment: usize) -> (Range<usize>, usize) {
        let queued = &self.queued[index];
        let first = queued.first_piece + segment * queued.pieces;
        let range = first..first + queued.pieces;
        let len = self.pieces[range.clone()].iter().map(|piece| piece.iov_len).sum();
        (range, len)
    }

    /// Sends one datagram of message `index` by itself: what [`datagram`](Self::datagram) has given.
    ///
    /// # Errors
    /// Of this datagram, or one that an earlier datagram's ICMP error left on the socket.
    pub(super) fn send_singly(
        &mut self,
        socket: &impl AsRawFd,
        index: usize,
        pieces: Range<usize>,
    ) -> io::Result<()> {
        self.point(index);
        let tos_len = self.queued[index].tos_len;
        let header: &mut msghdr = &mut self.headers[index].msg_hdr;
        header.msg_iovlen = pieces.len();
        header.msg_iov = self.pieces[pieces].as_mut_ptr();
        header.msg_controllen = tos_len as _;
        // SAFETY: as for `send`; of the control messages only the TOS is within the length given.
        check(unsafe { libc::sendmsg(socket.as_raw_fd(), header, FLAGS) }).map(drop)
    }

    fn point(&mut self, index: usize) {
        let queued = &self.queued[index];
        let control = &mut self.controls[index];
        let control_len = match queued.segments {
            1 => queued.tos_len,
            _ => write_segment_len(control, queued.tos_len, queued.segment_len as u16),
        };
        let header: &mut msghdr = &mut self.headers[index].msg_hdr;
        header.msg_name = (&raw mut self.addresses[index]).cast::<c_void>();
        header.msg_iov = self.pieces[queued.first_piece..].as_mut_ptr();
        header.msg_iovlen = queued.pieces * queued.segments;
        header.msg_control = (&raw mut control.0).cast::<c_void>();
        header.msg_controllen = control_len as _;
        header.msg_flags = 0;
    }
}

impl Queued {
    fn takes(&self, len: usize, pieces: usize, remote: &SocketAddr, tos: u8) -> bool {
        self.is_open
            && self.segments < MAX_SEGMENTS
            && pieces == self.pieces
            && len <= self.segment_len
            && len > 0
            && self.len + len <= MAX_MESSAGE_LEN
            && self.tos == tos
            && self.remote == *remote
    }
}
