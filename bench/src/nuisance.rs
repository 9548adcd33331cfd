//! What besets the client's node while it is measured (G14): readers of its metrics, log and captures that mean it
//! badly, or have stopped reading.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use windlass_tests::node::WindlassNode;
use windlass_tests::process::{Guarded, run, wait_until};
use windlass_tests::scrapers;

/// One kind of bad reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nuisance {
    /// Clients of the metrics port that hold connections, send garbage and read nothing.
    Scrapers,
    /// A log that goes to a full pipe, with lines that are due.
    StalledLog,
    /// A `windlass capture` of everything that was stopped right after it began.
    StalledCapture,
}

/// How long a capture may take to begin: longer than the node keeps the place of one that was killed.
const CAPTURE_LIMIT: Duration = Duration::from_secs(30);

impl Nuisance {
    /// What it is, in few words.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Scrapers => "hostile scrapers",
            Self::StalledLog => "a stalled log reader",
            Self::StalledCapture => "a stalled capture",
        }
    }

    /// How it is made, in words.
    #[must_use]
    pub fn how(self) -> &'static str {
        match self {
            Self::Scrapers => "metrics of the client's node scraped by hostile clients",
            Self::StalledLog => {
                "the log of the client's node, at its most verbose, goes to a pipe that is full"
            }
            Self::StalledCapture => {
                "everything on the client's node is captured by a `windlass capture` that has stopped"
            }
        }
    }

    /// Flags of the node's `windlass run` beside its own.
    #[must_use]
    pub fn flags(self) -> &'static [&'static str] {
        if self == Self::StalledLog { &["-vv"] } else { &[] }
    }

    /// Begins it, for one measure: it goes with what is returned.
    ///
    /// # Errors
    /// When a program of it cannot be started.
    pub fn begin(self, node: &WindlassNode<'_>) -> Result<Vec<Guarded>> {
        match self {
            Self::Scrapers => idle_scrapers(node),
            Self::StalledLog => {
                node.stall_log()?;
                node.give_cause_to_log()?;
                Ok(Vec::new())
            }
            Self::StalledCapture => Ok(vec![stalled_capture(node)?]),
        }
    }
}

/// Hostile scrapers that get only the time that nobody else wants: elsewhere they would be on other machines.
fn idle_scrapers(node: &WindlassNode<'_>) -> Result<Vec<Guarded>> {
    let scrapers = scrapers::hostile(&node.host().netns)?;
    for scraper in &scrapers {
        run(Command::new("chrt").args(["--idle", "--pid", "0", &scraper.id().to_string()]))?;
    }
    Ok(scrapers)
}

/// The file is there once the node has given its first answer. Beside the one of the measure before, which was killed
/// and has its place for some seconds yet, it is refused and ends.
fn stalled_capture(node: &WindlassNode<'_>) -> Result<Guarded> {
    let folder = windlass_tests::netns::scratch_folder("capture")?;
    let file = folder.path().join("stalled.pcapng");
    let begin = || Guarded::spawn(node.asking(&["capture"])?.arg("--out").arg(&file).stderr(Stdio::null()));
    let mut capture = begin()?;
    wait_until("the capture to begin", CAPTURE_LIMIT, || {
        if capture.exit_code()?.is_some() {
            capture = begin()?;
        }
        Ok(file.exists())
    })?;
    capture.signal("STOP")?;
    Ok(capture)
}
