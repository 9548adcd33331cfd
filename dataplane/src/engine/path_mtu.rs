//! What the underlay says of datagrams that were too long, believed or not (C5, RFC 8201 section 4, RFC 1191 section 3).

use super::Engine;
use crate::device::{Quote, TooLong};
use crate::tables::fdb::outer_len;
use crate::tables::{ForwardingTables, RemoteVtep};
use crate::time::Instant;
use crate::wire::ethernet::{self, Ethernet, Mac};
use crate::wire::vxlan::{self, Vni, Vxlan};

impl Engine {
    /// Lowers the path MTU of the VTEPs that `too_long` is about. An ICMP error of a router counts only if it quotes
    /// what this node would have sent: anybody can send one.
    pub fn learn_path_mtu(&mut self, too_long: &TooLong, now: Instant) {
        let tables = std::sync::Arc::clone(self.reader.load());
        let TooLong { remote, mtu, .. } = *too_long;
        match &too_long.quote {
            Some(quote) => {
                if let Some(vtep) = quoted_vtep(&tables, too_long, quote) {
                    vtep.path_mtu.learn(remote.ip(), mtu, now);
                }
            }
            None => {
                for vni in tables.local().vteps.keys() {
                    let vteps = tables.fdb().sources(*vni, remote.ip()).iter();
                    vteps.for_each(|vtep| vtep.path_mtu.learn(remote.ip(), mtu, now));
                }
            }
        }
    }
}

/// The VTEP that the quoted datagram was for, if it can have been ours: our VNI, our MAC toward the MAC of a VTEP at that
/// address, and a length that did not fit what is said to fit, but our own device.
fn quoted_vtep<'a>(
    tables: &'a ForwardingTables,
    too_long: &TooLong,
    quote: &Quote,
) -> Option<&'a RemoteVtep> {
    let quoted = QuotedFrame::parse(quote)?;
    let own = tables.local().vteps.get(&quoted.vni)?;
    let vtep = tables.fdb().lookup(quoted.vni, quoted.dst)?;
    let was_sent = own.owns(quoted.src) && quoted.can_have_failed(too_long, vtep, tables.local().overlay_mtu);
    was_sent.then_some(&**vtep)
}

/// As much of a datagram of ours as a router's ICMP error quotes.
pub(super) struct QuotedFrame {
    pub(super) vni: Vni,
    pub(super) dst: Mac,
    pub(super) src: Mac,
    inner_len: u32,
}

impl QuotedFrame {
    /// `None` for what nobody here can have sent.
    pub(super) fn parse(quote: &Quote) -> Option<Self> {
        let quoted = quote.bytes.get(..quote.len)?;
        let vxlan =
            Vxlan::new_checked(quoted).ok().filter(|vxlan| vxlan.has_vni() && !vxlan.reserved_bits())?;
        let frame = Ethernet::new_checked(vxlan.payload()).ok()?;
        let inner_len = inner_len(quoted.get(vxlan::HEADER_LEN + ethernet::HEADER_LEN..)?)?;
        Some(Self { vni: vxlan.vni(), dst: frame.dst(), src: frame.src(), inner_len })
    }

    /// Whether it can have been sent to `vtep` and not have fitted: no longer than our own device takes, and longer than
    /// what is said to fit.
    pub(super) fn can_have_failed(&self, too_long: &TooLong, vtep: &RemoteVtep, overlay_mtu: u32) -> bool {
        vtep.addr == too_long.remote
            && self.inner_len <= overlay_mtu
            && self.inner_len + outer_len(too_long.remote.ip()) > too_long.mtu
    }
}

/// Length of the IP packet that begins with these bytes.
fn inner_len(ip: &[u8]) -> Option<u32> {
    match *ip {
        [first, _, high, low, ..] if first >> 4 == 4 => Some(u32::from(u16::from_be_bytes([high, low]))),
        [first, _, _, _, high, low] if first >> 4 == 6 => {
            Some(40 + u32::from(u16::from_be_bytes([high, low])))
        }
        _ => None,
    }
}
