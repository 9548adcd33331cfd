//! `windlass cleanup`: removes what runs with `--persist`, or killed ones, have left on this host.

use anyhow::Context;
use windlass_dataplane::device::{self, PodTuning};

use super::run::platform::{PODS_FILE, STATE_FILE};

/// Removes it and says what it was. A run that lives keeps it.
pub(super) fn run() -> anyhow::Result<()> {
    let removed = device::cleanup(STATE_FILE.as_ref()).context("not everything could be removed")?;
    PodTuning::sweep(PODS_FILE.as_ref()).context("the pods' veths could not all be put back")?;
    for what in &removed {
        println!("removed: {what}");
    }
    if removed.is_empty() {
        println!("nothing to remove");
    }
    Ok(())
}
