//! The `windlass` binary under test, built once per test process.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};

use crate::process::run;

/// The variable that names a binary to test instead of having one built.
pub const OVERRIDE: &str = "WINDLASS_BIN";

static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The path of `windlass`, built in the profile that this program was built in, unless `WINDLASS_BIN` names one.
///
/// # Errors
/// When it does not build; every caller gets the same error.
pub fn windlass() -> Result<PathBuf> {
    BUILT
        .get_or_init(|| build().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(|error| anyhow!(error))
}

fn build() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(OVERRIDE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().context("where this program lies")?;
    let dir = program.parent().context("a program lies in a folder")?;
    // A test lies in <target>/<profile>/deps, a program in <target>/<profile>.
    let profile_dir =
        if dir.ends_with("deps") { dir.parent().context("deps lies in a profile")? } else { dir };
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "-p", "windlass-control", "--bin", "windlass", "--target-dir"]);
    cargo.arg(profile_dir.parent().context("a profile lies in the target directory")?);
    if profile_dir.ends_with("release") {
        cargo.arg("--release");
    }
    run(&mut cargo).context("building the windlass binary")?;
    Ok(profile_dir.join("windlass"))
}
