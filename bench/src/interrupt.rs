//! SIGINT, SIGTERM and SIGHUP end a comparison after the step that runs, so that it takes its namespaces along.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{SigSet, Signal};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Listens for the signals from here on. To be called before any other thread begins; the programs started later
/// do not inherit this, since the standard library gives them an empty signal mask.
///
/// # Errors
/// When the signals cannot be blocked.
pub fn listen() -> Result<()> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    signals.thread_block().context("blocking signals")?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            INTERRUPTED.store(true, Ordering::Relaxed);
            eprintln!("{signal}: ending, and taking the namespaces along");
        }
    });
    Ok(())
}

/// Fails once a signal has come.
///
/// # Errors
/// When one has.
pub fn check() -> Result<()> {
    ensure!(!interrupted(), "interrupted");
    Ok(())
}

/// Whether a signal has come.
#[must_use]
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
