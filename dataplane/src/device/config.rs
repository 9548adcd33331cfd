//! What opening the devices of one node takes, gives, and how it fails.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use super::{DeviceKeeper, Waker, WorkerIo};
use crate::wire::vxlan::Vni;

/// Source ports of sent datagrams unless configured: enough for receive-side scaling and ECMP to spread flows.
pub const DEFAULT_SOURCE_PORTS: usize = 16;

/// Socket buffers unless configured, in bytes: 64 datagrams of 64 KB.
pub const DEFAULT_SOCKET_BUFFER_LEN: usize = 4 << 20;

/// Bytes of each ring of a Wintun adapter unless configured.
pub const DEFAULT_RING_CAPACITY: u32 = 8 << 20;

/// What [`open`](super::open) opens.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Name of the overlay device: 1 to 15 bytes on Linux.
    pub name: String,
    /// The L2 segments that have a TAP device each instead of the one TUN device; Linux only.
    pub segments: Vec<SegmentDevice>,
    /// Queues of the device and receiving sockets, one of each per worker.
    pub workers: usize,
    /// MTU of the overlay device, in bytes.
    pub mtu: u16,
    /// Addresses the sockets are bound to, at most one per family. An unspecified address receives on all
    /// addresses of its family and sends from the one the route prefers.
    pub underlays: Vec<IpAddr>,
    /// The VXLAN port, both of this node and of its peers.
    pub port: u16,
    /// How many source ports datagrams are sent from.
    pub source_ports: usize,
    /// Decides in which order source ports are tried, so that nodes differ.
    pub seed: u64,
    /// Send and receive buffer of each socket, in bytes; the system may grant less.
    pub socket_buffer_len: usize,
    /// Bytes of each ring of a Wintun adapter: a power of two from 128 KiB to 64 MiB. Nothing elsewhere.
    pub ring_capacity: u32,
    /// Which ways to handle several packets at once may be used.
    pub offloads: Offloads,
    /// Whether the device is to be had as one that can be kept; Linux only.
    pub persist: bool,
}

/// The device of one L2 segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentDevice {
    /// Network.
    pub vni: Vni,
    /// Name of its TAP device: 1 to 15 bytes.
    pub name: String,
}

/// Ways to handle several packets at once, each used where the system agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offloads {
    /// Superpackets between the overlay device and the kernel, in both directions.
    pub device: bool,
    /// Several datagrams per sent message (UDP_SEGMENT).
    pub udp_send: bool,
    /// Several datagrams per received message (UDP_GRO).
    pub udp_receive: bool,
    /// Superpackets handed to the network card already encapsulated.
    pub tunnel_gso: TunnelGsoMode,
}

/// Whether superpackets leave by the tunnel-GSO lane, where the system has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TunnelGsoMode {
    /// Where a trial at start shows that they leave in one piece.
    #[default]
    Auto,
    /// Always: without the lane nothing is opened.
    On,
    /// Never.
    Off,
}

impl Default for Offloads {
    fn default() -> Self {
        Self { device: true, udp_send: true, udp_receive: true, tunnel_gso: TunnelGsoMode::Auto }
    }
}

impl DeviceConfig {
    /// A configuration for one worker with every default.
    pub fn new(name: impl Into<String>, mtu: u16, underlay: IpAddr, port: u16) -> Self {
        Self {
            name: name.into(),
            segments: Vec::new(),
            workers: 1,
            mtu,
            underlays: vec![underlay],
            port,
            source_ports: DEFAULT_SOURCE_PORTS,
            seed: 0,
            socket_buffer_len: DEFAULT_SOCKET_BUFFER_LEN,
            ring_capacity: DEFAULT_RING_CAPACITY,
            offloads: Offloads::default(),
            persist: false,
        }
    }
}

/// What the sockets of one address family are bound to.
#[derive(Clone, Debug)]
pub(super) struct UdpConfig {
    /// Their address.
    pub(super) underlay: IpAddr,
    /// The VXLAN port.
    pub(super) port: u16,
    /// How many source ports datagrams are sent from.
    pub(super) source_ports: usize,
    /// Decides in which order source ports are tried.
    pub(super) seed: u64,
    /// Send and receive buffer of each socket, in bytes.
    pub(super) socket_buffer_len: usize,
}

impl DeviceConfig {
    /// The sockets of each underlay address.
    pub(super) fn udp(&self) -> impl Iterator<Item = UdpConfig> {
        self.underlays.iter().map(|underlay| UdpConfig {
            underlay: *underlay,
            port: self.port,
            source_ports: self.source_ports,
            seed: self.seed,
            socket_buffer_len: self.socket_buffer_len,
        })
    }
}

/// The devices of one node, opened.
pub struct Opened {
    /// What each worker runs on.
    pub workers: Vec<WorkerIo>,
    /// Ends the sleep of the worker at the same place.
    pub wakers: Vec<Arc<dyn Waker>>,
    /// Name of the overlay device as the system has it.
    pub device: String,
    /// The source ports that were free.
    pub source_ports: Vec<u16>,
    /// What the device and sockets can do, one line each, for the log.
    pub facts: Vec<String>,
    /// What makes the device outlive this process, where that was asked for and can be.
    pub keeper: Option<DeviceKeeper>,
}

/// Why a device or a socket could not be opened: what it is about, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The process lacks a privilege.
    #[error(
        "{action}: not permitted; run as root or give the process CAP_NET_ADMIN (on Windows: as Administrator or LocalSystem)"
    )]
    NotPermitted {
        /// What was attempted.
        action: String,
    },
    /// The TUN driver is not there.
    #[error(
        "/dev/net/tun is missing: load the driver with `modprobe tun`, or give the container the device with `--device /dev/net/tun`"
    )]
    NoTunDriver,
    /// The name cannot be an interface's.
    #[error(
        "\"{name}\" cannot be an interface name: use 1 to {max} bytes without '/', whitespace, '%' or quotes"
    )]
    BadName {
        /// The name.
        name: String,
        /// Longest name, in bytes.
        max: usize,
    },
    /// Another interface or process holds the name.
    #[error(
        "the interface {name} exists already and is in use: stop the program that holds it, delete it with `ip link delete {name}`, or choose another device name"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The VXLAN port is held by someone else.
    #[error("UDP port {port} is taken by {holder}; stop it, or choose another port")]
    PortTaken {
        /// The port.
        port: u16,
        /// Who holds it.
        holder: String,
    },
    /// The underlay address is not this host's.
    #[error(
        "{address} is no address of this host (or an IPv6 address still being checked for duplicates): see `ip address`, on Windows `ipconfig`"
    )]
    NoSuchAddress {
        /// The address.
        address: IpAddr,
    },
    /// Not one source port was free.
    #[error("no free UDP source port from 49152 to 65535 on {address}")]
    NoSourcePort {
        /// The address.
        address: IpAddr,
    },
    /// The tunnel-GSO lane was asked for.
    #[error("the tunnel-GSO lane is to be on and cannot work: {reason}; or set tunnel-gso to auto or off")]
    NoTunnelGso {
        /// What stands in its way.
        reason: String,
    },
    /// More workers were asked for than this platform can have.
    #[error(
        "--workers {workers}: there is one worker on Windows: a Wintun adapter has one ring of packets to receive and takes one \
         session, and two readers of one ring would send a flow's packets in disorder; leave out --workers, or say 1"
    )]
    OneWorker {
        /// How many.
        workers: usize,
    },
    /// A driver's library could not be used.
    #[error("{library}: {reason}")]
    Library {
        /// The file.
        library: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The system refused for a reason of its own.
    #[error("{action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl DeviceError {
    /// Names what was attempted in an error of the system.
    pub fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::NotPermitted { action };
        }
        Self::System { action, source }
    }
}
