//! Interned encapsulations and ingresses, so that a cached flow names them by number.

use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;

use super::verdict::Encapsulation;
use crate::flow_cache::{IngressId, TO_OVERLAY};
use crate::packet::{PacketBuf, PacketPool};
use crate::tables::fdb::PathMtu;
use crate::time::Instant;
use crate::wire::bytes::put_u16;
use crate::wire::ethernet::{self, Mac};
use crate::wire::flow::hash_addr_with;
use crate::wire::inner::InnerPacket;
use crate::wire::vxlan::{self, Vni};

/// A way in: only those that have been admitted have a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WayIn {
    /// Network.
    pub(super) vni: Vni,
    /// Outer source.
    pub(super) source: IpAddr,
    /// Inner destination.
    pub(super) dst_mac: Mac,
}

/// In two words (IPv4) or four: many packets of a node that talks to many look one up.
impl Hash for WayIn {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addr_with(self.source, self.vni.get(), state);
        self.dst_mac.hash(state);
    }
}

/// A way out.
#[derive(Clone, Copy, PartialEq, Eq)]
struct WayOut {
    vni: Vni,
    dst_mac: Mac,
    src_mac: Mac,
    remote: SocketAddr,
}

/// By what tells nearly all of them apart, in two words: each new flow looks one up.
impl Hash for WayOut {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.dst_mac.hash(state);
        state.write_u32(self.vni.get());
    }
}

/// An encapsulation as long as flows may go by it.
pub(super) struct Template {
    /// The remote VTEP's address and port.
    pub(super) remote: SocketAddr,
    path_mtu: PathMtu,
    /// VXLAN and inner Ethernet, all but the EtherType.
    head: [u8; HEAD_LEN],
}

const HEAD_LEN: usize = vxlan::HEADER_LEN + ethernet::HEADER_LEN;

impl Template {
    fn new(encapsulation: &Encapsulation<'_>) -> Self {
        let Encapsulation { vni, dst_mac, src_mac, vtep } = *encapsulation;
        let mut head = [0; HEAD_LEN];
        vxlan::emit(&mut head, vni);
        ethernet::emit(&mut head[vxlan::HEADER_LEN..], dst_mac, src_mac, 0);
        Self { remote: vtep.addr, path_mtu: vtep.path_mtu.clone(), head }
    }

    /// The longest inner IP packet in bytes that fits at `now`.
    #[inline]
    pub(super) fn inner_mtu(&self, overlay_mtu: u32, now: Instant) -> u32 {
        self.path_mtu.inner_mtu(self.remote, overlay_mtu, now)
    }

    /// The packet with its inner Ethernet and VXLAN headers before it.
    #[inline]
    pub(super) fn encapsulate(
        &self,
        pool: &mut PacketPool,
        mut packet: PacketBuf,
        inner: &InnerPacket,
    ) -> PacketBuf {
        let head = pool.push(&mut packet, HEAD_LEN);
        head.copy_from_slice(&self.head);
        let ethertype = if inner.flow.src.is_ipv4() { ethernet::IPV4 } else { ethernet::IPV6 };
        put_u16(head, HEAD_LEN - 2, ethertype);
        packet
    }
}

/// Two KB at most: a part of the nearest cache that is worth it.
const RECENT_INGRESSES: usize = 32;

/// The encapsulations and ingresses that cached flows refer to.
#[derive(Default)]
pub(super) struct Templates {
    templates: Vec<Template>,
    numbers: HashMap<WayOut, u16>,
    ingresses: HashMap<WayIn, IngressId>,
    /// Those of the last packets, by the sender's lowest bits: most senders need no look into the table.
    recent_ingresses: [Option<(WayIn, IngressId)>; RECENT_INGRESSES],
    ingresses_ever: u32,
}

impl Templates {
    /// The number of an encapsulation; `None` when the numbers have run out. One that differs in its path's MTU
    /// alone is a VTEP's that was replaced: flows decided under the old one are stale.
    pub(super) fn intern(&mut self, encapsulation: &Encapsulation<'_>) -> Option<u16> {
        let Encapsulation { vni, dst_mac, src_mac, vtep } = *encapsulation;
        let next = u16::try_from(self.templates.len()).ok().filter(|next| *next != TO_OVERLAY);
        match self.numbers.entry(WayOut { vni, dst_mac, src_mac, remote: vtep.addr }) {
            Entry::Occupied(known) => {
                let template = &mut self.templates[usize::from(*known.get())];
                if !template.path_mtu.is(&vtep.path_mtu) {
                    *template = Template::new(encapsulation);
                }
                Some(*known.get())
            }
            Entry::Vacant(vacant) => {
                let next = next?;
                self.templates.push(Template::new(encapsulation));
                Some(*vacant.insert(next))
            }
        }
    }

    /// Forgets everything. Ingress numbers are not used again: an entry that was being decided may still
    /// carry one.
    pub(super) fn clear(&mut self) {
        *self = Self { ingresses_ever: self.ingresses_ever, ..Self::default() };
    }

    /// The template of a number.
    #[inline]
    pub(super) fn get(&self, index: u16) -> Option<&Template> {
        self.templates.get(usize::from(index))
    }

    /// The number of an ingress that has been admitted before.
    #[inline]
    pub(super) fn ingress(&mut self, admitted: WayIn) -> Option<IngressId> {
        let low_bits = match admitted.source {
            IpAddr::V4(source) => source.to_bits() as usize,
            IpAddr::V6(source) => source.to_bits() as usize,
        };
        let recent = &mut self.recent_ingresses[low_bits % RECENT_INGRESSES];
        match recent {
            Some((known, id)) if *known == admitted => Some(*id),
            _ => {
                let id = *self.ingresses.get(&admitted)?;
                *recent = Some((admitted, id));
                Some(id)
            }
        }
    }

    /// The number of an ingress that has just been admitted. Only known VTEPs get here, so there are few.
    pub(super) fn intern_ingress(&mut self, admitted: WayIn) -> IngressId {
        let ever = &mut self.ingresses_ever;
        *self.ingresses.entry(admitted).or_insert_with(|| {
            *ever += 1;
            IngressId(*ever)
        })
    }
}
