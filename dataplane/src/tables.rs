//! What control feeds the engine: one immutable snapshot at a time.
//!
//! Control compiles a [`TableSet`] and gives it to the [`Writer`], either whole, which is compared with the one
//! before, or as a [`Draft`] that knows the few entries it changed. What did not change stays shared (an `Arc`
//! per table, per service and per VTEP) in the [`ForwardingTables`] that are published. Workers look at the
//! newest snapshot once per batch through a [`Reader`].
//!
//! Every entry has a stable slot with an epoch, and a cached flow names the [`Dependency`]s it was decided
//! under: a change makes stale only the flows that depend on it. An entry that two successive snapshots both have
//! stands in the same slot in both.

pub mod draft;
pub mod epochs;
pub mod fdb;
pub mod local;
pub mod neighbor;
pub mod publish;
pub mod route;
pub mod segment;
pub mod service;
mod slotted;
pub mod snapshot;

pub use draft::Draft;
pub use epochs::{Dependency, Entry, Epochs, Table};
pub use fdb::{Fdb, RemoteVtep};
pub use local::{Local, LocalVtep};
pub use neighbor::NeighborTable;
pub use publish::{Reader, Snapshots, Writer};
pub use route::{NextHop, RouteTable};
pub use segment::{Learning, Place, Segment, SegmentTable};
pub use service::{ClientAddress, Service, ServiceTable, Vip, VipKind, WhenEmpty};
pub use slotted::Slot;
pub use snapshot::{ForwardingTables, TableSet};
