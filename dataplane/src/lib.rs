//! Windlass's packet engine: VXLAN encapsulation and decapsulation, MAC and IP forwarding tables, and service
//! VIP load balancing, between an overlay device (TUN, Wintun) and VXLAN over UDP.
//!
//! # The two packet journeys
//!
//! **Encap**, from a pod to another node's pod or to a VIP ([`Engine::encap`](engine::Engine::encap), one file
//! from top to bottom: `engine/encap.rs`):
//!
//! 1. [`OverlayDevice::recv_batch`](device::OverlayDevice::recv_batch) fills a
//!    [`PacketBatch`](packet::PacketBatch); each packet has headroom.
//! 2. The [`ForwardingTables`](tables::ForwardingTables) snapshot and the clock are read once per batch.
//! 3. [`InnerPacket::parse`](wire::inner::InnerPacket::parse) checks every length and yields the
//!    [`FlowKey`](wire::flow::FlowKey).
//! 4. The worker's [`FlowCache`](flow_cache::FlowCache) answers, or [`decide`](engine::decide::decide) does:
//!    connection, service, backend, route, neighbor, FDB; then [`commit`](engine::commit::commit) applies it.
//! 5. Too long: ICMP to the sender. Else addresses and ports are rewritten in place
//!    ([`lb::rewrite`]), and Ethernet and VXLAN headers pushed.
//! 6. [`UnderlaySocket::send_batch`](device::UnderlaySocket::send_batch), from the socket that the flow's hash
//!    names.
//!
//! **Decap**, from a remote VTEP to a pod of this node ([`Engine::decap`](engine::Engine::decap),
//! `engine/decap.rs`): the mirror of it. Before the tables are asked, [`admit`](engine::decap::admit) checks network,
//! sender, inner MAC and inner source.
//!
//! A [`Worker`](worker::Worker) drives both, batch by batch. Every packet ends as exactly one of sent or dropped
//! with one [`DropReason`](drop_reason::DropReason), and [`counters`] prove it.
//!
//! Where overlay devices are TAPs, a [`Bridge`](engine::bridge::Bridge) has the same two journeys for the frames of L2
//! segments, with [`SegmentTable`](tables::SegmentTable) for its tables.
//!
//! # Floors
//!
//! `worker` → `engine` → `flow_cache`, `tables`, `counters` → `device` → `lb`, `offload` → `wire`, `packet`,
//! `drop_reason`, `time`.
//! Only `device` knows platforms and holds `unsafe`; its `hints` about memory serve every floor. `wire` knows nothing but
//! bytes.

pub mod counters;
pub mod device;
pub mod drop_reason;
pub mod engine;
pub mod flow_cache;
pub mod lb;
pub mod offload;
pub mod packet;
pub mod tables;
pub mod tap;
pub mod time;
pub mod wire;
pub mod worker;
