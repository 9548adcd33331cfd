//! Backend choice by a fixed, versioned hash that every node computes alike, version 1.
//!
//! Up to [`RENDEZVOUS_MAX`] backends: rendezvous hashing (Thaler and Ravishankar, 1998), which needs no table
//! and moves exactly the flows of a backend that goes. Beyond: a Maglev table (Eisenbud et al., NSDI 2016,
//! section 3.4), one look whatever the number of backends.
//!
//! A change of any constant here moves flows on a rolling upgrade: it needs a new version.

use std::net::{IpAddr, SocketAddr};

/// The most backends that are compared one by one.
pub const RENDEZVOUS_MAX: usize = 64;

/// How a service picks a backend.
#[derive(Clone, Debug)]
pub struct Selector(Method);

#[derive(Clone, Debug)]
enum Method {
    Rendezvous { backend_hashes: Box<[u64]> },
    Maglev { table: Box<[u16]> },
}

impl Selector {
    /// A selector over `backends`, which must be sorted and without duplicates. Beyond 65,535 backends the
    /// rest gets nothing.
    pub fn new(backends: &[SocketAddr]) -> Self {
        let hashes = backends.iter().take(usize::from(u16::MAX)).map(backend_hash);
        Self(if backends.len() <= RENDEZVOUS_MAX {
            Method::Rendezvous { backend_hashes: hashes.collect() }
        } else {
            Method::Maglev { table: maglev_table(&hashes.collect::<Vec<_>>()) }
        })
    }

    /// The backend for `flow_hash`; `None` when there is none.
    pub fn select(&self, backends: &[SocketAddr], flow_hash: u64) -> Option<SocketAddr> {
        let index = match &self.0 {
            Method::Rendezvous { backend_hashes } => {
                let score = |hash: &u64| mix(flow_hash ^ hash);
                backend_hashes.iter().enumerate().max_by_key(|(_, hash)| score(hash))?.0
            }
            Method::Maglev { table } => {
                let slot = (u128::from(mix(flow_hash)) * table.len() as u128) >> 64;
                usize::from(table[slot as usize])
            }
        };
        backends.get(index).copied()
    }
}

fn backend_hash(backend: &SocketAddr) -> u64 {
    let addr = match backend.ip() {
        IpAddr::V4(addr) => u64::from(addr.to_bits()),
        IpAddr::V6(addr) => {
            let bits = addr.to_bits();
            mix((bits >> 64) as u64) ^ bits as u64
        }
    };
    mix(mix(addr) ^ u64::from(backend.port()))
}

/// The finalizer of MurmurHash3 (Appleby), constants of "variant 13" (Stafford, 2011).
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Each backend walks its own permutation of the slots and takes the next free one, in turns.
fn maglev_table(backend_hashes: &[u64]) -> Box<[u16]> {
    const FREE: u16 = u16::MAX;
    let size = table_len(backend_hashes.len());
    let mut table = vec![FREE; size].into_boxed_slice();
    let mut walks: Vec<(usize, usize)> = backend_hashes
        .iter()
        .map(|hash| (*hash as usize % size, mix(*hash) as usize % (size - 1) + 1))
        .collect();
    let mut filled = 0;
    while filled < size {
        for (backend, (position, skip)) in walks.iter_mut().enumerate() {
            while table[*position] != FREE {
                *position = (*position + *skip) % size;
            }
            table[*position] = backend as u16;
            filled += 1;
            if filled == size {
                break;
            }
        }
    }
    table
}

/// A prime more than 100 times the number of backends (the paper's section 5.3). The steps are far apart: a
/// table of another length moves every flow.
fn table_len(backends: usize) -> usize {
    const PRIMES: [usize; 3] = [65_537, 655_373, 6_553_621];
    PRIMES.into_iter().find(|prime| *prime > backends * 100).unwrap_or(PRIMES[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(count: u16) -> Vec<SocketAddr> {
        (0..count).map(|i| SocketAddr::from(([10, 244, (i >> 8) as u8, i as u8], 80))).collect()
    }

    fn moved(count: u16, removed: usize, flows: u64) -> f64 {
        let before = backends(count);
        let mut after = before.clone();
        after.remove(removed);
        let (old, new) = (Selector::new(&before), Selector::new(&after));
        let flow = |i: u64| mix(i);
        let differ =
            (0..flows).filter(|i| old.select(&before, flow(*i)) != new.select(&after, flow(*i))).count();
        differ as f64 / flows as f64
    }

    #[test]
    fn f9_removing_a_backend_moves_little_more_than_its_own_flows() {
        for count in [2, 3, 10, 64] {
            let share = moved(count, usize::from(count) / 2, 50_000);
            assert!(share <= 1.0 / f64::from(count) + 0.01, "{count} backends: {share}");
        }
        for count in [66, 200] {
            let share = moved(count, usize::from(count) / 2, 50_000);
            assert!(share <= 1.0 / f64::from(count) + 0.04, "{count} backends: {share}");
        }
    }

    #[test]
    fn every_backend_gets_its_share() {
        for count in [3_u16, 64, 65, 300] {
            let all = backends(count);
            let selector = Selector::new(&all);
            let mut hits = std::collections::HashMap::new();
            for i in 0..u64::from(count) * 1_000 {
                *hits.entry(selector.select(&all, mix(i)).unwrap()).or_insert(0_u32) += 1;
            }
            assert_eq!(hits.len(), usize::from(count));
            assert!(hits.values().all(|n| (800..1_200).contains(n)), "{count}: {hits:?}");
        }
    }

    #[test]
    fn the_choice_is_fixed_for_version_1() {
        let few = backends(3);
        let many = backends(100);
        let choice = |all: &[SocketAddr]| {
            (0..8)
                .map(|i| all.binary_search(&Selector::new(all).select(all, i).unwrap()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(choice(&few), CHOICE_OF_3);
        assert_eq!(choice(&many), CHOICE_OF_100);
    }

    const CHOICE_OF_3: [usize; 8] = [1, 0, 2, 0, 1, 2, 0, 2];
    const CHOICE_OF_100: [usize; 8] = [56, 74, 88, 0, 35, 14, 8, 23];

    #[test]
    fn table_lengths_are_prime() {
        for len in [table_len(65), table_len(656), table_len(60_000)] {
            assert!((2..).take_while(|d| d * d <= len).all(|d| !len.is_multiple_of(d)), "{len}");
        }
    }

    #[test]
    fn no_backend_no_choice() {
        assert_eq!(Selector::new(&[]).select(&[], 7), None);
    }
}
