//! A node that runs the real windlass.exe, under wine.
//!
//! wine has neither the Wintun driver nor IP Helper's newer calls. A stand-in for wintun.dll (tests/stand-ins) carries
//! packets by UDP to `windlass-tun-bridge`, which moves them in and out of a real TUN device of the node's namespace; a
//! stand-in for IP Helper, part of windlass.exe, only says in the log what it was asked for, and [`WindowsNode`] carries
//! that out with `ip`. Pods are behind a Linux bridge, where a Windows node has an HNS network of the type L2Bridge.

mod service;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::netns::{Netns, on_path, scratch_folder};
use crate::node::DEVICE;
use crate::objects::Objects;
use crate::process::{Guarded, run, wait_until};
use crate::topology::{Host, OVERLAY_MTU};

pub use service::WindowsService;

/// Names the folder that .ci/windows makes: windlass.exe, the stand-in beside it, and a wine prefix to copy.
const FOLDER: &str = "WINDLASS_WINDOWS";

/// wine starts a dozen services of its own first.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// UDP port on loopback between the stand-in and the bridge.
const BRIDGE_PORT: &str = "47890";

/// What every call of IP Helper's stand-in begins with in the log.
const RECORDED: &str = "stand-in for IP Helper: ";

/// Why no Windows node can run here, if none can.
#[must_use]
pub fn missing_ability() -> Option<String> {
    match folder() {
        _ if !on_path("wine") => Some("`wine` is not installed (.ci/windows installs it)".to_owned()),
        Ok(_) => None,
        Err(why) => Some(format!("{why:#}")),
    }
}

fn folder() -> Result<PathBuf> {
    let folder =
        std::env::var_os(FOLDER).context("no windlass.exe (.ci/windows builds it and runs this test)")?;
    let folder = PathBuf::from(folder);
    for file in ["windlass.exe", "wintun.dll", "prefix"] {
        ensure!(folder.join(file).exists(), "{} has no {file}", folder.display());
    }
    Ok(folder)
}

/// A namespace in which windlass.exe runs. Dropped without [`WindowsNode::stop`], it shows its log.
#[derive(Debug)]
pub struct WindowsNode<'a> {
    host: &'a Host,
    root: tempfile::TempDir,
    /// How many calls were carried out.
    done: usize,
    process: Guarded,
    _bridge: Guarded,
    stopped: bool,
}

impl<'a> WindowsNode<'a> {
    /// Starts windlass.exe on that node with `bridge`, the program windlass-tun-bridge, and waits until it forwards.
    ///
    /// # Errors
    /// When it ends, or is not up within two minutes; the error carries its log.
    pub fn start(host: &'a Host, objects: &Objects, bridge: &str, flags: &[&str]) -> Result<Self> {
        let root = node_folder(objects)?;
        let bridge = start_bridge(host, bridge)?;
        let process = Guarded::spawn(&mut windlass_run(host, root.path(), flags)?)?;
        let mut node = Self { host, root, done: 0, process, _bridge: bridge, stopped: false };
        node.wait_until_up()?;
        Ok(node)
    }

    /// The folder whose manifests it follows.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// What it has said so far on both outputs.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.root.path().join("log")).unwrap_or_default()
    }

    /// Asks the running node with another subcommand, such as `show drops`, over its admin pipe.
    ///
    /// # Errors
    /// When it cannot be run, or ends with another exit code than 0.
    pub fn ask(&self, arguments: &[&str]) -> Result<String> {
        run(windlass(self.host, self.root.path())?.args(arguments))
    }

    /// Everything that IP Helper was asked for, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        recorded(&self.log())
    }

    /// Carries out what IP Helper was asked for since.
    ///
    /// # Errors
    /// When a call is unknown or `ip` refuses.
    pub fn carry_out(&mut self) -> Result<()> {
        let calls = self.calls();
        for call in &calls[self.done..] {
            carry_out(&self.host.netns, call).with_context(|| call.clone())?;
        }
        self.done = calls.len();
        Ok(())
    }

    /// Waits until the log holds these words on one line.
    ///
    /// # Errors
    /// When it ends first, or does not say so within two minutes.
    pub fn wait_for(&mut self, words: &str) -> Result<()> {
        wait_until(&format!("windlass.exe to say {words:?}"), START_LIMIT, || {
            if let Some(code) = self.process.exit_code()? {
                bail!("windlass.exe ended with code {code}:\n{}", self.log());
            }
            Ok(self.log().lines().any(|line| line.contains(words)))
        })
    }

    /// Presses Ctrl-C and expects exit code 0, and nothing left on the adapter; gives the calls of the whole run.
    ///
    /// # Errors
    /// When it does not end, ends otherwise, or leaves an address or a route.
    pub fn stop(mut self) -> Result<Vec<String>> {
        self.process.signal("INT")?;
        let code = self.process.wait(STOP_LIMIT)?;
        ensure!(code == 0, "ended with code {code} after Ctrl-C");
        self.carry_out()?;
        expect_nothing_left(self.host)?;
        self.stopped = true;
        Ok(self.calls())
    }

    fn wait_until_up(&mut self) -> Result<()> {
        self.wait_for("forwarding")?;
        forward(self.host)?;
        self.carry_out()
    }
}

impl Drop for WindowsNode<'_> {
    fn drop(&mut self) {
        if !self.stopped {
            // What it counts says more than its log when packets are missing.
            let counters = self.ask(&["show", "counters"]).unwrap_or_else(|error| format!("{error:#}"));
            eprintln!("--- log of windlass.exe on {}:\n{}\n{counters}", self.host.spec.name, self.log());
        }
    }
}

/// windlass.exe in the node's namespace and wine prefix.
fn windlass(host: &Host, root: &Path) -> Result<Command> {
    let mut command = wine(host, root, "wine");
    command.arg(folder()?.join("windlass.exe"));
    Ok(command)
}

/// One of wine's programs in the node's namespace and wine prefix.
fn wine(host: &Host, root: &Path, program: &str) -> Command {
    let mut command = host.netns.command(program);
    command.env("WINEPREFIX", root.join("prefix")).env("WINEDEBUG", "-all").stdin(Stdio::null());
    command
}

fn windlass_run(host: &Host, root: &Path, flags: &[&str]) -> Result<Command> {
    let log = File::create(root.join("log"))?;
    let mut command = windlass(host, root)?;
    command
        .args(["run", "--node", host.spec.name, "--manifests"])
        .arg(root.join("manifests"))
        // The bridge has made the adapter's interface already.
        .args(["--ignore", "device-name"])
        .args(flags)
        .env("WINTUN_STAND_IN_PORT", BRIDGE_PORT)
        .stdout(log.try_clone()?)
        .stderr(log);
    Ok(command)
}

/// A new folder with the manifests of a node, and a wine prefix.
fn node_folder(objects: &Objects) -> Result<tempfile::TempDir> {
    let root = scratch_folder("windows")?;
    copy_prefix(&folder()?.join("prefix"), &root.path().join("prefix"))?;
    fs::create_dir(root.path().join("manifests"))?;
    objects.write(&root.path().join("manifests"))?;
    Ok(root)
}

/// Starts what moves packets between the stand-in for wintun.dll and the node's namespace.
fn start_bridge(host: &Host, program: &str) -> Result<Guarded> {
    let mtu = OVERLAY_MTU.to_string();
    Guarded::spawn_ready(host.netns.command(program).args([DEVICE, &mtu, BRIDGE_PORT]))
}

/// What SetIpInterfaceEntry's forwarding is on Linux.
fn forward(host: &Host) -> Result<()> {
    for setting in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        host.netns.sysctl(setting, "1")?;
    }
    host.netns.sysctl(&format!("net.ipv4.conf.{DEVICE}.rp_filter"), "2")?;
    host.netns.ip(&format!("link set {DEVICE} up")).map(drop)
}

/// What IP Helper's stand-in says in a log that it was asked for.
fn recorded(log: &str) -> Vec<String> {
    // The last line may be half written.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    whole.lines().filter_map(|line| line.split_once(RECORDED)).map(|(_, call)| call.to_owned()).collect()
}

fn expect_nothing_left(host: &Host) -> Result<()> {
    let left = host.netns.ip(&format!("-4 route show dev {DEVICE}"))?;
    ensure!(left.trim().is_empty(), "routes left behind: {left}");
    let left = host.netns.ip(&format!("-4 -o addr show dev {DEVICE}"))?;
    ensure!(left.trim().is_empty(), "addresses left behind: {left}");
    Ok(())
}

/// Each node has a wine server of its own, as sockets are the server's and so of its namespace. Files that wine only
/// reads are shared with the template where the file system lets them.
fn copy_prefix(template: &Path, copy: &Path) -> Result<()> {
    let cp = |flags: &str| run(Command::new("cp").arg(flags).arg(template).arg(copy));
    if cp("-al").is_err() {
        let _ = fs::remove_dir_all(copy);
        cp("-a")?;
    }
    for registry in ["system.reg", "user.reg", "userdef.reg"] {
        let (from, to) = (template.join(registry), copy.join(registry));
        fs::remove_file(&to)?;
        fs::copy(from, to)?;
    }
    Ok(())
}

/// Does with `ip` what a call of IP Helper's would have done.
fn carry_out(netns: &Netns, call: &str) -> Result<()> {
    let words: Vec<&str> = call.split_whitespace().collect();
    let line = match words.as_slice() {
        ["SetIpInterfaceEntry", _, "mtu", mtu, ..] => format!("link set {DEVICE} mtu {mtu}"),
        ["CreateUnicastIpAddressEntry", net] => format!("addr add {net} dev {DEVICE}"),
        ["DeleteUnicastIpAddressEntry", net] => format!("addr del {net} dev {DEVICE}"),
        ["CreateIpForwardEntry2", net] => format!("route add {net} dev {DEVICE}"),
        ["DeleteIpForwardEntry2", net] => format!("route del {net} dev {DEVICE}"),
        _ => bail!("a call that is not known here"),
    };
    netns.ip(&line).map(drop)
}
