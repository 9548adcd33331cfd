//! Kubernetes objects in files, as `kubectl get -o yaml` or `-o json` prints them.
//!
//! A file holds any number of YAML documents or JSON objects, each one object or a list of them. Kinds that do
//! not matter here are passed over. A malformed object is named and left out and the rest goes on; a file that
//! is no YAML at all is an error, since nobody can say what it should have held.

mod kept;
mod object;
mod piece;
pub mod watch;

use std::collections::btree_map::Entry;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::object::{Content, Object};
use self::piece::{Heading, Piece, Unreadable};
use self::watch::FileState;
use super::IS_SKIPPED;
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

/// Files and folders of manifests, which may be read again and again: only what has changed since is parsed.
#[derive(Debug, Default)]
pub struct Manifests {
    paths: Vec<PathBuf>,
    /// Where annotations are looked for.
    prefix: String,
    files: HashMap<PathBuf, Arc<ReadFile>>,
}

impl Manifests {
    /// Files, and the `.yaml`, `.yml` and `.json` files of folders in the order of their names. Annotations are
    /// looked for under `prefix`. Nothing is read.
    pub fn new(paths: &[PathBuf], prefix: &str) -> Self {
        Self { paths: paths.to_vec(), prefix: prefix.to_owned(), files: HashMap::new() }
    }

    /// Reads all of it, as it is.
    ///
    /// # Errors
    /// When a path cannot be read or is no YAML or JSON. What was read before is remembered all the same.
    pub fn read(&mut self) -> Result<Loaded, ManifestError> {
        let mut loaded = Loaded::default();
        let mut read = HashMap::new();
        for path in &self.paths {
            let files = files(path)?;
            if files.is_empty() {
                let text = "the folder holds no .yaml, .yml or .json file";
                loaded.problems.push(Problem::new(path.display().to_string(), text));
            }
            for file in files {
                let objects = self.file(&file)?;
                loaded.take(&file.display().to_string(), &objects);
                read.insert(file, objects);
            }
        }
        self.files = read;
        Ok(loaded)
    }

    fn file(&self, file: &Path) -> Result<Arc<ReadFile>, ManifestError> {
        // Before it is read: a change in between makes another state.
        let state = FileState::of(file);
        let known = self.files.get(file);
        if let Some(known) = known.filter(|known| state.is_some() && known.state == state) {
            return Ok(Arc::clone(known));
        }
        let text = std::fs::read_to_string(file)
            .map_err(|source| ManifestError::Read { path: file.to_owned(), source })?;
        let none = ReadFile::default();
        let read = known.map_or(&none, |known| known).again(&text, &self.prefix);
        let read = read.map_err(|(line, reason)| ManifestError::Parse {
            file: file.display().to_string(),
            line,
            reason,
        })?;
        Ok(Arc::new(ReadFile { state, ..read }))
    }
}

/// Reads objects from `text`, which messages call `file`.
///
/// # Errors
/// When it is no YAML or JSON.
pub fn load_text(file: &str, text: &str, prefix: &str) -> Result<Loaded, ManifestError> {
    let read = ReadFile::default().again(text, prefix).map_err(|(line, reason)| ManifestError::Parse {
        file: file.to_owned(),
        line,
        reason,
    })?;
    let mut loaded = Loaded::default();
    loaded.take(file, &read);
    Ok(loaded)
}

/// A file as it was read.
#[derive(Debug, Default)]
struct ReadFile {
    state: Option<FileState>,
    pieces: Vec<ReadPiece>,
    /// Random, so that nobody can write two pieces of one hash.
    hasher: RandomState,
}

/// A piece of a file as it was read.
#[derive(Clone, Debug)]
struct ReadPiece {
    /// Of its text and of what its list says: the text itself is not kept.
    hash: u64,
    /// The file's line that it begins at.
    line: u64,
    objects: Arc<[Object]>,
}

impl ReadFile {
    /// Reads the file again as it is: `text`. What one of its pieces has said before is known.
    fn again(&self, text: &str, prefix: &str) -> Result<Self, Unreadable> {
        let known: HashMap<u64, &Arc<[Object]>> =
            self.pieces.iter().map(|piece| (piece.hash, &piece.objects)).collect();
        let read = |heading: Option<&Heading>, piece: &Piece<'_>| {
            let hash = self.hasher.hash_one((heading, piece.text));
            let objects = match known.get(&hash) {
                Some(&objects) => Arc::clone(objects),
                None => piece.read(heading, prefix)?.into(),
            };
            Ok(ReadPiece { hash, line: piece.line, objects })
        };
        let mut pieces = Vec::new();
        for group in piece::cut(text)? {
            let items: Result<Vec<_>, Unreadable> =
                group.pieces.iter().map(|piece| read(group.heading.as_ref(), piece)).collect();
            match (items, group.whole) {
                (Ok(items), _) => pieces.extend(items),
                (Err(_), Some(whole)) => pieces.push(read(None, &whole)?),
                (Err(error), None) => return Err(error),
            }
        }
        Ok(Self { state: None, pieces, hasher: self.hasher.clone() })
    }
}

impl Loaded {
    /// Takes in what a file says.
    fn take(&mut self, file: &str, read: &ReadFile) {
        for piece in &read.pieces {
            for object in piece.objects.iter() {
                let added = object.content.clone().and_then(|content| self.add(&object.name, content));
                let subject = || subject(file, piece.line, object);
                self.problems.extend(object.refused.iter().map(|text| Problem::new(subject(), text)));
                if let Err(reason) = added {
                    let (kind, name) = (object.kind.clone(), object.name.clone());
                    self.skipped.push(Skipped { kind, name, problem: self.problems.len() });
                    self.problems.push(Problem::new(subject(), format!("{reason}; {IS_SKIPPED}")));
                }
            }
        }
    }

    fn add(&mut self, name: &ObjectName, content: Content) -> Result<(), String> {
        let state = &mut self.state;
        match content {
            Content::Node(node) => add(&mut state.nodes, &name.name.to_string(), node),
            Content::Service(service) => add(&mut state.services, name, service),
            Content::EndpointSlice(slice) => add(&mut state.endpoint_slices, name, slice),
            Content::ServiceCidr(cidrs) => add(&mut state.service_cidrs, &name.name.to_string(), cidrs),
            Content::NetConf(_) if state.net_conf != NetConfState::Absent => {
                Err("another kube-flannel-cfg was read before".to_owned())
            }
            Content::NetConf(conf) => {
                state.net_conf = conf;
                Ok(())
            }
            Content::Segment(segment) => add(&mut state.segments, &name.name.to_string(), segment),
            Content::Nothing => Ok(()),
            Content::PassedOver => {
                self.passed_over += 1;
                Ok(())
            }
        }
    }
}

fn add<K: Ord + Clone, V>(objects: &mut BTreeMap<K, V>, name: &K, object: V) -> Result<(), String> {
    match objects.entry(name.clone()) {
        Entry::Vacant(entry) => {
            entry.insert(object);
            Ok(())
        }
        Entry::Occupied(_) => Err("another object of this name was read before".to_owned()),
    }
}

/// `cluster.yaml:7: Service default/web`.
fn subject(file: &str, line: u64, object: &Object) -> String {
    let kind = if object.kind.is_empty() { "object" } else { &object.kind };
    let name = match (&*object.name.namespace, &*object.name.name) {
        (_, "") => String::new(),
        ("", name) => format!(" {name}"),
        (namespace, name) => format!(" {namespace}/{name}"),
    };
    format!("{file}:{line}: {kind}{name}")
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

#[cfg(test)]
mod tests;
