//! What of the connection table outlives it: taken out of one table, put into another.
//!
//! Both clocks start at zero, so only time that has passed is carried along, and a connection that has not yet timed
//! out begins its timer anew.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Affinity, Connection, Conntrack, TcpState, Vip};
use crate::time::Instant;
use crate::wire::flow::FlowKey;

/// A connection without its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedConnection {
    /// Client to VIP.
    pub original: FlowKey,
    /// Backend to client.
    pub reply: FlowKey,
    /// How far TCP has come.
    pub tcp_state: TcpState,
    /// Whether the backend has ever answered.
    pub is_replied: bool,
    /// Time since its last packet, in whole seconds.
    pub idle: Duration,
}

/// A client's stay with a backend, without its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedAffinity {
    /// The client.
    pub client: IpAddr,
    /// The service.
    pub vip: Vip,
    /// The backend.
    pub backend: SocketAddr,
    /// How long it lasts yet.
    pub remaining: Duration,
}

impl Connection {
    /// What of it can outlive its table.
    pub fn saved(&self, now: Instant) -> SavedConnection {
        SavedConnection {
            original: self.original,
            reply: self.reply,
            tcp_state: self.tcp_state(),
            is_replied: self.is_replied(),
            idle: Duration::from_secs(now.tick().saturating_sub(self.last_seen_tick()).into()),
        }
    }
}

impl SavedConnection {
    /// The connection, as if its last packet had come `now`.
    pub fn connection(&self, now: Instant) -> Connection {
        let connection = Connection::new(self.original, self.reply, now);
        connection.tcp_state.store(self.tcp_state as u8, Ordering::Relaxed);
        connection.replied.store(self.is_replied, Ordering::Relaxed);
        connection
    }
}

impl Conntrack {
    /// Remembers a connection that was idle for so long when it was saved, and `away` since. False where it has
    /// timed out, does not fit in, or clashes with another.
    pub fn restore(&self, saved: &SavedConnection, away: Duration, now: Instant, worker: usize) -> bool {
        let connection = Arc::new(saved.connection(now));
        saved.idle + away < connection.timeout() && self.insert(&connection, worker).is_ok()
    }

    /// Remembers a stay that had so long to last when it was saved, `away` ago.
    pub fn restore_affinity(&self, saved: &SavedAffinity, away: Duration, now: Instant, worker: usize) {
        if let Some(remaining) = saved.remaining.checked_sub(away).filter(|left| !left.is_zero()) {
            self.remember_affinity(saved.client, saved.vip, saved.backend, remaining, now, worker);
        }
    }

    /// Every stay that has not ended. One shard is locked at a time, while its stays are copied.
    pub fn saved_affinities(&self, now: Instant) -> Vec<SavedAffinity> {
        let mut saved = Vec::new();
        self.affinities.visit(|((client, vip), Affinity { backend, expires_at })| {
            if *expires_at > now {
                let remaining = expires_at.since(now);
                saved.push(SavedAffinity { client: *client, vip: *vip, backend: *backend, remaining });
            }
        });
        saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lb::conntrack::FlowDirection;
    use crate::wire::flow::Protocol;
    use crate::wire::tcp::{ACK, SYN};

    fn flow(protocol: Protocol, src: &str, dst: &str) -> FlowKey {
        let (src, dst): (SocketAddr, SocketAddr) = (src.parse().unwrap(), dst.parse().unwrap());
        FlowKey { src: src.ip(), dst: dst.ip(), protocol, src_port: src.port(), dst_port: dst.port() }
    }

    fn opened(protocol: Protocol, client: &str) -> Arc<Connection> {
        let original = flow(protocol, client, "10.96.0.10:80");
        Arc::new(Connection::new(original, flow(protocol, "10.244.2.1:8080", client), Instant::ZERO))
    }

    #[test]
    fn g1_a_connection_goes_on_in_another_table_with_backend_and_state() {
        let (before, after) = (Conntrack::new(10, 1), Conntrack::new(10, 2));
        let connection = opened(Protocol::TCP, "10.244.0.14:40000");
        before.insert(&connection, 0).unwrap();
        let (original, reply) = (FlowDirection::Original, FlowDirection::Reply);
        for (direction, flags) in [(original, SYN), (reply, SYN | ACK), (original, ACK)] {
            before.advance(&connection, direction, flags, Instant::ZERO, 0);
        }
        let later = Instant::ZERO + Duration::from_secs(100);
        let saved = connection.saved(later);
        assert_eq!(saved.idle, Duration::from_secs(100));
        assert!(after.restore(&saved, Duration::from_secs(10), Instant::ZERO, 1));
        let (found, direction) = after.lookup(&connection.reply).unwrap();
        assert_eq!((found.backend(), direction), (connection.backend(), reply));
        assert_eq!((found.tcp_state(), found.is_replied()), (TcpState::Established, true));
        assert!(!after.restore(&saved, Duration::ZERO, Instant::ZERO, 0), "it is there already");
    }

    #[test]
    fn d4_what_has_timed_out_meanwhile_is_not_remembered() {
        let table = Conntrack::new(10, 1);
        let saved =
            opened(Protocol::UDP, "10.244.0.14:40000").saved(Instant::ZERO + Duration::from_secs(200));
        assert!(!table.restore(&saved, Duration::from_secs(100), Instant::ZERO, 0));
        assert!(table.restore(&saved, Duration::from_secs(99), Instant::ZERO, 0));
    }

    #[test]
    fn f2_a_clients_stay_goes_on_for_as_long_as_it_had_left() {
        let (before, after) = (Conntrack::new(10, 1), Conntrack::new(10, 1));
        let connection = opened(Protocol::TCP, "10.244.0.14:40000");
        let (client, vip, backend) = (connection.original.src, connection.vip, connection.backend());
        before.remember_affinity(client, vip, backend, Duration::from_secs(60), Instant::ZERO, 0);
        let saved = before.saved_affinities(Instant::ZERO + Duration::from_secs(20));
        assert_eq!(saved[0].remaining, Duration::from_secs(40));
        assert!(before.saved_affinities(Instant::ZERO + Duration::from_secs(60)).is_empty());
        after.restore_affinity(&saved[0], Duration::from_secs(10), Instant::ZERO, 0);
        let at = |seconds| after.affinity(client, vip, Instant::ZERO + Duration::from_secs(seconds));
        assert_eq!((at(29), at(30)), (Some(backend), None));
    }
}
