//! What is kept of a node between runs, in a file of `--state-dir`.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use windlass_dataplane::wire::ethernet::Mac;

use super::Vteps;
use crate::cluster::Node;
use crate::system;

/// Whose something is that was kept: another node's is of no use, nor is that of another podCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    node: String,
    uid: Option<String>,
    pod_cidrs: Vec<IpNet>,
}

impl Owner {
    /// That node, as it is.
    pub fn of(name: &str, node: &Node) -> Self {
        Self { node: name.to_owned(), uid: node.uid.clone(), pod_cidrs: node.pod_cidrs.clone() }
    }
}

/// The VTEPs' MACs, and whose they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    #[serde(flatten)]
    owner: Owner,
    vtep_mac: Option<String>,
    vtep_mac_v6: Option<String>,
}

impl Kept {
    /// What is to be kept of that node.
    pub fn new(name: &str, node: &Node, vteps: Vteps) -> Self {
        Self {
            owner: Owner::of(name, node),
            vtep_mac: vteps.mac_v4.map(|mac| mac.to_string()),
            vtep_mac_v6: vteps.mac_v6.map(|mac| mac.to_string()),
        }
    }

    /// What was kept in `folder` of that very node: another one's, or that of another podCIDR, is of no use.
    ///
    /// # Errors
    /// When there is a file and it cannot be read, or belongs to another node; it says which.
    pub fn read(folder: &Path, name: &str, node: &Node) -> Result<Option<Self>, String> {
        let file = file(folder);
        let kept: Self = match std::fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{} cannot be read: {error}", file.display())),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| format!("{} cannot be read ({error}) and is discarded", file.display()))?,
        };
        let is_ours = kept.owner == Owner::of(name, node);
        is_ours.then_some(Some(kept)).ok_or_else(|| {
            format!("{} is of another node, or of another podCIDR, and is discarded", file.display())
        })
    }

    /// Keeps it in `folder`, which is made if need be.
    ///
    /// # Errors
    /// When it cannot be written; it names the file.
    pub fn write(&self, folder: &Path) -> Result<(), String> {
        let file = file(folder);
        let text = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        system::write_whole(&file, &text)
            .map_err(|error| format!("{} cannot be written: {error}", file.display()))
    }

    /// The MACs.
    pub(super) fn vteps(&self) -> Vteps {
        let mac = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<Mac>().ok());
        Vteps { mac_v4: mac(&self.vtep_mac), mac_v6: mac(&self.vtep_mac_v6) }
    }
}

fn file(folder: &Path) -> PathBuf {
    folder.join("node.json")
}
