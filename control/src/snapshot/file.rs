//! One file: a line that names its version, length and checksum, then whose it is, then what it holds.

use std::io;
use std::path::{Path, PathBuf};

use super::SnapshotError;
use crate::registration::Owner;
use crate::system;

/// The first word of every snapshot.
const MAGIC: &str = "windlass-snapshot";

/// A kind of snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    /// The file's name.
    pub(super) name: &'static str,
    /// Changes whenever what older releases wrote can no longer be read.
    pub(super) version: u32,
    /// Whether it is to outlive a power cut.
    pub(super) is_durable: bool,
}

impl Format {
    /// Where it lies in `folder`.
    pub(super) fn path(&self, folder: &Path) -> PathBuf {
        folder.join(self.name)
    }

    /// Writes `content`, which is `owner`'s, in place of what the file held.
    pub(super) fn write(&self, folder: &Path, owner: &Owner, content: &[u8]) -> Result<(), SnapshotError> {
        let file = self.path(folder);
        let unwritable = |source| SnapshotError::Unwritable { file: file.clone(), source };
        let mut body = serde_json::to_vec(owner).map_err(|error| unwritable(error.into()))?;
        body.push(b'\n');
        body.extend_from_slice(content);
        let head = format!("{MAGIC} {} {} {:016x}\n", self.version, body.len(), checksum(&body));
        let bytes = [head.as_bytes(), &body].concat();
        system::write_private(&file, &bytes, self.is_durable).map_err(unwritable)
    }

    /// What the file holds, and whose it is; `None` when there is none.
    pub(super) fn read(&self, folder: &Path) -> Result<Option<(Owner, Vec<u8>)>, SnapshotError> {
        let file = self.path(folder);
        let bytes = match std::fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SnapshotError::Unreadable { file, source }),
            Ok(bytes) => bytes,
        };
        self.parse(&bytes, file).map(Some)
    }

    fn parse(&self, bytes: &[u8], file: PathBuf) -> Result<(Owner, Vec<u8>), SnapshotError> {
        let damaged = |what: &str| SnapshotError::Damaged { file: file.clone(), what: what.to_owned() };
        let (head, body) = split_line(bytes).ok_or_else(|| damaged("it has no first line"))?;
        let head = String::from_utf8_lossy(head);
        let words: Vec<&str> = head.split(' ').collect();
        let [MAGIC, version, len, sum] = words.as_slice() else {
            return Err(damaged("its first line is not a snapshot's"));
        };
        match version.parse() {
            Ok(found) if found == self.version => {}
            Ok(found) => return Err(SnapshotError::OtherVersion { file, found, known: self.version }),
            Err(_) => return Err(damaged("its version is no number")),
        }
        if len.parse() != Ok(body.len()) {
            return Err(damaged("it has another length than it says"));
        }
        if u64::from_str_radix(sum, 16) != Ok(checksum(body)) {
            return Err(damaged("its checksum is wrong"));
        }
        let (owner, content) = split_line(body).ok_or_else(|| damaged("it names no owner"))?;
        let owner = serde_json::from_slice(owner).map_err(|error| damaged(&error.to_string()))?;
        Ok((owner, content.to_vec()))
    }
}

/// What stands before the first line's end, and what behind it.
pub(super) fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// FNV-1a of 64 bits (Fowler, Noll and Vo): against torn writes, not against people, who cannot write here without being root.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
