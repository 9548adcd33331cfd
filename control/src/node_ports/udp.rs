//! UDP clients of a node port: each has a socket of its own toward the overlay, by which replies find back to it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::{self, Instant, MissedTickBehavior};
use windlass_dataplane::lb::conntrack::UDP_TIMEOUT;

use super::MAX_UDP_CLIENTS;

/// The longest datagram.
const MAX_LEN: usize = 65_535;

/// How often clients that have gone quiet are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// Pause after an error of a socket that concerns no peer.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Relays for ever.
pub(super) async fn serve(socket: Arc<UdpSocket>, to: SocketAddr) {
    let mut clients = HashMap::new();
    let mut buffer = vec![0; MAX_LEN];
    let mut sweep = time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((len, from)) => forward(&mut clients, &socket, to, from, &buffer[..len]).await,
                Err(error) if concerns_a_peer(&error) => {}
                Err(_) => time::sleep(ERROR_PAUSE).await,
            },
            _ = sweep.tick() => clients.retain(|_, client: &mut Client| client.is_alive()),
        }
    }
}

/// A client, and what brings its replies back.
struct Client {
    upstream: Arc<UdpSocket>,
    last_used: Arc<LastUsed>,
    replies: AbortHandle,
}

impl Client {
    async fn open(socket: &Arc<UdpSocket>, to: SocketAddr, from: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let upstream = UdpSocket::bind((any, 0)).await?;
        upstream.connect(to).await?;
        let (upstream, last_used) = (Arc::new(upstream), Arc::new(LastUsed::default()));
        let replies = reply(Arc::clone(socket), Arc::clone(&upstream), from, Arc::clone(&last_used));
        Ok(Self { upstream, last_used, replies: tokio::spawn(replies).abort_handle() })
    }

    fn is_alive(&self) -> bool {
        !self.replies.is_finished() && self.last_used.is_recent()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.replies.abort();
    }
}

/// Sends a client's datagram on. One that comes when there are too many clients is dropped, as any datagram may be.
async fn forward(
    clients: &mut HashMap<SocketAddr, Client>,
    socket: &Arc<UdpSocket>,
    to: SocketAddr,
    from: SocketAddr,
    datagram: &[u8],
) {
    if clients.get(&from).is_some_and(|client| client.replies.is_finished()) {
        clients.remove(&from);
    }
    if !clients.contains_key(&from) {
        if clients.len() >= MAX_UDP_CLIENTS {
            clients.retain(|_, client| client.is_alive());
        }
        if clients.len() >= MAX_UDP_CLIENTS {
            tracing::debug!("a datagram of {from} is dropped: {MAX_UDP_CLIENTS} clients use this node port");
            return;
        }
        match Client::open(socket, to, from).await {
            Ok(client) => drop(clients.insert(from, client)),
            Err(error) => return tracing::debug!(%error, "relaying UDP of {from} to {to}"),
        }
    }
    if let Some(client) = clients.get(&from) {
        client.last_used.is_now();
        let _ = client.upstream.send(datagram).await;
    }
}

/// Brings replies back, from the address that the client has sent to, until the backend refuses.
async fn reply(
    socket: Arc<UdpSocket>,
    upstream: Arc<UdpSocket>,
    client: SocketAddr,
    last_used: Arc<LastUsed>,
) {
    while upstream.readable().await.is_ok() {
        // Not kept while there is nothing to receive: clients are many.
        let mut buffer = vec![0; MAX_LEN];
        match upstream.try_recv(&mut buffer) {
            Ok(len) => {
                last_used.is_now();
                let _ = socket.send_to(&buffer[..len], client).await;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// An ICMP error about what was sent to some client earlier; Windows tells it to the next receive.
fn concerns_a_peer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionRefused)
}

/// Milliseconds since the first of them was made.
#[derive(Default)]
struct LastUsed(AtomicU64);

impl LastUsed {
    fn clock() -> u64 {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        u64::try_from(ORIGIN.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn is_now(&self) {
        self.0.store(Self::clock(), Ordering::Relaxed);
    }

    fn is_recent(&self) -> bool {
        let quiet = Self::clock().saturating_sub(self.0.load(Ordering::Relaxed));
        Duration::from_millis(quiet) < UDP_TIMEOUT
    }
}
