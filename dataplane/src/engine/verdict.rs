//! What can become of a packet.

pub use crate::drop_reason::DropReason;
use crate::lb::icmp_error::ErrorTranslation;
use crate::lb::rewrite::Rewrite;
use crate::tables::RemoteVtep;
use crate::time::Instant;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// The end of a packet's journey through the tables.
#[derive(Clone, Debug)]
pub enum Verdict<'t> {
    /// Translate if need be, and send.
    Forward {
        /// New addresses and ports.
        rewrite: Option<Rewrite>,
        /// Where to.
        egress: Egress<'t>,
    },
    /// An ICMP error about a translated packet: translate it and what it quotes, and send.
    ForwardError {
        /// What it becomes.
        translation: ErrorTranslation,
        /// Where to.
        egress: Egress<'t>,
    },
    /// Drop, and tell the sender: TCP RST, otherwise ICMP port unreachable.
    Reject(DropReason),
    /// Turn an ICMP echo request to a VIP into its reply.
    EchoReply,
    /// Drop.
    Drop(DropReason),
}

/// Where a packet leaves.
#[derive(Clone, Copy, Debug)]
pub enum Egress<'t> {
    /// Into the overlay device: a pod of this node, or the host.
    Overlay,
    /// To a remote VTEP.
    Remote(Encapsulation<'t>),
}

/// Everything the outer headers of a flow need.
#[derive(Clone, Copy, Debug)]
pub struct Encapsulation<'t> {
    /// Network.
    pub vni: Vni,
    /// Inner Ethernet destination: the remote VTEP's MAC.
    pub dst_mac: Mac,
    /// Inner Ethernet source: ours.
    pub src_mac: Mac,
    /// Where it goes, and what has been learned about the path there.
    pub vtep: &'t RemoteVtep,
}

impl Encapsulation<'_> {
    /// The longest inner IP packet in bytes that fits at `now`.
    #[inline]
    pub fn inner_mtu(&self, overlay_mtu: u32, now: Instant) -> u32 {
        self.vtep.inner_mtu(overlay_mtu, now)
    }
}
