//! What load balancers are told about services with externalTrafficPolicy Local.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{EndpointSlice, ObjectName, Service};
use crate::node::NodeSettings;

/// A service that load balancers ask this node about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The service.
    pub service: ObjectName,
    /// How many ready endpoints it has on this node.
    pub local_endpoints: usize,
}

/// The services that have a healthCheckNodePort. A clone shares them until one changes.
#[derive(Clone, Debug, Default)]
pub struct HealthChecks(Arc<BTreeMap<ObjectName, (u16, HealthCheck)>>);

impl HealthChecks {
    /// Takes over what has become of one service and its slices.
    pub(super) fn follow(
        &mut self,
        name: &ObjectName,
        service: Option<&Service>,
        slices: &[(ObjectName, Arc<EndpointSlice>)],
        settings: &NodeSettings,
    ) {
        let port = service.and_then(|service| Some((service, service.exposure.health_check_port?)));
        let check = port.and_then(|(service, port)| {
            // Of a dual-stack service each family has its own endpoints: the first family's are counted.
            let ipv6 = service.cluster_ips.first()?.is_ipv6();
            let endpoints =
                slices.iter().filter(|(_, slice)| slice.ipv6 == ipv6).flat_map(|(_, slice)| &slice.endpoints);
            let here =
                endpoints.filter(|endpoint| endpoint.ready && endpoint.node.as_ref() == Some(&settings.node));
            let local_endpoints = here.map(|endpoint| endpoint.addr).collect::<HashSet<IpAddr>>().len();
            Some((port, HealthCheck { service: name.clone(), local_endpoints }))
        });
        if self.0.get(name) == check.as_ref() {
            return;
        }
        match check {
            Some(check) => drop(Arc::make_mut(&mut self.0).insert(name.clone(), check)),
            None => drop(Arc::make_mut(&mut self.0).remove(name)),
        }
    }

    /// They by their port.
    pub fn by_port(&self) -> BTreeMap<u16, HealthCheck> {
        self.0.values().cloned().collect()
    }

    /// Whether both are the very same, without looking at each.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
