//! What the underlay says of datagrams that were too long, believed or not (C5, RFC 8201 section 4, RFC 1191 section 3).

use super::Engine;
use crate::device::{Quote, TooLong};
use crate::tables::fdb::outer_len;
use crate::tables::{ForwardingTables, RemoteVtep};
use crate::time::Instant;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::vxlan::{self, Vxlan};

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
    let quoted = quote.bytes.get(..quote.len)?;
    let vxlan = Vxlan::new_checked(quoted).ok().filter(|vxlan| vxlan.has_vni() && !vxlan.reserved_bits())?;
    let frame = Ethernet::new_checked(vxlan.payload()).ok()?;
    let own = tables.local().vteps.get(&vxlan.vni())?;
    let vtep = tables.fdb().lookup(vxlan.vni(), frame.dst())?;
    let inner_len = inner_len(quoted.get(vxlan::HEADER_LEN + ethernet::HEADER_LEN..)?)?;
    let fits_nothing = inner_len + outer_len(too_long.remote.ip()) > too_long.mtu;
    let was_sent =
        own.owns(frame.src()) && vtep.addr == too_long.remote && inner_len <= tables.local().overlay_mtu;
    (was_sent && fits_nothing).then_some(&**vtep)
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
