//! The few things of the operating system that control itself asks for.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// The node's name unless configured: NODE_NAME, as a DaemonSet sets it, else the host name in lower case.
pub fn node_name() -> Option<String> {
    let variable = |name| std::env::var(name).ok();
    let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = variable("NODE_NAME").or_else(host_name).or_else(|| variable("COMPUTERNAME"))?;
    Some(name.trim().to_lowercase()).filter(|name| !name.is_empty())
}

/// Where is kept what outlives a run, unless configured.
#[cfg(not(windows))]
pub fn state_dir() -> Option<PathBuf> {
    Some("/var/lib/windlass".into())
}

/// Where is kept what outlives a run, unless configured; `None` where the environment does not say.
#[cfg(windows)]
pub fn state_dir() -> Option<PathBuf> {
    std::env::var_os("ProgramData").map(|folder| PathBuf::from(folder).join("windlass"))
}

/// What tells one state of a file from another beside its length and path: which file it is, and when its
/// content, name or rights last changed, in seconds and nanoseconds.
#[cfg(unix)]
pub fn file_stamp(metadata: &std::fs::Metadata) -> [i64; 6] {
    use std::os::unix::fs::MetadataExt;
    [
        metadata.dev().cast_signed(),
        metadata.ino().cast_signed(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ]
}

/// What tells one state of a file from another beside its length and path: when it last changed.
#[cfg(not(unix))]
pub fn file_stamp(metadata: &std::fs::Metadata) -> [i64; 6] {
    let changed = metadata.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let at = changed.unwrap_or_default();
    [0, 0, at.as_secs().cast_signed(), i64::from(at.subsec_nanos()), 0, 0]
}

/// Writes a file that everybody may read, so that whoever reads it finds either the old text or the whole new
/// one, also after a power cut. Its folder is made if need be.
///
/// # Errors
/// When the system refuses; the old file stays then.
pub fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    replace(path, text, 0o644, true)
}

/// The same for a file that its owner alone may read. One that need not outlive a power cut costs the disk less.
///
/// # Errors
/// As [`write_whole`].
pub fn write_private(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<()> {
    replace(path, bytes, 0o600, is_durable)
}

fn replace(path: &Path, bytes: &[u8], mode: u32, is_durable: bool) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = path.with_extension("new");
    let replaced = write_new(&aside, bytes, mode, is_durable).and_then(|()| fs::rename(&aside, path));
    if replaced.is_err() {
        // On a full disk it would be in the way; where it was never made, there is nothing to remove.
        let _ = fs::remove_file(&aside);
    }
    replaced
}

fn write_new(path: &Path, bytes: &[u8], mode: u32, is_durable: bool) -> io::Result<()> {
    let mut file = File::create(path)?;
    set_mode(&file, mode)?;
    file.write_all(bytes)?;
    if is_durable { file.sync_all() } else { Ok(()) }
}

#[cfg(unix)]
fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn set_mode(_file: &File, _mode: u32) -> io::Result<()> {
    Ok(())
}

/// A moment on this host's own clock, which no time service sets and a restart of the host ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMoment {
    /// The run of the host.
    boot: String,
    /// How long it has run.
    uptime: Duration,
}

impl HostMoment {
    /// This moment; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()?;
        Some(Self { boot, uptime: Duration::try_from_secs_f64(uptime).ok()? })
    }

    /// How long after `earlier` this is; `None` when the host was started in between.
    pub fn since(&self, earlier: &Self) -> Option<Duration> {
        let is_same = self.boot == earlier.boot;
        is_same.then(|| self.uptime.saturating_sub(earlier.uptime))
    }
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, or Ctrl-C.
    Interrupt,
    /// SIGTERM; on Windows the end of the console, of the service or of the system.
    Terminate,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// SIGINT and SIGTERM, caught from the moment this exists, so that none is lost while the host is set up.
pub struct Signals {
    runtime: tokio::runtime::Runtime,
    listeners: Listeners,
}

impl Signals {
    /// Starts catching.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let listeners = Listeners::install()?;
        drop(guard);
        Ok(Self { runtime, listeners })
    }

    /// Whether one has come, which is taken note of and forgotten.
    pub fn have_come(&mut self) -> bool {
        let Self { runtime, listeners } = self;
        runtime.block_on(async {
            // Long enough for the runtime to hear of them.
            tokio::time::timeout(Duration::from_millis(1), listeners.next()).await.is_ok()
        })
    }

    /// Sleeps until one comes, or until `well`, asked `every` so often and at each `wake`, says no.
    pub fn wait_while(
        self,
        every: Duration,
        wake: &Notify,
        mut well: impl FnMut() -> bool,
    ) -> Option<Signal> {
        let Self { runtime, mut listeners } = self;
        runtime.block_on(async move {
            while well() {
                tokio::select! {
                    signal = listeners.next() => return Some(signal),
                    () = wake.notified() => {}
                    () = tokio::time::sleep(every) => {}
                }
            }
            None
        })
    }
}

#[cfg(unix)]
struct Listeners {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Listeners {
    fn install() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The next one that comes; none is lost when nobody waits for it any more.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
        }
    }
}

/// The stop of a service, which Windows tells by a call and not by a signal.
#[cfg(windows)]
static STOPPED: Notify = Notify::const_new();

/// Ends the run of this process as SIGTERM does elsewhere.
#[cfg(windows)]
pub fn stop() {
    STOPPED.notify_one();
}

/// Each lives as long as this does: while there is none, Windows ends the process at once.
#[cfg(windows)]
struct Listeners {
    key: tokio::signal::windows::CtrlC,
    pause: tokio::signal::windows::CtrlBreak,
    /// The console's window closes.
    close: tokio::signal::windows::CtrlClose,
    /// Windows ends.
    shutdown: tokio::signal::windows::CtrlShutdown,
}

#[cfg(windows)]
impl Listeners {
    fn install() -> io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        Ok(Self { key: ctrl_c()?, pause: ctrl_break()?, close: ctrl_close()?, shutdown: ctrl_shutdown()? })
    }

    /// The next one that comes; none is lost when nobody waits for it any more.
    async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.key.recv() => Signal::Interrupt,
            _ = self.pause.recv() => Signal::Interrupt,
            _ = self.close.recv() => Signal::Terminate,
            _ = self.shutdown.recv() => Signal::Terminate,
            () = STOPPED.notified() => Signal::Terminate,
        }
    }
}
