//! Settings below /proc/sys: changed, remembered, restored.
//!
//! What was changed is restored at exit, `ip_forward` too, but only where the value still is the one set here:
//! somebody who has set it since wants it so.

use std::fs;
use std::path::{Path, PathBuf};

use crate::device::host::LinkError;

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    path: String,
    before: String,
    set: String,
}

impl Changed {
    /// Path below /proc/sys.
    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// Sets a value, and returns what it was when that differs.
pub(super) fn set(path: &str, value: &str) -> Result<Option<Changed>, LinkError> {
    let file = file_of(path)?;
    let before =
        read(&file).map_err(|error| LinkError::system(format!("reading {}", file.display()), error))?;
    if before == value {
        return Ok(None);
    }
    let action = || format!("setting {} to {value}", file.display());
    fs::write(&file, value).map_err(|error| LinkError::system(action(), error))?;
    Ok(Some(Changed { path: path.to_owned(), before, set: value.to_owned() }))
}

/// Whether this host has the setting.
pub(super) fn exists(path: &str) -> bool {
    file_of(path).is_ok_and(|file| file.exists())
}

/// Gives settings back what they were, the last changed first. A setting whose interface has gone needs nothing.
pub(super) fn restore(changed: &[Changed]) -> Vec<LinkError> {
    let mut errors = Vec::new();
    for changed in changed.iter().rev() {
        let Ok(file) = file_of(&changed.path) else { continue };
        if read(&file).is_ok_and(|value| value == changed.set)
            && let Err(error) = fs::write(&file, &changed.before)
        {
            errors.push(LinkError::system(format!("restoring {}", file.display()), error));
        }
    }
    errors
}

/// Keeps what was changed in a file, so that the next run can restore it if this one is killed.
pub(super) fn remember(file: &Path, changed: &[Changed]) -> Result<(), LinkError> {
    let failed = |error| LinkError::system(format!("writing {}", file.display()), error);
    if let Some(directory) = file.parent() {
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let line = |changed: &Changed| format!("{} {} {}\n", changed.path, changed.before, changed.set);
    let temporary = file.with_extension("new");
    fs::write(&temporary, changed.iter().map(line).collect::<String>()).map_err(failed)?;
    fs::rename(&temporary, file).map_err(failed)
}

/// What a run that was killed had changed. A line that is not one of ours is passed over.
pub(super) fn remembered(file: &Path) -> Vec<Changed> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(changed_of).collect()
}

fn changed_of(line: &str) -> Option<Changed> {
    let mut words = line.split(' ').map(str::to_owned);
    let changed = Changed { path: words.next()?, before: words.next()?, set: words.next()? };
    words.next().is_none().then_some(changed)
}

fn read(file: &Path) -> std::io::Result<String> {
    fs::read_to_string(file).map(|value| value.trim_end().to_owned())
}

/// Only network settings: a path from a configuration must not reach anything else.
fn file_of(path: &str) -> Result<PathBuf, LinkError> {
    let inside = path.starts_with("net/")
        && path
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && !part.contains(char::is_whitespace));
    match inside {
        true => Ok(Path::new("/proc/sys").join(path)),
        false => Err(LinkError::BadSysctl { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_a_path_out_of_the_network_settings_is_refused() {
        for path in
            ["kernel/core_pattern", "net/../kernel/core_pattern", "/etc/passwd", "net//ipv4", "net/a b"]
        {
            assert!(matches!(set(path, "1"), Err(LinkError::BadSysctl { .. })), "{path}");
        }
    }

    #[test]
    fn torn_lines_of_a_state_file_are_passed_over() {
        assert_eq!(changed_of("net/ipv4/ip_forward 0"), None);
        let changed = changed_of("net/ipv4/ip_forward 0 1").unwrap();
        assert_eq!((changed.before.as_str(), changed.set.as_str()), ("0", "1"));
    }
}
