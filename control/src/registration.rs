//! How this node makes itself known to the others, as flannel does (flannel v0.28, pkg/subnet/kube): annotations
//! of its Node, the condition NetworkUnavailable, and subnet.env for the flannel CNI plugin.
//!
//! All of it is reckoned here; who sends and writes it stands elsewhere.

mod kept;
mod own;
mod subnet_env;

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use windlass_dataplane::wire::ethernet::Mac;

use crate::cluster::Node;
use crate::node::NodeSettings;

pub use self::kept::{Kept, Owner};
pub use self::own::{Drift, OwnNode, Vteps};
pub use self::subnet_env::subnet_env;

/// The annotations of this node, with their whole names. `node` says what an operator wants them to be.
pub fn annotations(prefix: &str, node: &Node, settings: &NodeSettings) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let mut add = |name: &str, text: String| drop(annotations.insert(format!("{prefix}/{name}"), text));
    add("kube-subnet-manager", "true".to_owned());
    add("backend-type", "vxlan".to_owned());
    let flannel = &node.flannel;
    let families = [
        (false, settings.mac_v4, "backend-data", "public-ip", flannel.announced_v4()),
        (true, settings.mac_v6, "backend-v6-data", "public-ipv6", flannel.announced_v6()),
    ];
    for (ipv6, mac, data, public_ip, wanted) in families {
        let Some(mac) = mac else { continue };
        add(data, backend_data(settings, mac));
        let own = settings.underlay.iter().map(|choice| choice.addr).find(|addr| addr.is_ipv6() == ipv6);
        if let Some(addr) = wanted.or(own) {
            add(public_ip, addr.to_string());
        }
    }
    annotations
}

/// flannel reads the MAC back by trimming text: the order of the keys and the lack of spaces matter.
fn backend_data(settings: &NodeSettings, mac: Mac) -> String {
    format!(r#"{{"VNI":{},"VtepMAC":"{mac}"}}"#, settings.vni)
}

/// The patch of nodes/status that writes these annotations.
pub fn annotations_patch(annotations: &BTreeMap<String, String>) -> Value {
    json!({ "metadata": { "annotations": annotations } })
}

/// The patch of nodes/status that says that pods of this node have a network: until then the scheduler keeps
/// them away.
pub fn network_available_patch(now: Timestamp) -> Value {
    let condition = NodeCondition {
        type_: "NetworkUnavailable".to_owned(),
        status: "False".to_owned(),
        reason: Some("FlannelIsUp".to_owned()),
        message: Some("Flannel is running on this node".to_owned()),
        last_transition_time: Some(Time(now)),
        last_heartbeat_time: Some(Time(now)),
    };
    json!({ "status": { "conditions": [condition] } })
}

impl crate::cluster::Flannel {
    /// The IPv4 address that an operator wants announced.
    fn announced_v4(&self) -> Option<IpAddr> {
        self.public_ip_overwrite.or(self.node_public_ip)
    }

    /// The IPv6 address that an operator wants announced.
    fn announced_v6(&self) -> Option<IpAddr> {
        self.public_ipv6_overwrite.or(self.node_public_ipv6)
    }
}

#[cfg(test)]
mod tests;
