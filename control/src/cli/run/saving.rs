//! Writes down, beside the packets, what the next run is to remember: the cluster when it changes, and connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use windlass_control::config::Config;
use windlass_control::inspect::Origin;
use windlass_control::registration::Owner;
use windlass_control::snapshot::{self, Connections, SnapshotError};
use windlass_control::system::HostMoment;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::time::Instant as WorkersInstant;

use super::inspect::Known;

/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// A look that took long makes the next pause so many times as long.
const SHARE: u32 = 20;

/// Connections that stay the same are written this often, for their timers.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// What is written down, and where.
pub(super) struct Subject {
    folder: PathBuf,
    node: String,
    known: Known,
    /// Whether the cluster is written down too: manifests are their own memory.
    with_cluster: bool,
    connections: Arc<Conntrack>,
    /// When the workers' clock stood at zero.
    origin: Instant,
}

impl Subject {
    /// This node's.
    pub(super) fn new(config: &Config, known: Known, connections: Arc<Conntrack>, origin: Instant) -> Self {
        Self {
            folder: config.state_dir.clone(),
            node: config.node.clone(),
            known,
            with_cluster: config.manifests.is_empty(),
            connections,
            origin,
        }
    }
}

/// A thread that writes it down for as long as this lives.
pub(super) struct Saving {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Saving {
    /// Starts the thread.
    pub(super) fn start(subject: Subject) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("windlass-state".to_owned()).spawn(move || {
            let mut writer = Writer::new(subject);
            let mut pause = PAUSE;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let begun = Instant::now();
                writer.write();
                pause = PAUSE.max(begun.elapsed() * SHARE);
            }
            writer.write();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Writes once more, and ends.
impl Drop for Saving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps the state panicked");
        }
    }
}

struct Writer {
    subject: Subject,
    /// The revision of the cluster that was written last.
    written: Option<u64>,
    /// The connections that were written last, and when.
    fingerprint: Option<(u64, Instant)>,
    /// Whether it was said that nothing can be written (G15).
    has_failed: bool,
}

impl Writer {
    fn new(subject: Subject) -> Self {
        Self { subject, written: None, fingerprint: None, has_failed: false }
    }

    fn write(&mut self) {
        // Asked first: a change in between is written by the next look.
        let revision = self.subject.known.revision();
        let origin = self.subject.known.current();
        let written = self.write_cluster(revision, &origin).and_then(|()| self.write_connections(&origin));
        match written {
            Err(error) if !self.has_failed => {
                tracing::warn!("{error}; forwarding goes on, and the next start remembers less");
                self.has_failed = true;
            }
            Err(_) => {}
            Ok(()) if self.has_failed => {
                tracing::info!("{} is written again", self.subject.folder.display());
                self.has_failed = false;
            }
            Ok(()) => {}
        }
    }

    fn write_cluster(&mut self, revision: u64, origin: &Origin) -> Result<(), SnapshotError> {
        if self.subject.with_cluster && self.written != Some(revision) {
            snapshot::write_cluster(&self.subject.folder, &self.subject.node, &origin.state)?;
            self.written = Some(revision);
        }
        Ok(())
    }

    fn write_connections(&mut self, origin: &Origin) -> Result<(), SnapshotError> {
        let (Some(moment), Some(owner)) = (HostMoment::now(), owner(&self.subject.node, origin)) else {
            return Ok(());
        };
        let now = WorkersInstant::since_origin(self.subject.origin);
        let connections = Connections::of(&self.subject.connections, now);
        let fingerprint = connections.fingerprint();
        let is_written =
            |(known, at): &(u64, Instant)| *known == fingerprint && at.elapsed() < AT_LEAST_EVERY;
        if !self.fingerprint.as_ref().is_some_and(is_written) {
            connections.write(&self.subject.folder, &owner, &moment)?;
            self.fingerprint = Some((fingerprint, Instant::now()));
        }
        Ok(())
    }
}

/// The connections of this node's last run, as far as they were kept.
pub(super) fn remembered(config: &Config, origin: &Origin) -> Option<Connections> {
    let (moment, owner) = (HostMoment::now()?, owner(&config.node, origin)?);
    Connections::read(&config.state_dir, &owner, &moment).unwrap_or_else(|refused| {
        tracing::warn!("{refused}; flows are told to backends by their hash");
        None
    })
}

/// Whose the connections of that node are.
fn owner(node: &str, origin: &Origin) -> Option<Owner> {
    origin.state.nodes.get(node).map(|object| Owner::of(node, object))
}
