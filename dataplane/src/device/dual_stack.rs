//! One underlay of two address families: a socket pool each, behind one [`UnderlaySocket`].

use std::io;

use super::{SendReport, TooLong, UnderlaySocket};
use crate::packet::{Datagram, DatagramBatch, PacketPool};

/// The socket pools of the families this node has an underlay address of.
pub(super) struct DualStack<U> {
    v4: Option<U>,
    v6: Option<U>,
    /// Which family is asked first, and how many batches in a row it has given.
    v6_first: bool,
    in_a_row: u32,
    /// Datagrams of the family being sent, when a batch has both.
    sorted: Vec<Datagram>,
}

/// Batches that one family may give in a row while the other may have some too.
const MAX_IN_A_ROW: u32 = 8;

impl<U: UnderlaySocket> DualStack<U> {
    /// Sends and receives through `v4` and `v6`; what has no pool is refused.
    pub(super) fn new(v4: Option<U>, v6: Option<U>) -> Self {
        Self { v4, v6, v6_first: false, in_a_row: 0, sorted: Vec::new() }
    }
}

impl<U: UnderlaySocket> UnderlaySocket for DualStack<U> {
    /// The family that gave the last batch is asked first, as most nodes use one, but only so often that a flood on
    /// one does not starve the other.
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        if self.in_a_row == MAX_IN_A_ROW {
            (self.v6_first, self.in_a_row) = (!self.v6_first, 0);
        }
        for v6 in [self.v6_first, !self.v6_first] {
            let Some(pool) = (if v6 { &mut self.v6 } else { &mut self.v4 }) else { continue };
            let count = pool.recv_batch(batch)?;
            if count > 0 {
                self.in_a_row = if v6 == self.v6_first { self.in_a_row + 1 } else { 1 };
                self.v6_first = v6;
                return Ok(count);
            }
        }
        Ok(0)
    }

    fn send_batch(&mut self, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        let v6 = datagrams.iter().filter(|datagram| datagram.remote.is_ipv6()).count();
        match v6 {
            0 => send(&mut self.v4, pool, datagrams),
            all if all == datagrams.len() => send(&mut self.v6, pool, datagrams),
            _ => [(false, &mut self.v4), (true, &mut self.v6)]
                .into_iter()
                .map(|(ipv6, to)| {
                    self.sorted.clear();
                    let family = datagrams.iter().filter(|datagram| datagram.remote.is_ipv6() == ipv6);
                    self.sorted.extend(family);
                    send(to, pool, &self.sorted)
                })
                .sum(),
        }
    }

    fn next_too_long(&mut self) -> Option<TooLong> {
        [&mut self.v4, &mut self.v6].into_iter().flatten().find_map(U::next_too_long)
    }
}

fn send<U: UnderlaySocket>(to: &mut Option<U>, pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
    match to {
        Some(to) => to.send_batch(pool, datagrams),
        None => SendReport { refused: datagrams.len() as u64, ..SendReport::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketBatch;

    #[derive(Default)]
    struct Fake {
        waiting: usize,
        asked: usize,
        sent: u64,
    }

    impl UnderlaySocket for Fake {
        fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
            batch.clear();
            self.asked += 1;
            Ok(self.waiting)
        }

        fn send_batch(&mut self, _: &PacketPool, datagrams: &[Datagram]) -> SendReport {
            self.sent += datagrams.len() as u64;
            SendReport { sent: datagrams.len() as u64, ..SendReport::default() }
        }
    }

    #[test]
    fn datagrams_leave_by_the_pool_of_their_family_and_are_refused_without_one() {
        let mut batch = PacketBatch::new(1, 0);
        batch.receive_copy(b"x");
        let datagram = |remote: &str| Datagram {
            packet: batch.packets[0],
            remote: remote.parse().unwrap(),
            tos: 0,
            source_port: 0,
        };
        let mixed = [datagram("192.0.2.1:4789"), datagram("[2001:db8::1]:4789"), datagram("192.0.2.1:4789")];
        let mut both = DualStack::new(Some(Fake::default()), Some(Fake::default()));
        assert_eq!(both.send_batch(&batch.pool, &mixed).sent, 3);
        assert_eq!((both.v4.as_ref().unwrap().sent, both.v6.as_ref().unwrap().sent), (2, 1));
        let mut v4_only = DualStack::new(Some(Fake::default()), None);
        let report = v4_only.send_batch(&batch.pool, &mixed);
        assert_eq!((report.sent, report.refused), (2, 1));
    }

    #[test]
    fn a_flood_on_one_family_does_not_starve_the_other() {
        let [v4, v6] = [1, 2].map(|waiting| Fake { waiting, ..Fake::default() });
        let mut both = DualStack::new(Some(v4), Some(v6));
        let mut batch = DatagramBatch::new(1, 0);
        let counts: Vec<_> = (0..17).map(|_| both.recv_batch(&mut batch).unwrap()).collect();
        assert_eq!(counts, [[1; 8], [2; 8]].concat().into_iter().chain([1]).collect::<Vec<_>>());
    }

    #[test]
    fn a_family_without_traffic_is_seldom_asked() {
        let mut both = DualStack::new(Some(Fake::default()), Some(Fake { waiting: 1, ..Fake::default() }));
        let mut batch = DatagramBatch::new(1, 0);
        for _ in 0..80 {
            assert_eq!(both.recv_batch(&mut batch).unwrap(), 1);
        }
        assert!(both.v4.unwrap().asked <= 11);
    }
}
