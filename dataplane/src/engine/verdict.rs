//! What can become of a packet.

use std::net::SocketAddr;

pub use crate::drop_reason::DropReason;
use crate::lb::icmp_error::ErrorTranslation;
use crate::lb::rewrite::Rewrite;
use crate::tables::fdb::PathMtu;
use crate::time::Instant;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// The end of a packet's journey through the tables.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Translate if need be, and send.
    Forward {
        /// New addresses and ports.
        rewrite: Option<Rewrite>,
        /// Where to.
        egress: Egress,
    },
    /// An ICMP error about a translated packet: translate it and what it quotes, and send.
    ForwardError {
        /// What it becomes.
        translation: ErrorTranslation,
        /// Where to.
        egress: Egress,
    },
    /// Drop, and tell the sender: TCP RST, otherwise ICMP port unreachable.
    Reject(DropReason),
    /// Turn an ICMP echo request to a VIP into its reply.
    EchoReply,
    /// Drop.
    Drop(DropReason),
}

/// Where a packet leaves.
#[derive(Clone, Debug)]
pub enum Egress {
    /// Into the overlay device: a pod of this node, or the host.
    Overlay,
    /// To a remote VTEP.
    Remote(Encapsulation),
}

/// Everything the outer headers of a flow need.
#[derive(Clone, Debug)]
pub struct Encapsulation {
    /// Network.
    pub vni: Vni,
    /// Inner Ethernet destination: the remote VTEP's MAC.
    pub dst_mac: Mac,
    /// Inner Ethernet source: ours.
    pub src_mac: Mac,
    /// The remote VTEP's address and port.
    pub remote: SocketAddr,
    /// What has been learned about the path there.
    pub path_mtu: PathMtu,
}

impl Encapsulation {
    /// The longest inner IP packet in bytes that fits at `now`.
    #[inline]
    pub fn inner_mtu(&self, overlay_mtu: u32, now: Instant) -> u32 {
        self.path_mtu.inner_mtu(self.remote, overlay_mtu, now)
    }
}
