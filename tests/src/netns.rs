//! Network namespaces with names that carry the id of the process that made them.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, anyhow};

use crate::process::run;

const PREFIX: &str = "wl";
const TOOLS: [&str; 5] = ["ip", "bridge", "nft", "sysctl", "ping"];
const NETNS_DIR: &str = "/var/run/netns";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// One named network namespace; dropping it ends the processes in it and removes it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes a namespace named `wl<pid>-<n>-<role>`, with its loopback up and no IPv6 address checks to wait for.
    ///
    /// # Errors
    /// When `ip netns` cannot make it.
    pub fn new(role: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        let netns = Self { name };
        netns.sysctl("net.ipv6.conf.all.accept_dad", "0")?;
        netns.sysctl("net.ipv6.conf.default.accept_dad", "0")?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The namespace's name, as `ip netns` lists it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for the namespace.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// A command that runs inside the namespace.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Runs `ip <words>` inside the namespace and gives what it prints.
    ///
    /// # Errors
    /// When `ip` refuses.
    pub fn ip(&self, words: &str) -> Result<String> {
        run(Command::new("ip").args(["-n", &self.name]).args(words.split_whitespace()))
    }

    /// Runs a whole command line inside the namespace and gives what it prints.
    ///
    /// # Errors
    /// When it cannot be started or fails.
    pub fn exec(&self, line: &str) -> Result<String> {
        let mut words = line.split_whitespace();
        run(self.command(words.next().unwrap_or_default()).args(words))
    }

    /// A listening socket of this process inside the namespace.
    ///
    /// # Errors
    /// When the address cannot be bound there.
    #[cfg(target_os = "linux")]
    pub fn listen(&self, addr: SocketAddr) -> Result<TcpListener> {
        let path = self.path();
        // A socket stays in the namespace that its thread was in when it was made.
        let bound = std::thread::spawn(move || -> Result<TcpListener> {
            nix::sched::setns(fs::File::open(path)?, nix::sched::CloneFlags::CLONE_NEWNET)?;
            Ok(TcpListener::bind(addr)?)
        });
        let bound = bound.join().map_err(|_| anyhow!("the binding thread panicked"))?;
        bound.with_context(|| format!("binding {addr} in {}", self.name))
    }

    /// There are no namespaces here.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn listen(&self, addr: SocketAddr) -> Result<TcpListener> {
        Err(anyhow!("binding {addr} in {}: only Linux has namespaces", self.name))
    }

    /// Sets one sysctl inside the namespace.
    ///
    /// # Errors
    /// When the key is unknown or the value refused.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        run(self.command("sysctl").arg("-qw").arg(format!("{key}={value}"))).map(drop)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Why privileged tests cannot run here, if they cannot.
#[must_use]
pub fn missing_ability() -> Option<String> {
    if run(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() != "0") {
        return Some("network namespaces need root".to_owned());
    }
    if let Some(tool) = TOOLS.iter().find(|tool| !on_path(tool)) {
        return Some(format!("`{tool}` is not installed (.ci/install installs what the tests use)"));
    }
    let probe = format!("{PREFIX}{}-{}-probe", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    if let Err(error) = run(Command::new("ip").args(["netns", "add", &probe])) {
        return Some(format!("network namespaces cannot be made: {error:#}"));
    }
    remove(&probe);
    None
}

/// Whether a program of that name lies in a directory of PATH.
#[must_use]
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A folder for a test's files, named like the namespaces and gone when dropped.
///
/// # Errors
/// When it cannot be made.
pub fn scratch_folder(role: &str) -> Result<tempfile::TempDir> {
    let prefix = format!("{PREFIX}{}-{role}-", std::process::id());
    tempfile::Builder::new().prefix(&prefix).tempdir().context("a scratch folder")
}

/// Removes the namespaces and folders of test processes that are dead, and ends what still runs in the namespaces.
///
/// # Errors
/// When they cannot be listed.
pub fn sweep_dead_runs() -> Result<()> {
    let names = run(Command::new("ip").args(["netns", "list"]))?;
    for name in names.lines().filter_map(|line| line.split_whitespace().next()) {
        if of_dead_run(name) {
            remove(name);
        }
    }
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if entry.file_name().to_str().is_some_and(of_dead_run) {
            // Another test process may be sweeping the same folder.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

fn of_dead_run(name: &str) -> bool {
    maker(name).is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

fn maker(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Best effort: a namespace that is already gone, or a process that ended meanwhile, is what was wanted.
fn remove(name: &str) {
    let inside = run(Command::new("ip").args(["netns", "pids", name])).unwrap_or_default();
    for pid in inside.split_whitespace() {
        let _ = run(Command::new("kill").args(["-KILL", pid]));
    }
    let _ = run(Command::new("ip").args(["netns", "del", name]));
}

#[cfg(test)]
mod tests {
    use super::maker;

    #[test]
    fn only_names_with_a_pid_are_swept() {
        assert_eq!(maker("wl4711-3-wire"), Some(4711));
        assert_eq!(maker("wlan0"), None);
        assert_eq!(maker("cni-4711-a"), None);
    }
}
