//! Sleeping until the adapter, the receiving socket or another thread signals an event.
#![allow(unsafe_code)]

use std::io;
use std::os::windows::io::{AsRawSocket, RawSocket};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE, WAIT_FAILED};
use windows_sys::Win32::Networking::WinSock::{FD_READ, WSAEventSelect};
use windows_sys::Win32::System::Threading::{CreateEventW, SetEvent, WaitForMultipleObjects};

use crate::device::{Ready, Wait, Waker};

/// The longest sleep: the end of an adapter is seen by looking, and signalled by no event.
const LONGEST: Duration = Duration::from_millis(250);

/// Waits for three events. The sockets' one is auto-reset: winsock signals it again when a receive leaves
/// something.
pub(super) struct EventWait {
    device: Borrowed,
    sockets: Arc<Event>,
    waker: Arc<Event>,
}

impl EventWait {
    /// Watches the adapter's read event, which outlives it, and sockets, which become non-blocking.
    pub(super) fn new<'a, S: AsRawSocket + 'a>(
        device: HANDLE,
        sockets: impl Iterator<Item = &'a S>,
    ) -> io::Result<Self> {
        let readable = Event::new()?;
        for socket in sockets {
            readable.select(socket.as_raw_socket())?;
        }
        Ok(Self { device: Borrowed(device), sockets: Arc::new(readable), waker: Arc::new(Event::new()?) })
    }

    /// Ends this sleep from another thread.
    pub(super) fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.waker) as Arc<dyn Waker>
    }
}

impl Wait for EventWait {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Ready> {
        let events = [self.device.0, self.sockets.0, self.waker.0];
        // Rounded up, so as not to spin before a deadline.
        let longest = timeout.map_or(LONGEST, |timeout| timeout.min(LONGEST));
        let millis = longest.as_micros().div_ceil(1000) as u32;
        // SAFETY: three handles that live during the call.
        match unsafe { WaitForMultipleObjects(events.len() as u32, events.as_ptr(), 0, millis) } {
            WAIT_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(Ready::ALL),
        }
    }
}

/// The adapter's event: its session closes it.
struct Borrowed(HANDLE);

// SAFETY: an event handle may be used by any thread.
unsafe impl Send for Borrowed {}

/// An auto-reset event of ours.
struct Event(HANDLE);

// SAFETY: an event handle may be used by any thread, and by several at once.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    fn new() -> io::Result<Self> {
        // SAFETY: no attributes and no name.
        let handle = unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }

    fn select(&self, socket: RawSocket) -> io::Result<()> {
        // SAFETY: an open socket and an open event.
        match unsafe { WSAEventSelect(socket as usize, self.0 as isize, FD_READ as i32) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Waker for Event {
    fn wake(&self) {
        // SAFETY: the event is open for as long as `self` lives.
        unsafe { SetEvent(self.0) };
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is ours and open.
        unsafe { CloseHandle(self.0) };
    }
}
