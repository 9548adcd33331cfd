//! What Linux alone does, as it fails on every other platform.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::host::LinkError;

/// The CPUs this process may run on.
///
/// # Errors
/// Always: it is not known.
pub fn usable_cpus() -> io::Result<Vec<usize>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// Always: nothing is done.
pub fn stay_on(_cpu: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Pods' interfaces that aggregate: none.
#[derive(Debug)]
pub struct PodTuning(());

impl PodTuning {
    /// Tunes nothing.
    ///
    /// # Errors
    /// Always.
    pub fn begin(_pod_cidrs: Vec<IpNet>, _state_file: Option<PathBuf>) -> Result<Self, LinkError> {
        Err(LinkError::Unsupported { action: "tuning the pods' interfaces (--tune-pods)".to_owned() })
    }

    /// Tunes nothing.
    ///
    /// # Errors
    /// Never.
    pub fn look(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Leaves everything as it is.
    pub fn keep(self) {}

    /// Puts nothing back.
    ///
    /// # Errors
    /// Never.
    pub fn undo(self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Puts nothing back.
    ///
    /// # Errors
    /// Never.
    pub fn sweep(_state_file: &Path) -> Result<(), LinkError> {
        Ok(())
    }
}

/// Lets the overlay device outlive this process: there is no such thing here.
#[derive(Debug)]
pub enum DeviceKeeper {}

impl DeviceKeeper {
    /// Keeps nothing.
    ///
    /// # Errors
    /// Never.
    pub fn keep(self) -> Result<(), LinkError> {
        match self {}
    }
}

/// Removes what runs have left on this host: nothing, everything goes with its process.
///
/// # Errors
/// Never.
pub fn cleanup(_state_file: &Path) -> Result<Vec<String>, LinkError> {
    Ok(Vec::new())
}
