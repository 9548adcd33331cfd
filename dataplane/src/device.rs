//! The world outside the engine: overlay devices, underlay sockets, and the host's addresses and routes.
//!
//! This is the one place that knows platforms, and the only one with `unsafe`. It knows neither the engine
//! nor the tables.

pub mod config;
mod dual_stack;
mod dynamic_ports;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
pub(crate) mod hints;
pub mod host;
pub mod memory;
pub mod ring;
mod segments;
pub mod survey;
pub mod virtio;

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
pub use linux as platform;
#[cfg(windows)]
pub mod windows;
#[cfg(windows)]
pub use windows as platform;

pub use config::{DeviceConfig, DeviceError, Offloads, Opened, SegmentDevice, TunnelGsoMode};
#[cfg(not(target_os = "linux"))]
pub use elsewhere::{DeviceKeeper, PodTuning, cleanup, stay_on, usable_cpus};
pub use host::{Entrances, Family, HostPlan, InterfaceAddresses, LinkError, LocalAddress};
#[cfg(target_os = "linux")]
pub use linux::{DeviceKeeper, PodTuning, cleanup, stay_on, usable_cpus};
#[cfg(windows)]
pub use platform::{EventKind, EventSource, restrict_to_administrators, system_folder};
#[cfg(any(target_os = "linux", windows))]
pub use platform::{
    HostState, default_route_interface, local_addresses, managed_by, open, probe_vxlan_port, survey,
};
pub use survey::Survey;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::packet::{Datagram, DatagramBatch, PacketBatch, PacketBuf, PacketPool};

/// Whether this platform's [`HostState`] takes in what [`Entrances`] name: node ports and external addresses.
pub const HAS_ENTRANCES: bool = cfg!(target_os = "linux");

/// Whether this platform has L2 devices.
pub const HAS_SEGMENTS: bool = cfg!(target_os = "linux");

/// What became of a batch that was sent. Counts are wire-size segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Handed to the kernel.
    pub sent: u64,
    /// Bytes handed to the kernel, without the device's own header.
    pub sent_bytes: u64,
    /// Not sent because a queue was full (EAGAIN, ENOBUFS, a full ring).
    pub queue_full: u64,
    /// Not sent because the kernel calls them too long for the path (EMSGSIZE).
    pub too_long: u64,
    /// Not sent for any other reason.
    pub refused: u64,
}

impl std::iter::Sum for SendReport {
    fn sum<I: Iterator<Item = Self>>(reports: I) -> Self {
        reports.fold(Self::default(), |sum, report| Self {
            sent: sum.sent + report.sent,
            sent_bytes: sum.sent_bytes + report.sent_bytes,
            queue_full: sum.queue_full + report.queue_full,
            too_long: sum.too_long + report.too_long,
            refused: sum.refused + report.refused,
        })
    }
}

/// A datagram was too long for its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Where it was to go; without the port where this host itself has refused it.
    pub remote: SocketAddr,
    /// The largest IP packet that would have fitted, in bytes.
    pub mtu: u32,
    /// What of its payload the ICMP error of a router quotes; `None` where this host itself has refused it.
    pub quote: Option<Quote>,
}

/// The beginning of a datagram's payload as an ICMP error quotes it: up to the lengths of the inner IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quote {
    /// The bytes, the rest of them zero.
    pub bytes: [u8; QUOTE_LEN],
    /// How many were quoted.
    pub len: usize,
}

/// VXLAN, Ethernet and six bytes of an IP header.
pub const QUOTE_LEN: usize = 28;

/// Where packets of pods and of the host come from and go to: a TUN or Wintun queue. Or frames of L2 segments: queues of
/// TAP devices, each frame with a VXLAN header before it that names its segment.
pub trait OverlayDevice: Send {
    /// Clears `batch` and fills it with what is waiting; returns at once, with 0 when nothing is.
    ///
    /// # Errors
    /// When the device is gone or broken. "Nothing waiting" is not an error.
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize>;

    /// Writes packets in order. A packet the device refuses does not keep the others back.
    fn send_batch(&mut self, pool: &PacketPool, packets: &[PacketBuf]) -> SendReport;
}

/// Where VXLAN datagrams come from and go to: one receiving UDP socket and a pool of sending ones.
pub trait UnderlaySocket: Send {
    /// Clears `batch` and fills it with what is waiting; returns at once, with 0 when nothing is.
    ///
    /// # Errors
    /// When the socket is broken. Errors that concern one peer (ICMP unreachable) are drained, not returned.
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize>;

    /// Sends datagrams, in order per source port. One peer's refusal does not keep the others back. A
    /// superpacket leaves as its wire-size segments, with completed checksums.
    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport;

    /// The next thing that sending has shown of a path's MTU, if it can tell.
    fn next_too_long(&mut self) -> Option<TooLong> {
        None
    }
}

/// Which sides may have something to receive. A side that is not ready has nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The overlay device.
    pub overlay: bool,
    /// The underlay sockets.
    pub underlay: bool,
}

impl Ready {
    /// Both, where it is not known.
    pub const ALL: Self = Self { overlay: true, underlay: true };
}

/// How a worker sleeps until a device, a socket or a [`Waker`] has something for it.
pub trait Wait: Send {
    /// Sleeps until there is something to receive, the worker is woken, or `timeout` has passed; with a `timeout` of
    /// zero it only looks. Tells which sides are ready.
    ///
    /// # Errors
    /// When the operating system refuses to wait.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Ready>;

    /// Whether it also tells of what has been waiting since before the last call; else whoever calls it must have seen
    /// both sides empty before it sleeps.
    fn is_level_triggered(&self) -> bool {
        false
    }
}

/// Ends a worker's sleep from another thread.
pub trait Waker: Send + Sync {
    /// Ends the current or the next sleep.
    fn wake(&self);
}

/// What one worker runs on.
pub struct WorkerIo {
    /// Its queue of the overlay device.
    pub overlay: Box<dyn OverlayDevice>,
    /// Its sockets.
    pub underlay: Box<dyn UnderlaySocket>,
    /// How it sleeps.
    pub wait: Box<dyn Wait>,
}
