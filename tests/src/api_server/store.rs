//! The objects, their versions, and what has happened to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

/// A resource as paths name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Plural, as in paths.
    pub plural: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

impl Resource {
    /// Every resource there is, all of version v1.
    pub const ALL: [Self; 5] = [
        Self { group: "", plural: "nodes", kind: "Node", namespaced: false },
        Self { group: "", plural: "services", kind: "Service", namespaced: true },
        Self { group: "", plural: "configmaps", kind: "ConfigMap", namespaced: true },
        Self { group: "discovery.k8s.io", plural: "endpointslices", kind: "EndpointSlice", namespaced: true },
        Self { group: "networking.k8s.io", plural: "servicecidrs", kind: "ServiceCIDR", namespaced: false },
    ];

    /// The one of that group and plural.
    pub(super) fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|resource| resource.group == group && resource.plural == plural)
    }

    /// `v1`, or the group with it.
    pub(super) fn api_version(self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }
}

/// Namespace and name.
pub(super) type Name = (String, String);

/// Something that happened to an object.
#[derive(Clone, Debug)]
pub(super) struct Happening {
    pub(super) version: u64,
    pub(super) resource: Resource,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

/// All objects, and all that happened since the oldest version that is still known.
#[derive(Debug, Default)]
pub(super) struct Store {
    objects: BTreeMap<(Resource, Name), Value>,
    happened: Vec<Happening>,
    version: u64,
    oldest: u64,
}

static NEXT_UID: AtomicU64 = AtomicU64::new(1);

impl Store {
    /// The version of the newest change.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether what happened after that version is still known.
    pub(super) fn remembers(&self, version: u64) -> bool {
        version >= self.oldest
    }

    /// Forgets all that has happened so far.
    pub(super) fn compact(&mut self) {
        self.happened.clear();
        // A compaction comes with changes elsewhere in etcd, so that no version held is current.
        self.version += 1;
        self.oldest = self.version;
    }

    pub(super) fn object(&self, resource: Resource, name: &Name) -> Option<&Value> {
        self.objects.get(&(resource, name.clone()))
    }

    pub(super) fn objects(&self, resource: Resource) -> impl Iterator<Item = (&Name, &Value)> {
        self.objects
            .iter()
            .filter(move |((of, _), _)| *of == resource)
            .map(|((_, name), object)| (name, object))
    }

    pub(super) fn since(&self, version: u64) -> impl Iterator<Item = &Happening> {
        let first = self.happened.partition_point(|happening| happening.version <= version);
        self.happened[first..].iter()
    }

    /// Puts an object in its place, with the fields that a server gives it.
    pub(super) fn put(&mut self, resource: Resource, name: &Name, mut object: Value) -> Value {
        self.version += 1;
        let known = self.objects.get(&(resource, name.clone()));
        let kept = |field: &str| known.and_then(|known| known["metadata"].get(field).cloned());
        let uid = kept("uid").unwrap_or_else(|| {
            json!(format!("00000000-0000-4000-8000-{:012}", NEXT_UID.fetch_add(1, Ordering::Relaxed)))
        });
        let created = kept("creationTimestamp").unwrap_or_else(|| json!("2024-01-01T00:00:00Z"));
        let metadata = &mut object["metadata"];
        metadata["uid"] = uid;
        metadata["creationTimestamp"] = created;
        metadata["resourceVersion"] = json!(self.version.to_string());
        object["kind"] = json!(resource.kind);
        object["apiVersion"] = json!(resource.api_version());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        self.objects.insert((resource, name.clone()), object.clone());
        self.happened.push(Happening { version: self.version, resource, kind, object: object.clone() });
        object
    }

    /// Takes an object away.
    pub(super) fn remove(&mut self, resource: Resource, name: &Name) -> Option<Value> {
        let mut object = self.objects.remove(&(resource, name.clone()))?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let happening =
            Happening { version: self.version, resource, kind: "DELETED", object: object.clone() };
        self.happened.push(happening);
        Some(object)
    }
}

/// Lists that a strategic merge patch merges by a key, as the types of Node say; others are replaced.
const MERGED_BY: [(&str, &str); 2] = [("conditions", "type"), ("addresses", "type")];

/// Applies a merge patch (RFC 7396); a strategic one also merges some lists.
pub(super) fn merge(into: &mut Value, patch: &Value, strategic: bool) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (name, value) in fields {
        let key = MERGED_BY.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
        match (value, key) {
            (Value::Null, _) => {
                if let Some(object) = into.as_object_mut() {
                    object.remove(name);
                }
            }
            (Value::Array(items), Some(key)) if strategic => merge_list(&mut into[name], items, key),
            _ => merge(&mut into[name], value, strategic),
        }
    }
}

fn merge_list(into: &mut Value, items: &[Value], key: &str) {
    if !into.is_array() {
        *into = json!([]);
    }
    let Some(list) = into.as_array_mut() else { return };
    for item in items {
        match list.iter_mut().find(|known| known[key] == item[key]) {
            Some(known) => merge(known, item, true),
            None => list.push(item.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategic_patch_merges_conditions_by_type_and_null_removes() {
        let mut node = json!({ "metadata": { "annotations": { "a": "1", "b": "2" } }, "status": { "conditions": [
            { "type": "Ready", "status": "True" }, { "type": "NetworkUnavailable", "status": "True" },
        ] } });
        let patch = json!({ "metadata": { "annotations": { "a": null, "c": "3" } }, "status": { "conditions": [
            { "type": "NetworkUnavailable", "status": "False" },
        ] } });
        merge(&mut node, &patch, true);
        assert_eq!(node["metadata"]["annotations"], json!({ "b": "2", "c": "3" }));
        assert_eq!(node["status"]["conditions"][0]["status"], "True");
        assert_eq!(node["status"]["conditions"][1]["status"], "False");
    }
}
