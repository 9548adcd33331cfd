//! The few things of the operating system that control itself asks for.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use tokio::sync::Notify;

/// The node's name unless configured: NODE_NAME, as a DaemonSet sets it, else the host name in lower case.
pub fn node_name() -> Option<String> {
    let variable = |name| std::env::var(name).ok();
    let host_name = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = variable("NODE_NAME").or_else(host_name).or_else(|| variable("COMPUTERNAME"))?;
    Some(name.trim().to_lowercase()).filter(|name| !name.is_empty())
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
/// one. Its folder is made if need be.
///
/// # Errors
/// When the system refuses; the old file stays then.
pub fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let aside = path.with_extension("new");
    let mut file = File::create(&aside)?;
    file.write_all(text)?;
    make_readable(&file)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&aside, path)
}

#[cfg(unix)]
fn make_readable(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_file: &File) -> io::Result<()> {
    Ok(())
}

/// Why a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT, or Ctrl-C.
    Interrupt,
    /// SIGTERM; on Windows the end of the console or of the system.
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
        }
    }
}
