//! A stand-in for kube-apiserver that speaks its wire protocol over HTTP, inside the test's own process.
//!
//! It has the five resources that Windlass reads, and for each list (in pages), watch (a chunked stream, with
//! bookmarks and 410), get, create, update, patch (merge and strategic, with the status subresource) and
//! delete, and discovery, so that kubectl talks to it too. What it is not: it validates nothing, has no
//! admission, no TLS and no roles; its authentication is one bearer token. Tests tell it to fail in the ways
//! that servers, proxies and networks fail ([`Fault`]).

mod http;
mod routes;
mod store;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use self::http::{Chunks, Request};
use self::routes::{Target, failure};
pub use self::store::Resource;
use self::store::{Name, Store, merge};
use crate::netns::Netns;
use crate::objects::Objects;

/// How often a watch that asked for bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_millis(500);

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Connections are closed as soon as they are made.
    Away,
    /// Requests are read and never answered.
    Mute,
    /// Requests for that resource (a plural) are answered with that status.
    Refuse(&'static str, u16),
    /// Watches send nothing and do not end.
    SilentWatches,
    /// Watches end as soon as they have begun.
    ClosedWatches,
    /// Watches send their first event in part and then break off.
    BrokenWatches,
    /// Watches send their events a few bytes at a time.
    SlowWatches,
}

/// The server. Dropping it ends all connections.
pub struct ApiServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    store: Store,
    faults: Vec<Fault>,
    /// The bearer token that is asked for.
    token: Option<String>,
    /// Requests by method and resource; watches count as `WATCH`.
    counts: BTreeMap<(String, &'static str), usize>,
    connections: Vec<TcpStream>,
    /// Watches that began in an earlier round end.
    round: u64,
    has_ended: bool,
}

impl ApiServer {
    /// Serves these objects on a port of this process's loopback.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(objects: &Objects) -> Result<Self> {
        Self::serve(TcpListener::bind(("127.0.0.1", 0))?, objects)
    }

    /// Serves these objects at that address of a namespace.
    ///
    /// # Errors
    /// When the address cannot be bound there.
    pub fn start_in(netns: &Netns, addr: SocketAddr, objects: &Objects) -> Result<Self> {
        Self::serve(netns.listen(addr)?, objects)
    }

    fn serve(listener: TcpListener, objects: &Objects) -> Result<Self> {
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let server = Self { addr, shared: Arc::clone(&shared) };
        for object in objects.iter() {
            server.apply(object.clone())?;
        }
        thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(connection) = connection else { continue };
                if shared.lock().has_ended {
                    return;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    // A client that goes away in the middle is the client's business.
                    let _ = shared.converse(connection);
                });
            }
        });
        Ok(server)
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Writes a kubeconfig for it into `folder`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, folder: &Path, token: &str) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "stand-in",
            "clusters": [{ "name": "stand-in", "cluster": { "server": self.url() } }],
            "users": [{ "name": "windlass", "user": { "token": token } }],
            "contexts": [{ "name": "stand-in", "context": { "cluster": "stand-in", "user": "windlass" } }],
        });
        let file = folder.join("kubeconfig");
        std::fs::write(&file, config.to_string()).context("kubeconfig")?;
        Ok(file)
    }

    /// Asks for that bearer token from now on.
    pub fn require_token(&self, token: &str) {
        self.shared.change(|state| state.token = Some(token.to_owned()));
    }

    /// Puts an object in its place, whatever was there.
    ///
    /// # Errors
    /// When it has no kind that is served, or no name.
    pub fn apply(&self, object: Value) -> Result<()> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = Resource::ALL.into_iter().find(|resource| resource.kind == kind);
        let resource = resource.with_context(|| format!("kind {kind:?} is not served"))?;
        let name = object["metadata"]["name"].as_str().context("no name")?.to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.shared.change(|state| state.store.put(resource, &(namespace, name), object));
        Ok(())
    }

    /// Merges `patch` into an object, as somebody else would by a merge patch.
    ///
    /// # Errors
    /// When there is no such object.
    pub fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Result<()> {
        let (resource, key) = named(plural, namespace, name)?;
        self.shared.change(|state| {
            let mut object = state.store.object(resource, &key).cloned().context("no such object")?;
            merge(&mut object, patch, false);
            state.store.put(resource, &key, object);
            Ok(())
        })
    }

    /// Takes an object away; it need not be there.
    ///
    /// # Errors
    /// When the resource is not served.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> Result<()> {
        let (resource, key) = named(plural, namespace, name)?;
        self.shared.change(|state| drop(state.store.remove(resource, &key)));
        Ok(())
    }

    /// An object as it is.
    #[must_use]
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let (resource, key) = named(plural, namespace, name).ok()?;
        self.shared.lock().store.object(resource, &key).cloned()
    }

    /// Forgets what happened so far, so that every watch that goes on from before gets 410.
    pub fn compact(&self) {
        self.shared.change(|state| state.store.compact());
        self.end_watches();
    }

    /// Ends the watches there are, as a server does when their time is over.
    pub fn end_watches(&self) {
        self.shared.change(|state| state.round += 1);
    }

    /// Fails in that way from now on, beside others. What is under way goes on, but for [`Fault::Away`].
    pub fn fail(&self, fault: Fault) {
        self.shared.change(|state| {
            state.faults.push(fault);
            if fault == Fault::Away {
                state.cut();
            }
        });
    }

    /// Fails no more.
    pub fn recover(&self) {
        self.shared.change(|state| state.faults.clear());
    }

    /// How many requests there have been; the method of watches is `WATCH`.
    #[must_use]
    pub fn count(&self, method: &str, plural: &str) -> usize {
        let state = self.shared.lock();
        let of = |((known, of), count): (&(String, &str), &usize)| {
            (known == method && *of == plural).then_some(*count)
        };
        state.counts.iter().filter_map(of).sum()
    }

    /// The methods and resources that were asked for; the method of watches is `WATCH`.
    #[must_use]
    pub fn requests(&self) -> Vec<(String, &'static str)> {
        self.shared.lock().counts.keys().cloned().collect()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.shared.change(|state| {
            state.has_ended = true;
            state.cut();
        });
    }
}

fn named(plural: &str, namespace: &str, name: &str) -> Result<(Resource, Name)> {
    let resource = Resource::ALL.into_iter().find(|resource| resource.plural == plural);
    let resource = resource.with_context(|| format!("{plural} are not served"))?;
    Ok((resource, (namespace.to_owned(), name.to_owned())))
}

impl State {
    fn cut(&mut self) {
        for connection in self.connections.drain(..) {
            // One that has been closed already is as cut as can be.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    fn fails(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    fn refusal(&self, target: &Target) -> Option<u16> {
        self.faults.iter().find_map(|fault| match fault {
            Fault::Refuse(plural, code) if *plural == target.resource.plural => Some(*code),
            _ => None,
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.lock());
        self.changed.notify_all();
        changed
    }

    /// Answers the requests of one connection until its end.
    fn converse(&self, mut connection: TcpStream) -> Result<()> {
        {
            let mut state = self.lock();
            if state.fails(Fault::Away) {
                return Ok(());
            }
            state.connections.push(connection.try_clone()?);
        }
        connection.set_nodelay(true)?;
        let mut requests = BufReader::new(connection.try_clone()?);
        while let Some(request) = Request::read(&mut requests)? {
            if !self.answer(&mut connection, &request)? {
                break;
            }
        }
        connection.shutdown(Shutdown::Both).context("closing")
    }

    /// Answers one request; false when the connection is of no use any more.
    fn answer(&self, to: &mut TcpStream, request: &Request) -> Result<bool> {
        if let Some(found) = routes::discovery(&request.path) {
            return http::answer(to, 200, &found).map(|()| true);
        }
        let Some(target) = Target::parse(&request.path) else {
            let (code, body) = failure(404, &format!("no path {}", request.path));
            return http::answer(to, code, &body).map(|()| true);
        };
        let mut state = self.lock();
        let is_watch = request.asks_for("watch");
        let method = if is_watch { "WATCH" } else { &request.method };
        *state.counts.entry((method.to_owned(), target.resource.plural)).or_default() += 1;
        if state.fails(Fault::Mute) {
            drop(state);
            return self.wait_for_recovery();
        }
        let wanted = state.token.as_ref().map(|token| format!("Bearer {token}"));
        let given = request.headers.get("authorization");
        let refused = if wanted.is_some() && wanted.as_ref() != given {
            Some(failure(401, "Unauthorized"))
        } else {
            state
                .refusal(&target)
                .map(|code| failure(code, &format!("{} are refused", target.resource.plural)))
        };
        let (code, body) = match refused {
            Some(refused) => refused,
            None if is_watch => {
                drop(state);
                return self.watch(to, &target, request);
            }
            None => {
                let answer = routes::answer(&mut state.store, &target, request)?;
                self.changed.notify_all();
                answer
            }
        };
        drop(state);
        http::answer(to, code, &body).map(|()| true)
    }

    fn wait_for_recovery(&self) -> Result<bool> {
        let mute = |state: &mut State| state.fails(Fault::Mute) && !state.has_ended;
        drop(self.changed.wait_while(self.lock(), mute).unwrap_or_else(PoisonError::into_inner));
        Ok(false)
    }

    /// Streams what happens from the version that the request names until the watch's time is over.
    fn watch(&self, to: &mut TcpStream, target: &Target, request: &Request) -> Result<bool> {
        let number = |name: &str| request.query.get(name).and_then(|text| text.parse::<u64>().ok());
        let selector = request.query.get("fieldSelector").map(String::as_str);
        let over_at = Instant::now() + Duration::from_secs(number("timeoutSeconds").unwrap_or(300));
        let mut state = self.lock();
        let mut version = number("resourceVersion").unwrap_or(state.store.version());
        let round = state.round;
        let mut chunks = Chunks::begin(to)?;
        if !state.store.remembers(version) {
            let (_, status) = failure(410, "too old resource version");
            chunks.line(&json!({ "type": "ERROR", "object": status }))?;
            return chunks.end().map(|()| true);
        }
        let mut bookmark_at = Instant::now() + BOOKMARK_EVERY;
        loop {
            if state.has_ended {
                return Ok(false);
            }
            if state.round != round || state.fails(Fault::ClosedWatches) || Instant::now() >= over_at {
                return chunks.end().map(|()| true);
            }
            let mut events = Vec::new();
            if !state.fails(Fault::SilentWatches) {
                for happening in state.store.since(version) {
                    let metadata = &happening.object["metadata"];
                    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
                    let name = (text("namespace"), text("name"));
                    if happening.resource == target.resource && target.holds(&name, selector) {
                        events.push(json!({ "type": happening.kind, "object": happening.object }));
                    }
                }
                version = state.store.version();
                if events.is_empty()
                    && request.asks_for("allowWatchBookmarks")
                    && Instant::now() >= bookmark_at
                {
                    events.push(bookmark(target.resource, version));
                    bookmark_at = Instant::now() + BOOKMARK_EVERY;
                }
            }
            let (breaks, is_slow) = (state.fails(Fault::BrokenWatches), state.fails(Fault::SlowWatches));
            drop(state);
            for event in &events {
                match (breaks, is_slow) {
                    (true, _) => return chunks.half_a_line(event).map(|()| false),
                    (_, true) => chunks.line_in_pieces(event, 100)?,
                    _ => chunks.line(event)?,
                }
            }
            state = self.lock();
            if state.store.version() == version || state.fails(Fault::SilentWatches) {
                let waited = self.changed.wait_timeout(state, BOOKMARK_EVERY);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

fn bookmark(resource: Resource, version: u64) -> Value {
    json!({ "type": "BOOKMARK", "object": {
        "kind": resource.kind,
        "apiVersion": resource.api_version(),
        "metadata": { "resourceVersion": version.to_string() },
    } })
}
