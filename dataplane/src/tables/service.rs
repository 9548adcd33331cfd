//! Services: a VIP and the backends behind it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;
use ipnet::IpNet;

use super::slotted::{Slot, Slotted};
use crate::lb::select::Selector;

pub use crate::wire::flow::Vip;

/// What happens to a packet of a service that has no backend to give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenEmpty {
    /// TCP RST, or ICMP port unreachable.
    #[default]
    Reject,
    /// Silence: a Local traffic policy whose backends are all elsewhere.
    Drop,
}

/// What kind of address a service is reached at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VipKind {
    /// An address of the service CIDR.
    #[default]
    ClusterIp,
    /// A port of the node's own addresses; the host brings its packets to one address that stands for all of them.
    NodePort,
    /// One of `spec.externalIPs`.
    ExternalIp,
    /// An address of a load balancer that delivers packets as they are.
    LoadBalancer,
}

/// Which source address backends see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAddress {
    /// The client's wherever replies to it come back through us by themselves, else one of ours.
    #[default]
    WhereRepliesReturn,
    /// One of ours (externalTrafficPolicy Cluster).
    Translated,
    /// The client's (externalTrafficPolicy Local): the host brings the replies of this node's backends back to us.
    Kept,
}

/// One port of one service.
#[derive(Clone, Debug)]
pub struct Service {
    /// `namespace/name:port`, for people.
    pub name: String,
    /// Its address.
    pub vip: Vip,
    /// Who takes new flows, sorted and without duplicates.
    pub backends: Vec<SocketAddr>,
    /// Who takes no new flows but still serves: their flows live on.
    pub draining: Vec<SocketAddr>,
    /// ClientIP affinity and how long it lasts.
    pub affinity: Option<Duration>,
    /// By which address clients' stays are remembered: one for all addresses of the port, so that a client stays
    /// whichever of them it comes by.
    pub stays_at: Vip,
    /// What to do without backends.
    pub when_empty: WhenEmpty,
    /// What kind of address it has.
    pub kind: VipKind,
    /// Which source address backends see.
    pub client_address: ClientAddress,
    /// Who may open flows (loadBalancerSourceRanges); empty for everybody.
    pub source_ranges: Vec<IpNet>,
    /// The same port as clients outside the cluster get it, where that differs (externalTrafficPolicy Local).
    pub outside: Option<Arc<Service>>,
    selector: Selector,
}

impl Service {
    /// A service without draining backends and without affinity.
    pub fn new(name: impl Into<String>, vip: Vip, backends: Vec<SocketAddr>) -> Self {
        let service = Self {
            name: name.into(),
            vip,
            backends: Vec::new(),
            draining: Vec::new(),
            affinity: None,
            stays_at: vip,
            when_empty: WhenEmpty::Reject,
            kind: VipKind::ClusterIp,
            client_address: ClientAddress::WhereRepliesReturn,
            source_ranges: Vec::new(),
            outside: None,
            selector: Selector::new(&[]),
        };
        service.with_backends(backends)
    }

    /// The same service with other backends.
    pub fn with_backends(self, mut backends: Vec<SocketAddr>) -> Self {
        backends.sort_unstable();
        backends.dedup();
        Self { selector: Selector::new(&backends), backends, ..self }
    }

    /// The service as a client gets it; `is_inside` is asked only where that matters.
    pub fn seen_from(&self, is_inside: impl FnOnce() -> bool) -> &Self {
        match &self.outside {
            Some(outside) if !is_inside() => outside,
            _ => self,
        }
    }

    /// Whether that client may open flows.
    pub fn admits(&self, client: IpAddr) -> bool {
        self.source_ranges.is_empty() || self.source_ranges.iter().any(|range| range.contains(&client))
    }

    /// The backend for a flow whose fixed hash is `flow_hash`; `None` when there is none.
    pub fn select(&self, flow_hash: u64) -> Option<SocketAddr> {
        self.selector.select(&self.backends, flow_hash)
    }

    /// Whether an existing flow may stay on `backend`.
    pub fn serves(&self, backend: SocketAddr) -> bool {
        self.backends.binary_search(&backend).is_ok() || self.draining.contains(&backend)
    }
}

impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.vip == other.vip
            && self.backends == other.backends
            && self.draining == other.draining
            && self.affinity == other.affinity
            && self.stays_at == other.stays_at
            && self.when_empty == other.when_empty
            && self.kind == other.kind
            && self.client_address == other.client_address
            && self.source_ranges == other.source_ranges
            && self.outside == other.outside
    }
}

impl Eq for Service {}

/// VIP to service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceTable {
    pub(super) services: Slotted<Vip, Arc<Service>>,
    /// How many services each address has.
    addresses: HashMap<IpAddr, u32>,
    /// Backends of all services.
    backends: usize,
}

impl ServiceTable {
    /// Adds or replaces a service.
    pub fn insert(&mut self, service: Arc<Service>) {
        let vip = service.vip;
        self.backends += service.backends.len();
        match self.services.insert(vip, service) {
            Some(before) => self.backends -= before.backends.len(),
            None => *self.addresses.entry(vip.addr).or_default() += 1,
        }
    }

    /// Removes the service at exactly this address, port and protocol.
    pub fn remove(&mut self, vip: Vip) {
        let Some(before) = self.services.remove(&vip) else { return };
        self.backends -= before.backends.len();
        if let Some(count) = self.addresses.get_mut(&vip.addr) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&vip.addr);
            }
        }
    }

    /// The service at exactly this address, port and protocol.
    pub fn lookup(&self, vip: Vip) -> Option<&Arc<Service>> {
        self.services.get(&vip)
    }

    /// The service at exactly this address, port and protocol, and its slot.
    #[inline]
    pub fn find(&self, vip: Vip) -> Option<(Slot, &Service)> {
        self.services.find(&vip).map(|(slot, service)| (slot, &**service))
    }

    /// Whether any service has this address.
    pub fn is_vip(&self, addr: IpAddr) -> bool {
        self.addresses.contains_key(&addr)
    }

    /// All services, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.iter().map(|(_, service)| service)
    }

    /// All addresses that have a service, in no order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Number of backends of all services.
    pub fn backends(&self) -> usize {
        self.backends
    }

    /// Number of services.
    pub fn len(&self) -> usize {
        self.services.len()
    }

    /// Whether there is no service.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
