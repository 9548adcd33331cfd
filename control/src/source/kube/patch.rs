//! The few things that are written: patches of the status of our own Node.

use std::sync::{PoisonError, mpsc};
use std::time::{Duration, Instant};

use ::kube::api::{Patch, PatchParams};
use ::kube::{Api, Client};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use tokio::time::timeout;

use super::backoff::Backoff;
use super::failure::{Failure, Request};
use super::{ApiSource, Kind, LOOK_EVERY, SourceError};

/// Patches of a Node's status, which its kubelet's credentials or ours must allow.
#[derive(Clone)]
struct NodePatches {
    client: Client,
    server: String,
    name: String,
    patches: Vec<Value>,
    answer_limit: Duration,
}

impl ApiSource {
    /// Makes these strategic merge patches of a Node's status and waits until they are made; `go_on` is asked a few
    /// times a second.
    ///
    /// # Errors
    /// At once when they are forbidden or there is no such Node, after `limit` whatever else kept us, and when
    /// `go_on` says no.
    pub fn patch_node(
        &self,
        name: &str,
        patches: Vec<Value>,
        limit: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Result<(), SourceError> {
        let work = self.node_patches(name, patches);
        let begun = Instant::now();
        let mut last = Failure::silent(limit, work.request());
        let (tell, told) = mpsc::channel();
        let task = self.handle.spawn(async move {
            let failed = tell.clone();
            let outcome = work.make(|failure| failed.send(Err(failure.clone())).is_ok()).await;
            // Nobody is left to tell when this fails.
            let _ = tell.send(outcome);
        });
        let outcome = loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) if failure.is_withheld() => break SourceError::Failed(failure),
                Ok(Err(failure)) => last = failure,
                Err(_) if begun.elapsed() >= limit => break SourceError::Failed(last),
                Err(_) if go_on() => {}
                Err(_) => break SourceError::Interrupted,
            }
        };
        task.abort();
        Err(outcome)
    }

    /// Makes these patches in the background, however long it takes, in place of those that are still under way.
    pub fn keep_patching_node(&self, name: &str, patches: Vec<Value>) {
        let work = self.node_patches(name, patches);
        let made = async move {
            // It is tried again after every failure.
            let _ = work.make(|_| true).await;
        };
        let task = self.handle.spawn(made).abort_handle();
        let mut patching = self.patching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = patching.replace(task) {
            before.abort();
        }
    }

    fn node_patches(&self, name: &str, patches: Vec<Value>) -> NodePatches {
        NodePatches {
            client: self.client.clone(),
            server: self.server.clone(),
            name: name.to_owned(),
            patches,
            answer_limit: self.shared.patience.answer_limit,
        }
    }
}

impl NodePatches {
    fn request(&self) -> Request<'_> {
        Request { server: &self.server, verb: "patch", kind: Kind::Node }
    }

    /// Makes them in turn, each again for as long as `go_on` says so after a failure.
    async fn make(&self, mut go_on: impl FnMut(&Failure) -> bool) -> Result<(), Failure> {
        let nodes = Api::<Node>::all(self.client.clone());
        let mut backoff = Backoff::default();
        let mut said = None;
        for patch in &self.patches {
            while let Err(failure) = self.once(&nodes, patch).await {
                if !go_on(&failure) {
                    return Err(failure);
                }
                if said.as_ref() != Some(&failure) {
                    tracing::warn!("{failure}; it is tried again");
                    said = Some(failure);
                }
                tokio::time::sleep(backoff.next()).await;
            }
        }
        Ok(())
    }

    async fn once(&self, nodes: &Api<Node>, patch: &Value) -> Result<(), Failure> {
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        match timeout(self.answer_limit, nodes.patch_status(&self.name, &params, &patch)).await {
            Err(_) => Err(Failure::silent(self.answer_limit, self.request())),
            Ok(Err(error)) => Err(Failure::of(&error, self.request())),
            Ok(Ok(_)) => Ok(()),
        }
    }
}
