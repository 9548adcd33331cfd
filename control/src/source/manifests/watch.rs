//! Notices that manifests have changed, by looking.
//!
//! A look asks the file system about each file, a few microseconds' work. It sees what notifications (inotify)
//! miss or need care for: renames over a file, the `..data` link that a mounted ConfigMap swaps, network and
//! overlay file systems, a folder that is removed and made again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::system;

/// Looks that may find ever new content before it is read all the same: a file that is written for ever must
/// not keep the others' changes out.
const UNSETTLED_LOOKS: u32 = 3;

/// The manifests as they were read last.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<PathBuf>,
    read: Look,
    /// What the last look found, if it was not `read`, and how many looks ago it began to differ.
    pending: Option<(Look, u32)>,
}

impl Watch {
    /// The manifests as they are. To be made before they are read, so that nothing is missed in between.
    pub fn new(paths: &[PathBuf]) -> Self {
        Self { paths: paths.to_vec(), read: Look::at(paths), pending: None }
    }

    /// Looks again; true when the manifests have changed and were the same at the look before, so that a file
    /// is not read half-written. The caller reads them then.
    pub fn has_changed(&mut self) -> bool {
        let found = Look::at(&self.paths);
        if found == self.read {
            self.pending = None;
            return false;
        }
        match self.pending.take() {
            Some((last, looks)) if last == found || looks >= UNSETTLED_LOOKS => {
                self.read = found;
                true
            }
            last => {
                let looks = last.map_or(1, |(_, looks)| looks + 1);
                self.pending = Some((found, looks));
                false
            }
        }
    }
}

/// Every file and what tells its states apart; `None` for what is not there.
#[derive(Debug, PartialEq, Eq)]
struct Look(BTreeMap<PathBuf, Option<FileState>>);

/// What tells a file's states apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileState {
    /// Where links lead.
    resolved: PathBuf,
    len: u64,
    stamp: [i64; 6],
}

impl Look {
    fn at(paths: &[PathBuf]) -> Self {
        let mut files = BTreeMap::new();
        for path in paths {
            match super::files(path) {
                Ok(found) if found != [path.as_path()] => {
                    files.insert(path.clone(), None);
                    files.extend(found.into_iter().map(|file| (file.clone(), FileState::of(&file))));
                }
                _ => {
                    files.insert(path.clone(), FileState::of(path));
                }
            }
        }
        Self(files)
    }
}

impl FileState {
    /// That of the file as it is; `None` when nobody can say.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let resolved = std::fs::canonicalize(file).ok()?;
        let metadata = std::fs::metadata(&resolved).ok()?;
        Some(Self { resolved, len: metadata.len(), stamp: system::file_stamp(&metadata) })
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> std::io::Result<(tempfile::TempDir, Watch)> {
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("a.yaml"), "a: 1")?;
        let watch = Watch::new(&[folder.path().to_owned()]);
        Ok((folder, watch))
    }

    /// A change is taken at the second look that finds it, once.
    fn assert_taken_once(watch: &mut Watch) {
        let looks: Vec<_> = (0..4).map(|_| watch.has_changed()).collect();
        assert_eq!(looks, [false, true, false, false]);
    }

    #[test]
    fn a_file_edited_in_place_with_the_same_length_is_seen() {
        let (folder, mut watch) = folder().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(folder.path().join("a.yaml"), "a: 2").unwrap();
        assert_taken_once(&mut watch);
    }

    #[test]
    fn a_file_renamed_over_another_is_seen() {
        let (folder, mut watch) = folder().unwrap();
        fs::write(folder.path().join(".a.swp"), "a: 2").unwrap();
        assert!(!watch.has_changed() && !watch.has_changed(), "the editor's own file does not matter");
        fs::rename(folder.path().join(".a.swp"), folder.path().join("a.yaml")).unwrap();
        assert_taken_once(&mut watch);
    }

    #[test]
    fn files_added_to_and_removed_from_a_folder_are_seen() {
        let (folder, mut watch) = folder().unwrap();
        fs::write(folder.path().join("b.json"), "{}").unwrap();
        assert_taken_once(&mut watch);
        fs::remove_file(folder.path().join("a.yaml")).unwrap();
        assert_taken_once(&mut watch);
    }

    #[test]
    fn a_configmap_whose_data_link_is_swapped_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["..1", "..2"] {
            fs::create_dir(folder.path().join(version)).unwrap();
            fs::write(folder.path().join(version).join("a.yaml"), "a: 1").unwrap();
        }
        symlink("..1", folder.path().join("..data")).unwrap();
        symlink("..data/a.yaml", folder.path().join("a.yaml")).unwrap();
        let paths = [folder.path().join("a.yaml"), folder.path().to_owned()];
        for path in paths {
            let mut watch = Watch::new(&[path]);
            symlink("..2", folder.path().join("..data_tmp")).unwrap();
            fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
            assert_taken_once(&mut watch);
            symlink("..1", folder.path().join("..data_tmp")).unwrap();
            fs::rename(folder.path().join("..data_tmp"), folder.path().join("..data")).unwrap();
        }
    }

    #[test]
    fn a_file_that_is_written_for_ever_is_read_in_the_end() {
        let (folder, mut watch) = folder().unwrap();
        let taken = (0..10).filter(|round| {
            fs::write(folder.path().join("a.yaml"), "a".repeat(round + 10)).unwrap();
            watch.has_changed()
        });
        assert_eq!(taken.count(), 2);
    }

    #[test]
    fn a_folder_that_goes_and_comes_back_is_seen() {
        let (folder, mut watch) = folder().unwrap();
        fs::remove_dir_all(folder.path()).unwrap();
        assert_taken_once(&mut watch);
        fs::create_dir(folder.path()).unwrap();
        fs::write(folder.path().join("a.yaml"), "a: 1").unwrap();
        assert_taken_once(&mut watch);
    }
}
