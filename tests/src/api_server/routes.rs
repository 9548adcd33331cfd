//! Paths and methods: what a request asks of the store.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::http::Request;
use super::store::{Name, Resource, Store, merge};

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) resource: Resource,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

impl Target {
    /// Reads `/api/v1/...` and `/apis/<group>/v1/...`.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, "v1", rest @ ..] => (*group, rest),
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            _ => (None, rest),
        };
        let (plural, rest) = rest.split_first()?;
        let part = |index: usize| rest.get(index).map(|part| (*part).to_owned());
        let resource = Resource::find(group, plural)?;
        Some(Self { resource, namespace, name: part(0), subresource: part(1) })
    }

    /// Whether an object is one of those it names.
    pub(super) fn holds(&self, name: &Name, selector: Option<&str>) -> bool {
        let wanted = selector.and_then(|text| text.strip_prefix("metadata.name="));
        self.namespace.as_ref().is_none_or(|namespace| *namespace == name.0)
            && wanted.is_none_or(|wanted| wanted == name.1)
    }

    fn object_name(&self, name: &str) -> Name {
        (self.namespace.clone().unwrap_or_default(), name.to_owned())
    }
}

/// A status code and the body that goes with it.
pub(super) type Answer = (u16, Value);

/// A failure as Kubernetes says it.
pub(super) fn failure(code: u16, message: &str) -> Answer {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": message, "reason": reason, "code": code,
    });
    (code, status)
}

/// Answers everything but watches.
pub(super) fn answer(store: &mut Store, target: &Target, request: &Request) -> Result<Answer> {
    let Some(name) = &target.name else {
        return match request.method.as_str() {
            "POST" => create(store, target, request),
            _ => Ok(list(store, target, request)),
        };
    };
    let name = target.object_name(name);
    let missing = || failure(404, &format!("{} {:?} not found", target.resource.plural, name.1));
    let Some(known) = store.object(target.resource, &name).cloned() else { return Ok(missing()) };
    match request.method.as_str() {
        "GET" => Ok((200, known)),
        "PUT" => Ok((200, store.put(target.resource, &name, serde_json::from_slice(&request.body)?))),
        "PATCH" => {
            let strategic =
                request.headers.get("content-type").is_some_and(|kind| kind.contains("strategic"));
            let mut object = known;
            let mut patch: Value = serde_json::from_slice(&request.body)?;
            // The status subresource takes nothing of the spec, and the object itself nothing of the status.
            let foreign = if target.subresource.as_deref() == Some("status") { "spec" } else { "status" };
            if let Some(fields) = patch.as_object_mut() {
                fields.remove(foreign);
            }
            merge(&mut object, &patch, strategic);
            Ok((200, store.put(target.resource, &name, object)))
        }
        "DELETE" => Ok(store.remove(target.resource, &name).map_or_else(missing, |object| (200, object))),
        other => Ok(failure(405, &format!("method {other}"))),
    }
}

fn create(store: &mut Store, target: &Target, request: &Request) -> Result<Answer> {
    let object: Value = serde_json::from_slice(&request.body)?;
    let name = object["metadata"]["name"].as_str().context("no metadata.name")?;
    let name = target.object_name(name);
    if store.object(target.resource, &name).is_some() {
        return Ok(failure(409, &format!("{:?} already exists", name.1)));
    }
    Ok((201, store.put(target.resource, &name, object)))
}

/// A page of a list: `limit` objects from the one that `continue` counts to.
fn list(store: &Store, target: &Target, request: &Request) -> Answer {
    let selector = request.query.get("fieldSelector").map(String::as_str);
    let number = |name: &str| request.query.get(name).and_then(|text| text.parse::<usize>().ok());
    let all: Vec<&Value> = store
        .objects(target.resource)
        .filter(|(name, _)| target.holds(name, selector))
        .map(|(_, object)| object)
        .collect();
    let from = number("continue").unwrap_or(0).min(all.len());
    let limit = number("limit").filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let to = from.saturating_add(limit).min(all.len());
    let next = if to < all.len() { to.to_string() } else { String::new() };
    let list = json!({
        "kind": format!("{}List", target.resource.kind),
        "apiVersion": target.resource.api_version(),
        "metadata": { "resourceVersion": store.version().to_string(), "continue": next },
        "items": all[from..to],
    });
    (200, list)
}

/// What kubectl asks before anything else: which resources there are.
pub(super) fn discovery(path: &str) -> Option<Value> {
    let group_version = |group: &str| json!({ "groupVersion": format!("{group}/v1"), "version": "v1" });
    let groups = ["discovery.k8s.io", "networking.k8s.io"];
    match path {
        "/version" => Some(json!({ "major": "1", "minor": "33", "gitVersion": "v1.33.0-stand-in" })),
        "/api" => Some(json!({ "kind": "APIVersions", "versions": ["v1"] })),
        "/apis" => {
            let groups = groups.map(|name| {
                let version = group_version(name);
                json!({ "name": name, "versions": [version], "preferredVersion": version })
            });
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        "/api/v1" => Some(resources("")),
        path => {
            let group = path.strip_prefix("/apis/")?.strip_suffix("/v1")?;
            groups.contains(&group).then(|| resources(group))
        }
    }
}

fn resources(group: &str) -> Value {
    let of_group = Resource::ALL.into_iter().filter(|resource| resource.group == group);
    let described: Vec<Value> = of_group
        .map(|resource| {
            json!({
                "name": resource.plural,
                "singularName": resource.kind.to_lowercase(),
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": described,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_resources_objects_and_subresources() {
        let target =
            Target::parse("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web").unwrap();
        assert_eq!((target.resource.kind, target.name.as_deref()), ("EndpointSlice", Some("web")));
        let target = Target::parse("/api/v1/nodes/n1/status").unwrap();
        assert_eq!(target.subresource.as_deref(), Some("status"));
        assert_eq!(Target::parse("/api/v1/pods"), None);
    }
}
