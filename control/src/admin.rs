//! What can be asked of a running node: metrics and health over TCP, the latter also as kube-proxy serves it,
//! details over a Unix socket of mode 0600 (on Windows over a named pipe for administrators only).
//!
//! One thread serves all of it. A connection lives at most [`CONNECTION_LIFE`] and there are at most
//! [`MAX_CONNECTIONS`] of them, so that a slow or hostile client costs a bounded amount of nothing much (E11).

pub mod client;
mod health;
pub mod histogram;
mod limits;
mod questions;
mod routes;
pub(crate) mod socket;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use axum::Router;
use tokio::sync::oneshot;

pub use self::routes::details;
use self::socket::AdminSocket;
use crate::capture::live::Watched;
use crate::inspect::Inspection;

/// How long a connection may last.
pub const CONNECTION_LIFE: Duration = Duration::from_secs(10);

/// How many connections a listener serves at a time.
pub const MAX_CONNECTIONS: usize = 16;

/// One value of one metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The metric's name. All samples of one name stand together.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Whether it only grows.
    pub kind: SampleKind,
    /// Labels, from a bounded set.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: u64,
}

/// Prometheus' type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// A gauge of time: nanoseconds here, shown in seconds.
    Nanoseconds,
    /// How many of a histogram's values are not above the label `le`.
    Bucket,
    /// The sum of a histogram's values: nanoseconds here, shown in seconds.
    Sum,
    /// How many values a histogram has.
    Count,
}

impl SampleKind {
    /// What Prometheus calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge | Self::Nanoseconds => "gauge",
            Self::Bucket | Self::Sum | Self::Count => "histogram",
        }
    }

    /// What a part of a histogram adds to the metric's name.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter | Self::Gauge | Self::Nanoseconds => "",
            Self::Bucket => "_bucket",
            Self::Sum => "_sum",
            Self::Count => "_count",
        }
    }
}

/// What a running node can be asked.
pub trait Readings: Send + Sync {
    /// All metrics as they are.
    fn samples(&self) -> Vec<Sample>;

    /// The node as it is, for questions about tables, connections and packets; `None` while it stops.
    fn inspection(&self) -> Option<Inspection> {
        None
    }

    /// Where its workers can be watched; `None` while it stops.
    fn watched(&self) -> Option<Watched> {
        None
    }

    /// Why the node is not well, if it is not.
    fn illness(&self) -> Option<String> {
        None
    }

    /// When changes of the cluster were last known to be applied, and what keeps those since from it.
    fn programming(&self) -> Programming {
        Programming { applied_at: SystemTime::now(), is_stuck: false }
    }

    /// Whether load balancers may send to this node: it is not about to leave the cluster.
    fn is_eligible(&self) -> bool {
        true
    }
}

/// How changes of the cluster come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Programming {
    /// When all changes that were known had been applied.
    pub applied_at: SystemTime,
    /// Whether a change has been waiting for longer than [`STUCK_AFTER`].
    pub is_stuck: bool,
}

/// How long a change may wait before the node is no longer well, as kube-proxy has it.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);

/// Why the node cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The metrics port cannot be had.
    #[error(
        "cannot listen on {addr} for {what}: {source}; stop what uses it (kube-proxy does), or give another address with --{what}, or --{what} off"
    )]
    Listen {
        /// `metrics` or `health`.
        what: &'static str,
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Another process answers on the admin socket.
    #[error("another windlass answers on {}; stop it, or give another path with --admin-socket", path.display())]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The admin socket's folder does not exist.
    #[error(
        "cannot make the admin socket {}: there is no folder {folder}; make it with `mkdir -m 700 -p {folder}`, or give \
         another path with --admin-socket",
        path.display(), folder = folder.display()
    )]
    NoFolder {
        /// The socket.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The admin socket cannot be made.
    #[error("cannot make the admin socket {}: {source}; run as root, or give another path with --admin-socket", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The listeners, bound but not yet served.
#[derive(Debug)]
pub struct Admin {
    metrics: Option<TcpListener>,
    health: Option<TcpListener>,
    socket: AdminSocket,
}

impl Admin {
    /// Binds the addresses of metrics and health, if there are any, and the admin socket.
    ///
    /// # Errors
    /// When one of them is taken or cannot be made, with the remedy.
    pub fn bind(
        metrics: Option<SocketAddr>,
        health: Option<SocketAddr>,
        socket: &Path,
    ) -> Result<Self, AdminError> {
        let listen = |what, addr| {
            let listener = TcpListener::bind(addr).and_then(|listener| {
                listener.set_nonblocking(true)?;
                Ok(listener)
            });
            listener.map_err(|source| AdminError::Listen { what, addr, source })
        };
        Ok(Self {
            metrics: metrics.map(|addr| listen("metrics", addr)).transpose()?,
            health: health.map(|addr| listen("health", addr)).transpose()?,
            socket: AdminSocket::bind(socket)?,
        })
    }

    /// Where metrics are served.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Where health is served.
    pub fn health_addr(&self) -> Option<SocketAddr> {
        self.health.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Answers from a thread of its own until the returned handle is dropped.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be started.
    pub fn serve(self, readings: Arc<dyn Readings>) -> io::Result<Serving> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let Self { metrics, health, socket } = self;
        let (serve_socket, file) = socket.split();
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                if let Some(listener) = metrics {
                    spawn_public(listener, routes::public(Arc::clone(&readings)));
                }
                if let Some(listener) = health {
                    spawn_public(listener, health::routes(Arc::clone(&readings)));
                }
                serve_socket(routes::details(readings));
                // An error means that the handle was dropped, which is what is waited for.
                let _ = stopped.await;
            });
        })?;
        Ok(Serving { stop: Some(stop), thread: Some(thread), _file: Box::new(file) })
    }
}

fn spawn_public(listener: TcpListener, router: Router) {
    match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => limits::spawn(listener, router, CONNECTION_LIFE),
        Err(error) => tracing::error!("metrics or health are not served: {error}"),
    }
}

/// A thread that answers. Dropping it ends the thread and removes the socket.
pub struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _file: Box<dyn Send>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the admin thread panicked");
        }
    }
}

#[cfg(all(test, unix))]
mod tests;
