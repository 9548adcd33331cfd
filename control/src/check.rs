//! What keeps a node from running, or would make it run badly, found before anything is touched.
//!
//! The system's side gathers [`Facts`]; [`findings`] judges them and is pure. Each check has a name that stays,
//! and by which a failed one can be ignored.

mod cluster;
mod filter;
mod host;
mod network;
mod offloads;
mod rules;
mod sample;
mod windows;

use std::fmt;

use serde::Serialize;
use windlass_dataplane::device::Survey;

use crate::catalog;
use crate::cluster::{ClusterState, Problem};
use crate::config::{Config, DeviceKind};
use crate::node::{NodeError, NodeSettings};

pub use crate::catalog::{ALL, About, Check};
pub use host::tcp_ports;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The node does not run.
    Error,
    /// The node runs, and something of it may not work.
    Warning,
    /// Something that a check looks at could not be seen.
    Unseen,
    /// Good to know.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Unseen => "unseen",
            Self::Note => "note",
        })
    }
}

/// One thing that a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub check: &'static Check,
    /// How much it matters.
    pub severity: Severity,
    /// What was seen.
    pub seen: String,
    /// What to do, as a command where there is one; empty where nothing is to be done.
    pub remedy: String,
}

impl Finding {
    fn new(check: &'static Check, severity: Severity, seen: String, remedy: impl Into<String>) -> Self {
        Self { check, severity, seen, remedy: remedy.into() }
    }

    fn error(check: &'static Check, seen: String, remedy: impl Into<String>) -> Self {
        Self::new(check, Severity::Error, seen, remedy)
    }

    fn warning(check: &'static Check, seen: String, remedy: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, seen, remedy)
    }

    /// A check that could not look.
    fn unseen(check: &'static Check, why: &str) -> Self {
        Self::new(check, Severity::Unseen, format!("could not be seen: {why}"), UNSEEN_REMEDY)
    }

    /// A check that needs to know this node.
    fn without_node(check: &'static Check) -> Self {
        let seen = "could not be seen: nothing is known yet of this node".to_owned();
        Self::new(check, Severity::Unseen, seen, "mend what is wrong with manifests or node first")
    }

    /// What a source or the compiler has left out.
    pub fn of_problem(problem: &Problem) -> Self {
        let (seen, remedy) = split(&problem.text);
        Self::warning(catalog::named(problem.check), format!("{}: {seen}", problem.subject), remedy)
    }

    /// Why the cluster's objects cannot be read.
    pub fn of_source(error: &str) -> Self {
        let (seen, remedy) = split(error);
        Self::error(&catalog::MANIFESTS, seen, remedy)
    }

    /// Why this node cannot run.
    pub fn of_node(error: &NodeError) -> Self {
        let (seen, remedy) = split(&error.to_string());
        Self::error(cluster::check_of(error), seen, remedy)
    }
}

const UNSEEN_REMEDY: &str = if cfg!(windows) {
    "run as Administrator; what this Windows does not have needs no check"
} else {
    "run as root of the host, with nftables installed"
};

/// Messages say what is wrong and, after the last semicolon, what to do.
fn split(text: &str) -> (String, String) {
    match text.rsplit_once("; ") {
        Some((seen, remedy)) => (seen.to_owned(), remedy.to_owned()),
        None => (text.to_owned(), String::new()),
    }
}

/// Everything that is looked at outside the cluster's objects.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The host.
    pub host: Survey,
    /// Why VXLAN's port cannot be had; `None` where nobody knows which port it is.
    pub vxlan_port: Option<Result<(), String>>,
    /// Why the metrics address cannot be had.
    pub metrics: Result<(), String>,
    /// Who manages the host, if another run of this program does.
    pub managed_by: Option<String>,
}

/// What the checks are about: what is known of this node and its cluster.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What the node is told.
    pub config: &'a Config,
    /// The cluster.
    pub cluster: &'a ClusterState,
    /// This node, where the cluster says enough of it.
    pub node: Option<&'a NodeSettings>,
}

/// Everything the checks find, the gravest first. Without a node, those that need one look at the rest.
pub fn findings(subject: &Subject<'_>, facts: &Facts) -> Vec<Finding> {
    let mut findings = host::findings(subject, facts);
    findings.extend(network::findings(subject, facts));
    findings.extend(offloads::findings(subject, facts));
    findings.extend(filter::findings(subject, &facts.host));
    findings.extend(cluster::findings(subject, facts));
    if let Some(host) = &facts.host.windows {
        findings.retain(|finding| !windows::is_of_linux(finding.check));
        findings.extend(windows::findings(subject, facts, host));
    }
    if subject.config.device_kind == DeviceKind::Tap {
        findings.retain(|finding| catalog::OF_SEGMENTS.contains(&finding.check));
    }
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Adds what sources and the compiler have left out, but for what a check has found itself.
pub fn with_problems<'a>(findings: &mut Vec<Finding>, problems: impl IntoIterator<Item = &'a Problem>) {
    let found: Vec<_> = findings.iter().map(|finding| finding.check.name).collect();
    let new = problems.into_iter().filter(|problem| !found.contains(&problem.check));
    findings.extend(new.map(Finding::of_problem));
    findings.sort_by_key(|finding| finding.severity);
}

/// The errors among findings that nobody has said to ignore.
pub fn refusals<'a>(findings: &'a [Finding], config: &Config) -> Vec<&'a Finding> {
    let counts = |finding: &&Finding| {
        finding.severity == Severity::Error && !config.ignore.contains(&finding.check.name)
    };
    findings.iter().filter(counts).collect()
}

#[cfg(test)]
mod tests;
