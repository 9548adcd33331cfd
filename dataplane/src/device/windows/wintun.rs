//! A Wintun adapter: its rings, for [`RingDevice`](crate::device::ring::RingDevice).
//!
//! Read first: wintun.h. Received packets may be changed where they lie, and given back in any order. Packets that find the
//! receiving ring full are dropped by the driver, which counts them for nobody.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_HANDLE_EOF, HANDLE};
use wintun::{Adapter, Error, Session, Wintun};

use super::library;
use crate::device::config::{DeviceConfig, DeviceError};
use crate::device::ring::{Refused, Ring, RingPacket};

/// Names the adapter across restarts, so that Windows keeps its network settings.
const ADAPTER_GUID: u128 = 0x5717_9d1c_a55e_4f0e_9d2b_77d1_a55e_0001;

/// Longest interface name, in bytes.
const MAX_NAME_LEN: usize = 127;

/// Windows takes its time to install a device now and then, and Wintun gives up waiting before it does.
const CREATE_ATTEMPTS: u32 = 3;
const CREATE_PAUSE: Duration = Duration::from_millis(500);

/// The adapter and its session; both end when it and all packets received from it are dropped.
pub(super) struct WintunRings {
    session: Arc<Session>,
}

impl WintunRings {
    /// Creates the adapter, with the library that lies beside this program.
    pub(super) fn open(config: &DeviceConfig) -> Result<Self, DeviceError> {
        Self::open_with(&library::load()?, config)
    }

    fn open_with(library: &Wintun, config: &DeviceConfig) -> Result<Self, DeviceError> {
        let named = (1..=MAX_NAME_LEN).contains(&config.name.len());
        if !named || config.name.contains(['"', '/', '%', '\0']) {
            return Err(DeviceError::BadName { name: config.name.clone(), max: MAX_NAME_LEN });
        }
        let failed = |what: &str, error| {
            DeviceError::system(format!("{what} the Wintun adapter {}", config.name), error)
        };
        let adapter = create(library, &config.name).map_err(|error| failed("creating", error))?;
        let session = adapter
            .start_session(config.ring_capacity)
            .map_err(|error| failed("starting a session on", io_error(error)))?;
        Ok(Self { session: Arc::new(session) })
    }

    /// Signalled when a packet can be received. It belongs to the session.
    pub(super) fn read_event(&self) -> Result<HANDLE, DeviceError> {
        let event = self.session.get_read_wait_event();
        let failed = |error| DeviceError::system("asking for Wintun's read event", io_error(error));
        event.map(|event| event as HANDLE).map_err(failed)
    }
}

impl Ring for WintunRings {
    fn receive(&self) -> io::Result<Option<RingPacket>> {
        match self.session.try_receive() {
            Ok(packet) => Ok(packet.map(RingPacket::from)),
            Err(error) => Err(gone(io_error(error))),
        }
    }

    fn send(&self, len: u16, build: impl FnOnce(&mut [u8])) -> Result<(), Refused> {
        match self.session.allocate_send_packet(len) {
            Ok(mut slot) => {
                build(slot.bytes_mut());
                self.session.send_packet(slot);
                Ok(())
            }
            Err(Error::Io(error)) if error.raw_os_error() == Some(ERROR_BUFFER_OVERFLOW as i32) => {
                Err(Refused::Full)
            }
            Err(_) => Err(Refused::Ended),
        }
    }
}

fn create(library: &Wintun, name: &str) -> io::Result<Arc<Adapter>> {
    for attempt in 1.. {
        let error = match Adapter::create(library, name, "Windlass", Some(ADAPTER_GUID)) {
            Ok(adapter) => return Ok(adapter),
            Err(error) => io_error(error),
        };
        if attempt == CREATE_ATTEMPTS || error.kind() == io::ErrorKind::PermissionDenied {
            return Err(error);
        }
        tracing::warn!(%error, "creating the Wintun adapter {name}; trying again");
        thread::sleep(CREATE_PAUSE);
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Says in words what the driver's most likely end means.
fn gone(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) if code == ERROR_HANDLE_EOF as i32 => io::Error::new(
            io::ErrorKind::NotConnected,
            "the Wintun adapter was removed or its driver was unloaded",
        ),
        _ => error,
    }
}

/// The crate tells some failures without the system's reason, which is then still the thread's last error.
fn io_error(error: Error) -> io::Error {
    let last = io::Error::last_os_error();
    match error {
        Error::Io(error) => error,
        Error::String(what) if last.raw_os_error() != Some(0) => {
            tracing::debug!("wintun: {what}");
            last
        }
        error => io::Error::other(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
