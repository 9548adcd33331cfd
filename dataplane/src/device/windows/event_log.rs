//! Entries of Windows' event log, in Application.
#![allow(unsafe_code)]

use std::io;
use std::ptr;

use windows_registry::LOCAL_MACHINE;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::EventLog::{
    DeregisterEventSource, EVENTLOG_ERROR_TYPE, EVENTLOG_INFORMATION_TYPE, RegisterEventSourceW, ReportEventW,
};

/// Where sources of the log Application are registered.
const SOURCES: &str = r"SYSTEM\CurrentControlSet\Services\EventLog\Application";

/// A program of Windows whose messages 1 to 1000 all say "%1": the text of an entry and nothing else.
const MESSAGES: &str = r"%SystemRoot%\System32\EventCreate.exe";

/// The number of all our entries: the text says what happened.
const EVENT_ID: u32 = 1;

/// How much an entry matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// It went as it should.
    Information,
    /// It failed.
    Error,
}

/// A source of entries.
#[derive(Debug)]
pub struct EventSource(HANDLE);

impl EventSource {
    /// Registers a source by its name, so that the viewer finds the text of its entries.
    ///
    /// # Errors
    /// When the registry refuses; it takes an administrator's rights.
    pub fn register(name: &str) -> io::Result<()> {
        let key = LOCAL_MACHINE.create(path(name)).map_err(io::Error::from)?;
        key.set_expand_string("EventMessageFile", MESSAGES).map_err(io::Error::from)?;
        let kinds = EVENTLOG_ERROR_TYPE | EVENTLOG_INFORMATION_TYPE;
        key.set_u32("TypesSupported", u32::from(kinds)).map_err(io::Error::from)
    }

    /// Takes the registration back.
    ///
    /// # Errors
    /// When there is none, or the registry refuses.
    pub fn unregister(name: &str) -> io::Result<()> {
        LOCAL_MACHINE.remove_tree(path(name)).map_err(io::Error::from)
    }

    /// Opens a source, registered or not.
    ///
    /// # Errors
    /// When the event log does not run.
    pub fn open(name: &str) -> io::Result<Self> {
        // SAFETY: this computer, and a name that ends in zero.
        let handle = unsafe { RegisterEventSourceW(ptr::null(), wide(name).as_ptr()) };
        if handle.is_null() { Err(io::Error::last_os_error()) } else { Ok(Self(handle)) }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// When the log is full and may not be overwritten.
    pub fn report(&self, kind: EventKind, text: &str) -> io::Result<()> {
        let kind = match kind {
            EventKind::Information => EVENTLOG_INFORMATION_TYPE,
            EventKind::Error => EVENTLOG_ERROR_TYPE,
        };
        let text = wide(text);
        let texts = [text.as_ptr()];
        // SAFETY: an open source, no user, and one text that ends in zero.
        let reported = unsafe {
            ReportEventW(self.0, kind, 0, EVENT_ID, ptr::null_mut(), 1, 0, texts.as_ptr(), ptr::null())
        };
        if reported == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and open.
        unsafe { DeregisterEventSource(self.0) };
    }
}

fn path(name: &str) -> String {
    format!(r"{SOURCES}\{name}")
}

/// A zero inside would end the text there.
fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().filter(|unit| *unit != 0).chain([0]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_registered_reported_to_and_unregistered() {
        let name = "windlass-test-source";
        EventSource::register(name).unwrap();
        let key = LOCAL_MACHINE.open(path(name)).unwrap();
        assert_eq!(key.get_u32("TypesSupported").unwrap(), 5);
        assert!(key.get_string("EventMessageFile").unwrap().ends_with("EventCreate.exe"));
        EventSource::open(name).unwrap().report(EventKind::Information, "a test\0").unwrap();
        EventSource::unregister(name).unwrap();
        assert!(LOCAL_MACHINE.open(path(name)).is_err() && EventSource::unregister(name).is_err());
    }
}
