//! Sweeps: one thing varies, and few contestants are measured at each of its values.

use clap::ValueEnum;
use serde::Serialize;

use crate::contestants::BASE;
use crate::measure::{FLOWS, LOSS_FREE, MEASURES, Measure, PACKET_SIZES, PEERS};

/// What varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Sweep {
    /// Payload sizes from 18 to 1,400 bytes, and IMIX
    PacketSize,
    /// 1, 1,000 and 100,000 flows
    Flows,
    /// 10, 1,000 and 100,000 services
    Services,
    /// 1, 100 and 1,000 VTEPs of 1,000 that are simulated
    Peers,
    /// The loss-free rate, by binary search
    Ndr,
}

impl Sweep {
    /// The measures that it takes.
    #[must_use]
    pub fn measures(self) -> Vec<Measure> {
        match self {
            Self::PacketSize => PACKET_SIZES.into(),
            Self::Flows => FLOWS.into(),
            Self::Services => {
                let wanted = ["udp-small-1", "tcp-rr", "connect-16"];
                MEASURES.into_iter().filter(|measure| wanted.contains(&measure.key)).collect()
            }
            Self::Peers => PEERS.into(),
            Self::Ndr => LOSS_FREE.into(),
        }
    }

    /// Key of the contestant that the others are compared with.
    #[must_use]
    pub fn base(self) -> &'static str {
        match self {
            Self::Peers => "kernel-peers",
            _ => BASE,
        }
    }

    /// Keys of the contestants beside the base, unless others are asked for.
    #[must_use]
    pub fn contestants(self) -> &'static [&'static str] {
        match self {
            Self::PacketSize | Self::Ndr => {
                &["kernel-gro", "ovs-afpacket", "ovs-afxdp", "windlass-1w", "windlass-tuned"]
            }
            Self::Flows => &["kernel-nft-1", "windlass-1w", "windlass-2w", "windlass-vip-1"],
            // nft takes minutes for 100,000 services.
            Self::Services => &[
                "kernel-nft-10",
                "kernel-nft-1k",
                "kernel-nft-10k",
                "windlass-vip-10",
                "windlass-vip-1k",
                "windlass-vip-100k",
            ],
            Self::Peers => &["windlass-peers"],
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::Sweep;
    use crate::contestants;

    #[test]
    fn every_contestant_of_a_sweep_exists() {
        for sweep in Sweep::value_variants() {
            assert!(!sweep.measures().is_empty());
            for key in sweep.contestants() {
                assert!(contestants::all().any(|contestant| contestant.key == *key), "{key}");
            }
        }
    }
}
