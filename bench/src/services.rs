//! The services of a contestant: one that is measured, and others that fill the tables.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::{Value, json};
use windlass_tests::objects::{Objects, Placed, ServiceSpec};

/// The measured service.
pub const MEASURED: ServiceSpec =
    ServiceSpec { name: "measured", vip: Ipv4Addr::new(10, 106, 228, 152), port: 80, backend_port: PORT };

/// The port of every server.
pub const PORT: u16 = 8080;

/// A service that fills the tables: one IPv4 VIP, one TCP port, one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filler {
    /// Name of the Service, in namespace `default`.
    pub name: String,
    /// Its VIP.
    pub vip: Ipv4Addr,
    /// Its endpoint's address.
    pub endpoint: Ipv4Addr,
}

/// `count` fillers with different VIPs outside of what the measured service and the tests use.
#[must_use]
pub fn fillers(count: usize) -> Vec<Filler> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (0..count)
        .map(|number| Filler {
            name: format!("filler-{number}"),
            vip: Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 100, 0, 1)) + number),
            // Pod addresses of the second node beyond those that the pods have.
            endpoint: Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 2, 100)) + number % 100),
        })
        .collect()
}

/// Adds the measured service and fillers, `services` in all.
#[must_use]
pub fn with_services(objects: Objects, services: usize, backend: Placed) -> Objects {
    let mut objects = objects.with_service(&MEASURED, &[backend]);
    for filler in fillers(services.saturating_sub(1)) {
        objects.push(filler.service());
        objects.push(filler.endpoint_slice(backend.1));
    }
    objects
}

impl Filler {
    pub(crate) fn service(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name, "namespace": "default" },
            "spec": {
                "type": "ClusterIP",
                "clusterIP": self.vip,
                "clusterIPs": [self.vip],
                "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack",
                "ports": [{ "name": "tcp", "protocol": "TCP", "port": MEASURED.port, "targetPort": PORT }],
            },
        })
    }

    pub(crate) fn endpoint_slice(&self, node: &str) -> Value {
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-v4", self.name),
                "namespace": "default",
                "labels": { "kubernetes.io/service-name": self.name },
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": [IpAddr::from(self.endpoint)],
                "conditions": { "ready": true, "serving": true, "terminating": false },
                "nodeName": node,
            }],
            "ports": [{ "name": "tcp", "protocol": "TCP", "port": PORT }],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{MEASURED, fillers};

    #[test]
    fn fillers_have_vips_of_their_own() {
        let vips: BTreeSet<_> = fillers(10_000).into_iter().map(|filler| filler.vip).collect();
        assert_eq!(vips.len(), 10_000);
        assert!(!vips.contains(&MEASURED.vip));
    }
}
