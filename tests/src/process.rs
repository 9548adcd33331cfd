//! Commands that are waited for, and child processes that never outlive their owner.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Runs a command to its end and gives its standard output.
///
/// # Errors
/// When it cannot be started or exits with anything but 0; the error carries both of its outputs.
pub fn run(command: &mut Command) -> Result<String> {
    run_with_input(command, "")
}

/// As [`run`], with `input` on standard input.
///
/// # Errors
/// As [`run`].
pub fn run_with_input(command: &mut Command, input: &str) -> Result<String> {
    let shown = shown(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that never reads its input closes the pipe; its exit status says what counts.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().with_context(|| format!("lost `{shown}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{shown}` ended with {}: {}{}", output.status, stdout.trim(), stderr.trim());
    }
    Ok(stdout)
}

/// The command as one would type it.
#[must_use]
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Asks `ready` every 20 ms until it says true.
///
/// # Errors
/// What `ready` returns, or that `what` did not come within `limit`.
pub fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !ready()? {
        if Instant::now() > deadline {
            bail!("waited {limit:?} for {what}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A child process that is killed and reaped when it is dropped.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
}

impl Guarded {
    /// Starts the command and leaves its outputs as the command sets them.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.spawn().with_context(|| format!("cannot start `{}`", shown(command)))?;
        Ok(Self { child })
    }

    /// Starts a server and returns when it has printed a line beginning with `ready`.
    ///
    /// # Errors
    /// When it ends first, or says nothing for 20 s.
    pub fn spawn_ready(command: &mut Command) -> Result<Self> {
        let mut server = Self::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
        let stdout = server.child.stdout.take().context("stdout is piped")?;
        let (said, line) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // After `ready` nobody listens; the pipe is still drained so that the server never blocks.
                let _ = said.send(line);
            }
        });
        let first = line.recv_timeout(Duration::from_secs(20));
        match first {
            Ok(line) if line.starts_with("ready") => Ok(server),
            other => Err(anyhow!("`{}` did not become ready: {other:?}", shown(command))),
        }
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the named signal (`TERM`, `KILL`, ...).
    ///
    /// # Errors
    /// When `kill` cannot deliver it.
    pub fn signal(&self, name: &str) -> Result<()> {
        run(Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string())).map(drop)
    }

    /// The exit code if the process has ended; a death by signal is -1.
    ///
    /// # Errors
    /// When the process cannot be asked after.
    pub fn exit_code(&mut self) -> Result<Option<i32>> {
        Ok(self.child.try_wait()?.map(|status| status.code().unwrap_or(-1)))
    }

    /// Waits for the end and gives the exit code.
    ///
    /// # Errors
    /// When it has not ended within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<i32> {
        let id = self.id();
        let mut code = None;
        wait_until(&format!("process {id} to end"), limit, || {
            code = self.exit_code()?;
            Ok(code.is_some())
        })?;
        code.context("an ended process has a code")
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both fail only for a process that has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
