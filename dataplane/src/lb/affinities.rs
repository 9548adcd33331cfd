//! Which backend a client stays with (sessionAffinity ClientIP).

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::hash_table::Entry;

use super::sharded::Sharded;
use crate::time::Instant;
use crate::wire::flow::Vip;

/// A client of a service.
pub(super) type Client = (IpAddr, Vip);

/// A client's stay with one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Affinity {
    pub(super) backend: SocketAddr,
    pub(super) expires_at: Instant,
}

/// The stays of all clients.
#[derive(Debug, Default)]
pub(super) struct Affinities {
    stays: Sharded<(Client, Affinity)>,
    count: AtomicUsize,
}

impl Affinities {
    /// A client's stay, whether it has ended or not.
    pub(super) fn get(&self, client: &Client) -> Option<Affinity> {
        let hash = self.stays.hash(client);
        self.stays
            .with(hash, |shard| shard.find(hash, |(known, _)| known == client).map(|(_, affinity)| *affinity))
    }

    /// Remembers a stay, and says whether the client had none. Where there are `capacity` stays, new clients get none.
    pub(super) fn set(&self, client: Client, affinity: Affinity, capacity: usize) -> bool {
        let hash = self.stays.hash(&client);
        let rehash = |(client, _): &(Client, Affinity)| self.stays.hash(client);
        let full = self.count.load(Ordering::Relaxed) >= capacity;
        let is_new =
            self.stays.with(hash, |shard| match shard.entry(hash, |(known, _)| *known == client, rehash) {
                Entry::Occupied(mut known) => {
                    known.get_mut().1 = affinity;
                    false
                }
                Entry::Vacant(_) if full => false,
                Entry::Vacant(vacant) => {
                    vacant.insert((client, affinity));
                    true
                }
            });
        self.count.fetch_add(usize::from(is_new), Ordering::Relaxed);
        is_new
    }

    /// Forgets a client's stay if it has ended, and says whether it had.
    pub(super) fn end(&self, client: &Client, now: Instant) -> bool {
        let hash = self.stays.hash(client);
        let ended = self.stays.with(hash, |shard| {
            let ended =
                |(known, affinity): &(Client, Affinity)| known == client && affinity.expires_at <= now;
            shard.find_entry(hash, ended).map(|entry| entry.remove()).is_ok()
        });
        self.count.fetch_sub(usize::from(ended), Ordering::Relaxed);
        ended
    }

    /// Shows every stay to `see`. None must be asked for meanwhile.
    pub(super) fn visit(&self, see: impl FnMut(&(Client, Affinity))) {
        self.stays.visit(see);
    }
}
