//! What load balancers are told about services with externalTrafficPolicy Local.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use crate::cluster::{ClusterState, ObjectName};
use crate::node::NodeSettings;

/// A service that load balancers ask this node about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The service.
    pub service: ObjectName,
    /// How many ready endpoints it has on this node.
    pub local_endpoints: usize,
}

/// The services that have a healthCheckNodePort, by that port.
pub fn health_checks(state: &ClusterState, settings: &NodeSettings) -> BTreeMap<u16, HealthCheck> {
    let checked = state.services.iter().filter_map(|(name, service)| {
        let port = service.exposure.health_check_port?;
        // Of a dual-stack service each family has its own endpoints: the first family's are counted.
        Some((name, (port, service.cluster_ips.first()?.is_ipv6(), HashSet::<IpAddr>::new())))
    });
    let mut checked: HashMap<&ObjectName, _> = checked.collect();
    if checked.is_empty() {
        return BTreeMap::new();
    }
    for (name, slice) in &state.endpoint_slices {
        let service = slice.service.as_ref().map(|service| ObjectName::new(&name.namespace, service));
        let Some((_, ipv6, found)) = service.and_then(|service| checked.get_mut(&service)) else { continue };
        if slice.ipv6 == *ipv6 {
            let here = |node: &Option<String>| node.as_ref() == Some(&settings.node);
            let ready = slice.endpoints.iter().filter(|endpoint| endpoint.ready && here(&endpoint.node));
            found.extend(ready.map(|endpoint| endpoint.addr));
        }
    }
    let check = |(name, (port, _, found)): (&ObjectName, (u16, bool, HashSet<IpAddr>))| {
        (port, HealthCheck { service: name.clone(), local_endpoints: found.len() })
    };
    checked.into_iter().map(check).collect()
}
