//! A node that runs the real `windlass run`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use crate::api_server::ApiServer;
use crate::binary;
use crate::netns::{Netns, scratch_folder};
use crate::objects::Objects;
use crate::process::{Guarded, wait_until};
use crate::topology::{
    CLUSTER_CIDR, CLUSTER_CIDR_V6, FAMILIES, Family, Host, SERVICE_CIDR, SERVICE_CIDR_V6, VXLAN_PORT,
};

/// The overlay device's default name.
pub const DEVICE: &str = "windlass0";
/// The default source VIP of IPv4.
pub const SOURCE_VIP: &str = "169.254.77.1";

/// 100,000 services take a while.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOG_LINES_SHOWN: usize = 60;

/// A namespace in which `windlass run` runs. Dropped without [`WindlassNode::stop`], it shows its log.
#[derive(Debug)]
pub struct WindlassNode<'a> {
    host: &'a Host,
    folders: Folders,
    flags: Vec<String>,
    /// The cluster's families.
    families: &'static [Family],
    before: BTreeSet<String>,
    process: Guarded,
    stopped: bool,
}

/// How a run ended that was not to last.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit code; -1 for a death by signal.
    pub code: i32,
    /// What it said on both outputs.
    pub said: String,
}

impl<'a> WindlassNode<'a> {
    /// Starts `windlass run` on that node and waits until its device carries its routes and its port is bound.
    ///
    /// # Errors
    /// When it ends, or is not up within a minute; the error carries its log.
    pub fn start(host: &'a Host, objects: &Objects, flags: &[&str]) -> Result<Self> {
        let mut node = Self::launch(host, Folders::new(objects)?, flags)?;
        node.wait_until_up()?;
        Ok(node)
    }

    /// As [`WindlassNode::start`], with the cluster from an API server.
    ///
    /// # Errors
    /// As [`WindlassNode::start`].
    pub fn join(host: &'a Host, server: &ApiServer, flags: &[&str]) -> Result<Self> {
        let mut node = Self::begin_to_join(host, server, flags)?;
        node.wait_until_up()?;
        Ok(node)
    }

    /// As [`WindlassNode::join`], to a real cluster of IPv4 alone, with that kubeconfig.
    ///
    /// # Errors
    /// As [`WindlassNode::start`].
    pub fn join_real(host: &'a Host, kubeconfig: &Path, flags: &[&str]) -> Result<Self> {
        let mut node = Self::launch(host, Folders::with_kubeconfig(kubeconfig)?, flags)?;
        node.families = &[Family::V4];
        node.wait_until_up()?;
        Ok(node)
    }

    /// Starts it with the cluster from an API server, and does not wait for it to be up.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn begin_to_join(host: &'a Host, server: &ApiServer, flags: &[&str]) -> Result<Self> {
        Self::launch(host, Folders::with_api(server)?, flags)
    }

    /// As [`WindlassNode::start`], with its log going to a pipe that nobody reads.
    ///
    /// # Errors
    /// As [`WindlassNode::start`].
    pub fn start_unread(host: &'a Host, objects: &Objects, flags: &[&str]) -> Result<Self> {
        let mut node = Self::launch_hindered(host, Folders::new(objects)?, flags, Hindrance::UnreadLog)?;
        node.wait_until_up()?;
        Ok(node)
    }

    fn launch(host: &'a Host, folders: Folders, flags: &[&str]) -> Result<Self> {
        Self::launch_hindered(host, folders, flags, Hindrance::None)
    }

    fn launch_hindered(
        host: &'a Host,
        folders: Folders,
        flags: &[&str],
        hindrance: Hindrance,
    ) -> Result<Self> {
        let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
        let before = state_of(&host.netns)?;
        let process = Guarded::spawn(&mut folders.command(host, &flags, hindrance)?)?;
        Ok(Self { host, folders, flags, families: &FAMILIES, before, process, stopped: false })
    }

    /// The node's namespace and data.
    #[must_use]
    pub fn host(&self) -> &'a Host {
        self.host
    }

    /// The process id of its `windlass run`.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The folder whose manifests it follows.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.folders.manifests()
    }

    /// The folder where it keeps what outlives it.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folders.state()
    }

    /// What it has written for the CNI plugin.
    #[must_use]
    pub fn subnet_env(&self) -> String {
        fs::read_to_string(self.subnet_env_path()).unwrap_or_default()
    }

    /// Where it writes that.
    #[must_use]
    pub fn subnet_env_path(&self) -> PathBuf {
        self.folders.run().join("flannel/subnet.env")
    }

    /// What it has said so far on both outputs.
    #[must_use]
    pub fn log(&self) -> String {
        self.folders.log()
    }

    /// Asks the running node with another subcommand, such as `show drops`, over its admin socket.
    ///
    /// # Errors
    /// When the binary cannot be run.
    pub fn ask(&self, arguments: &[&str]) -> Result<Ended> {
        let output = self.asking(arguments)?.output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok(Ended {
            code: output.status.code().unwrap_or(-1),
            said: String::from_utf8_lossy(&said).into_owned(),
        })
    }

    /// Another subcommand that is to ask the running node; the caller may add arguments.
    ///
    /// # Errors
    /// When there is no binary.
    pub fn asking(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary::windlass()?);
        command.args(arguments).arg("--admin-socket").arg(self.folders.run().join("windlass/admin.sock"));
        Ok(command)
    }

    /// Fills the pipe that the log of a node goes to that was started by [`WindlassNode::start_unread`].
    ///
    /// # Errors
    /// When there is no such pipe.
    pub fn stall_log(&self) -> Result<()> {
        let pipe = self.folders.log_pipe();
        ensure!(pipe.exists(), "this node's log goes to a file");
        // Whole pages, and then what is left of the last one; dd ends when the pipe is full.
        for block in ["bs=4096", "bs=1"] {
            let mut dd = Command::new("dd");
            dd.arg(format!("of={}", pipe.display())).args(["if=/dev/zero", "oflag=nonblock", block]);
            dd.stderr(Stdio::null()).status()?;
        }
        Ok(())
    }

    /// Adds a malformed object, another at each call, which the node has to log.
    ///
    /// # Errors
    /// When its file cannot be written.
    pub fn give_cause_to_log(&self) -> Result<()> {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let name = format!("malformed-{}", CALLS.fetch_add(1, Ordering::Relaxed));
        let object = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name } });
        fs::write(self.manifests().join("malformed.json"), object.to_string()).context("a malformed object")
    }

    /// Starts another `windlass run` beside this one, with the same flags, which must refuse and touch nothing.
    ///
    /// # Errors
    /// As [`run_refused`].
    pub fn run_second(&self) -> Result<Ended> {
        refused(self.host, &self.folders, &self.flags, Hindrance::None)
    }

    /// Sends the process a signal by its name, as `STOP` and `CONT`.
    ///
    /// # Errors
    /// When it cannot be delivered.
    pub fn signal(&self, name: &str) -> Result<()> {
        self.process.signal(name)
    }

    /// Ends it without a look at what it leaves, and without showing its log.
    pub fn dismiss(mut self) {
        self.stopped = true;
        // A paused process takes no other signal; one that has ended takes none at all.
        let _ = self.signal("CONT").and_then(|()| self.signal("TERM"));
        let _ = self.process.wait(STOP_LIMIT);
    }

    /// Kills the process with SIGKILL and waits for its end; what it made stays as a crash leaves it.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub fn crash(&mut self) -> Result<()> {
        self.process.signal("KILL")?;
        self.process.wait(STOP_LIMIT).map(drop)
    }

    /// Sends SIGTERM and expects exit code 0; with `--persist`, what it made stays.
    ///
    /// # Errors
    /// When it does not end, or ends otherwise.
    pub fn pause(&mut self) -> Result<()> {
        self.process.signal("TERM")?;
        let code = self.process.wait(STOP_LIMIT)?;
        ensure!(code == 0, "ended with code {code}");
        Ok(())
    }

    /// Runs `windlass cleanup` where the node is, and gives how it ended.
    ///
    /// # Errors
    /// When it cannot be run.
    pub fn cleanup(&self) -> Result<Ended> {
        let before = self.folders.log().len();
        let mut process = Guarded::spawn(&mut self.folders.plain("cleanup", self.host)?)?;
        let code = process.wait(START_LIMIT)?;
        Ok(Ended { code, said: self.folders.log()[before..].to_owned() })
    }

    /// Ends the node's story: what it made is gone, and the host as it was before the first start.
    ///
    /// # Errors
    /// When anything is left or taken.
    pub fn finish(mut self) -> Result<()> {
        expect_unchanged(&self.host.netns, &self.before)?;
        self.stopped = true;
        Ok(())
    }

    /// Starts it again after [`WindlassNode::crash`] or [`WindlassNode::pause`], with the same flags and folders, and waits until it is up.
    ///
    /// # Errors
    /// As [`WindlassNode::start`].
    pub fn start_again(&mut self) -> Result<()> {
        self.restart_without_waiting()?;
        self.wait_until_up()
    }

    /// The same without waiting for it to be up.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_without_waiting(&mut self) -> Result<()> {
        self.process = Guarded::spawn(&mut self.folders.command(self.host, &self.flags, Hindrance::None)?)?;
        Ok(())
    }

    /// The flags of the next [`WindlassNode::start_again`].
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(ToString::to_string).collect();
    }

    /// Sends SIGTERM and expects exit code 0, and the host as it was before the first start.
    ///
    /// # Errors
    /// When it does not end, ends otherwise, or leaves or takes anything.
    pub fn stop(self) -> Result<()> {
        self.stop_by("TERM")
    }

    /// As [`WindlassNode::stop`], by another signal.
    ///
    /// # Errors
    /// As [`WindlassNode::stop`].
    pub fn stop_by(mut self, signal: &str) -> Result<()> {
        self.process.signal(signal)?;
        let code = self.process.wait(STOP_LIMIT)?;
        ensure!(code == 0, "ended with code {code} after SIG{signal}");
        expect_unchanged(&self.host.netns, &self.before)?;
        self.stopped = true;
        Ok(())
    }

    /// Waits until its device carries its routes and its port is bound.
    ///
    /// # Errors
    /// When it ends, or is not up within 10 s.
    pub fn wait_until_up(&mut self) -> Result<()> {
        let (process, folders, netns) = (&mut self.process, &self.folders, &self.host.netns);
        let families = self.families;
        wait_until("`windlass run` to be up", START_LIMIT, || {
            if let Some(code) = process.exit_code()? {
                bail!("`windlass run` ended with code {code}:\n{}", folders.log());
            }
            Ok(families.iter().all(|family| carries_routes(netns, *family)) && port_is_bound(netns))
        })
    }
}

impl Drop for WindlassNode<'_> {
    fn drop(&mut self) {
        if !self.stopped {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
            eprintln!("--- log of windlass on {}:\n{}", self.host.spec.name, shown.join("\n"));
        }
    }
}

/// What keeps a run from working that its flags and objects do not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// Nothing.
    None,
    /// The process lacks CAP_NET_ADMIN.
    NoNetAdmin,
    /// The process lacks CAP_NET_RAW.
    NoNetRaw,
    /// There is no /dev/net/tun.
    NoTun,
    /// Its log goes to a pipe that is held open and never read.
    UnreadLog,
}

impl Hindrance {
    /// Shell words that end in running `"$@"`.
    fn script(self) -> &'static str {
        match self {
            Self::None => r#"exec "$@""#,
            Self::NoNetAdmin => r#"exec setpriv --bounding-set=-net_admin "$@""#,
            Self::NoNetRaw => r#"exec setpriv --bounding-set=-net_raw "$@""#,
            Self::NoTun => r#"mount -t tmpfs none /dev/net && exec "$@""#,
            Self::UnreadLog => {
                r#"mkfifo /run/log && { tail --pid=$$ -f /dev/null </run/log >/dev/null 2>&1 & } && exec "$@" >/run/log 2>&1"#
            }
        }
    }
}

/// Runs `windlass run` where it is expected to refuse, and gives how it ended; it must have touched nothing.
///
/// # Errors
/// When it has not ended within a minute, or changed the host.
pub fn run_refused(host: &Host, objects: &Objects, flags: &[&str], hindrance: Hindrance) -> Result<Ended> {
    let folders = Folders::new(objects)?;
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    refused(host, &folders, &flags, hindrance)
}

/// As [`run_refused`], with the cluster from an API server.
///
/// # Errors
/// As [`run_refused`].
pub fn join_refused(host: &Host, server: &ApiServer, flags: &[&str]) -> Result<Ended> {
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    refused(host, &Folders::with_api(server)?, &flags, Hindrance::None)
}

/// Runs another subcommand with the cluster from an API server, and gives how it ended; it must have touched
/// nothing.
///
/// # Errors
/// When it has not ended within 10 s, or changed the host.
pub fn ask_with_api(host: &Host, server: &ApiServer, subcommand: &str, flags: &[&str]) -> Result<Ended> {
    let folders = Folders::with_api(server)?;
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    ended(host, &folders, folders.subcommand(subcommand, host, &flags, Hindrance::None)?)
}

/// Runs `windlass check` and gives how it ended; it must have touched nothing.
///
/// # Errors
/// When it has not ended within a minute, or changed the host.
pub fn run_check(host: &Host, objects: &Objects, flags: &[&str], hindrance: Hindrance) -> Result<Ended> {
    let folders = Folders::new(objects)?;
    let flags: Vec<String> = flags.iter().map(ToString::to_string).collect();
    ended(host, &folders, folders.subcommand("check", host, &flags, hindrance)?)
}

fn refused(host: &Host, folders: &Folders, flags: &[String], hindrance: Hindrance) -> Result<Ended> {
    ended(host, folders, folders.command(host, flags, hindrance)?)
}

fn ended(host: &Host, folders: &Folders, mut command: Command) -> Result<Ended> {
    let before = state_of(&host.netns)?;
    let mut process = Guarded::spawn(&mut command)?;
    let code = process.wait(START_LIMIT).with_context(|| folders.log())?;
    expect_unchanged(&host.netns, &before)?;
    Ok(Ended { code, said: folders.log() })
}

/// The files of one node: its manifests, and a `/run` of its own, as the nodes share this machine's file system.
#[derive(Debug)]
struct Folders {
    root: tempfile::TempDir,
    /// Where the cluster is read from, as flags.
    source: Vec<OsString>,
}

impl Folders {
    fn new(objects: &Objects) -> Result<Self> {
        let mut folders = Self { root: scratch_folder("node")?, source: Vec::new() };
        fs::create_dir(folders.manifests())?;
        fs::create_dir(folders.run())?;
        objects.write(&folders.manifests())?;
        folders.source = vec!["--manifests".into(), folders.manifests().into()];
        folders.add_state_dir();
        Ok(folders)
    }

    fn with_api(server: &ApiServer) -> Result<Self> {
        let mut folders = Self { root: scratch_folder("node")?, source: Vec::new() };
        let kubeconfig = server.kubeconfig(folders.root.path(), "secret")?;
        folders.join_by(&kubeconfig)?;
        Ok(folders)
    }

    fn with_kubeconfig(kubeconfig: &Path) -> Result<Self> {
        let mut folders = Self { root: scratch_folder("node")?, source: Vec::new() };
        folders.join_by(kubeconfig)?;
        Ok(folders)
    }

    fn join_by(&mut self, kubeconfig: &Path) -> Result<()> {
        fs::create_dir(self.run())?;
        self.source = vec!["--kubeconfig".into(), kubeconfig.into()];
        self.add_state_dir();
        Ok(())
    }

    fn add_state_dir(&mut self) {
        self.source.extend(["--state-dir".into(), self.state().into()]);
    }

    fn state(&self) -> PathBuf {
        self.root.path().join("state")
    }

    fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    fn run(&self) -> PathBuf {
        self.root.path().join("run")
    }

    fn log_path(&self) -> PathBuf {
        self.root.path().join("log")
    }

    fn log_pipe(&self) -> PathBuf {
        self.run().join("log")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn command(&self, host: &Host, flags: &[String], hindrance: Hindrance) -> Result<Command> {
        self.subcommand("run", host, flags, hindrance)
    }

    fn subcommand(
        &self,
        subcommand: &str,
        host: &Host,
        flags: &[String],
        hindrance: Hindrance,
    ) -> Result<Command> {
        let mut command = self.with_own_run(host, hindrance)?;
        command.args([subcommand, "--node", host.spec.name]).args(&self.source).args(flags);
        Ok(command)
    }

    /// A subcommand that takes no settings.
    fn plain(&self, subcommand: &str, host: &Host) -> Result<Command> {
        let mut command = self.with_own_run(host, Hindrance::None)?;
        command.arg(subcommand);
        Ok(command)
    }

    /// The binary with this node's `/run`, yet without arguments.
    fn with_own_run(&self, host: &Host, hindrance: Hindrance) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log_path())?;
        let mut command = host.netns.command("sh");
        // `ip netns exec` gives every program its own mounts, so this /run is seen by windlass alone.
        command
            .args(["-c", &format!("mount --bind \"$0\" /run && {}", hindrance.script())])
            .arg(self.run())
            .arg(binary::windlass()?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }
}

fn carries_routes(netns: &Netns, family: Family) -> bool {
    let (flag, cidrs) = match family {
        Family::V4 => ("-4", [CLUSTER_CIDR, SERVICE_CIDR]),
        Family::V6 => ("-6", [CLUSTER_CIDR_V6, SERVICE_CIDR_V6]),
    };
    let routes = netns.ip(&format!("{flag} route show dev {DEVICE}")).unwrap_or_default();
    cidrs.iter().all(|cidr| routes.contains(cidr))
}

fn port_is_bound(netns: &Netns) -> bool {
    let port = format!(":{VXLAN_PORT:04X} ");
    netns.exec("cat /proc/net/udp /proc/net/udp6").is_ok_and(|sockets| sockets.contains(&port))
}

/// Everything of the host that Windlass may touch, one fact a line: devices, addresses, routes, rules, filters, sysctls.
fn state_of(netns: &Netns) -> Result<BTreeSet<String>> {
    let mut facts = BTreeSet::new();
    for words in ["-o addr show", "-4 route show table all", "-6 route show table all", "-4 rule", "-6 rule"]
    {
        facts.extend(netns.ip(words)?.lines().map(|line| format!("ip {words}: {line}")));
    }
    let devices = netns.ip("-o link show")?;
    facts.extend(
        devices.lines().filter_map(|line| line.split(": ").nth(1)).map(|name| format!("device {name}")),
    );
    facts.extend(netns.exec("nft --stateless list ruleset")?.lines().map(|line| format!("nft: {line}")));
    // Some keys cannot be read; sysctl says so on stderr and by its status, and prints the others.
    let settings = netns.command("sysctl").args(["-a", "--pattern", SYSCTLS]).output()?;
    facts.extend(String::from_utf8_lossy(&settings.stdout).lines().map(str::to_owned));
    Ok(facts)
}

const SYSCTLS: &str = r"^net\.(ipv4\.(ip_forward|conf)|ipv6\.conf|core\.[rw]mem)";

fn expect_unchanged(netns: &Netns, before: &BTreeSet<String>) -> Result<()> {
    let after = state_of(netns)?;
    let left: Vec<_> = after.difference(before).collect();
    let taken: Vec<_> = before.difference(&after).collect();
    ensure!(left.is_empty() && taken.is_empty(), "left behind: {left:#?}\ntaken away: {taken:#?}");
    Ok(())
}
