//! TCP connections of a node port.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time;

/// How long a backend may take to answer; the engine refuses at once where there is none.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Silence after which a side is asked whether it is still there, so that dead ones do not hold their place.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Pause after a failed accept: file descriptors come back when others close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts and relays for ever. While there are as many connections as may be, one that is accepted waits, and the
/// others in the system's queue.
pub(super) async fn serve(listener: TcpListener, to: SocketAddr, connections: Arc<Semaphore>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                // The semaphore is never closed.
                let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
                tokio::spawn(relay(client, to, permit));
            }
            Err(_) => time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Carries both directions until both have ended. A side that fails, or a backend that cannot be had, resets the other.
async fn relay(mut client: TcpStream, to: SocketAddr, _permit: OwnedSemaphorePermit) {
    let Ok(Ok(mut backend)) = time::timeout(CONNECT_LIMIT, TcpStream::connect(to)).await else {
        return reset(&client);
    };
    prepare(&client);
    prepare(&backend);
    if tokio::io::copy_bidirectional(&mut client, &mut backend).await.is_err() {
        reset(&client);
        reset(&backend);
    }
}

/// Small writes leave at once, and a dead peer is found. Neither is worth a connection.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE));
}

/// Makes the close that follows a reset.
fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
