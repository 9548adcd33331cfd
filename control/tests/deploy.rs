//! What `control/deploy` holds: no key is lost or misspelled, rights are exactly what is asked for, flags exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_control::config::settings::NAMES;
use windlass_control::source::kube::{FOLLOW, Kind, PATCH, PATCHED};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy")
}

fn documents(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_saphyr::from_multiple(&text).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))
}

fn yaml_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(yaml_files(&path)?),
            false if path.extension().is_some_and(|end| end == "yaml") => found.push(path),
            false => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Every object of every manifest and patch, with its file.
fn objects() -> Result<Vec<(PathBuf, Value)>> {
    let mut found = Vec::new();
    for file in yaml_files(&folder())? {
        if !file.ends_with("kustomization.yaml") {
            found.extend(documents(&file)?.into_iter().map(|object| (file.clone(), object)));
        }
    }
    Ok(found)
}

fn of_kind(kind: &str) -> Result<Vec<Value>> {
    let all = objects()?.into_iter().map(|(_, object)| object);
    Ok(all.filter(|object| object["kind"] == kind).collect())
}

/// Where `kept` lacks something of `written`.
fn lost(written: &Value, kept: &Value, at: &str) -> Option<String> {
    match (written, kept) {
        (Value::Object(written), Value::Object(kept)) => written.iter().find_map(|(key, value)| {
            let at = format!("{at}.{key}");
            kept.get(key).map_or(Some(at.clone()), |kept| lost(value, kept, &at))
        }),
        (Value::Array(written), Value::Array(kept)) if written.len() == kept.len() => {
            let mut pairs = written.iter().zip(kept).enumerate();
            pairs.find_map(|(index, (written, kept))| lost(written, kept, &format!("{at}[{index}]")))
        }
        _ => (written != kept).then(|| at.to_owned()),
    }
}

fn round_trip<K: Serialize + DeserializeOwned>(object: &Value) -> Result<Value> {
    Ok(serde_json::to_value(serde_json::from_value::<K>(object.clone())?)?)
}

#[test]
fn every_manifest_says_what_kubernetes_understands() -> Result<()> {
    let objects = objects()?;
    ensure!(objects.len() > 10, "{} objects", objects.len());
    for (file, object) in &objects {
        let kept = match object["kind"].as_str().unwrap_or_default() {
            "Namespace" => round_trip::<Namespace>(object),
            "ServiceAccount" => round_trip::<ServiceAccount>(object),
            "ClusterRole" => round_trip::<ClusterRole>(object),
            "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(object),
            "Role" => round_trip::<Role>(object),
            "RoleBinding" => round_trip::<RoleBinding>(object),
            "ConfigMap" => round_trip::<ConfigMap>(object),
            "DaemonSet" => round_trip::<DaemonSet>(object),
            other => bail!("{}: what is a {other:?}?", file.display()),
        };
        let kept = kept.with_context(|| format!("{}: {}", file.display(), object["kind"]))?;
        if let Some(at) = lost(object, &kept, "") {
            bail!("{}: {} {at} is not understood", file.display(), object["kind"]);
        }
    }
    Ok(())
}

#[test]
fn a_misspelled_key_would_be_noticed() -> Result<()> {
    let object = serde_json::json!({ "kind": "DaemonSet", "spec": { "template": { "spec": {
        "hostNetwork": true, "containers": [{ "name": "a", "readinesProbe": {} }],
    } } } });
    let kept = round_trip::<DaemonSet>(&object)?;
    let at = lost(&object, &kept, "");
    ensure!(at.as_deref() == Some(".spec.template.spec.containers[0].readinesProbe"), "{at:?}");
    Ok(())
}

#[test]
fn the_kustomization_names_every_manifest_and_patches_name_a_daemon_set() -> Result<()> {
    let kustomization = documents(&folder().join("kustomization.yaml"))?.remove(0);
    let named: BTreeSet<PathBuf> =
        strings(&kustomization["resources"]).map(|name| folder().join(name)).collect();
    let not_applied =
        |file: &PathBuf| file.ends_with("kustomization.yaml") || file.starts_with(folder().join("patches"));
    let found: BTreeSet<PathBuf> =
        yaml_files(&folder())?.into_iter().filter(|file| !not_applied(file)).collect();
    assert_eq!(named, found);
    // What refers to the generated ConfigMap uses its name and keys.
    let generated = &kustomization["configMapGenerator"][0];
    for daemon_set in of_kind("DaemonSet")?.iter().filter(|object| object["metadata"]["name"].is_string()) {
        for variable in containers(daemon_set).flat_map(|container| array(&container["env"])) {
            let Some(from) = variable["valueFrom"].get("configMapKeyRef") else { continue };
            ensure!(from["name"] == generated["name"], "{from}");
            let key = format!("{}=", from["key"].as_str().unwrap_or_default());
            ensure!(strings(&generated["literals"]).any(|literal| literal.starts_with(&key)), "{from}");
        }
    }
    Ok(())
}

/// One thing that a role lets somebody do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: Option<String>,
    group: String,
    resource: String,
    names: Vec<String>,
    verb: String,
}

fn rights_of(role: &Value) -> Vec<Right> {
    let mut rights = Vec::new();
    for rule in array(&role["rules"]) {
        for group in strings(&rule["apiGroups"]) {
            for resource in strings(&rule["resources"]) {
                rights.extend(strings(&rule["verbs"]).map(|verb| Right {
                    namespace: role["metadata"]["namespace"].as_str().map(str::to_owned),
                    group: group.to_owned(),
                    resource: resource.to_owned(),
                    names: strings(&rule["resourceNames"]).map(str::to_owned).collect(),
                    verb: verb.to_owned(),
                }));
            }
        }
    }
    rights
}

#[test]
fn the_roles_allow_what_we_ask_for_and_nothing_else() -> Result<()> {
    let given: BTreeSet<Right> = ["ClusterRole", "Role"]
        .into_iter()
        .map(of_kind)
        .collect::<Result<Vec<_>>>()?
        .concat()
        .iter()
        .flat_map(rights_of)
        .collect();
    let right = |namespace: Option<&str>, (group, resource): (&str, &str), verb: &str| Right {
        namespace: namespace.map(str::to_owned),
        group: group.to_owned(),
        resource: resource.to_owned(),
        names: namespace.map(|_| "kube-flannel-cfg".to_owned()).into_iter().collect(),
        verb: verb.to_owned(),
    };
    let follow = |kind: Kind| FOLLOW.iter().map(move |verb| right(kind.namespace(), kind.resource(), verb));
    let patch = PATCH.iter().map(|verb| right(None, PATCHED, verb));
    let asked: BTreeSet<Right> = Kind::ALL.into_iter().flat_map(follow).chain(patch).collect();
    assert_eq!(given, asked);
    for binding in of_kind("ClusterRoleBinding")?.iter().chain(&of_kind("RoleBinding")?) {
        ensure!(
            binding["subjects"][0]["namespace"] == "windlass" && binding["roleRef"]["name"] == "windlass"
        );
    }
    Ok(())
}

#[test]
fn the_flags_and_variables_that_manifests_name_exist() -> Result<()> {
    let mut flags = 0;
    for daemon_set in of_kind("DaemonSet")? {
        for container in containers(&daemon_set) {
            for word in strings(&container["args"]).flat_map(str::split_whitespace) {
                let Some(flag) = word.strip_prefix("--") else { continue };
                let name = flag.split('=').next().unwrap_or_default().trim_end_matches(';');
                ensure!(NAMES.contains(&name), "windlass run has no flag --{name}");
                flags += 1;
            }
            for variable in array(&container["env"]).iter().filter_map(|each| each["name"].as_str()) {
                let setting =
                    variable.strip_prefix("WINDLASS_").map(|name| name.to_lowercase().replace('_', "-"));
                ensure!(setting.is_none_or(|name| NAMES.contains(&name.as_str())), "{variable}");
            }
        }
    }
    ensure!(flags >= 4, "only {flags} flags were looked at");
    Ok(())
}

#[test]
fn image_recipes_take_in_files_that_exist() -> Result<()> {
    let root = folder().join("../..");
    let recipe = fs::read_to_string(folder().join("linux/Containerfile"))?;
    let copied = recipe.lines().filter(|line| line.starts_with("COPY --chmod"));
    for path in copied.flat_map(str::split_whitespace).filter(|word| word.starts_with("control/")) {
        ensure!(root.join(path).is_file(), "there is no {path}");
    }
    Ok(())
}

fn containers(daemon_set: &Value) -> impl Iterator<Item = &Value> {
    let pod = &daemon_set["spec"]["template"]["spec"];
    array(&pod["initContainers"]).iter().chain(array(&pod["containers"]))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    array(value).iter().filter_map(Value::as_str)
}
