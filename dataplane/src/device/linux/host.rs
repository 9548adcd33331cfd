//! What the host around the device needs, applied in an order that is safe at every step, and undone.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;

use super::netlink::Netlink;
use super::port::NamespaceLock;
use super::routes::{self, Route};
use super::sysctl::{self, Changed};
use super::{conntrack, links, mark_rule, nft, tun};
use crate::device::host::{Entrances, Family, HostPlan, LinkError};

/// Applied to the host; dropping it undoes it, and [`undo`](Self::undo) says what could not be undone.
#[derive(Debug)]
pub struct HostState {
    plan: HostPlan,
    routes: Vec<Route>,
    changed: Vec<Changed>,
    filtered: bool,
    active: bool,
    _lock: NamespaceLock,
}

/// What the run that manages this host holds.
pub(super) const LOCK: &str = "windlass-host";

impl HostState {
    /// Does what the plan says, and sweeps what an earlier run has left and the plan does not want. Filter rules and
    /// the loop guard are in place before the first new route leads into the device. What was done is undone when a
    /// later step fails.
    ///
    /// # Errors
    /// When the plan is bad, a privilege or `nft` is missing, a route exists, or another run manages the host.
    pub fn apply(plan: HostPlan) -> Result<Self, LinkError> {
        check(&plan)?;
        let lock = lock()?;
        let netlink = open_netlink()?;
        let index = find_device(&netlink, &plan.device)?;
        let (routes, changed) = sweep(&netlink, &plan, index)?;
        let mut state = Self { plan, routes, changed, filtered: false, active: true, _lock: lock };
        state.install(&netlink, index)?;
        Ok(state)
    }

    /// Makes `routes` the device's routes, `cluster_cidrs` the destinations that are not masqueraded, and
    /// `entrances` what the host takes into the device. What is new comes before what is old goes; each step is
    /// tried, whatever became of the others.
    ///
    /// # Errors
    /// Everything that could not be done; it is tried again at the next change.
    pub fn change(
        &mut self,
        routes: &[IpNet],
        cluster_cidrs: &[IpNet],
        entrances: &Entrances,
    ) -> Result<(), LinkError> {
        let mut errors: Vec<_> = self.change_rules(cluster_cidrs, entrances).err().into_iter().collect();
        let wanted: HashSet<IpNet> = routes.iter().map(IpNet::trunc).collect();
        let known: HashSet<IpNet> = self.device_routes().map(Route::destination).collect();
        if wanted == known {
            return LinkError::collect(errors);
        }
        let netlink = open_netlink()?;
        let index = find_device(&netlink, &self.plan.device)?;
        for net in wanted.difference(&known) {
            let source = preferred_source(&self.plan.addresses, net);
            errors.extend(self.add_route(&netlink, Route::Device(*net, index, source)).err());
        }
        self.routes.retain(|route| {
            let stays = !matches!(route, Route::Device(..)) || wanted.contains(&route.destination());
            stays || remove(&netlink, route).map_err(|error| errors.push(error)).is_err()
        });
        LinkError::collect(errors)
    }

    /// Marked packets find their route before any is marked, and until none is.
    fn change_rules(&mut self, cluster_cidrs: &[IpNet], entrances: &Entrances) -> Result<(), LinkError> {
        if *entrances == self.plan.entrances && cluster_cidrs == self.plan.cluster_cidrs {
            return Ok(());
        }
        if entrances.are_steered() {
            self.add_mark_rules(&open_netlink()?)?;
        }
        if entrances.are_ruled_as(&self.plan.entrances) && cluster_cidrs == self.plan.cluster_cidrs {
            nft::change(&self.plan.entrances, entrances)?;
            self.plan.entrances = entrances.clone();
        } else {
            let (cluster_cidrs, entrances) = (cluster_cidrs.to_vec(), entrances.clone());
            let plan = HostPlan { cluster_cidrs, entrances, ..self.plan.clone() };
            nft::install(&plan)?;
            self.plan = plan;
        }
        let unused = if entrances.are_steered() { Vec::new() } else { remove_mark_rules(&open_netlink()?) };
        LinkError::collect(self.forget_stale_flows().err().into_iter().chain(unused).collect())
    }

    fn add_mark_rules(&self, netlink: &Netlink) -> Result<(), LinkError> {
        let failed = |error| LinkError::system("adding the rule for marked packets", error);
        self.plan.families().try_for_each(|family| mark_rule::add(netlink, family).map_err(failed))
    }

    /// What the kernel remembers of UDP node ports must not outlast the rules it was made by.
    fn forget_stale_flows(&self) -> Result<(), LinkError> {
        conntrack::forget_stale(&self.plan.entrances.node_ports, &self.plan.node_port_vips)
            .map_err(|error| LinkError::system("deleting the kernel's connections to node ports", error))
    }

    fn device_routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().filter(|route| matches!(route, Route::Device(..)))
    }

    /// Undoes everything. The device's own addresses and settings go with the device.
    ///
    /// # Errors
    /// Everything that could not be undone; the rest is.
    pub fn undo(mut self) -> Result<(), LinkError> {
        LinkError::collect(self.revert())
    }

    /// Leaves everything standing, for the next run to go on with or for [`cleanup`](super::cleanup).
    pub fn keep(mut self) {
        self.active = false;
    }

    fn install(&mut self, netlink: &Netlink, index: u32) -> Result<(), LinkError> {
        nft::install(&self.plan)?;
        self.filtered = true;
        let left: HashSet<Route> = self.routes.iter().copied().collect();
        let missing = wanted(&self.plan, index).filter(|route| !left.contains(route));
        let (guards, routes): (Vec<_>, Vec<_>) =
            missing.partition(|route| matches!(route, Route::Unreachable(_)));
        for guard in guards {
            self.add_route(netlink, guard)?;
        }
        self.quiet_device();
        let HostPlan { mtu, txqueuelen, .. } = self.plan;
        routes::bring_up(netlink, index, mtu, txqueuelen)
            .map_err(|error| LinkError::system(format!("bringing {} up", self.plan.device), error))?;
        for net in &self.plan.addresses {
            routes::add_address(netlink, index, *net).map_err(|error| {
                LinkError::system(format!("giving {} the address {net}", self.plan.device), error)
            })?;
        }
        self.set_sysctls()?;
        routes.into_iter().try_for_each(|route| self.add_route(netlink, route))?;
        match self.plan.entrances.are_steered() {
            true => self.add_mark_rules(netlink)?,
            false => LinkError::collect(remove_mark_rules(netlink))?,
        }
        self.forget_stale_flows()
    }

    fn add_route(&mut self, netlink: &Netlink, route: Route) -> Result<(), LinkError> {
        match route.add(netlink) {
            Ok(()) => {
                self.routes.push(route);
                Ok(())
            }
            // A plan may name a prefix twice: the cluster's CIDR and its only node's.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.routes.contains(&route) => {
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(LinkError::RouteTaken { route: route.destination() })
            }
            Err(error) => {
                Err(LinkError::system(format!("adding the route to {}", route.destination()), error))
            }
        }
    }

    /// Keeps the kernel's own IPv6 chatter off the device. These settings vanish with it, so nothing is
    /// remembered, and a kernel that lacks one of them has nothing to keep quiet.
    fn quiet_device(&self) {
        let disable = if self.plan.has(Family::V6) { "0" } else { "1" };
        let settings =
            [("disable_ipv6", disable), ("addr_gen_mode", "1"), ("accept_dad", "0"), ("accept_ra", "0")];
        for (name, value) in settings {
            let _ = sysctl::set(&format!("net/ipv6/conf/{}/{name}", self.plan.device), value);
        }
    }

    fn set_sysctls(&mut self) -> Result<(), LinkError> {
        for (path, value) in &self.plan.sysctls {
            let changed = sysctl::set(path, value)?;
            // What a killed run found is what the host was like.
            if !self.changed.iter().any(|known| known.path() == path) {
                self.changed.extend(changed);
            }
        }
        // A full or read-only disk must not stop the node (G15): a crash would leave the settings behind.
        if let Some(file) = &self.plan.state_file
            && let Err(error) = sysctl::remember(file, &self.changed)
        {
            tracing::warn!(%error, "previous settings of the host are not on disk");
        }
        Ok(())
    }

    /// In the reverse order: no route leads into the device while its guards are being removed.
    fn revert(&mut self) -> Vec<LinkError> {
        if !std::mem::take(&mut self.active) {
            return Vec::new();
        }
        let mut errors = Vec::new();
        match open_netlink() {
            Ok(netlink) => {
                errors.extend(remove_mark_rules(&netlink));
                errors.extend(self.routes.iter().rev().filter_map(|route| remove(&netlink, route).err()))
            }
            Err(error) => errors.push(error),
        }
        errors.extend(sysctl::restore(&self.changed));
        if self.filtered {
            errors.extend(nft::remove().err());
            self.plan.entrances = Entrances::default();
            errors.extend(self.forget_stale_flows().err());
        }
        if errors.is_empty() {
            errors.extend(self.plan.state_file.as_deref().and_then(forget));
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

/// Removes the routes and addresses that an earlier run has left, and restores its settings, except those that the
/// plan wants again, which are returned: going back and forth would interrupt forwarding. Its filter table is
/// replaced later.
fn sweep(netlink: &Netlink, plan: &HostPlan, index: u32) -> Result<(Vec<Route>, Vec<Changed>), LinkError> {
    let left = routes::ours(netlink).map_err(|error| LinkError::system("listing routes", error))?;
    let planned: HashSet<Route> = wanted(plan, index).collect();
    let (routes, foreign): (Vec<_>, Vec<_>) = left.into_iter().partition(|route| planned.contains(route));
    let mut errors: Vec<_> = foreign.iter().filter_map(|route| remove(netlink, route).err()).collect();
    errors.extend(sweep_addresses(netlink, plan, index).err());
    let remembered = plan.state_file.as_deref().map(sysctl::remembered).unwrap_or_default();
    let is_planned = |changed: &Changed| plan.sysctls.iter().any(|(path, _)| path == changed.path());
    let (settings, restored): (Vec<_>, Vec<_>) = remembered.into_iter().partition(is_planned);
    errors.extend(sysctl::restore(&restored));
    LinkError::collect(errors).map(|()| (routes, settings))
}

/// The routes that a plan asks for: the loop guards, then those into the device, then marked packets' own.
fn wanted(plan: &HostPlan, index: u32) -> impl Iterator<Item = Route> {
    let guards = plan.pod_cidrs.iter().map(|net| Route::Unreachable(net.trunc()));
    let source = |net| preferred_source(&plan.addresses, net);
    let into_device = plan.routes.iter().map(move |net| Route::Device(net.trunc(), index, source(net)));
    guards.chain(into_device).chain(plan.families().map(move |family| Route::Marked(family, index)))
}

fn sweep_addresses(netlink: &Netlink, plan: &HostPlan, index: u32) -> Result<(), LinkError> {
    let found = links::local_addresses()?.into_iter().filter(|local| local.index == index);
    let mut errors = Vec::new();
    for local in found {
        let Ok(net) = IpNet::new(local.address, local.prefix_len) else { continue };
        if !plan.addresses.contains(&net)
            && let Err(error) = routes::remove_address(netlink, index, net)
        {
            errors.push(LinkError::system(format!("taking {net} from {}", plan.device), error));
        }
    }
    LinkError::collect(errors)
}

/// Removes every route, setting and filter rule that a run has left, and says which they were.
pub(super) fn remove_left(netlink: &Netlink, state_file: &Path) -> (Vec<String>, Vec<LinkError>) {
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    match routes::ours(netlink) {
        Err(error) => errors.push(LinkError::system("listing routes", error)),
        Ok(routes) => {
            for route in routes {
                match remove(netlink, &route) {
                    Ok(()) => removed.push(format!("route to {}", route.destination())),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    errors.extend(remove_mark_rules(netlink));
    let changed = sysctl::remembered(state_file);
    errors.extend(sysctl::restore(&changed));
    removed.extend(changed.iter().map(|changed| format!("the setting of {}", changed.path())));
    match nft::is_there() {
        Ok(false) => {}
        Ok(true) => match nft::remove() {
            Ok(()) => removed.push(format!("nftables table {}", nft::TABLE)),
            Err(error) => errors.push(error),
        },
        Err(error) => errors.push(error),
    }
    if errors.is_empty() {
        errors.extend(forget(state_file));
    }
    (removed, errors)
}

/// What keeps two runs from managing one host.
pub(super) fn lock() -> Result<NamespaceLock, LinkError> {
    NamespaceLock::take(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => LinkError::Busy,
        _ => LinkError::system("locking the host's routes", error),
    })
}

fn remove(netlink: &Netlink, route: &Route) -> Result<(), LinkError> {
    let failed = |error| LinkError::system(format!("removing the route to {}", route.destination()), error);
    route.remove(netlink).map_err(failed)
}

fn remove_mark_rules(netlink: &Netlink) -> Vec<LinkError> {
    let removed = [Family::V4, Family::V6].map(|family| mark_rule::remove(netlink, family));
    let failed = |error| LinkError::system("removing the rule for marked packets", error);
    removed.into_iter().filter_map(|removed| removed.map_err(failed).err()).collect()
}

fn forget(file: &Path) -> Option<LinkError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Some(LinkError::system(format!("removing {}", file.display()), error))
        }
        _ => None,
    }
}

fn check(plan: &HostPlan) -> Result<(), LinkError> {
    let bad = |what: String| Err(LinkError::BadPlan { what });
    if !tun::is_interface_name(&plan.device) {
        return bad(format!("\"{}\" cannot be an interface name", plan.device));
    }
    match plan.sysctls.iter().find(|(path, _)| !sysctl::exists(path)) {
        Some((path, _)) => bad(format!("this host has no setting /proc/sys/{path}")),
        None => Ok(()),
    }
}

/// A netlink socket.
pub(super) fn open_netlink() -> Result<Netlink, LinkError> {
    Netlink::open().map_err(|error| LinkError::system("opening a netlink socket", error))
}

/// The index of the device of that name.
pub(super) fn find_device(netlink: &Netlink, name: &str) -> Result<u32, LinkError> {
    let links = links::links(netlink).map_err(|error| LinkError::system("listing interfaces", error))?;
    let found = links.iter().find(|link| link.name == name);
    found.map(|link| link.index).ok_or_else(|| LinkError::NoInterface { name: name.to_owned() })
}

/// The device's first address of the route's family: flows the host opens into the overlay carry it, so that
/// peers find its source inside the podCIDR.
fn preferred_source(addresses: &[IpNet], route: &IpNet) -> Option<IpAddr> {
    let same_family = |net: &&IpNet| net.addr().is_ipv4() == route.addr().is_ipv4();
    addresses.iter().find(same_family).map(IpNet::addr)
}
