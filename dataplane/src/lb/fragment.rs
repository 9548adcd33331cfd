//! Which connection the later fragments of a packet belong to: they carry no ports.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

use super::conntrack::{Connection, FlowDirection};
use crate::time::Instant;
use crate::wire::flow::{FlowKey, Protocol};

/// What all fragments of one packet share (RFC 791 section 3.2, RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FragmentKey {
    src: IpAddr,
    dst: IpAddr,
    protocol: Protocol,
    ident: u32,
}

impl FragmentKey {
    /// The key of a fragment of `flow`.
    pub fn new(flow: &FlowKey, ident: u32) -> Self {
        Self { src: flow.src, dst: flow.dst, protocol: flow.protocol, ident }
    }
}

/// Linux's reassembly time (net.ipv4.ipfrag_time): a receiver waits no longer for the rest.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// Packets whose fragments are followed at once; the oldest is forgotten for a new one.
const CAPACITY: usize = 4_096;

/// The fragmented packets of one worker's translated flows.
#[derive(Debug, Default)]
pub struct FragmentTable {
    connections: HashMap<FragmentKey, (Arc<Connection>, FlowDirection, Instant)>,
    oldest: VecDeque<FragmentKey>,
}

impl FragmentTable {
    /// Remembers the connection that a first fragment has shown.
    pub fn insert(
        &mut self,
        key: FragmentKey,
        connection: &Arc<Connection>,
        direction: FlowDirection,
        now: Instant,
    ) {
        while self.oldest.len() >= CAPACITY
            && let Some(old) = self.oldest.pop_front()
        {
            self.connections.remove(&old);
        }
        let known = (Arc::clone(connection), direction, now + KEPT_FOR);
        if self.connections.insert(key, known).is_none() {
            self.oldest.push_back(key);
        }
    }

    /// The connection of a later fragment.
    pub fn lookup(&self, key: &FragmentKey, now: Instant) -> Option<(Arc<Connection>, FlowDirection)> {
        let (connection, direction, expires_at) = self.connections.get(key)?;
        (*expires_at > now && connection.is_live()).then(|| (Arc::clone(connection), *direction))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ident: u32) -> FragmentKey {
        let addr = IpAddr::from([10, 0, 0, 1]);
        FragmentKey { src: addr, dst: addr, protocol: Protocol::UDP, ident }
    }

    #[test]
    fn a_flood_of_first_fragments_is_bounded_and_forgets_the_oldest() {
        let addr = IpAddr::from([10, 0, 0, 1]);
        let flow = FlowKey { src: addr, dst: addr, protocol: Protocol::UDP, src_port: 1, dst_port: 2 };
        let connection = Arc::new(Connection::new(flow, flow.reversed(), Instant::ZERO));
        let mut table = FragmentTable::default();
        for ident in 0..10_000 {
            table.insert(key(ident), &connection, FlowDirection::Original, Instant::ZERO);
        }
        assert_eq!(table.connections.len(), CAPACITY);
        assert!(!table.connections.contains_key(&key(0)) && table.connections.contains_key(&key(9_999)));
    }
}
