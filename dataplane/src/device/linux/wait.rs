//! Sleeping until a descriptor is readable or another thread wakes the worker.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::sys;
use crate::device::{Ready, Wait, Waker};

const MAX_EVENTS: usize = 4;

/// What an event is about, as epoll hands it back.
const WAKER: u64 = 0;
const OVERLAY: u64 = 1;
const UNDERLAY: u64 = 2;

/// Epoll over the device, the receiving socket and an eventfd; level-triggered.
pub(super) struct EpollWait {
    epoll: OwnedFd,
    waker: Arc<EventWaker>,
}

impl EpollWait {
    /// Watches the queues of overlay devices and the sockets, which must outlive it or be closed together with it.
    pub(super) fn new(overlay: &[RawFd], underlay: &[RawFd]) -> io::Result<Self> {
        // SAFETY: takes integers only.
        let epoll = sys::owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: takes integers only.
        let event = sys::owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let wait = Self { epoll, waker: Arc::new(EventWaker(File::from(event))) };
        wait.watch(wait.waker.0.as_raw_fd(), WAKER)?;
        overlay.iter().try_for_each(|queue| wait.watch(*queue, OVERLAY))?;
        underlay.iter().try_for_each(|socket| wait.watch(*socket, UNDERLAY))?;
        Ok(wait)
    }

    fn watch(&self, descriptor: RawFd, about: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: about };
        // SAFETY: the event lives during the call.
        let added = unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, descriptor, &raw mut event)
        };
        sys::check(added as isize).map(drop)
    }

    /// Ends this sleep from another thread.
    pub(super) fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }

    fn epoll_wait(&self, timeout: Option<Duration>) -> io::Result<Ready> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_EVENTS];
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos() as i32),
        });
        let pointer = timeout.as_ref().map_or(std::ptr::null(), |timeout| &raw const *timeout);
        // SAFETY: events and timeout live during the call, and the count of events is theirs. No signal mask.
        let ready = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                MAX_EVENTS as libc::c_int,
                pointer,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        let ready = match sys::check(ready as isize) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                self.epoll_wait_millis(&mut events, timeout)?
            }
            ready => ready?,
        };
        let mut sides = Ready::default();
        for event in &events[..ready] {
            match event.u64 {
                OVERLAY => sides.overlay = true,
                UNDERLAY => sides.underlay = true,
                _ => self.waker.reset(),
            }
        }
        Ok(sides)
    }

    /// Before Linux 5.11 the time-out has milliseconds: rounded up, so as not to spin before a deadline.
    fn epoll_wait_millis(
        &self,
        events: &mut [libc::epoll_event; MAX_EVENTS],
        timeout: Option<libc::timespec>,
    ) -> io::Result<usize> {
        let millis = timeout.map_or(-1, |timeout| {
            let millis =
                timeout.tv_sec.saturating_mul(1000).saturating_add((timeout.tv_nsec + 999_999) / 1_000_000);
            libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX)
        });
        // SAFETY: the events live during the call, and their count is given.
        let ready = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), MAX_EVENTS as libc::c_int, millis)
        };
        sys::check(ready as isize)
    }
}

impl Wait for EpollWait {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Ready> {
        match self.epoll_wait(timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Ready::default()),
            ready => ready,
        }
    }

    fn is_level_triggered(&self) -> bool {
        true
    }
}

/// An eventfd.
#[derive(Debug)]
struct EventWaker(File);

impl EventWaker {
    fn reset(&self) {
        let mut count = [0; 8];
        let _ = sys::read(self.0.as_raw_fd(), &mut count);
    }
}

impl Waker for EventWaker {
    fn wake(&self) {
        // The only failure is a counter at its maximum, which wakes as well.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_wake_before_the_sleep_ends_it_once() {
        let device = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut wait = EpollWait::new(&[device.as_raw_fd()], &[]).unwrap();
        wait.waker().wake();
        assert_eq!(wait.wait(None).unwrap(), Ready::default());
        let asleep = Instant::now();
        wait.wait(Some(Duration::from_micros(1500))).unwrap();
        assert!(asleep.elapsed() >= Duration::from_micros(1500));
    }

    #[test]
    fn a_side_is_ready_until_it_is_read() {
        let [device, v4, v6] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut wait = EpollWait::new(&[device.as_raw_fd()], &[v4.as_raw_fd(), v6.as_raw_fd()]).unwrap();
        assert_eq!(wait.wait(Some(Duration::ZERO)).unwrap(), Ready::default());
        v6.send_to(b"wake", v6.local_addr().unwrap()).unwrap();
        let underlay = Ready { overlay: false, underlay: true };
        assert_eq!(wait.wait(None).unwrap(), underlay);
        assert_eq!(wait.wait(None).unwrap(), underlay);
        device.send_to(b"wake", device.local_addr().unwrap()).unwrap();
        assert_eq!(wait.wait(None).unwrap(), Ready::ALL);
        v6.recv(&mut [0; 8]).unwrap();
        assert_eq!(wait.wait(None).unwrap(), Ready { overlay: true, underlay: false });
    }
}
