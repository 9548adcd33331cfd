//! The host-side veths of this node's pods: found, made to aggregate what pods send, and put back as they were.
//!
//! A pod hands its packets over one by one, and each costs this host a walk through bridge, routing and the overlay
//! device. With GRO on the host's side of the veth, what belongs together makes that walk as one superpacket.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::ethtool::Ethtool;
use super::links::{self, Link};
use super::netlink::Netlink;
use super::route_table;
use crate::device::host::LinkError;

/// A setting of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// A feature of ethtool's: 0 or 1.
    Feature(&'static str),
    /// A file of /sys/class/net.
    Attribute(&'static str),
}

/// What makes a veth aggregate: GRO also for UDP that is forwarded, and a moment's wait for more to come. A veth that
/// is to send what it has at once is polled once more, 40 us later.
const TUNED: [(Setting, &str); 4] = [
    (Setting::Attribute("gro_flush_timeout"), "40000"),
    (Setting::Attribute("napi_defer_hard_irqs"), "1"),
    (Setting::Feature("rx-udp-gro-forwarding"), "1"),
    (Setting::Feature("rx-gro"), "1"),
];

/// An interface, as long as it exists: a name may be used again, an index is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    index: u32,
    name: String,
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Changed {
    setting: Setting,
    before: String,
    set: &'static str,
}

/// Pods' veths that aggregate for as long as this lives. Dropping it puts them back as they were, and
/// [`undo`](Self::undo) says what could not be put back.
#[derive(Debug)]
pub struct PodTuning {
    pod_cidrs: Vec<IpNet>,
    state_file: Option<PathBuf>,
    tuned: BTreeMap<Port, Vec<Changed>>,
}

impl PodTuning {
    /// Tunes the veths of the pods in `pod_cidrs`: ports of the bridge that has an address there, and veths with a
    /// route there. What they were is kept in `state_file`, for [`sweep`](Self::sweep) if this process is killed.
    ///
    /// # Errors
    /// When the host's interfaces cannot be listed.
    pub fn begin(pod_cidrs: Vec<IpNet>, state_file: Option<PathBuf>) -> Result<Self, LinkError> {
        let mut tuning = Self { pod_cidrs, state_file, tuned: BTreeMap::new() };
        tuning.look()?;
        Ok(tuning)
    }

    /// Tunes the veths of pods that have come, and forgets those that have gone.
    ///
    /// # Errors
    /// When the host's interfaces cannot be listed. A veth that refuses is logged and left as it is.
    pub fn look(&mut self) -> Result<(), LinkError> {
        let found = ports(&self.pod_cidrs).map_err(|error| LinkError::system("looking for pods", error))?;
        let before = self.tuned.len();
        self.tuned.retain(|port, _| found.contains(port));
        let mut has_changed = self.tuned.len() != before;
        for port in found {
            if let Entry::Vacant(place) = self.tuned.entry(port) {
                tracing::info!("the pod's veth {} aggregates (--tune-pods)", place.key().name);
                let changed = tune(place.key());
                place.insert(changed);
                has_changed = true;
            }
        }
        if has_changed && let Err(error) = self.remember() {
            tracing::warn!(%error, "previous settings of the pods' veths are not on disk");
        }
        Ok(())
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// Everything that could not be put back; the rest is.
    pub fn undo(mut self) -> Result<(), LinkError> {
        LinkError::collect(self.revert())
    }

    /// Leaves everything as it is now.
    pub fn keep(mut self) {
        self.tuned.clear();
    }

    /// Puts back what a killed run has left, as its `state_file` tells.
    ///
    /// # Errors
    /// Everything that could not be put back; the rest is.
    pub fn sweep(state_file: &Path) -> Result<(), LinkError> {
        let text = fs::read_to_string(state_file).unwrap_or_default();
        let mut tuned = BTreeMap::<Port, Vec<Changed>>::new();
        for (port, changed) in text.lines().filter_map(parse) {
            tuned.entry(port).or_default().push(changed);
        }
        let left = Self { pod_cidrs: Vec::new(), state_file: Some(state_file.to_owned()), tuned };
        left.undo()
    }

    fn remember(&self) -> io::Result<()> {
        let Some(file) = &self.state_file else { return Ok(()) };
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let lines = self.tuned.iter().flat_map(|(port, changed)| {
            changed.iter().map(move |Changed { setting, before, set }| {
                format!("{} {} {} {before} {set}\n", port.index, port.name, setting.name())
            })
        });
        let temporary = file.with_extension("new");
        fs::write(&temporary, lines.collect::<String>())?;
        fs::rename(&temporary, file)
    }

    fn revert(&mut self) -> Vec<LinkError> {
        let tuned = std::mem::take(&mut self.tuned);
        if tuned.is_empty() {
            return Vec::new();
        }
        let mut errors: Vec<_> = tuned.iter().flat_map(|(port, changed)| restore(port, changed)).collect();
        if let (Some(file), true) = (&self.state_file, errors.is_empty())
            && let Err(error) = fs::remove_file(file)
        {
            errors.push(LinkError::system(format!("removing {}", file.display()), error));
        }
        errors
    }
}

impl Drop for PodTuning {
    fn drop(&mut self) {
        for error in self.revert() {
            tracing::warn!(%error, "the pods' veths are not as they were");
        }
    }
}

impl Setting {
    fn name(self) -> &'static str {
        match self {
            Self::Feature(name) | Self::Attribute(name) => name,
        }
    }

    fn read(self, port: &str) -> io::Result<String> {
        match self {
            Self::Feature(name) => Ethtool::open(port)?.is_on(port, name).map(|on| u8::from(on).to_string()),
            Self::Attribute(name) => fs::read_to_string(attribute(port, name)).map(|text| text.trim().into()),
        }
    }

    fn write(self, port: &str, value: &str) -> io::Result<()> {
        match self {
            Self::Feature(name) => Ethtool::open(port)?.set(port, name, value == "1"),
            Self::Attribute(name) => fs::write(attribute(port, name), value),
        }
    }
}

fn attribute(port: &str, name: &str) -> PathBuf {
    Path::new("/sys/class/net").join(port).join(name)
}

/// Sets what makes a veth aggregate, and returns what that changed.
fn tune(port: &Port) -> Vec<Changed> {
    let mut changed = Vec::new();
    for (setting, set) in TUNED {
        match change(port, setting, set) {
            Ok(before) if before == set => {}
            Ok(before) => changed.push(Changed { setting, before, set }),
            Err(error) => tracing::warn!(%error, "{} of {} stays as it is", setting.name(), port.name),
        }
    }
    changed
}

/// Sets a setting and returns what it was.
fn change(port: &Port, setting: Setting, value: &str) -> io::Result<String> {
    let before = setting.read(&port.name)?;
    if before != value {
        setting.write(&port.name, value)?;
    }
    Ok(before)
}

/// Puts a veth back, the last change first. One that has gone needs nothing, and who has set it since wants it so.
fn restore(port: &Port, changed: &[Changed]) -> Vec<LinkError> {
    let is_there = fs::read_to_string(attribute(&port.name, "ifindex"))
        .is_ok_and(|index| index.trim() == port.index.to_string());
    let still_set = |changed: &&Changed| {
        is_there && changed.setting.read(&port.name).is_ok_and(|value| value == changed.set)
    };
    let failed = |changed: &Changed, error| {
        LinkError::system(format!("restoring {} of {}", changed.setting.name(), port.name), error)
    };
    let restored = changed.iter().rev().filter(still_set);
    restored
        .filter_map(|changed| {
            changed.setting.write(&port.name, &changed.before).err().map(|error| failed(changed, error))
        })
        .collect()
}

/// One line of the state file. What is not one of ours is passed over.
fn parse(line: &str) -> Option<(Port, Changed)> {
    let mut words = line.split(' ');
    let port = Port { index: words.next()?.parse().ok()?, name: words.next()?.to_owned() };
    let setting = words.next()?;
    let (setting, set) = TUNED.into_iter().find(|(known, _)| known.name() == setting)?;
    let before = words.next()?.to_owned();
    let is_whole = words.next() == Some(set) && words.next().is_none();
    (is_whole && super::tun::is_interface_name(&port.name))
        .then_some((port, Changed { setting, before, set }))
}

fn ports(pod_cidrs: &[IpNet]) -> io::Result<Vec<Port>> {
    let netlink = Netlink::open()?;
    let links = links::links(&netlink)?;
    let is_pods = |address: &IpNet| pod_cidrs.iter().any(|cidr| cidr.contains(address));
    let gateways: Vec<u32> = links::addresses()?
        .into_iter()
        .filter(|local| is_pods(&IpNet::from(local.address)))
        .map(|local| local.index)
        .collect();
    let is_pod_bridge = |link: &Link| gateways.contains(&link.index) && link.is("bridge");
    let bridges: Vec<u32> = links.iter().filter(|link| is_pod_bridge(link)).map(|link| link.index).collect();
    let routed = route_table::routed(&netlink, is_pods)?;
    let is_port = |link: &Link| {
        let is_on_bridge = link.master.is_some_and(|master| bridges.contains(&master));
        link.is("veth") && (is_on_bridge || routed.contains(&link.index))
    };
    let found = links.into_iter().filter(is_port);
    Ok(found.map(|link| Port { index: link.index, name: link.name }).collect())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{in_namespace, ip};
    use super::*;

    #[test]
    fn pods_are_on_the_bridge_with_an_address_of_the_pod_cidr_or_have_a_route_of_their_own() {
        in_namespace("pod ports", || {
            for (bridge, address) in [("cni0", "10.244.0.1/24"), ("docker0", "172.17.0.1/16")] {
                ip(&format!("link add {bridge} type bridge"));
                ip(&format!("address add {address} dev {bridge}"));
            }
            for (veth, end) in
                [("pod-a", "a"), ("pod-b", "b"), ("other", "c"), ("routed", "d"), ("eth0", "e")]
            {
                ip(&format!("link add {veth} type veth peer name {end}"));
                ip(&format!("link set {veth} up"));
            }
            for (veth, bridge) in [("pod-a", "cni0"), ("pod-b", "cni0"), ("other", "docker0")] {
                ip(&format!("link set {veth} master {bridge}"));
            }
            ip("route add 10.244.0.9/32 dev routed");
            ip("route add 10.0.0.0/8 dev eth0");
            let found = ports(&["10.244.0.0/24".parse().unwrap()]).unwrap();
            let names: Vec<_> = found.into_iter().map(|port| port.name).collect();
            assert_eq!(names, ["pod-a", "pod-b", "routed"]);
        });
    }

    #[test]
    fn e10_lines_of_a_state_file_that_are_torn_or_name_anything_else_are_passed_over() {
        let (port, changed) = parse("7 veth1 rx-gro 0 1").unwrap();
        assert_eq!((port.index, port.name.as_str(), changed.before.as_str()), (7, "veth1", "0"));
        for line in ["7 veth1 rx-gro 0", "7 veth1 mtu 0 1", "7 ../x rx-gro 0 1", "x veth1 rx-gro 0 1", ""] {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
