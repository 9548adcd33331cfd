//! A Wintun adapter: packets are copied between its rings and our slabs.
//!
//! Read first: wintun.h. A packet that is allocated and not sent stalls the ring, so nothing may fail in between.
#![allow(unsafe_code)]

use std::env;
use std::io;
use std::sync::Arc;

use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, HANDLE};
use wintun::{Adapter, Error, Session};

use crate::device::config::{DeviceConfig, DeviceError};
use crate::device::segments::{self, Superpacket};
use crate::device::{OverlayDevice, SendReport};
use crate::packet::{Checksum, MAX_PACKET_LEN, PacketBatch, PacketBuf, PacketPool};

/// Bytes of each ring, a power of two up to 64 MB.
const RING_LEN: u32 = 8 << 20;

/// Names the adapter across restarts, so that Windows keeps its network settings.
const ADAPTER_GUID: u128 = 0x5717_9d1c_a55e_4f0e_9d2b_77d1_a55e_0001;

/// Longest interface name, in bytes.
const MAX_NAME_LEN: usize = 127;

/// The adapter and its session; both end when it is dropped.
pub(super) struct WintunDevice {
    session: Arc<Session>,
    /// Where packets are finished before a place in the ring is taken.
    packet: Box<[u8]>,
}

impl WintunDevice {
    /// Creates the adapter, with the library that lies beside this program.
    pub(super) fn open(config: &DeviceConfig) -> Result<Self, DeviceError> {
        let named = (1..=MAX_NAME_LEN).contains(&config.name.len());
        if !named || config.name.contains(['"', '/', '%', '\0']) {
            return Err(DeviceError::BadName { name: config.name.clone(), max: MAX_NAME_LEN });
        }
        let library = load()?;
        let adapter = Adapter::create(&library, &config.name, "Windlass", Some(ADAPTER_GUID));
        let failed = |what: &str, error: Error| {
            DeviceError::system(
                format!("{what} the Wintun adapter {} (as Administrator?)", config.name),
                io_error(error),
            )
        };
        let adapter = adapter.map_err(|error| failed("creating", error))?;
        let session = adapter.start_session(RING_LEN).map_err(|error| failed("starting", error))?;
        Ok(Self { session: Arc::new(session), packet: vec![0; MAX_PACKET_LEN].into_boxed_slice() })
    }

    /// Signalled when a packet can be received. It belongs to the session.
    pub(super) fn read_event(&self) -> Result<HANDLE, DeviceError> {
        let event = self.session.get_read_wait_event();
        let failed = |error| DeviceError::system("asking for Wintun's read event", io_error(error));
        event.map(|event| event as HANDLE).map_err(failed)
    }

    /// Sends the first `len` bytes of `self.packet`.
    fn send(&self, len: usize, report: &mut SendReport) {
        let Ok(ring_len) = u16::try_from(len) else {
            report.too_long += 1;
            return;
        };
        match self.session.allocate_send_packet(ring_len) {
            Ok(mut slot) => {
                slot.bytes_mut().copy_from_slice(&self.packet[..len]);
                self.session.send_packet(slot);
                report.sent += 1;
                report.sent_bytes += len as u64;
            }
            Err(Error::Io(error)) if error.raw_os_error() == Some(ERROR_BUFFER_OVERFLOW as i32) => {
                report.queue_full += 1;
            }
            Err(_) => report.refused += 1,
        }
    }

    fn send_packet(&mut self, bytes: &[u8], checksum: Checksum, report: &mut SendReport) {
        let packet = &mut self.packet[..bytes.len()];
        packet.copy_from_slice(bytes);
        if let Checksum::Partial { start, offset } = checksum
            && !segments::complete_checksum(packet, start, offset)
        {
            report.refused += 1;
            return;
        }
        self.send(bytes.len(), report);
    }

    fn send_segments(&mut self, bytes: &[u8], segment_len: u16, report: &mut SendReport) {
        let Some(superpacket) = Superpacket::parse(bytes, 0, segment_len) else {
            report.refused += 1;
            return;
        };
        for index in 0..superpacket.count() {
            match superpacket.write(index, &mut self.packet) {
                Some(len) => self.send(len, report),
                None => report.refused += 1,
            }
        }
    }
}

impl OverlayDevice for WintunDevice {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        while batch.packets.len() < batch.pool.receive_slabs() {
            match self.session.try_receive() {
                Ok(Some(packet)) => {
                    batch.receive_copy(packet.bytes());
                }
                Ok(None) => break,
                Err(_) if !batch.packets.is_empty() => break,
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        let mut report = SendReport::default();
        for packet in packets {
            match packet.segment_len {
                0 => self.send_packet(pool.bytes(packet), packet.checksum, &mut report),
                segment_len => self.send_segments(pool.bytes(packet), segment_len, &mut report),
            }
        }
        report
    }
}

/// Loads wintun.dll by its absolute path, so that no search path decides which file is run.
fn load() -> Result<wintun::Wintun, DeviceError> {
    let failed = |library: String, reason: String| DeviceError::Library { library, reason };
    let program = env::current_exe().map_err(|error| failed("wintun.dll".to_owned(), error.to_string()))?;
    let path = program.with_file_name("wintun.dll");
    let library = path.display().to_string();
    if !path.is_file() {
        return Err(failed(library, "missing; put wintun.dll 0.14.1 for this architecture there".to_owned()));
    }
    // SAFETY: the file lies beside this program: whoever can replace it can replace the program.
    unsafe { wintun::load_from_path(&path) }.map_err(|error| failed(library, error.to_string()))
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::other(error.to_string()),
    }
}
