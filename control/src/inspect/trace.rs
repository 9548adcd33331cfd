//! What would become of one packet, step by step, and of its reply. The engine's own `admit` and `decide` say so;
//! nothing is committed.

mod advice;
mod bytes;
mod segment;
mod steps;
mod walk;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use windlass_dataplane::engine::decide::Related;

pub use self::segment::is_frame;
use self::walk::Tracer;
use super::Inspection;
use super::packet::{self, PacketError};

/// The packet that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Request {
    /// As people write it.
    pub flow: Option<String>,
    /// Or as hex: an IP packet, or a frame of a segment; from the underlay also a whole VXLAN payload.
    pub hex: Option<String>,
    /// The network of a segment that a frame from its device is of, if there are several.
    pub vni: Option<u32>,
    /// How it came over the underlay; `None` when it comes from a pod or from the host.
    pub arrival: Option<Arrival>,
}

/// How a packet came over the underlay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// The outer source.
    pub from: IpAddr,
    /// The network, ours unless given.
    #[serde(default)]
    pub vni: Option<u32>,
    /// The inner destination MAC, ours unless given.
    #[serde(default)]
    pub mac: Option<String>,
    /// The outer TOS byte.
    #[serde(default)]
    pub tos: u8,
}

/// What would happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The packet's way.
    pub forward: Way,
    /// Why it ends where it ends, and what to do about it.
    pub advice: Vec<String>,
    /// The way of the answer to it, when it is delivered and one is expected.
    pub reply: Option<Way>,
}

/// One packet's way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// The packet.
    pub packet: String,
    /// Where it comes in.
    pub ingress: String,
    /// What was looked up.
    pub steps: Vec<StepRow>,
    /// How it ends.
    pub end: End,
    /// Why a drop or a rejection.
    pub reason: Option<String>,
    /// The end in words.
    pub text: String,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRow {
    /// `segment`, `source`, `destination`; `host`, `admission`, `connection`, `service`, `backend`, `translation`, `route`, `neighbor`, `fdb` or `outer`.
    pub step: String,
    /// The table entry used, and what it means.
    pub text: String,
}

/// How a packet ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// Sent, to a VTEP or into the device.
    Sent,
    /// Answered by Windlass itself.
    Answered,
    /// Dropped, and the sender is told.
    Rejected,
    /// Dropped.
    Dropped,
}

impl End {
    /// Whether the packet does what its sender wants.
    pub fn is_well(self) -> bool {
        matches!(self, Self::Sent | Self::Answered)
    }
}

/// Why nothing can be said.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The packet cannot be understood.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// The question cannot.
    #[error("{0}")]
    Question(String),
}

/// Traces one packet.
///
/// # Errors
/// When the question cannot be understood; a packet that would be dropped is no error.
pub fn trace(node: &Inspection, request: &Request) -> Result<Report, TraceError> {
    if node.origin.settings.is_bridge() {
        return segment::trace(node, request);
    }
    let bytes = request.hex.as_deref().map(packet::from_hex).transpose()?;
    let tracer = Tracer { node, connections: &node.connections };
    let walked = match (&request.arrival, &request.flow, bytes) {
        (None, Some(flow), None) => tracer.enter_host(packet::parse(flow)?),
        (None, None, Some(bytes)) => tracer.enter_overlay_bytes(&bytes),
        (Some(arrival), Some(flow), None) => {
            let inner = packet::parse(flow)?;
            let head = tracer.head(arrival, inner.flow.src.is_ipv4())?;
            tracer.arrived(arrival, &head, Ok(inner), &Related::Nothing)
        }
        (Some(arrival), None, Some(bytes)) => tracer.arrived_bytes(arrival, bytes)?,
        _ => {
            let text = "give either a packet like 'udp 10.244.0.14:40000 > 10.96.0.10:53', or bytes";
            return Err(TraceError::Question(text.to_owned()));
        }
    };
    let reply = tracer.reply(&walked);
    let advice = advice::of(node, &walked, reply.as_ref());
    Ok(Report { forward: walked.way, advice, reply: reply.map(|walked| walked.way) })
}
