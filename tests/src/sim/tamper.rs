//! Faults made on purpose, at the edge between a node and the simulator: each proves that one invariant bites.

use std::net::IpAddr;

use windlass_control::cluster::ClusterState;
use windlass_dataplane::device::memory::MemoryDatagram;

use super::cluster::{Announced, Update};
use super::process::{Input, Outputs};
use super::rng::mixed;
use crate::engine_node::vni;

/// A fault that a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// Replies keep the backend's address.
    SkipReplyRewrite,
    /// Some datagrams go to another VTEP.
    WrongVtep,
    /// Some packets vanish, and nobody counts them.
    LoseSilently,
    /// A packet is counted twice.
    CountTwice,
    /// A backend that goes stays.
    KeepDeadBackend,
    /// Another network's packets are taken for ours.
    AcceptWrongVni,
    /// Packets to a VIP leave as they came.
    LeakVip,
    /// Connections are forgotten.
    ForgetConnections,
    /// Connections are never forgotten.
    NeverExpire,
    /// Tables are compiled, and some are never published.
    SkipPublication,
}

impl Tamper {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::SkipReplyRewrite,
        Self::WrongVtep,
        Self::LoseSilently,
        Self::CountTwice,
        Self::KeepDeadBackend,
        Self::AcceptWrongVni,
        Self::LeakVip,
        Self::ForgetConnections,
        Self::NeverExpire,
        Self::SkipPublication,
    ];

    /// Whether the `count`th packet or update is one that suffers.
    pub fn strikes(self, count: u64) -> bool {
        let one_in = match self {
            Self::SkipReplyRewrite | Self::LeakVip | Self::AcceptWrongVni | Self::KeepDeadBackend => 1,
            Self::WrongVtep | Self::SkipPublication => 8,
            Self::LoseSilently | Self::CountTwice | Self::ForgetConnections => 64,
            Self::NeverExpire => 1,
        };
        mixed(count).is_multiple_of(one_in)
    }

    /// What is injected instead of `input`.
    pub fn input(self, mut input: Input) -> Input {
        if let (Self::AcceptWrongVni, Input::Underlay { payload, .. }) = (self, &mut input)
            && let Some(number) = payload.get_mut(4..7)
        {
            number.copy_from_slice(&vni().get().to_be_bytes()[1..]);
        }
        input
    }

    /// Changes what came out when `input` had gone in.
    pub fn outputs(self, input: &Input, outputs: &mut Outputs, state: &ClusterState, own: IpAddr) {
        match (self, input) {
            (Self::SkipReplyRewrite, Input::Underlay { payload, .. }) => {
                for packet in &mut outputs.packets {
                    let headers = payload.len() - packet.len();
                    packet.clone_from_slice(&payload[headers..]);
                }
            }
            (Self::LeakVip, Input::Overlay(packet)) => {
                for MemoryDatagram { payload, .. } in &mut outputs.datagrams {
                    let headers = payload.len() - packet.len();
                    payload[headers..].clone_from_slice(packet);
                }
            }
            (Self::WrongVtep, _) => {
                for datagram in &mut outputs.datagrams {
                    let right = datagram.remote.ip();
                    let mut others = state.nodes.values().filter_map(|node| Some(node.announced()?.0));
                    if let Some(other) = others.find(|other| *other != right && *other != own) {
                        datagram.remote.set_ip(other);
                    }
                }
            }
            (Self::LoseSilently, _) => {
                outputs.packets.clear();
                outputs.datagrams.clear();
            }
            _ => {}
        }
    }

    /// What the compile step is told instead of `update`; `None` for nothing.
    pub fn update(self, update: &Update, before: &ClusterState) -> bool {
        let Update::Slice(name, after) = update else { return true };
        let count = |slice: Option<usize>| slice.unwrap_or_default();
        let known = count(before.endpoint_slices.get(name).map(|slice| slice.endpoints.len()));
        let left = count(after.as_ref().map(|slice| slice.endpoints.len()));
        self != Self::KeepDeadBackend || left >= known
    }
}
