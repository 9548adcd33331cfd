//! A cluster's objects from its API server: listed once, and watched from then on.
//!
//! One thread follows the kinds, each on its own, and keeps a mirror of what matters of them. The server
//! may go away for as long as it likes: what was known stays known. Nothing is told before every kind has been
//! listed, and a list replaces all objects of its kind at once, so that no object ever seems to have gone that
//! has not.

mod access;
mod backoff;
mod failure;
mod follow;
mod kind;
mod mirror;
mod patch;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ::kube::core::NamespaceResourceScope;
use ::kube::{Api, Client, Resource};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

pub use self::access::{Access, AccessError};
pub use self::failure::Failure;
pub use self::follow::Patience;
pub use self::kind::{FOLLOW, Kind, PATCH, PATCHED};

use self::failure::Request;
use self::follow::{Event, Followed, Listener};
use self::kind::FLANNEL_CONFIG;
use self::mirror::{Mirror, Mirrored};
use super::{Changed, Changes, Cluster, MAX_TRIGGERS};
use crate::cluster::Problem;

/// How long changes are gathered after others were told: a rollout changes many objects at once. The first is told at
/// once.
const GATHERED_FOR: Duration = Duration::from_millis(4);

/// How often somebody who waits is asked whether to go on.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why there is no cluster to be had from the API.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There is no way to the server.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The thread cannot be made.
    #[error("cannot start the thread that watches the API server: {0}")]
    Thread(std::io::Error),
    /// Not every kind could be listed in time.
    #[error("waited {} s for {missing} from the API server; {reason}", waited.as_secs())]
    NotListed {
        /// The kinds.
        missing: String,
        /// For how long.
        waited: Duration,
        /// What kept us.
        reason: String,
    },
    /// The server refuses what we ask of it.
    #[error(transparent)]
    Failed(Failure),
    /// Nobody waits any more.
    #[error("stopped while waiting for the API server")]
    Interrupted,
}

/// A cluster as its API server tells it.
pub struct ApiSource {
    shared: Arc<Shared>,
    client: Client,
    server: String,
    handle: Handle,
    /// Patches under way in the background.
    patching: Mutex<Option<AbortHandle>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    known: Mutex<Known>,
    /// Notified whenever what is known of a kind's progress changes.
    progress: Condvar,
    /// Notified when the mirror has changed.
    changed: Notify,
    /// Notified once changes have been gathered.
    gathered: Arc<Notify>,
    server: String,
    patience: Patience,
}

#[derive(Debug)]
struct Known {
    mirror: Mirror,
    /// Whether the mirror has changed since it was last taken.
    is_fresh: bool,
    kinds: BTreeMap<Kind, Progress>,
    changes: Changes,
}

/// How far a kind has come.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// It has been listed, or is known to be kept from us.
    is_settled: bool,
    /// It has been listed.
    is_listed: bool,
    /// What keeps us from more, until something is heard.
    failure: Option<Failure>,
    /// When something was last heard of it.
    heard_at: Option<Instant>,
}

impl ApiSource {
    /// Starts to follow the cluster. `gathered` is notified whenever [`ApiSource::take`] has something new.
    ///
    /// # Errors
    /// When there is no way to the server, or no thread to be had.
    pub fn start(
        access: &Access,
        prefix: &str,
        patience: Patience,
        gathered: Arc<Notify>,
    ) -> Result<Self, SourceError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(SourceError::Thread)?;
        let (client, server) = runtime.block_on(access.client())?;
        tracing::info!("the cluster is read from {server} ({access})");
        let known = Known {
            mirror: Mirror::new(prefix),
            is_fresh: false,
            kinds: Kind::ALL.map(|kind| (kind, Progress::default())).into(),
            changes: Changes::default(),
        };
        let shared = Arc::new(Shared {
            known: Mutex::new(known),
            progress: Condvar::new(),
            changed: Notify::new(),
            gathered,
            server: server.clone(),
            patience,
        });
        let (stop, stopped) = oneshot::channel();
        let handle = runtime.handle().clone();
        let everything = follow_all(client.clone(), Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("windlass-api".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = everything => {}
                    // An error means that the source was dropped, which is what is waited for.
                    _ = stopped => {}
                }
            });
        });
        let thread = Some(thread.map_err(SourceError::Thread)?);
        Ok(Self { shared, client, server, handle, patching: Mutex::default(), stop: Some(stop), thread })
    }

    /// The server's address.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The server's address, where its URL has one and no name.
    pub fn server_addr(&self) -> Option<IpAddr> {
        addr_of(&self.server)
    }

    /// Waits until every kind has been listed, or is known to be kept from us. `go_on` is told a few times a
    /// second what is waited for.
    ///
    /// # Errors
    /// When that is not so within `limit`, or `go_on` says no.
    pub fn wait(
        &self,
        limit: Duration,
        mut go_on: impl FnMut(&SourceError) -> bool,
    ) -> Result<(), SourceError> {
        let begun = Instant::now();
        let mut known = self.shared.lock();
        loop {
            let missing = known.missing();
            if missing.is_empty() {
                return Ok(());
            }
            let error = known.not_listed(&missing, begun.elapsed());
            if begun.elapsed() >= limit {
                return Err(error);
            }
            if !go_on(&error) {
                return Err(SourceError::Interrupted);
            }
            let waited = self.shared.progress.wait_timeout(known, LOOK_EVERY);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How long ago each kind that has been listed was last heard of. A server that has nothing to say sends a
    /// bookmark about once a minute.
    pub fn staleness(&self) -> Vec<(Kind, Duration)> {
        let known = self.shared.lock();
        let listed = known.kinds.iter().filter(|(_, progress)| progress.is_listed);
        listed.filter_map(|(kind, progress)| Some((*kind, progress.heard_at?.elapsed()))).collect()
    }

    /// The cluster and what of it cannot be used, if it has changed since it was last taken and all of it is
    /// known.
    pub fn take(&self) -> Option<Cluster> {
        let mut known = self.shared.lock();
        let (problems, changes) = known.take_news()?;
        Some(Cluster { state: known.mirror.state(), problems, changes })
    }

    /// What has become of the cluster since it was last taken, whole or in this way, if anything has and all of it is
    /// known. Costs what changed.
    pub fn take_changed(&self) -> Option<Changed> {
        let mut known = self.shared.lock();
        let (problems, changes) = known.take_news()?;
        Some(Changed { difference: known.mirror.difference(), problems, changes })
    }
}

impl Drop for ApiSource {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watches the API server panicked");
        }
    }
}

impl Known {
    /// What cannot be used and what has come, if there is news of all kinds that are to be had.
    fn take_news(&mut self) -> Option<(Vec<Problem>, Changes)> {
        if !self.missing().is_empty() || !std::mem::take(&mut self.is_fresh) {
            return None;
        }
        let mut problems = self.mirror.problems();
        problems.extend(self.withheld());
        Some((problems, std::mem::take(&mut self.changes)))
    }

    fn missing(&self) -> Vec<Kind> {
        self.kinds.iter().filter(|(_, progress)| !progress.is_settled).map(|(kind, _)| *kind).collect()
    }

    fn not_listed(&self, missing: &[Kind], waited: Duration) -> SourceError {
        let failures = missing.iter().filter_map(|kind| self.kinds.get(kind)?.failure.as_ref());
        let mut reasons: Vec<_> = failures.map(ToString::to_string).collect();
        reasons.dedup();
        SourceError::NotListed {
            missing: missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            waited,
            reason: if reasons.is_empty() { "no answer yet".to_owned() } else { reasons.join("; ") },
        }
    }

    /// The kinds that we do without. The old place of flannel's ConfigMap is of no concern where the new one has it.
    fn withheld(&self) -> impl Iterator<Item = Problem> {
        let is_concern = |kind| kind != Kind::OldFlannelConfig || !self.mirror.has_flannel_config();
        let withheld =
            self.kinds.iter().filter(move |(kind, progress)| !progress.is_listed && is_concern(**kind));
        withheld.filter_map(|(kind, progress)| {
            Some(Problem::new(kind.to_string(), progress.failure.as_ref()?.to_string()))
        })
    }
}

impl Changes {
    fn count(&mut self, kind: Kind, trigger: Option<SystemTime>) {
        match kind {
            Kind::Service => self.services += 1,
            Kind::EndpointSlice => self.endpoint_slices += 1,
            _ => {}
        }
        if self.triggers.len() < MAX_TRIGGERS {
            self.triggers.extend(trigger);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn addr_of(url: &str) -> Option<IpAddr> {
    let authority = url.split("://").nth(1)?.split('/').next()?;
    let socket = authority.parse().map(|addr: SocketAddr| addr.ip()).ok();
    socket.or_else(|| authority.trim_matches(['[', ']']).parse().ok())
}

async fn follow_all(client: Client, shared: Arc<Shared>) {
    let follow = |kind| Following { kind, shared: &shared };
    tokio::join!(
        follow(Kind::Node).all::<core::Node>(&client),
        follow(Kind::Service).all::<core::Service>(&client),
        follow(Kind::EndpointSlice).all::<discovery::EndpointSlice>(&client),
        follow(Kind::ServiceCidr).all::<networking::ServiceCIDR>(&client),
        follow(Kind::FlannelConfig).named::<core::ConfigMap>(&client, FLANNEL_CONFIG),
        follow(Kind::OldFlannelConfig).named::<core::ConfigMap>(&client, FLANNEL_CONFIG),
        gather(&shared),
    );
}

async fn gather(shared: &Shared) {
    loop {
        shared.changed.notified().await;
        shared.gathered.notify_one();
        tokio::time::sleep(GATHERED_FOR).await;
    }
}

/// One kind on its way into the mirror.
struct Following<'a> {
    kind: Kind,
    shared: &'a Shared,
}

impl Following<'_> {
    async fn all<K>(self, client: &Client)
    where
        K: Mirrored + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        self.follow(Api::<K>::all(client.clone()), None).await;
    }

    async fn named<K>(self, client: &Client, name: &'static str)
    where
        K: Mirrored
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let namespace = self.kind.namespace().unwrap_or_default();
        self.follow(Api::<K>::namespaced(client.clone(), namespace), Some(name)).await;
    }

    async fn follow<K>(mut self, api: Api<K>, name: Option<&'static str>)
    where
        K: Mirrored + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let request = Request { server: &self.shared.server, verb: "list and watch", kind: self.kind };
        Followed { api, name, request, patience: self.shared.patience }.follow(&mut self).await;
    }
}

impl<K: Mirrored> Listener<K> for Following<'_> {
    fn heard(&mut self, event: Event<K>) {
        let is_list = matches!(event, Event::Listed(_));
        let trigger = event.applied().and_then(Mirrored::triggered_at);
        let mut known = self.shared.lock();
        let mut has_changed = known.mirror.take(self.kind, event);
        if has_changed {
            known.changes.count(self.kind, trigger);
        }
        let progress = known.kinds.entry(self.kind).or_default();
        progress.heard_at = Some(Instant::now());
        let has_failed = progress.failure.take().is_some();
        if is_list && !progress.is_listed {
            (progress.is_listed, progress.is_settled) = (true, true);
            has_changed = true;
            self.shared.progress.notify_all();
        }
        if has_changed {
            known.is_fresh = true;
            self.shared.changed.notify_one();
        }
        if has_failed && known.kinds.values().all(|progress| progress.failure.is_none()) {
            tracing::info!("{} is read again", self.shared.server);
        }
    }

    fn failed(&mut self, failure: Failure) {
        let mut known = self.shared.lock();
        // All kinds fail alike when the server is away.
        let is_said = known.kinds.values().any(|progress| progress.failure.as_ref() == Some(&failure));
        // Whether this one is missed is known when the others are, and told with what cannot be used.
        let is_optional = self.kind == Kind::OldFlannelConfig && failure.is_withheld();
        match is_said || is_optional || failure.is_gone() {
            true => tracing::debug!("{}: {failure}", self.kind),
            false => tracing::warn!("{failure}; what is known of the cluster stays as it is"),
        }
        let progress = known.kinds.entry(self.kind).or_default();
        // What is kept from us from the first is not waited for, unless nothing works without.
        if failure.is_withheld() && !progress.is_settled && !self.kind.is_needed() {
            progress.is_settled = true;
            known.is_fresh = true;
        }
        if let Some(progress) = known.kinds.get_mut(&self.kind) {
            progress.failure = Some(failure);
        }
        self.shared.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_address_is_read_from_its_url() {
        for (url, addr) in [
            ("https://192.0.2.1:6443", Some("192.0.2.1")),
            ("https://192.0.2.1/prefix", Some("192.0.2.1")),
            ("https://[2001:db8::1]:6443", Some("2001:db8::1")),
            ("https://[2001:db8::1]", Some("2001:db8::1")),
            ("https://api.example:6443", None),
        ] {
            assert_eq!(addr_of(url).map(|addr| addr.to_string()).as_deref(), addr, "{url}");
        }
    }
}
