//! Clients of the metrics port that mean it badly (G14): they hold connections open, send garbage, and ask without
//! ever reading.

use std::process::Command;

use anyhow::Result;

use crate::netns::Netns;
use crate::process::Guarded;

/// Where `windlass run` serves metrics unless told otherwise, as bash opens it.
pub const METRICS: &str = "/dev/tcp/127.0.0.1/10249";

/// Connections that ask for nothing. No child is left behind when the shell is killed.
const SLOW: &str =
    r#"while :; do for i in {10..49}; do eval "exec $i<>$AT"; done; read -r -t 60 -u 10; done"#;

/// Connections that send what is no HTTP, over and over.
const GARBAGE: &str = "while :; do (exec 3<>$AT; head -c 300000 /dev/urandom >&3) 2>/dev/null; done";

/// A connection that asks for everything, over and over, and reads nothing.
const HUNGRY: &str = r"while :; do (exec 3<>$AT; for i in $(seq 200); do printf 'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n'; done >&3) 2>/dev/null; done";

/// Starts one of each kind on that node; they end when they are dropped.
///
/// # Errors
/// When bash cannot be started.
pub fn hostile(at: &Netns) -> Result<Vec<Guarded>> {
    [SLOW, GARBAGE, HUNGRY].into_iter().map(|script| Guarded::spawn(&mut bash(at, script))).collect()
}

/// A bash script that reaches the metrics at `$AT`.
#[must_use]
pub fn bash(at: &Netns, script: &str) -> Command {
    let mut command = at.command("bash");
    command.args(["-c", script]).env("AT", METRICS);
    command
}
