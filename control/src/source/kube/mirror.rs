//! What is known of a cluster from its API server, object by object, and what of it cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::follow::Event;
use super::kind::{FLANNEL_CONFIG, Kind};
use crate::cluster::{
    ClusterState, Difference, EndpointSlice, NetConfState, Node, ObjectName, Problem, Service,
};
use crate::source::{IS_KEPT, IS_SKIPPED, has_become_unreadable, objects};

/// When the pod or Service changed that an EndpointSlice was changed for (Kubernetes, network programming SLI).
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The objects of all kinds.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    /// Prefix of flannel's annotations.
    prefix: String,
    nodes: Shelf<Node>,
    services: Shelf<Service>,
    endpoint_slices: Shelf<EndpointSlice>,
    service_cidrs: Shelf<Vec<IpNet>>,
    flannel_config: Shelf<NetConfState>,
    old_flannel_config: Shelf<NetConfState>,
}

/// The objects of one kind. One that is not changed by what is heard of it stays the same allocation.
#[derive(Debug)]
pub(super) struct Shelf<T> {
    objects: BTreeMap<ObjectName, Arc<T>>,
    problems: BTreeMap<ObjectName, Vec<Problem>>,
    /// Those that may differ from when they were last told.
    touched: BTreeSet<ObjectName>,
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), problems: BTreeMap::new(), touched: BTreeSet::new() }
    }
}

/// What reading an object gave, and the doubtful parts of it that were left out.
pub(super) struct Read<T> {
    object: Result<Option<T>, String>,
    refused: Vec<String>,
}

/// A kind of object that is mirrored.
pub(super) trait Mirrored: kube::ResourceExt {
    /// What of it matters.
    type Plain: PartialEq;
    /// How messages call one.
    const NAME: &'static str;

    /// Reads it; annotations are looked for under `prefix`.
    fn read(&self, prefix: &str, refuse: &mut dyn FnMut(String)) -> Result<Option<Self::Plain>, String>;

    /// When that happened which it was last changed for, as it says.
    fn triggered_at(&self) -> Option<SystemTime> {
        None
    }

    /// Why `after` is no improvement on `before`, which is kept then.
    fn is_worse(_before: &Self::Plain, _after: &Self::Plain) -> Option<String> {
        None
    }

    /// Where such objects are.
    fn shelf(mirror: &mut Mirror, kind: Kind) -> &mut Shelf<Self::Plain>;
}

impl Mirror {
    /// A mirror that has seen nothing yet.
    pub(super) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned(), ..Self::default() }
    }

    /// Takes in what was heard; true when it changes anything that matters.
    pub(super) fn take<K: Mirrored>(&mut self, kind: Kind, event: Event<K>) -> bool {
        let prefix = self.prefix.clone();
        let shelf = K::shelf(self, kind);
        match event {
            Event::Bookmark => false,
            Event::Deleted(object) => shelf.remove(&name_of(&object)),
            Event::Applied(object) => shelf.put::<K>(name_of(&object), read(&object, &prefix)),
            Event::Listed(objects) => {
                let read = objects.iter().map(|object| (name_of(object), read(object, &prefix)));
                shelf.replace::<K>(read)
            }
        }
    }

    /// The cluster. Objects are shared with those of earlier calls where they are the same.
    pub(super) fn state(&mut self) -> ClusterState {
        self.difference();
        ClusterState {
            nodes: by_name(&self.nodes.objects).collect(),
            services: self.services.objects.clone(),
            endpoint_slices: self.endpoint_slices.objects.clone(),
            service_cidrs: self.service_cidrs(),
            net_conf: self.net_conf(),
            ..ClusterState::default()
        }
    }

    /// What has become of the cluster since it was last told, whole or as a difference.
    pub(super) fn difference(&mut self) -> Difference {
        let configs = [&mut self.flannel_config, &mut self.old_flannel_config];
        let has_net_conf = configs.map(|config| !std::mem::take(&mut config.touched).is_empty());
        let has_cidrs = !std::mem::take(&mut self.service_cidrs.touched).is_empty();
        let nodes = self.nodes.take_touched();
        Difference {
            nodes: nodes.map(|(name, node)| (name.name.to_string(), node)).collect(),
            services: self.services.take_touched().collect(),
            endpoint_slices: self.endpoint_slices.take_touched().collect(),
            service_cidrs: has_cidrs.then(|| self.service_cidrs()),
            net_conf: has_net_conf.contains(&true).then(|| self.net_conf()),
            segments: None,
        }
    }

    fn service_cidrs(&self) -> BTreeMap<String, Vec<IpNet>> {
        let cidrs = self.service_cidrs.objects.iter();
        cidrs.map(|(name, cidrs)| (name.name.to_string(), cidrs.to_vec())).collect()
    }

    fn net_conf(&self) -> NetConfState {
        let mut configs =
            self.flannel_config.objects.values().chain(self.old_flannel_config.objects.values());
        configs.next().map_or(NetConfState::Absent, |conf| NetConfState::clone(conf))
    }

    /// Whether flannel's ConfigMap is where flannel installs it.
    pub(super) fn has_flannel_config(&self) -> bool {
        !self.flannel_config.objects.is_empty()
    }

    /// What cannot be used.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let of_nodes = self.nodes.problems.values().chain(self.services.problems.values());
        let of_slices = self.endpoint_slices.problems.values().chain(self.service_cidrs.problems.values());
        let configs = [&self.flannel_config, &self.old_flannel_config];
        let of_configs = configs.into_iter().flat_map(|config| config.problems.values());
        of_nodes.chain(of_slices).chain(of_configs).flatten().cloned().collect()
    }
}

fn by_name<T>(objects: &BTreeMap<ObjectName, Arc<T>>) -> impl Iterator<Item = (String, Arc<T>)> {
    objects.iter().map(|(name, object)| (name.name.to_string(), Arc::clone(object)))
}

impl<T: PartialEq> Shelf<T> {
    /// Those that may differ from when they were last told, as they are.
    fn take_touched(&mut self) -> impl Iterator<Item = (ObjectName, Option<Arc<T>>)> {
        let touched = std::mem::take(&mut self.touched).into_iter();
        touched.map(|name| {
            let object = self.objects.get(&name).cloned();
            (name, object)
        })
    }

    fn remove(&mut self, name: &ObjectName) -> bool {
        let had_problems = self.problems.remove(name).is_some();
        let was_there = self.objects.remove(name).is_some();
        if was_there {
            self.touched.insert(name.clone());
        }
        was_there || had_problems
    }

    /// Puts one object in its place, as far as it can be used.
    fn put<K: Mirrored<Plain = T>>(&mut self, name: ObjectName, read: Read<T>) -> bool {
        let before = self.objects.get(&name);
        let (after, problems) = settle::<K>(&name, before, read);
        let same_problems = self.problems.get(&name).map_or(&[][..], Vec::as_slice) == problems;
        let is_same = same(before, after.as_ref());
        if !is_same {
            self.touched.insert(name.clone());
        }
        match after {
            None => drop(self.objects.remove(&name)),
            Some(object) => drop(self.objects.insert(name.clone(), object)),
        }
        match problems.is_empty() {
            true => drop(self.problems.remove(&name)),
            false => drop(self.problems.insert(name, problems)),
        }
        !(is_same && same_problems)
    }

    /// Puts these in the place of all, at once.
    fn replace<K: Mirrored<Plain = T>>(&mut self, read: impl Iterator<Item = (ObjectName, Read<T>)>) -> bool {
        let mut listed = Self { touched: std::mem::take(&mut self.touched), ..Self::default() };
        for (name, read) in read {
            if let Some(known) = self.objects.get(&name) {
                listed.objects.insert(name.clone(), Arc::clone(known));
            }
            listed.put::<K>(name, read);
        }
        let is_same = listed.problems == self.problems
            && listed.objects.len() == self.objects.len()
            && listed.objects.iter().all(|(name, object)| same(self.objects.get(name), Some(object)));
        let gone = self.objects.keys().filter(|name| !listed.objects.contains_key(*name)).cloned();
        listed.touched.extend(gone);
        *self = listed;
        !is_same
    }
}

fn same<T>(before: Option<&Arc<T>>, after: Option<&Arc<T>>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => Arc::ptr_eq(before, after),
        (None, None) => true,
        _ => false,
    }
}

/// The object as it is to be known, and what is to be said of it. What cannot be read leaves it as it was (F10).
fn settle<K: Mirrored>(
    name: &ObjectName,
    before: Option<&Arc<K::Plain>>,
    read: Read<K::Plain>,
) -> (Option<Arc<K::Plain>>, Vec<Problem>) {
    let mut texts = read.refused;
    let after = match read.object {
        Ok(None) => None,
        Err(reason) => {
            let what = if before.is_some() { IS_KEPT } else { IS_SKIPPED };
            texts.push(format!("{reason}; {what}"));
            before.cloned()
        }
        Ok(Some(object)) => match before {
            Some(known) if **known == object => Some(Arc::clone(known)),
            Some(known) => match K::is_worse(known, &object) {
                Some(reason) => {
                    texts.push(format!("{reason}; {IS_KEPT}"));
                    Some(Arc::clone(known))
                }
                None => Some(Arc::new(object)),
            },
            None => Some(Arc::new(object)),
        },
    };
    let name = if name.namespace.is_empty() { name.name.to_string() } else { name.to_string() };
    let subject = format!("{} {name}", K::NAME);
    (after, texts.into_iter().map(|text| Problem::new(&subject, text)).collect())
}

fn read<K: Mirrored>(object: &K, prefix: &str) -> Read<K::Plain> {
    let mut refused = Vec::new();
    let object = object.read(prefix, &mut |text| refused.push(text));
    Read { object, refused }
}

fn name_of(object: &impl kube::ResourceExt) -> ObjectName {
    ObjectName::new(object.namespace().unwrap_or_default(), object.name_any())
}

impl Mirrored for core::Node {
    type Plain = Node;
    const NAME: &'static str = "Node";

    fn read(&self, prefix: &str, refuse: &mut dyn FnMut(String)) -> Result<Option<Node>, String> {
        objects::node(self, prefix, refuse).map(Some)
    }

    fn is_worse(before: &Node, after: &Node) -> Option<String> {
        let reason = has_become_unreadable(before, after)?;
        Some(format!("its annotations cannot be read ({reason})"))
    }

    fn shelf(mirror: &mut Mirror, _kind: Kind) -> &mut Shelf<Node> {
        &mut mirror.nodes
    }
}

impl Mirrored for core::Service {
    type Plain = Service;
    const NAME: &'static str = "Service";

    fn read(&self, _prefix: &str, _refuse: &mut dyn FnMut(String)) -> Result<Option<Service>, String> {
        objects::service(self).map(Some)
    }

    fn shelf(mirror: &mut Mirror, _kind: Kind) -> &mut Shelf<Service> {
        &mut mirror.services
    }
}

impl Mirrored for discovery::EndpointSlice {
    type Plain = EndpointSlice;
    const NAME: &'static str = "EndpointSlice";

    fn read(&self, _prefix: &str, refuse: &mut dyn FnMut(String)) -> Result<Option<EndpointSlice>, String> {
        objects::endpoint_slice(self, refuse)
    }

    fn triggered_at(&self) -> Option<SystemTime> {
        let at: Timestamp = self.annotations().get(TRIGGER_ANNOTATION)?.parse().ok()?;
        Some(at.into())
    }

    fn shelf(mirror: &mut Mirror, _kind: Kind) -> &mut Shelf<EndpointSlice> {
        &mut mirror.endpoint_slices
    }
}

impl Mirrored for networking::ServiceCIDR {
    type Plain = Vec<IpNet>;
    const NAME: &'static str = "ServiceCIDR";

    fn read(&self, _prefix: &str, _refuse: &mut dyn FnMut(String)) -> Result<Option<Vec<IpNet>>, String> {
        objects::service_cidr(self).map(Some)
    }

    fn shelf(mirror: &mut Mirror, _kind: Kind) -> &mut Shelf<Vec<IpNet>> {
        &mut mirror.service_cidrs
    }
}

impl Mirrored for core::ConfigMap {
    type Plain = NetConfState;
    const NAME: &'static str = "ConfigMap";

    fn read(&self, _prefix: &str, _refuse: &mut dyn FnMut(String)) -> Result<Option<NetConfState>, String> {
        if self.name_any() != FLANNEL_CONFIG {
            return Ok(None);
        }
        match objects::net_conf(self) {
            None => Err("it has no net-conf.json".to_owned()),
            Some(Ok(conf)) => Ok(Some(NetConfState::Present(conf))),
            Some(Err(reason)) => Ok(Some(NetConfState::Malformed(reason))),
        }
    }

    fn is_worse(before: &NetConfState, after: &NetConfState) -> Option<String> {
        match (before, after) {
            (NetConfState::Present(_), NetConfState::Malformed(reason)) => Some(reason.clone()),
            _ => None,
        }
    }

    fn shelf(mirror: &mut Mirror, kind: Kind) -> &mut Shelf<NetConfState> {
        match kind {
            Kind::OldFlannelConfig => &mut mirror.old_flannel_config,
            _ => &mut mirror.flannel_config,
        }
    }
}

#[cfg(test)]
mod tests;
