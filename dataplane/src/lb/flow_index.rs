//! Which connection a flow belongs to, in either direction.

use std::sync::Arc;

use hashbrown::hash_table::Entry;

use super::connection::Connection;
use super::sharded::Sharded;
use super::tcp_state::FlowDirection;
use crate::wire::flow::FlowKey;

/// A connection under one of its two flows.
#[derive(Clone, Debug)]
pub struct Indexed {
    /// The connection.
    pub connection: Arc<Connection>,
    /// Whether the flow is its original or its reply.
    pub direction: FlowDirection,
}

impl Indexed {
    fn flow(&self) -> &FlowKey {
        match self.direction {
            FlowDirection::Original => &self.connection.original,
            FlowDirection::Reply => &self.connection.reply,
        }
    }
}

/// Flow to connection. An entry is 24 bytes: the flow itself stands in the connection, which whoever finds it needs
/// anyway; who finds nothing goes by the hash alone.
#[derive(Debug, Default)]
pub struct FlowIndex(Sharded<(u64, Indexed)>);

impl FlowIndex {
    /// The connection of `flow`.
    #[inline]
    pub fn get(&self, flow: &FlowKey) -> Option<Indexed> {
        let hash = self.0.hash(flow);
        self.0.with(hash, |shard| shard.find(hash, is(hash, flow)).map(|(_, indexed)| indexed.clone()))
    }

    /// The hash of a flow.
    #[inline]
    pub fn hash(&self, flow: &FlowKey) -> u64 {
        self.0.hash(flow)
    }

    /// Whether `flow`, of this hash, has a connection.
    #[inline]
    pub fn contains(&self, hash: u64, flow: &FlowKey) -> bool {
        self.0.with(hash, |shard| shard.find(hash, is(hash, flow)).is_some())
    }

    /// Puts `indexed` in the place of its flow, which is of this hash, unless another one stands there for which
    /// `gives_way` says no.
    pub fn insert(&self, hash: u64, indexed: Indexed, gives_way: impl FnOnce(&Connection) -> bool) -> bool {
        let flow = *indexed.flow();
        let old = self.0.with(hash, |shard| match shard.entry(hash, is(hash, &flow), |(hash, _)| *hash) {
            Entry::Occupied(known) if !gives_way(&known.get().1.connection) => Err(()),
            Entry::Occupied(mut known) => Ok(Some(std::mem::replace(&mut known.get_mut().1, indexed))),
            Entry::Vacant(vacant) => {
                vacant.insert((hash, indexed));
                Ok(None)
            }
        });
        old.is_ok()
    }

    /// Takes `flow` away from `connection`; another connection's it stays.
    pub fn remove(&self, flow: &FlowKey, connection: &Arc<Connection>) {
        let hash = self.0.hash(flow);
        let removed = self.0.with(hash, |shard| {
            let theirs = |(_, known): &(u64, Indexed)| {
                Arc::ptr_eq(&known.connection, connection) && known.flow() == flow
            };
            shard.find_entry(hash, theirs).ok().map(|entry| entry.remove().0)
        });
        // Freed outside of the lock.
        drop(removed);
    }
}

#[inline]
fn is(hash: u64, flow: &FlowKey) -> impl Fn(&(u64, Indexed)) -> bool {
    move |(other, indexed)| *other == hash && indexed.flow() == flow
}
