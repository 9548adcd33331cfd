//! Who watches a decision: nobody on the hot path, a recorder for `trace`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::lb::conntrack::{Connection, FlowDirection};
use crate::tables::{NextHop, RemoteVtep, Service};
use crate::wire::ethernet::Mac;
use crate::wire::flow::FlowKey;
use crate::wire::vxlan::Vni;

use super::verdict::DropReason;

/// One thing a decision looked at or concluded.
#[derive(Debug)]
pub enum Step<'a> {
    /// A datagram passed every admission check; these VTEPs may send from its outer source.
    Admitted(Vni, &'a [Arc<RemoteVtep>]),
    /// The flow belongs to a known connection.
    Connection(&'a Connection, FlowDirection),
    /// A connection was found, but its backend serves no more or it is over: decided anew.
    ConnectionOver(&'a Connection),
    /// The destination is this service.
    Service(&'a Service),
    /// The client stays with this backend.
    Affinity(SocketAddr),
    /// This backend was chosen by hash.
    Backend(SocketAddr),
    /// The flow becomes this one.
    Translated(FlowKey),
    /// The route of the (translated) destination.
    Route(IpNet, NextHop),
    /// The gateway's MAC.
    Neighbor(Vni, IpAddr, Mac),
    /// The VTEP behind the MAC.
    Fdb(Vni, Mac, &'a RemoteVtep),
    /// Nothing more: dropped or rejected.
    Dropped(DropReason),
}

/// Sees every step of a decision.
pub trait Observer {
    /// One step.
    fn observe(&mut self, step: Step<'_>);
}

/// Sees nothing and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    #[inline(always)]
    fn observe(&mut self, _: Step<'_>) {}
}

/// A [`Step`] that can be kept.
#[derive(Clone, Debug)]
pub enum RecordedStep {
    /// See [`Step::Admitted`].
    Admitted(Vni, Vec<Arc<RemoteVtep>>),
    /// The original and the reply flow of the connection, and the packet's direction.
    Connection {
        /// Client to VIP.
        original: FlowKey,
        /// Backend to (translated) client.
        reply: FlowKey,
        /// Which way the packet goes.
        direction: FlowDirection,
    },
    /// The original flow, and the backend that is left.
    ConnectionOver(FlowKey, SocketAddr),
    /// See [`Step::Service`].
    Service(Box<Service>),
    /// See [`Step::Affinity`].
    Affinity(SocketAddr),
    /// See [`Step::Backend`].
    Backend(SocketAddr),
    /// See [`Step::Translated`].
    Translated(FlowKey),
    /// See [`Step::Route`].
    Route(IpNet, NextHop),
    /// See [`Step::Neighbor`].
    Neighbor(Vni, IpAddr, Mac),
    /// See [`Step::Fdb`].
    Fdb(Vni, Mac, Box<RemoteVtep>),
    /// See [`Step::Dropped`].
    Dropped(DropReason),
}

impl From<Step<'_>> for RecordedStep {
    fn from(step: Step<'_>) -> Self {
        match step {
            Step::Admitted(vni, vteps) => Self::Admitted(vni, vteps.to_vec()),
            Step::Connection(connection, direction) => {
                Self::Connection { original: connection.original, reply: connection.reply, direction }
            }
            Step::ConnectionOver(connection) => {
                Self::ConnectionOver(connection.original, connection.backend())
            }
            Step::Service(service) => Self::Service(Box::new(service.clone())),
            Step::Affinity(backend) => Self::Affinity(backend),
            Step::Backend(backend) => Self::Backend(backend),
            Step::Translated(flow) => Self::Translated(flow),
            Step::Route(prefix, next_hop) => Self::Route(prefix, next_hop),
            Step::Neighbor(vni, addr, mac) => Self::Neighbor(vni, addr, mac),
            Step::Fdb(vni, mac, vtep) => Self::Fdb(vni, mac, Box::new(vtep.clone())),
            Step::Dropped(reason) => Self::Dropped(reason),
        }
    }
}

/// Keeps every step.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The steps, in their order.
    pub steps: Vec<RecordedStep>,
}

impl Observer for Recording {
    fn observe(&mut self, step: Step<'_>) {
        self.steps.push(step.into());
    }
}
