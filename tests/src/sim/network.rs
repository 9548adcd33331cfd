//! The underlay: what it does to datagrams between nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use windlass_dataplane::device::memory::MemoryDatagram;

use super::cluster::other_vni;
use super::rng::Rng;

/// What befalls datagrams on the way to one node. Chances are out of 1,000.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Lost.
    pub lost: u32,
    /// Delivered twice.
    pub repeated: u32,
    /// Delivered much later than the ones after it.
    pub late: u32,
    /// Also delivered to another node, with another VNI, from another address, or cut short.
    pub forged: u32,
    /// The longest UDP payload that fits, if it is less than the usual.
    pub max_len: Option<usize>,
}

/// A datagram that arrives somewhere.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// After how long.
    pub delay: Duration,
    /// At which underlay address.
    pub to: IpAddr,
    /// From which.
    pub from: IpAddr,
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// Outer TOS.
    pub tos: u8,
    /// Outer source port.
    pub source_port: u16,
}

/// All links.
#[derive(Debug, Default)]
pub struct Network {
    /// By the receiver's address.
    pub faults: BTreeMap<IpAddr, Faults>,
    /// Pairs that do not reach each other, in both orders.
    pub cut: BTreeSet<(IpAddr, IpAddr)>,
    /// Datagrams that were lost or too long.
    pub lost: u64,
}

const FASTEST: Duration = Duration::from_micros(100);
const SLOWEST: Duration = Duration::from_micros(400);
const LATEST: Duration = Duration::from_millis(300);

impl Network {
    /// All links are as they should be.
    pub fn heal(&mut self) {
        self.faults.clear();
        self.cut.clear();
    }

    /// What arrives of `datagram`, sent by `from`.
    pub fn carry(&mut self, from: IpAddr, datagram: MemoryDatagram, rng: &mut Rng) -> Vec<Arrival> {
        let to = datagram.remote.ip();
        let calm = Faults::default();
        let faults = self.faults.get(&to).unwrap_or(&calm);
        let is_too_long = faults.max_len.is_some_and(|max_len| datagram.payload.len() > max_len);
        if self.cut.contains(&(from, to)) || is_too_long || rng.chance(faults.lost) {
            self.lost += 1;
            return Vec::new();
        }
        let slowest = if rng.chance(faults.late) { LATEST } else { SLOWEST };
        let arrival = Arrival {
            delay: rng.duration(FASTEST, slowest),
            to,
            from,
            payload: datagram.payload,
            tos: datagram.tos,
            source_port: datagram.source_port,
        };
        let mut arrivals = vec![arrival];
        if rng.chance(faults.repeated) {
            arrivals.push(Arrival { delay: rng.duration(FASTEST, LATEST), ..arrivals[0].clone() });
        }
        if rng.chance(faults.forged) {
            arrivals.push(self.forged(arrivals[0].clone(), rng));
        }
        arrivals
    }

    fn forged(&self, mut arrival: Arrival, rng: &mut Rng) -> Arrival {
        match rng.below(4) {
            0 => {
                if let Some(number) = arrival.payload.get_mut(4..7) {
                    number.copy_from_slice(&other_vni().get().to_be_bytes()[1..]);
                }
            }
            1 => arrival.to = self.anybody(rng).unwrap_or(arrival.to),
            2 => arrival.from = self.anybody(rng).unwrap_or(arrival.from),
            _ => arrival.payload.truncate(rng.below(arrival.payload.len())),
        }
        arrival
    }

    fn anybody(&self, rng: &mut Rng) -> Option<IpAddr> {
        let addrs: Vec<_> = self.faults.keys().copied().collect();
        rng.pick(&addrs).copied()
    }
}
