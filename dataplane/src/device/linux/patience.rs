//! Waiting for room, within bounds, instead of dropping at once.
//!
//! A queue that is full now mostly has room a moment later, and whoever sends into the overlay feels the wait before
//! the loss. One batch waits for a few milliseconds altogether: what a peer or a device that takes nothing costs all
//! others has an end (G10).
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

/// How long the packets of one batch may wait altogether.
const PATIENCE: Duration = Duration::from_millis(4);

/// How long at a time where nobody tells of room: a queue of 1 Gbit/s has sent eight packets of 1,500 bytes then.
const NAP: Duration = Duration::from_micros(100);

/// How long at a time where the socket may tell of room, in milliseconds: it does so late, when half its buffer is free.
const POLL_MILLIS: libc::c_int = 1;

/// What is left of one batch's patience. Begins with the first wait.
#[derive(Debug, Default)]
pub(super) struct Patience {
    until: Option<Instant>,
}

/// Whether an error of a write says that there is no room now.
pub(super) fn says_full(error: i32) -> bool {
    matches!(error, libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ENOSPC)
}

impl Patience {
    /// The result of a write that is tried again after a signal, and after a wait where there was no room.
    pub(super) fn retry(
        &mut self,
        fd: &impl AsRawFd,
        mut write: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match write() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.waited(fd, error.raw_os_error().unwrap_or_default()) => {}
                written => return written,
            }
        }
    }

    /// Waits for room after `error`; `false` when it is no error of a full queue, or the patience is at its end.
    pub(super) fn waited(&mut self, fd: &impl AsRawFd, error: i32) -> bool {
        let until = *self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        if !says_full(error) || Instant::now() >= until {
            return false;
        }
        // Any other full queue than the socket's own is a device's, of which poll knows nothing.
        if error != libc::EAGAIN || !told_of_room(fd.as_raw_fd()) {
            thread::sleep(NAP);
        }
        true
    }
}

/// Waits until the descriptor takes more. An error that waits for its reader ends the wait too, so that is no room yet.
fn told_of_room(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one pollfd that lives during the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, POLL_MILLIS) };
    ready > 0 && poll.revents & libc::POLLOUT != 0
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn g10_patience_ends_and_is_for_full_queues_only() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut patience = Patience::default();
        assert!(!patience.waited(&socket, libc::EMSGSIZE));
        let begun = Instant::now();
        while patience.waited(&socket, libc::ENOBUFS) {}
        assert!(begun.elapsed() < Duration::from_secs(60), "it ends");
        assert!(!patience.waited(&socket, libc::EAGAIN), "one batch has no second patience");
    }
}
