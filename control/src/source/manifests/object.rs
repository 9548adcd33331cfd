//! One Kubernetes object as a file holds it.

use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::{EndpointSlice, NetConfState, Node, ObjectName, Segment, Service};
use crate::source::{objects, segment};

/// An object and what its text says.
#[derive(Clone, Debug)]
pub(super) struct Object {
    /// Empty when it has none.
    pub(super) kind: String,
    /// Its names, empty when it has none.
    pub(super) name: ObjectName,
    /// What it says, or why it cannot be used.
    pub(super) content: Result<Content, String>,
    /// Parts that are left out, and why.
    pub(super) refused: Vec<String>,
}

/// What an object says.
#[derive(Clone, Debug)]
pub(super) enum Content {
    Node(Arc<Node>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    ServiceCidr(Vec<IpNet>),
    NetConf(NetConfState),
    Segment(Arc<Segment>),
    /// Nothing that could be forwarded to.
    Nothing,
    /// It is of a kind that does not matter.
    PassedOver,
}

impl Object {
    /// Reads an object; annotations are looked for under `prefix`.
    pub(super) fn read(value: Value, prefix: &str) -> Self {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (text("/apiVersion"), text("/kind"));
        let (mut namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        if namespace.is_empty() && !matches!(kind.as_str(), "Node" | "ServiceCIDR" | segment::KIND) {
            namespace = "default".to_owned();
        }
        let mut refused = Vec::new();
        let content = content(&version, &kind, &name, value, prefix, |text| refused.push(text));
        Self { kind, name: ObjectName::new(namespace, name), content, refused }
    }
}

fn content(
    version: &str,
    kind: &str,
    name: &str,
    value: Value,
    prefix: &str,
    refuse: impl FnMut(String),
) -> Result<Content, String> {
    Ok(match (version, kind) {
        (_, "") | ("", _) => {
            return Err("it has no apiVersion or no kind, so it is no Kubernetes object".to_owned());
        }
        ("v1", "Node" | "Service")
        | ("discovery.k8s.io/v1", "EndpointSlice")
        | ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR")
        | (segment::VERSION, segment::KIND)
            if name.is_empty() =>
        {
            return Err("it has no metadata.name".to_owned());
        }
        ("v1", "Node") => {
            Content::Node(Arc::new(objects::node(&typed::<core::Node>(value)?, prefix, refuse)?))
        }
        ("v1", "Service") => Content::Service(Arc::new(objects::service(&typed::<core::Service>(value)?)?)),
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            let slice = objects::endpoint_slice(&typed::<discovery::EndpointSlice>(value)?, refuse)?;
            slice.map_or(Content::Nothing, |slice| Content::EndpointSlice(Arc::new(slice)))
        }
        ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => service_cidr(value)?,
        (segment::VERSION, segment::KIND) => Content::Segment(Arc::new(segment::segment(value, refuse)?)),
        ("v1", "ConfigMap") if name == "kube-flannel-cfg" => Content::NetConf(net_conf(value)?),
        _ => Content::PassedOver,
    })
}

fn service_cidr(mut value: Value) -> Result<Content, String> {
    value["apiVersion"] = "networking.k8s.io/v1".into();
    objects::service_cidr(&typed::<networking::ServiceCIDR>(value)?).map(Content::ServiceCidr)
}

fn net_conf(value: Value) -> Result<NetConfState, String> {
    match typed::<core::ConfigMap>(value).map(|map| objects::net_conf(&map)) {
        Ok(None) => Err("it has no net-conf.json".to_owned()),
        Ok(Some(Ok(conf))) => Ok(NetConfState::Present(conf)),
        Ok(Some(Err(reason))) | Err(reason) => Ok(NetConfState::Malformed(reason)),
    }
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| error.to_string())
}
