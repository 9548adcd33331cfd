//! Node ports as sockets of this program, for hosts that cannot bring such packets to the overlay device.
//!
//! A TCP connection or a UDP client at a node port is relayed to the address that stands for node ports in the overlay.
//! The host routes that into the overlay device, so that backends are chosen, counted and traced as for every other
//! packet; the relay chooses nothing. Backends see this node's address in place of the client's.
//!
//! The relays have a thread and a runtime of their own, and never touch a worker. Connections and clients are bounded;
//! what waits beyond that waits in the system's queues, or is dropped (UDP).

mod tcp;
mod udp;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::AbortHandle;
use windlass_dataplane::wire::flow::Protocol;

use crate::compile::NodePort;

/// TCP connections through all node ports at once. Each holds two sockets and 16 KiB.
pub const MAX_CONNECTIONS: usize = 4_096;

/// UDP clients of one node port at once. Each holds a socket.
pub const MAX_UDP_CLIENTS: usize = 1_024;

/// The relays. Dropping them ends their thread and cuts every connection.
pub struct NodePortRelays {
    relays: BTreeMap<(SocketAddr, u8), Relay>,
    connections: Arc<Semaphore>,
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// One that listens; its TCP connections live on when it ends.
struct Relay {
    to: SocketAddr,
    task: AbortHandle,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl NodePortRelays {
    /// No relays as yet.
    ///
    /// # Errors
    /// When their thread or its runtime cannot be started.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("node-ports".to_owned()).spawn(move || {
            // An error means that the sender was dropped, which is what is waited for.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self {
            relays: BTreeMap::new(),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            runtime: handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Listens on these node ports and on no others. Connections of one that has gone live on, as with kube-proxy;
    /// UDP clients of it are forgotten. Names what cannot be listened on, which is tried again at the next call.
    pub fn follow(&mut self, wanted: &[NodePort]) -> Vec<String> {
        let key = |port: &NodePort| (port.listen, port.protocol.0);
        let to: BTreeMap<_, _> = wanted.iter().map(|port| (key(port), port.relay_to)).collect();
        self.relays.retain(|key, relay| to.get(key) == Some(&relay.to));
        let mut refused = Vec::new();
        for port in wanted {
            if self.relays.contains_key(&key(port)) {
                continue;
            }
            match self.listen(port) {
                Ok(task) => drop(self.relays.insert(key(port), Relay { to: port.relay_to, task })),
                Err(error) => refused.push(format!(
                    "Service {}: cannot listen on {} {}, its node port: {error}; stop what uses the port",
                    port.service, port.protocol, port.listen
                )),
            }
        }
        refused
    }

    /// How many node ports are listened on, at each address of the node.
    pub fn count(&self) -> usize {
        self.relays.len()
    }

    fn listen(&self, port: &NodePort) -> io::Result<AbortHandle> {
        let _inside = self.runtime.enter();
        match port.protocol {
            Protocol::TCP => {
                let listener = std::net::TcpListener::bind(port.listen)?;
                listener.set_nonblocking(true)?;
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let connections = Arc::clone(&self.connections);
                Ok(tokio::spawn(tcp::serve(listener, port.relay_to, connections)).abort_handle())
            }
            Protocol::UDP => {
                let socket = std::net::UdpSocket::bind(port.listen)?;
                socket.set_nonblocking(true)?;
                let socket = Arc::new(tokio::net::UdpSocket::from_std(socket)?);
                Ok(tokio::spawn(udp::serve(socket, port.relay_to)).abort_handle())
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Drop for NodePortRelays {
    fn drop(&mut self) {
        self.relays.clear();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the node ports panicked");
        }
    }
}

#[cfg(test)]
mod tests;
