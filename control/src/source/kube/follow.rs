//! One kind, listed and then watched, for ever (Kubernetes API concepts, "Efficient detection of changes").
//!
//! A watch goes on from the version that the list or the last event named, so that nothing is missed. Whatever
//! ends it, the kind is up to date again after [`Patience`] and a back-off: the server ends a watch in time, and
//! one that it forgets to end is given up.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::backoff::Backoff;
use super::failure::{Failure, Request};

/// For how long the server is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long the server is to let a watch last; whole seconds.
    pub watch_for: Duration,
    /// Silence after which a watch is given up: the server should have ended it by then.
    pub watch_limit: Duration,
    /// Silence after which another request is given up.
    pub answer_limit: Duration,
}

impl Default for Patience {
    /// A watch that hangs is noticed within 150 s.
    fn default() -> Self {
        Self {
            watch_for: Duration::from_secs(120),
            watch_limit: Duration::from_secs(150),
            answer_limit: Duration::from_secs(45),
        }
    }
}

/// A watch that ends earlier than this and has said nothing is taken for a failure.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Objects asked for in one answer.
const PAGE: u32 = 500;

/// What is heard of a kind.
#[derive(Debug)]
pub(super) enum Event<K> {
    /// All objects there are, in place of those known before.
    Listed(Vec<K>),
    /// An object that is new or has changed.
    Applied(K),
    /// An object that has gone.
    Deleted(K),
    /// Nothing has changed, and the server is there.
    Bookmark,
}

impl<K> Event<K> {
    /// The object that is new or has changed.
    pub(super) fn applied(&self) -> Option<&K> {
        match self {
            Self::Applied(object) => Some(object),
            Self::Listed(_) | Self::Deleted(_) | Self::Bookmark => None,
        }
    }
}

/// Who is told.
pub(super) trait Listener<K> {
    /// Takes it in.
    fn heard(&mut self, event: Event<K>);
    /// Takes note of what kept us from hearing more.
    fn failed(&mut self, failure: Failure);
}

/// The kind that is followed, and of it the object of one name if `name` says so.
pub(super) struct Followed<'a, K> {
    /// Where it is asked for.
    pub(super) api: Api<K>,
    /// The only object that matters.
    pub(super) name: Option<&'static str>,
    /// What messages call it.
    pub(super) request: Request<'a>,
    /// How long answers may take.
    pub(super) patience: Patience,
}

impl<K> Followed<'_, K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    /// Tells `listener` everything, and never ends.
    pub(super) async fn follow(&self, listener: &mut impl Listener<K>) {
        let mut backoff = Backoff::default();
        let mut version = None;
        loop {
            let ended = match version.take() {
                None => self.list(listener).await.map(|listed| version = Some(listed)),
                Some(mut from) => {
                    let ended = self.watch(&mut from, listener, &mut backoff).await;
                    let is_gone = ended.as_ref().is_err_and(Failure::is_gone);
                    version = Some(from).filter(|_| !is_gone);
                    ended
                }
            };
            if let Err(failure) = ended {
                listener.failed(failure);
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }

    /// Tells of all objects at once, and gives the version they were listed at.
    async fn list(&self, listener: &mut impl Listener<K>) -> Result<String, Failure> {
        let mut params = ListParams { field_selector: self.selector(), ..ListParams::default().limit(PAGE) };
        let mut objects = Vec::new();
        loop {
            let page = self.answer(self.api.list(&params)).await?;
            objects.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => {
                    listener.heard(Event::Listed(objects));
                    return Ok(page.metadata.resource_version.unwrap_or_default());
                }
            }
        }
    }

    /// Tells of changes after `version` until the watch ends, and leaves in it how far that was.
    async fn watch(
        &self,
        version: &mut String,
        listener: &mut impl Listener<K>,
        backoff: &mut Backoff,
    ) -> Result<(), Failure> {
        let seconds = u32::try_from(self.patience.watch_for.as_secs()).unwrap_or(u32::MAX);
        let mut params = WatchParams::default().timeout(seconds);
        params.field_selector = self.selector();
        let begun = Instant::now();
        let mut events = pin!(self.answer(self.api.watch(&params, version)).await?);
        let mut has_spoken = false;
        loop {
            let event = match timeout(self.patience.watch_limit, events.try_next()).await {
                Err(_) => return Err(Failure::silent(self.patience.watch_limit, self.request)),
                Ok(Err(error)) => return Err(Failure::of(&error, self.request)),
                Ok(Ok(None)) if !has_spoken && begun.elapsed() < AT_ONCE => {
                    return Err(Failure::closes_at_once(self.request));
                }
                Ok(Ok(None)) => {
                    listener.heard(Event::Bookmark);
                    return Ok(());
                }
                Ok(Ok(Some(event))) => event,
            };
            let (event, reached) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let reached = object.resource_version();
                    (Event::Applied(object), reached)
                }
                WatchEvent::Deleted(object) => {
                    let reached = object.resource_version();
                    (Event::Deleted(object), reached)
                }
                WatchEvent::Bookmark(bookmark) => (Event::Bookmark, Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(status) => {
                    return Err(Failure::of_status(status.code, &status.message, self.request));
                }
            };
            if let Some(reached) = reached.filter(|reached| !reached.is_empty()) {
                *version = reached;
            }
            has_spoken = true;
            backoff.reset();
            listener.heard(event);
        }
    }

    fn selector(&self) -> Option<String> {
        self.name.map(|name| format!("metadata.name={name}"))
    }

    async fn answer<T>(&self, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        match timeout(self.patience.answer_limit, answer).await {
            Err(_) => Err(Failure::silent(self.patience.answer_limit, self.request)),
            Ok(answer) => answer.map_err(|error| Failure::of(&error, self.request)),
        }
    }
}
