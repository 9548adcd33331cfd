//! What the adapter of this node needs of Windows, applied in an order that is safe at every step, and undone.
//!
//! An `unreachable` route for the own podCIDR, as Linux has it, does not exist here: a packet for a pod whose network is
//! gone comes back from the adapter once and is dropped there.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use ipnet::IpNet;

use super::ip_helper::{InterfaceSettings, IpHelper, System};
use super::recorder::Recorder;
use super::{single, tables, wine};
use crate::device::config::DeviceError;
use crate::device::host::{Entrances, Family, HostPlan, InterfaceAddresses, LinkError, LocalAddress};

/// Added to the metric of the adapter's routes: less than what Windows gives any real network card.
const METRIC: u32 = 5;

/// What the run that manages this host holds.
const LOCK: &str = "Global\\windlass-host";

/// Applied to the host; dropping it undoes it, and [`undo`](Self::undo) says what could not be undone.
#[derive(Debug)]
pub struct HostState {
    plan: HostPlan,
    helper: Box<dyn IpHelper>,
    addresses: Vec<IpNet>,
    routes: Vec<IpNet>,
    _lock: single::Lock,
}

impl HostState {
    /// Sweeps what an earlier run has left on the adapter, then does what the plan says. What was done is undone when a
    /// later step fails.
    ///
    /// # Errors
    /// When a privilege is missing, the adapter is not there, or another run manages the host.
    pub fn apply(plan: HostPlan) -> Result<Self, LinkError> {
        let lock = single::Lock::take(LOCK)
            .map_err(|error| LinkError::system("locking the host's routes", error))?
            .ok_or(LinkError::Busy)?;
        let helper: Box<dyn IpHelper> = if wine::is_wine() {
            Box::new(Recorder::default())
        } else {
            let action = || format!("finding IP Helper's calls and the adapter {}", plan.device);
            Box::new(System::of_adapter(&plan.device).map_err(|error| LinkError::system(action(), error))?)
        };
        Self::apply_by(helper, plan, lock)
    }

    fn apply_by(helper: Box<dyn IpHelper>, plan: HostPlan, lock: single::Lock) -> Result<Self, LinkError> {
        let mut state = Self { plan, helper, addresses: Vec::new(), routes: Vec::new(), _lock: lock };
        state.sweep()?;
        state.install()?;
        Ok(state)
    }

    /// Makes `routes` the adapter's routes. What is new comes before what is old goes; each step is tried, whatever
    /// became of the others. Nothing is masqueraded here, so `_cluster_cidrs` change nothing.
    ///
    /// # Errors
    /// Everything that could not be done; it is tried again at the next change.
    pub fn change(
        &mut self,
        routes: &[IpNet],
        _cluster_cidrs: &[IpNet],
        _entrances: &Entrances,
    ) -> Result<(), LinkError> {
        let mut errors = Vec::new();
        for net in routes {
            errors.extend(self.add_route(net.trunc()).err());
        }
        let Self { helper, routes: known, .. } = self;
        known.retain(|net| {
            let stays = routes.iter().any(|wanted| wanted.trunc() == *net);
            stays || remove_route(&mut **helper, *net).map_err(|error| errors.push(error)).is_err()
        });
        LinkError::collect(errors)
    }

    /// Undoes everything. The adapter's own settings go with it.
    ///
    /// # Errors
    /// Everything that could not be undone; the rest is.
    pub fn undo(mut self) -> Result<(), LinkError> {
        LinkError::collect(self.revert())
    }

    /// Leaves everything as it is now: it goes with the adapter, and that with this process.
    pub fn keep(mut self) {
        self.routes.clear();
        self.addresses.clear();
    }

    /// An adapter of the same GUID may come back with what it had.
    fn sweep(&mut self) -> Result<(), LinkError> {
        let device = self.plan.device.clone();
        let listing = |what: &str, error| LinkError::system(format!("listing {what} of {device}"), error);
        self.routes = self.helper.routes().map_err(|error| listing("routes", error))?;
        self.addresses = self.helper.addresses().map_err(|error| listing("addresses", error))?;
        LinkError::collect(self.revert())
    }

    fn install(&mut self) -> Result<(), LinkError> {
        let HostPlan { device, mtu, addresses, routes, .. } = self.plan.clone();
        for family in [Family::V4, Family::V6].into_iter().filter(|family| self.plan.has(*family)) {
            let settings = InterfaceSettings { family, mtu, metric: METRIC };
            self.helper.set_interface(settings).map_err(|error| {
                LinkError::system(format!("setting MTU and metric of {device} ({family:?})"), error)
            })?;
        }
        for net in addresses {
            self.helper
                .create_address(net)
                .map_err(|error| LinkError::system(format!("giving {device} the address {net}"), error))?;
            self.addresses.push(net);
        }
        routes.into_iter().try_for_each(|net| self.add_route(net.trunc()))
    }

    fn add_route(&mut self, net: IpNet) -> Result<(), LinkError> {
        // A plan may name a prefix twice: the cluster's CIDR and its only node's.
        if self.routes.contains(&net) {
            return Ok(());
        }
        let failed = |error| LinkError::system(format!("adding the route to {net}"), error);
        self.helper.create_route(net).map_err(failed)?;
        self.routes.push(net);
        Ok(())
    }

    fn revert(&mut self) -> Vec<LinkError> {
        let mut errors = Vec::new();
        for net in std::mem::take(&mut self.routes).into_iter().rev() {
            errors.extend(remove_route(&mut *self.helper, net).err());
        }
        for net in std::mem::take(&mut self.addresses).into_iter().rev() {
            let failed = |error| LinkError::system(format!("removing the address {net}"), error);
            errors.extend(self.helper.delete_address(net).map_err(failed).err());
        }
        errors
    }
}

impl Drop for HostState {
    fn drop(&mut self) {
        for error in self.revert() {
            tracing::warn!(%error, "the host is not as it was");
        }
    }
}

fn remove_route(helper: &mut dyn IpHelper, net: IpNet) -> Result<(), LinkError> {
    helper.delete_route(net).map_err(|error| LinkError::system(format!("removing the route to {net}"), error))
}

/// Every address of every interface of this host.
///
/// # Errors
/// When they cannot be listed.
pub fn local_addresses() -> Result<Vec<LocalAddress>, LinkError> {
    let adapters = tables::adapters().map_err(|error| LinkError::system("listing adapters", error))?;
    let of_adapter = |adapter: &tables::Adapter| {
        let tables::Adapter { name, index, mtu, .. } = adapter.clone();
        let local = move |(address, prefix_len)| LocalAddress {
            interface: name.clone(),
            index,
            address,
            prefix_len,
            mtu,
        };
        adapter.addresses.clone().into_iter().map(local)
    };
    Ok(adapters.iter().flat_map(of_adapter).collect())
}

/// The interface of a family's default route and its addresses: of several, the one whose metric is least.
///
/// # Errors
/// When routes or adapters cannot be listed.
pub fn default_route_interface(family: Family) -> Result<Option<InterfaceAddresses>, LinkError> {
    let adapters = tables::adapters().map_err(|error| LinkError::system("listing adapters", error))?;
    let routes = tables::routes(family).map_err(|error| LinkError::system("listing routes", error))?;
    let defaults = routes.iter().filter(|route| route.destination.prefix_len() == 0);
    let of_route = |route: &tables::Route| {
        let adapter = adapters.iter().find(|adapter| adapter.index == route.index)?;
        Some((route.metric.saturating_add(adapter.metric(family)), adapter))
    };
    let best = defaults.filter_map(of_route).min_by_key(|(metric, _)| *metric);
    Ok(best.map(|(_, adapter)| InterfaceAddresses {
        name: adapter.name.clone(),
        index: adapter.index,
        mtu: adapter.mtu,
        addresses: global_addresses(adapter, family),
    }))
}

fn global_addresses(adapter: &tables::Adapter, family: Family) -> Vec<IpAddr> {
    let is_link_local = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    let addresses = adapter.addresses.iter().map(|(address, _)| *address);
    addresses.filter(|address| Family::of(address) == family && !is_link_local(address)).collect()
}

/// Whether VXLAN's port can be had on these addresses; it is given back at once.
///
/// # Errors
/// When it cannot.
pub fn probe_vxlan_port(addresses: &[IpAddr], port: u16) -> Result<(), DeviceError> {
    for address in addresses {
        let address = SocketAddr::new(*address, port);
        UdpSocket::bind(address)
            .map_err(|error| DeviceError::system(format!("binding UDP {address}"), error))?;
    }
    Ok(())
}

/// Who manages the host, if another run of this program does.
pub fn managed_by() -> Option<String> {
    single::Lock::is_taken(LOCK).then(|| "another windlass".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::windows::recorder::Calls;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn plan() -> HostPlan {
        HostPlan {
            device: "windlass0".to_owned(),
            mtu: 1450,
            addresses: nets(&["10.244.0.0/32", "fd00:244::/128"]),
            routes: nets(&["10.244.0.0/16", "10.96.0.0/12", "169.254.77.1/32", "fd00:244::/48"]),
            ..HostPlan::default()
        }
    }

    fn applied(recorder: Recorder, lock: &str) -> (Result<HostState, LinkError>, Calls) {
        let calls = recorder.calls();
        let lock = single::Lock::take(lock).unwrap().unwrap();
        (HostState::apply_by(Box::new(recorder), plan(), lock), calls)
    }

    fn taken(calls: &Calls) -> Vec<String> {
        std::mem::take(&mut *calls.lock().unwrap())
    }

    const APPLIED: [&str; 8] = [
        "SetIpInterfaceEntry IPv4 mtu 1450 metric 5 forwarding",
        "SetIpInterfaceEntry IPv6 mtu 1450 metric 5 forwarding",
        "CreateUnicastIpAddressEntry 10.244.0.0/32",
        "CreateUnicastIpAddressEntry fd00:244::/128",
        "CreateIpForwardEntry2 10.244.0.0/16",
        "CreateIpForwardEntry2 10.96.0.0/12",
        "CreateIpForwardEntry2 169.254.77.1/32",
        "CreateIpForwardEntry2 fd00:244::/48",
    ];

    const UNDONE: [&str; 6] = [
        "DeleteIpForwardEntry2 fd00:244::/48",
        "DeleteIpForwardEntry2 169.254.77.1/32",
        "DeleteIpForwardEntry2 10.96.0.0/12",
        "DeleteIpForwardEntry2 10.244.0.0/16",
        "DeleteUnicastIpAddressEntry fd00:244::/128",
        "DeleteUnicastIpAddressEntry 10.244.0.0/32",
    ];

    #[test]
    fn a_plan_is_applied_in_order_and_undone_backwards() {
        let (state, calls) = applied(Recorder::default(), "windlass-test-order");
        let state = state.unwrap();
        assert_eq!(taken(&calls), APPLIED);
        state.undo().unwrap();
        assert_eq!(taken(&calls), UNDONE);
    }

    #[test]
    fn what_an_earlier_run_left_is_swept_first() {
        let left = Recorder::with(nets(&["10.244.9.0/32"]), nets(&["10.244.0.0/16"]), None);
        let (state, calls) = applied(left, "windlass-test-sweep");
        let seen = taken(&calls);
        assert_eq!(
            seen[..2],
            ["DeleteIpForwardEntry2 10.244.0.0/16", "DeleteUnicastIpAddressEntry 10.244.9.0/32"]
        );
        assert_eq!(seen[2..], APPLIED);
        drop(state.unwrap());
        assert_eq!(taken(&calls), UNDONE);
    }

    #[test]
    fn routes_that_come_are_added_before_those_that_go_are_removed() {
        let (state, calls) = applied(Recorder::default(), "windlass-test-change");
        let mut state = state.unwrap();
        taken(&calls);
        let routes = nets(&["10.244.0.0/16", "10.97.0.0/16", "169.254.77.1/32", "fd00:244::/48"]);
        state.change(&routes, &[], &Entrances::default()).unwrap();
        assert_eq!(
            taken(&calls),
            ["CreateIpForwardEntry2 10.97.0.0/16", "DeleteIpForwardEntry2 10.96.0.0/12"]
        );
        state.change(&routes, &[], &Entrances::default()).unwrap();
        assert!(taken(&calls).is_empty());
    }

    #[test]
    fn a_refused_step_is_named_and_what_was_done_is_undone() {
        let refusing = Recorder::with(Vec::new(), Vec::new(), Some("CreateIpForwardEntry2 10.96.0.0/12"));
        let (state, calls) = applied(refusing, "windlass-test-refusal");
        let error = state.unwrap_err().to_string();
        assert!(error.contains("adding the route to 10.96.0.0/12: not permitted"), "{error}");
        assert_eq!(taken(&calls)[5..], UNDONE[3..]);
    }

    #[test]
    fn loopback_is_among_the_addresses_of_this_host() {
        let addresses = local_addresses().unwrap();
        assert!(addresses.iter().any(|local| local.address.is_loopback()), "{addresses:?}");
        for family in [Family::V4, Family::V6] {
            default_route_interface(family).unwrap();
        }
    }
}
