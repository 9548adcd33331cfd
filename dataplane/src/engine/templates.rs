//! Interned encapsulations and ingresses, so that a cached flow names them by number.

use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};

use foldhash::HashMap;

use super::verdict::Encapsulation;
use crate::flow_cache::{IngressId, TO_OVERLAY};
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// An admitted way in: network, outer source, inner destination MAC.
pub(super) type Admitted = (Vni, IpAddr, Mac);

/// The encapsulations and ingresses that cached flows refer to.
#[derive(Default)]
pub(super) struct Templates {
    encapsulations: Vec<Encapsulation>,
    numbers: HashMap<(Vni, Mac, Mac, SocketAddr), u16>,
    ingresses: HashMap<Admitted, IngressId>,
    last_ingress: Option<(Admitted, IngressId)>,
    ingresses_ever: u32,
}

impl Templates {
    /// The number of an encapsulation; `None` when the numbers have run out. One that differs in its path's MTU
    /// alone is a VTEP's that was replaced: flows decided under the old one are stale.
    pub(super) fn intern(&mut self, encapsulation: &Encapsulation) -> Option<u16> {
        let Encapsulation { vni, dst_mac, src_mac, remote, .. } = *encapsulation;
        let next = u16::try_from(self.encapsulations.len()).ok().filter(|next| *next != TO_OVERLAY);
        match self.numbers.entry((vni, dst_mac, src_mac, remote)) {
            Entry::Occupied(known) => {
                self.encapsulations[usize::from(*known.get())] = encapsulation.clone();
                Some(*known.get())
            }
            Entry::Vacant(vacant) => {
                let next = next?;
                self.encapsulations.push(encapsulation.clone());
                Some(*vacant.insert(next))
            }
        }
    }

    /// Forgets everything. Ingress numbers are not used again: an entry that was being decided may still
    /// carry one.
    pub(super) fn clear(&mut self) {
        *self = Self { ingresses_ever: self.ingresses_ever, ..Self::default() };
    }

    /// The encapsulation of a number.
    #[inline]
    pub(super) fn encapsulation(&self, index: u16) -> Option<&Encapsulation> {
        self.encapsulations.get(usize::from(index))
    }

    /// The number of an ingress that has been admitted before.
    #[inline]
    pub(super) fn ingress(&mut self, admitted: Admitted) -> Option<IngressId> {
        match self.last_ingress {
            Some((last, id)) if last == admitted => Some(id),
            _ => {
                let id = *self.ingresses.get(&admitted)?;
                self.last_ingress = Some((admitted, id));
                Some(id)
            }
        }
    }

    /// The number of an ingress that has just been admitted. Only known VTEPs get here, so there are few.
    pub(super) fn intern_ingress(&mut self, admitted: Admitted) -> IngressId {
        let ever = &mut self.ingresses_ever;
        *self.ingresses.entry(admitted).or_insert_with(|| {
            *ever += 1;
            IngressId(*ever)
        })
    }
}
