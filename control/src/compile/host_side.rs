//! What the host must do for the tables: route into the overlay device, and bring there what clients outside the
//! cluster send.

use std::net::IpAddr;

use foldhash::{HashMap, HashSet};
use ipnet::IpNet;
use windlass_dataplane::device::Entrances;
use windlass_dataplane::tables::{Entry, ForwardingTables, Service, ServiceTable, Vip, VipKind};

use crate::node::NodeSettings;

/// The host's side of the tables, kept at the cost of what changes.
#[derive(Clone, Debug, Default)]
pub struct HostSide {
    ranges: Ranges,
    entrances: Entrances,
    /// How many services are at each ClusterIP outside the services' ranges.
    cluster_ips: HashMap<IpAddr, u32>,
}

/// What of the settings the host's side rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranges {
    cluster_cidrs: Vec<IpNet>,
    service_cidrs: Vec<IpNet>,
    pod_cidrs: Vec<IpNet>,
    node_port_addrs: Vec<IpAddr>,
}

impl HostSide {
    /// The host's side of these services.
    pub fn new(settings: &NodeSettings, services: &ServiceTable) -> Self {
        let mut side = Self { ranges: Ranges::of(settings), ..Self::default() };
        services.iter().for_each(|service| side.add(service));
        side
    }

    /// Goes on to the tables `after`, which differ from those `before` in `touched` entries at most. True when the
    /// host has something to do.
    pub fn follow(
        &mut self,
        settings: &NodeSettings,
        before: &ForwardingTables,
        after: &ForwardingTables,
        touched: &[Entry],
    ) -> bool {
        if self.ranges != Ranges::of(settings) {
            *self = Self::new(settings, after.services());
            return true;
        }
        let vips: HashSet<Vip> = touched.iter().filter_map(vip_of).collect();
        let mut has_changed = false;
        for vip in vips {
            let services = [before.services().lookup(vip), after.services().lookup(vip)];
            let [old, new] = services.map(|service| service.map(|service| Role::of(service)));
            if old == new {
                continue;
            }
            let [old, new] = services;
            old.into_iter().for_each(|service| self.remove(service));
            new.into_iter().for_each(|service| self.add(service));
            has_changed = true;
        }
        has_changed
    }

    /// Which packets of clients outside the cluster the host must bring to the overlay device: those to services
    /// that are more than a ClusterIP.
    pub fn entrances(&self) -> &Entrances {
        &self.entrances
    }

    /// The prefixes that the host must route into the overlay device: the cluster's and the services' ranges, and
    /// every ClusterIP outside them. Sorted. Own podCIDRs are left out (without a net-conf the cluster's ranges are
    /// the nodes' podCIDRs): their pods are on this host.
    pub fn prefixes(&self) -> Vec<IpNet> {
        let Ranges { cluster_cidrs, service_cidrs, pod_cidrs, .. } = &self.ranges;
        let mut prefixes: Vec<IpNet> = cluster_cidrs.iter().chain(service_cidrs).copied().collect();
        prefixes.extend(self.cluster_ips.keys().copied().map(IpNet::from));
        prefixes.retain(|prefix| !pod_cidrs.iter().any(|own| own.contains(prefix)));
        prefixes.sort_unstable();
        prefixes.dedup();
        prefixes
    }

    fn add(&mut self, service: &Service) {
        match service.kind {
            VipKind::ClusterIp => {
                if let Some(addr) = self.outside_ranges(service) {
                    *self.cluster_ips.entry(addr).or_default() += 1;
                }
            }
            _ => self.each_entrance(service, |entrances, destination, is_node_port| {
                let kind = if is_node_port { &mut entrances.node_ports } else { &mut entrances.external };
                kind.insert(destination);
                if service.outside.is_some() {
                    entrances.kept.insert(destination);
                }
            }),
        }
    }

    fn remove(&mut self, service: &Service) {
        match service.kind {
            VipKind::ClusterIp => {
                let Some(addr) = self.outside_ranges(service) else { return };
                if let Some(count) = self.cluster_ips.get_mut(&addr) {
                    *count -= 1;
                    if *count == 0 {
                        self.cluster_ips.remove(&addr);
                    }
                }
            }
            _ => self.each_entrance(service, |entrances, destination, is_node_port| {
                let kind = if is_node_port { &mut entrances.node_ports } else { &mut entrances.external };
                kind.remove(&destination);
                entrances.kept.remove(&destination);
            }),
        }
    }

    fn outside_ranges(&self, service: &Service) -> Option<IpAddr> {
        let addr = service.vip.addr;
        (!self.ranges.service_cidrs.iter().any(|cidr| cidr.contains(&addr))).then_some(addr)
    }

    /// Calls `act` with each destination at which clients outside reach the service, and whether that is a node port.
    fn each_entrance(&mut self, service: &Service, act: impl Fn(&mut Entrances, Vip, bool)) {
        if service.kind != VipKind::NodePort {
            return act(&mut self.entrances, service.vip, false);
        }
        let ipv6 = service.vip.addr.is_ipv6();
        for addr in self.ranges.node_port_addrs.iter().filter(|addr| addr.is_ipv6() == ipv6) {
            act(&mut self.entrances, Vip { addr: *addr, ..service.vip }, true);
        }
    }
}

impl Ranges {
    fn of(settings: &NodeSettings) -> Self {
        Self {
            cluster_cidrs: settings.cluster_cidrs.clone(),
            service_cidrs: settings.service_cidrs.clone(),
            pod_cidrs: settings.pod_cidrs.clone(),
            node_port_addrs: settings.node_port_addrs.clone(),
        }
    }
}

/// What of a service at a VIP matters to the host.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Role {
    kind: VipKind,
    keeps_client: bool,
}

impl Role {
    fn of(service: &Service) -> Self {
        Self { kind: service.kind, keeps_client: service.outside.is_some() }
    }
}

fn vip_of(entry: &Entry) -> Option<Vip> {
    match entry {
        Entry::Service(vip) => Some(*vip),
        _ => None,
    }
}
