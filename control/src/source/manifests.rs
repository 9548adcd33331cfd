//! Kubernetes objects in files, as `kubectl get -o yaml` or `-o json` prints them.
//!
//! A file holds any number of YAML documents or JSON objects, each one object or a list of them. Kinds that do
//! not matter here are passed over. A malformed object is named and left out and the rest goes on; a file that
//! is no YAML at all is an error, since nobody can say what it should have held.

mod kept;
pub mod watch;

use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{IS_SKIPPED, objects};
use crate::cluster::{ClusterState, NetConfState, ObjectName, Problem};

/// What was read from files.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The cluster.
    pub state: ClusterState,
    /// What was left out.
    pub problems: Vec<Problem>,
    /// How many objects were of kinds that do not matter.
    pub passed_over: usize,
    skipped: Vec<Skipped>,
}

/// An object that could not be used.
#[derive(Clone, Debug)]
struct Skipped {
    kind: String,
    name: ObjectName,
    /// Its place among the problems.
    problem: usize,
}

/// Files that cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file or folder cannot be read.
    #[error("cannot read {}: {source}; --manifests takes files and folders of YAML or JSON", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is neither YAML nor JSON.
    #[error(
        "{file}:{line}: not readable as YAML or JSON: {reason}; correct the file: \
         `kubectl apply --dry-run=client -f {file}` tells more"
    )]
    Parse {
        /// The file.
        file: String,
        /// The line in it.
        line: u64,
        /// What the parser says.
        reason: String,
    },
}

/// Reads files, and the `.yaml`, `.yml` and `.json` files of folders in the order of their names. Annotations
/// are looked for under `prefix`.
///
/// # Errors
/// When a path cannot be read or is no YAML or JSON.
pub fn load(paths: &[PathBuf], prefix: &str) -> Result<Loaded, ManifestError> {
    let mut loader = Loader { prefix, ..Loader::default() };
    for path in paths {
        let files = files(path)?;
        if files.is_empty() {
            let text = "the folder holds no .yaml, .yml or .json file";
            loader.loaded.problems.push(Problem::new(path.display().to_string(), text));
        }
        for file in files {
            let text = std::fs::read_to_string(&file)
                .map_err(|source| ManifestError::Read { path: file.clone(), source })?;
            loader.file(&file.display().to_string(), &text)?;
        }
    }
    Ok(loader.loaded)
}

/// Reads objects from `text`, which messages call `file`.
///
/// # Errors
/// When it is no YAML or JSON.
pub fn load_text(file: &str, text: &str, prefix: &str) -> Result<Loaded, ManifestError> {
    let mut loader = Loader { prefix, ..Loader::default() };
    loader.file(file, text)?;
    Ok(loader.loaded)
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ManifestError> {
    let unreadable = |source| ManifestError::Read { path: path.to_owned(), source };
    if !std::fs::metadata(path).map_err(unreadable)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        // A mounted ConfigMap shows its files as links into the hidden folder ..data.
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let extension = file.extension().and_then(|extension| extension.to_str());
        if !hidden && matches!(extension, Some("yaml" | "yml" | "json")) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// A document and where it stands.
struct Document<'a> {
    text: &'a str,
    first_line: u64,
}

/// Splits a file at its `---` lines, so that errors name the file's own lines.
fn documents(text: &str) -> Vec<Document<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let (mut start, mut first_line, mut end) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let is_marker = |marker| {
            line.strip_prefix(marker)
                .is_some_and(|rest: &str| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        if end > start && is_marker("---") || is_marker("...") {
            documents.push(Document { text: &text[start..end], first_line });
            start = if is_marker("...") { end + line.len() } else { end };
            first_line = index as u64 + if is_marker("...") { 2 } else { 1 };
        }
        end += line.len();
    }
    documents.push(Document { text: text.get(start..end).unwrap_or_default(), first_line });
    documents
}

/// Where an object stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a str,
    line: u64,
}

#[derive(Default)]
struct Loader<'a> {
    prefix: &'a str,
    loaded: Loaded,
}

impl Loader<'_> {
    fn file(&mut self, file: &str, text: &str) -> Result<(), ManifestError> {
        if text.trim_start().starts_with('{') {
            return self.json(file, text);
        }
        for document in documents(text) {
            let value: Value = parse_yaml(&document).map_err(|(line, reason)| ManifestError::Parse {
                file: file.to_owned(),
                line,
                reason,
            })?;
            let lines = || item_lines(&document);
            self.object(Place { file, line: document.first_line }, value, lines);
        }
        Ok(())
    }

    fn json(&mut self, file: &str, text: &str) -> Result<(), ManifestError> {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        loop {
            let before = &text[..values.byte_offset()];
            let line = before.matches('\n').count() as u64 + 1;
            match values.next() {
                None => return Ok(()),
                Some(Ok(value)) => self.object(Place { file, line }, value, Vec::new),
                Some(Err(error)) => {
                    let (file, line) = (file.to_owned(), error.line() as u64);
                    return Err(ManifestError::Parse { file, line, reason: error.to_string() });
                }
            }
        }
    }

    /// Takes one object in, or each item of a list; `lines` finds the items' lines when one must be named.
    fn object(&mut self, place: Place<'_>, value: Value, lines: impl FnOnce() -> Vec<u64>) {
        if value.is_null() {
            return;
        }
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let kind = text(&value, "kind").unwrap_or_default();
        let Some(items_kind) = kind.strip_suffix("List") else { return self.single(place, value) };
        let version = text(&value, "apiVersion").unwrap_or_default();
        let problems_before = self.loaded.problems.len();
        let mut found = Vec::new();
        for (index, mut item) in items(value).into_iter().enumerate() {
            if let Some(fields) = item.as_object_mut().filter(|_| !items_kind.is_empty()) {
                // The items of a NodeList from the API name neither.
                fields.entry("kind").or_insert_with(|| items_kind.into());
                fields.entry("apiVersion").or_insert_with(|| version.as_str().into());
            }
            let before = self.loaded.problems.len();
            self.single(place, item);
            found.extend((before..self.loaded.problems.len()).map(|problem| (problem, index)));
        }
        if self.loaded.problems.len() > problems_before {
            let lines = lines();
            for (problem, index) in found {
                if let Some(line) = lines.get(index) {
                    let subject = &mut self.loaded.problems[problem].subject;
                    *subject = subject.replacen(
                        &format!("{}:{}: ", place.file, place.line),
                        &format!("{}:{line}: ", place.file),
                        1,
                    );
                }
            }
        }
    }

    fn single(&mut self, place: Place<'_>, value: Value) {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, kind) = (text("/apiVersion"), text("/kind"));
        let (mut namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        if namespace.is_empty() && !matches!(kind.as_str(), "Node" | "ServiceCIDR") {
            namespace = "default".to_owned();
        }
        let object = ObjectName { namespace, name };
        let mut problems = Vec::new();
        let mut refuse = |text: String| problems.push(text);
        let result = match (version.as_str(), kind.as_str()) {
            (_, "") | ("", _) => {
                Err("it has no apiVersion or no kind, so it is no Kubernetes object".to_owned())
            }
            ("v1", "Node" | "Service")
            | ("discovery.k8s.io/v1", "EndpointSlice")
            | ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR")
                if object.name.is_empty() =>
            {
                Err("it has no metadata.name".to_owned())
            }
            ("v1", "Node") => self.node(&object, value, &mut refuse),
            ("v1", "Service") => self.service(&object, value),
            ("discovery.k8s.io/v1", "EndpointSlice") => self.endpoint_slice(&object, value, &mut refuse),
            ("networking.k8s.io/v1" | "networking.k8s.io/v1beta1", "ServiceCIDR") => {
                self.service_cidr(&object, value)
            }
            ("v1", "ConfigMap") if object.name == "kube-flannel-cfg" => self.flannel_config(value),
            _ => {
                self.loaded.passed_over += 1;
                Ok(())
            }
        };
        let subject = subject(place, &kind, &object);
        if let Err(reason) = result {
            let problem = self.loaded.problems.len() + problems.len();
            self.loaded.skipped.push(Skipped { kind, name: object, problem });
            problems.push(format!("{reason}; {IS_SKIPPED}"));
        }
        self.loaded.problems.extend(problems.into_iter().map(|text| Problem::new(&subject, text)));
    }

    fn node(&mut self, object: &ObjectName, value: Value, refuse: impl FnMut(String)) -> Result<(), String> {
        let node = objects::node(&typed::<core::Node>(value)?, self.prefix, refuse)?;
        add(self.loaded.state.nodes.entry(object.name.clone()), node)
    }

    fn service(&mut self, object: &ObjectName, value: Value) -> Result<(), String> {
        let service = objects::service(&typed::<core::Service>(value)?)?;
        add(self.loaded.state.services.entry(object.clone()), service)
    }

    fn endpoint_slice(
        &mut self,
        object: &ObjectName,
        value: Value,
        refuse: impl FnMut(String),
    ) -> Result<(), String> {
        match objects::endpoint_slice(&typed::<discovery::EndpointSlice>(value)?, refuse)? {
            Some(slice) => add(self.loaded.state.endpoint_slices.entry(object.clone()), slice),
            None => Ok(()),
        }
    }

    fn service_cidr(&mut self, object: &ObjectName, mut value: Value) -> Result<(), String> {
        value["apiVersion"] = "networking.k8s.io/v1".into();
        let cidrs = objects::service_cidr(&typed::<networking::ServiceCIDR>(value)?)?;
        add(self.loaded.state.service_cidrs.entry(object.name.clone()), cidrs)
    }

    fn flannel_config(&mut self, value: Value) -> Result<(), String> {
        let net_conf = typed::<core::ConfigMap>(value).map(|map| objects::net_conf(&map));
        let state = match net_conf {
            Ok(None) => return Err("it has no net-conf.json".to_owned()),
            Ok(Some(Ok(conf))) => NetConfState::Present(conf),
            Ok(Some(Err(reason))) | Err(reason) => NetConfState::Malformed(reason),
        };
        if self.loaded.state.net_conf != NetConfState::Absent {
            return Err("another kube-flannel-cfg was read before".to_owned());
        }
        self.loaded.state.net_conf = state;
        Ok(())
    }
}

fn add<K: Ord, V>(entry: Entry<'_, K, V>, value: impl Into<V>) -> Result<(), String> {
    match entry {
        Entry::Vacant(entry) => {
            entry.insert(value.into());
            Ok(())
        }
        Entry::Occupied(_) => Err("another object of this name was read before".to_owned()),
    }
}

fn subject(place: Place<'_>, kind: &str, object: &ObjectName) -> String {
    let kind = if kind.is_empty() { "object" } else { kind };
    let name = match (object.namespace.as_str(), object.name.as_str()) {
        (_, "") => String::new(),
        ("", name) => format!(" {name}"),
        (namespace, name) => format!(" {namespace}/{name}"),
    };
    format!("{}:{}: {kind}{name}", place.file, place.line)
}

fn typed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| error.to_string())
}

fn items(mut list: Value) -> Vec<Value> {
    match list.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

/// The line of each item of a `List` document.
fn item_lines(document: &Document<'_>) -> Vec<u64> {
    #[derive(Deserialize)]
    struct List {
        items: Vec<serde_saphyr::Spanned<Value>>,
    }
    let lines = |list: List| {
        list.items.iter().map(|item| document.first_line + item.referenced.line().saturating_sub(1)).collect()
    };
    parse_yaml(document).map(lines).unwrap_or_default()
}

/// The error is the file's line, and what the parser says to those who write YAML, not Rust.
fn parse_yaml<T: DeserializeOwned>(document: &Document<'_>) -> Result<T, (u64, String)> {
    let options = serde_saphyr::options! {
        // A namespace may be called n or on: only true and false are booleans.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_events: 50_000_000,
            max_nodes: 20_000_000,
            max_total_scalar_bytes: 1 << 30,
        },
    };
    serde_saphyr::from_str_with_options(document.text, options).map_err(|error| {
        let lines_before = document.first_line.saturating_sub(1);
        let said = error.without_snippet().render_with_options(serde_saphyr::render_options! {
            formatter: &serde_saphyr::UserMessageFormatter,
            line_offset: lines_before,
        });
        (lines_before + error.location().map_or(1, |location| location.line()), said)
    })
}

#[cfg(test)]
mod tests;
