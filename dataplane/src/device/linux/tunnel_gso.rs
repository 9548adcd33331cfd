//! The tunnel-GSO lane: superpackets leave whole, with their outer headers already on.
//!
//! By UDP a superpacket leaves as dozens of segments, each with headers and a checksum made here. The kernel's own
//! vxlan device hands it to the network card in one piece. Since Linux 6.17 a TAP device takes such pieces
//! (TUN_F_UDP_TUNNEL_GSO, drivers/net/tun.c): what is written to it is encapsulated, and only described as many
//! segments. For a card that cannot cut it the kernel does so on the way out, at less than half the speed of the UDP
//! lane: there it is only used when it is forced.
//!
//! From the TAP to the uplink a BPF program passes it (`bpf_redirect_neigh`, net/core/filter.c), which asks the
//! host's routes and neighbors. The alternatives were the host's forwarding, which needs ip_forward, accept_local, a
//! loose rp_filter and an address on the TAP, a FORWARD policy that accepts and an exception from our own rule against
//! forwarded VXLAN, and pays for all of netfilter; and `tc mirred`, which leaves the neighbor's MAC address to us. The
//! program needs no setting of the host, and it and the TAP vanish with the process, however that ends.
//!
//! The price: such packets pass no netfilter hook and no IPsec policy. So the lane sends nothing while the host has
//! an IPsec policy, and `off` is for hosts that filter what they send. Whatever the lane does not take, or refuses,
//! goes by UDP, in order.

mod frame;
mod paths;
mod probe;
mod program;
mod tap;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::frame::Outer;
use self::paths::Paths;
use self::probe::Seen;
use self::tap::Tap;
use super::links;
use crate::device::config::DeviceConfig;
use crate::packet::Datagram;
use crate::wire::ethernet::Mac;

/// How long superpackets go by UDP after the lane has refused one.
const PAUSE: Duration = Duration::from_secs(30);

/// Why there is no lane.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unavailable(String);

impl Unavailable {
    /// Names what was attempted in an error of the system.
    fn system(action: &str, error: impl std::fmt::Display) -> Self {
        Self(format!("{action}: {error}"))
    }
}

/// The interface that has an underlay address: where the lane leads.
#[derive(Clone, Debug)]
struct Uplink {
    address: IpAddr,
    name: String,
    index: u32,
    mtu: u32,
    mac: Mac,
    /// Whether the kernel has to cut what leaves it.
    cuts: bool,
}

/// The lane of a node, shared by its workers.
#[derive(Debug)]
pub(super) struct TunnelGso {
    tap: Tap,
    uplinks: Vec<Uplink>,
    /// Holds the program to the TAP.
    _program: OwnedFd,
}

impl TunnelGso {
    /// Makes the TAP and its program, and sends one superpacket through them that no other host takes in. An uplink
    /// that it does not leave in one piece will do only when the lane is `forced`.
    pub(super) fn open(config: &DeviceConfig, forced: bool) -> Result<Self, Unavailable> {
        let mut uplinks =
            config.underlays.iter().map(|address| uplink(*address)).collect::<Result<Vec<_>, _>>()?;
        let tap = Tap::create(&config.name)?;
        let probing = program::attach(tap.index(), &uplinks, program::REDIRECT)?;
        for uplink in &mut uplinks {
            uplink.cuts = probe::send(&tap, uplink)? == Seen::InPieces;
            if uplink.cuts && !forced {
                return Err(Unavailable(format!(
                    "{0} cannot cut superpackets in a UDP tunnel by itself (`ethtool -k {0}`, tx-udp_tnl-csum-segmentation)",
                    uplink.name
                )));
            }
        }
        drop(probing);
        let _program = program::attach(tap.index(), &uplinks, program::REDIRECT_NEIGHBOR)?;
        Ok(Self { tap, uplinks, _program })
    }

    /// What it is, for the log.
    pub(super) fn describe(&self) -> String {
        let uplink = |uplink: &Uplink| {
            let cuts = if uplink.cuts { " (the kernel cuts superpackets there)" } else { "" };
            format!("{} from {}{cuts}", uplink.name, uplink.address)
        };
        let uplinks: Vec<_> = self.uplinks.iter().map(uplink).collect();
        format!("{} to {}", self.tap.name(), uplinks.join(", "))
    }
}

fn uplink(address: IpAddr) -> Result<Uplink, Unavailable> {
    let local = links::local_addresses().map_err(|error| Unavailable(error.to_string()))?;
    let found = local.into_iter().find(|local| local.address == address);
    let local = found.ok_or_else(|| Unavailable(format!("{address} is on no interface")))?;
    let mac = tap::mac(&local.interface)
        .map_err(|error| Unavailable::system(&format!("the MAC address of {}", local.interface), error))?
        .ok_or_else(|| Unavailable(format!("{} is not an Ethernet device", local.interface)))?;
    Ok(Uplink { address, name: local.interface, index: local.index, mtu: local.mtu, mac, cuts: false })
}

/// What a superpacket leaves as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segments {
    /// How many.
    pub(super) count: u64,
    /// Bytes of their UDP payloads.
    pub(super) len: u64,
}

/// Whether the kernel makes a TAP that takes tunnelled superpackets; it is gone right after.
///
/// # Errors
/// Why it does not.
pub(super) fn try_tap(name: &str) -> Result<(), String> {
    tap::open(name).map(drop).map_err(|why| why.to_string())
}

/// One worker's use of the lane from one underlay address.
pub(super) struct Lane {
    shared: Arc<TunnelGso>,
    /// Which of the uplinks.
    uplink: usize,
    paths: Paths,
    paused_at: Option<Instant>,
    has_refused: bool,
}

impl Lane {
    /// The lane for datagrams from `address`, if it leads from there.
    pub(super) fn new(shared: &Arc<TunnelGso>, address: IpAddr) -> Option<Self> {
        let uplink = shared.uplinks.iter().position(|uplink| uplink.address == address)?;
        let (shared, paths) = (Arc::clone(shared), Paths::default());
        Some(Self { shared, uplink, paths, paused_at: None, has_refused: false })
    }

    /// Sends a superpacket whose UDP payload is `payload`, from that source port. Returns what it leaves as; `None`
    /// when it has to go by UDP.
    pub(super) fn send(&mut self, source_port: u16, datagram: &Datagram, payload: &[u8]) -> Option<Segments> {
        let uplink = &self.shared.uplinks[self.uplink];
        let packet = &datagram.packet;
        let outer = Outer {
            mac: self.shared.tap.mac(),
            source: SocketAddr::new(uplink.address, source_port),
            remote: datagram.remote,
            tos: datagram.tos,
        };
        let headers = frame::headers(&outer, payload, packet.segment_len, packet.checksum)?;
        let mtu = self.paths.mtu(uplink, datagram.remote.ip())?;
        if headers.wire_len(packet.segment_len) > mtu as usize {
            return None;
        }
        match self.shared.tap.write(headers.bytes(), payload) {
            Ok(()) => Some(headers.segments(payload, packet.segment_len)),
            Err(error) => {
                self.pause(&error);
                None
            }
        }
    }

    /// Whether it may be tried.
    pub(super) fn is_open(&mut self) -> bool {
        if self.paused_at.is_some_and(|since| since.elapsed() >= PAUSE) {
            self.paused_at = None;
        }
        self.paused_at.is_none()
    }

    fn pause(&mut self, error: &std::io::Error) {
        if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) {
            return;
        }
        self.paused_at = Some(Instant::now());
        if !std::mem::replace(&mut self.has_refused, true) {
            let lane = self.shared.describe();
            tracing::warn!(%error, "the tunnel-GSO lane ({lane}) refuses superpackets: they go by UDP");
        }
    }
}
