//! A packet walked through the engine's slow path, and its reply after it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use windlass_dataplane::engine::decap::{self, Frame, OuterHeader};
use windlass_dataplane::engine::decide::{self, Arrived, Decision, Ingress, Related, ReplyFlow, Tracked};
use windlass_dataplane::engine::observe::{RecordedStep, Recording};
use windlass_dataplane::engine::source_port;
use windlass_dataplane::engine::verdict::{DropReason, Egress, Encapsulation, Verdict};
use windlass_dataplane::lb::conntrack::{Conntrack, FlowDirection};
use windlass_dataplane::tables::{NextHop, Vip};
use windlass_dataplane::wire::ethernet::{self, Mac};
use windlass_dataplane::wire::flow::FlowKey;
use windlass_dataplane::wire::inner::{Fragment, InnerPacket};
use windlass_dataplane::wire::protocol::L4;
use windlass_dataplane::wire::quoted::quoted;
use windlass_dataplane::wire::tcp::{ACK, SYN};
use windlass_dataplane::wire::vxlan::{self, Vni};

use super::{Arrival, End, StepRow, TraceError, Way, bytes, steps};
use crate::inspect::{Inspection, packet, rows};

/// A packet's way, and what it rests on.
pub(super) struct Walked<'a> {
    /// The way.
    pub(super) way: Way,
    /// The packet, when it can be read.
    pub(super) packet: Option<InnerPacket>,
    decision: Option<Decision<'a>>,
    /// What was looked up.
    pub(super) recorded: Vec<RecordedStep>,
    /// Why it is dropped.
    pub(super) reason: Option<DropReason>,
    /// The network and the outer source, for one from the underlay.
    pub(super) arrival: Option<(Vni, IpAddr)>,
}

/// Where a packet comes in.
enum CameIn {
    /// Through the device.
    Device,
    /// Over the underlay, from a VTEP that calls itself that.
    Underlay(IpAddr),
    /// The same, to a MAC of a network.
    Network(IpAddr, Vni, Mac),
}

impl fmt::Display for CameIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.write_str("from a pod or the host, through the device"),
            Self::Underlay(from) => write!(f, "from the underlay, sent by {from}"),
            Self::Network(from, vni, mac) => {
                write!(f, "{} on VNI {vni} to MAC {mac}", Self::Underlay(*from))
            }
        }
    }
}

/// Walks packets through a node.
pub(super) struct Tracer<'a, 'c> {
    /// The node.
    pub(super) node: &'a Inspection,
    /// Its connections.
    pub(super) connections: &'c Conntrack,
}

/// What else tells where a packet belongs. Fragments are remembered by the workers and not seen here.
pub(super) fn related(inner: &InnerPacket, bytes: &[u8]) -> Related {
    if inner.l4 != L4::IcmpError {
        return Related::Nothing;
    }
    quoted(bytes).map_or(Related::Nothing, Related::Quotes)
}

impl<'a> Tracer<'a, '_> {
    pub(super) fn enter_overlay(&self, packet: &InnerPacket, related: &Related) -> Walked<'a> {
        self.decide(packet, related, Ingress::Overlay, Recording::default(), CameIn::Device)
    }

    /// A packet as its sender addresses it: the host sends what comes for a node port on to the address that stands
    /// for its own.
    pub(super) fn enter_host(&self, mut packet: InnerPacket) -> Walked<'a> {
        let (flow, settings) = (&mut packet.flow, &self.node.origin.settings);
        let vip = settings.node_port_vip(flow.dst.is_ipv6());
        let stands_for = Vip { addr: vip, port: flow.dst_port, protocol: flow.protocol };
        let is_served = self.node.tables.services().lookup(stands_for).is_some();
        if !is_served || !settings.node_port_addrs.contains(&flow.dst) {
            return self.enter_overlay(&packet, &Related::Nothing);
        }
        let asked = std::mem::replace(&mut flow.dst, vip);
        let text = format!(
            "{asked} is this node's: its node port {} is sent to {vip}, and answers leave as from {asked}",
            flow.dst_port
        );
        let mut walked = self.enter_overlay(&packet, &Related::Nothing);
        walked.way.steps.insert(0, StepRow { step: "host".to_owned(), text });
        walked
    }

    pub(super) fn enter_overlay_bytes(&self, bytes: &[u8]) -> Walked<'a> {
        match InnerPacket::parse(bytes) {
            Ok(inner) => self.enter_overlay(&inner, &related(&inner, bytes)),
            Err(_) => Walked::unreadable(DropReason::Malformed, CameIn::Device).saying(&bytes::of_ip(bytes)),
        }
    }

    pub(super) fn arrived_bytes(&self, arrival: &Arrival, bytes: Vec<u8>) -> Result<Walked<'a>, TraceError> {
        let is_ip = matches!(bytes.first().map(|first| first >> 4), Some(4 | 6));
        let wrong = if is_ip { bytes::of_ip(&bytes) } else { bytes::of_vxlan(&bytes) };
        let payload = if is_ip {
            let head = self.head(arrival, bytes[0] >> 4 == 4)?;
            [head.as_slice(), &bytes].concat()
        } else {
            bytes
        };
        let inner = Frame::parse(&payload).and_then(|frame| {
            let inner = &payload[frame.ip_offset..];
            frame.inner(inner).map(|packet| (related(&packet, inner), packet))
        });
        Ok(match inner {
            Ok((related, packet)) => self.arrived(arrival, &payload, Ok(packet), &related),
            Err(reason) => self.arrived(arrival, &payload, Err(reason), &Related::Nothing).saying(&wrong),
        })
    }

    /// VXLAN and Ethernet headers as a peer would write them.
    pub(super) fn head(&self, arrival: &Arrival, ipv4: bool) -> Result<Vec<u8>, TraceError> {
        let settings = &self.node.origin.settings;
        let vni = match arrival.vni {
            None => settings.vni,
            Some(number) => Vni::new(number)
                .ok_or_else(|| TraceError::Question(format!("VNI {number} is more than 16777215")))?,
        };
        let own = if ipv4 { settings.mac_v4 } else { settings.mac_v6 };
        let mac = match &arrival.mac {
            Some(text) => text
                .parse()
                .map_err(|_| TraceError::Question(format!("{text:?} is no MAC like 00:15:5d:3c:3e:3c")))?,
            None => own.unwrap_or(Mac([0; 6])),
        };
        let mut head = vec![0; vxlan::HEADER_LEN + ethernet::HEADER_LEN];
        vxlan::emit(&mut head, vni);
        let ethertype = if ipv4 { ethernet::IPV4 } else { ethernet::IPV6 };
        ethernet::emit(&mut head[vxlan::HEADER_LEN..], mac, Mac([0; 6]), ethertype);
        Ok(head)
    }

    pub(super) fn arrived(
        &self,
        arrival: &Arrival,
        payload: &[u8],
        inner: Result<InnerPacket, DropReason>,
        related: &Related,
    ) -> Walked<'a> {
        let (frame, inner) = match Frame::parse(payload).and_then(|frame| Ok((frame, inner?))) {
            Ok(parsed) => parsed,
            Err(reason) => return Walked::unreadable(reason, CameIn::Underlay(arrival.from)),
        };
        let came_in = CameIn::Network(arrival.from, frame.vni, frame.dst_mac);
        let way_in = Some((frame.vni, arrival.from));
        if let Some(reason) = frame.refusal(&self.node.engine) {
            return Walked { arrival: way_in, ..Walked::dropped(&inner, came_in, Vec::new(), reason) };
        }
        let outer = OuterHeader { source: arrival.from, tos: arrival.tos };
        let mut recording = Recording::default();
        let (tables, settings) = (&self.node.tables, &self.node.engine);
        if let Err(reason) = decap::admit(tables, settings, &frame, &outer, &inner, &mut recording) {
            return Walked { arrival: way_in, ..Walked::dropped(&inner, came_in, recording.steps, reason) };
        }
        let at = Ingress::Underlay { vni: frame.vni, source: arrival.from };
        let mut walked = self.decide(&inner, related, at, recording, came_in);
        let stays = walked.egress().is_some_and(|egress| matches!(egress, Egress::Overlay));
        if walked.reason.is_none() && !stays {
            walked.drop(DropReason::DestinationNotLocal);
        } else if walked.reason.is_none() && decap::decap_ecn(outer.tos, inner.tos).is_none() {
            walked.drop(DropReason::EcnIllegal);
        }
        Walked { arrival: way_in, ..walked }
    }

    fn decide(
        &self,
        packet: &InnerPacket,
        related: &Related,
        ingress: Ingress,
        mut recording: Recording,
        came_in: CameIn,
    ) -> Walked<'a> {
        let (node, connections) = (self.node, self.connections);
        let arrived = Arrived { packet, related, ingress, now: node.now };
        let decision =
            decide::decide(&node.tables, connections, &arrived, ReplyFlow::LookedUp, &mut recording);
        let mut steps = steps::rows(self.node, packet, &recording.steps);
        if packet.fragment == Fragment::Later {
            steps.insert(0, steps::follows_its_first());
        }
        let (end, reason, text) = match &decision.verdict {
            Verdict::Forward { rewrite, egress } => {
                let flow = rewrite.as_ref().map_or(packet.flow, |rewrite| rewrite.to);
                self.sent(&flow, packet, egress, &recording.steps, &mut steps)
            }
            Verdict::ForwardError { egress, .. } => {
                self.sent(&packet.flow, packet, egress, &recording.steps, &mut steps)
            }
            Verdict::EchoReply => {
                steps.push(steps::pinged(self.node, packet.flow.dst));
                let text = format!("Windlass answers the ping itself, as {}", packet.flow.dst);
                (End::Answered, None, text)
            }
            Verdict::Reject(reason) => (End::Rejected, Some(*reason), steps::rejected(packet, *reason)),
            Verdict::Drop(reason) => (End::Dropped, Some(*reason), rows::meaning(*reason)),
        };
        let way = Way {
            packet: packet::describe(packet),
            ingress: came_in.to_string(),
            steps,
            end,
            reason: reason.map(|reason| reason.name().to_owned()),
            text,
        };
        let (packet, recorded) = (Some(*packet), recording.steps);
        Walked { way, packet, decision: Some(decision), recorded, reason, arrival: None }
    }

    fn sent(
        &self,
        flow: &FlowKey,
        packet: &InnerPacket,
        egress: &Egress<'_>,
        recorded: &[RecordedStep],
        steps: &mut Vec<StepRow>,
    ) -> (End, Option<DropReason>, String) {
        let Egress::Remote(encapsulation) = egress else {
            return (End::Sent, None, steps::into_device(recorded).to_owned());
        };
        let mtu = encapsulation.inner_mtu(self.node.tables.local().overlay_mtu, self.node.now);
        if packet.total_len > mtu {
            let told = packet.dont_fragment;
            let (reason, meaning) = if told {
                (DropReason::TooBig, TOO_BIG.to_owned())
            } else {
                (DropReason::TooBigMayFragment, rows::meaning(DropReason::TooBigMayFragment))
            };
            let text = format!("{meaning} It has {} bytes, and {mtu} fit.", packet.total_len);
            return (End::Dropped, Some(reason), text);
        }
        steps.push(StepRow { step: "outer".into(), text: self.outer(flow, packet, encapsulation) });
        (End::Sent, None, format!("sent to the VTEP at {}", encapsulation.vtep.addr))
    }

    fn outer(&self, flow: &FlowKey, packet: &InnerPacket, encapsulation: &Encapsulation<'_>) -> String {
        let number = source_port(flow, packet.fragment);
        let choices = &self.node.origin.settings.underlay;
        let remote = encapsulation.vtep.addr;
        let own = choices.iter().find(|choice| choice.addr.is_ipv4() == remote.is_ipv4());
        let own = own.map_or_else(|| "?".to_owned(), |choice| choice.addr.to_string());
        let ports = self.node.device.as_ref().map_or(&[][..], |device| &device.source_ports);
        let port = match (ports.get(usize::from(number) % ports.len().max(1)), choices.len()) {
            (Some(port), 1) => format!("UDP source port {port}, by flow hash {number}"),
            _ => format!("a UDP source port of 49152-65535, by flow hash {number}"),
        };
        format!(
            "{own} > {remote}, {port}; VNI {}, inner MAC {} > {}",
            encapsulation.vni, encapsulation.src_mac, encapsulation.dst_mac
        )
    }

    /// The answer to a packet that was delivered.
    pub(super) fn reply(&self, walked: &Walked<'_>) -> Option<Walked<'a>> {
        let (packet, decision) = (walked.packet.as_ref()?, walked.decision.as_ref()?);
        let egress = walked.egress().filter(|_| walked.reason.is_none())?;
        if matches!(packet.l4, L4::IcmpError | L4::Icmp | L4::EchoReply) {
            return None;
        }
        let scratch = Conntrack::new(1, 1);
        let (flow, connections) = match &decision.tracked {
            Tracked::No => (packet.flow.reversed(), self.connections),
            Tracked::Known(connection, FlowDirection::Original) => (connection.reply, self.connections),
            Tracked::Known(connection, FlowDirection::Reply) => (connection.original, self.connections),
            Tracked::New(connection, _) => {
                scratch.insert(&Arc::clone(connection), 0).ok()?;
                (connection.reply, &scratch)
            }
        };
        let flags = match packet.l4 {
            L4::Tcp { flags } if flags & (SYN | ACK) == SYN => SYN | ACK,
            _ => ACK,
        };
        let answer = packet::of_flow(flow, flags, false);
        let tracer = Tracer { node: self.node, connections };
        match egress {
            Egress::Overlay => Some(tracer.enter_overlay(&answer, &Related::Nothing)),
            Egress::Remote(encapsulation) => {
                let arrival = Arrival {
                    from: encapsulation.vtep.addr.ip(),
                    vni: Some(encapsulation.vni.get()),
                    mac: Some(encapsulation.src_mac.to_string()),
                    tos: 0,
                };
                let head = tracer.head(&arrival, flow.src.is_ipv4()).ok()?;
                Some(tracer.arrived(&arrival, &head, Ok(answer), &Related::Nothing))
            }
        }
    }
}

/// The reason's own words tell of a packet that was sent.
const TOO_BIG: &str = "Longer than the overlay or the path to the VTEP carries; the sender would be told.";

impl<'a> Walked<'a> {
    fn unreadable(reason: DropReason, came_in: CameIn) -> Self {
        let way = Way {
            packet: "(unreadable)".to_owned(),
            ingress: came_in.to_string(),
            steps: Vec::new(),
            end: End::Dropped,
            reason: Some(reason.name().to_owned()),
            text: rows::meaning(reason),
        };
        let nothing = Vec::new();
        Self { way, packet: None, decision: None, recorded: nothing, reason: Some(reason), arrival: None }
    }

    fn dropped(
        packet: &InnerPacket,
        came_in: CameIn,
        recorded: Vec<RecordedStep>,
        reason: DropReason,
    ) -> Self {
        let unreadable = Self::unreadable(reason, came_in);
        let way = Way { packet: packet::describe(packet), ..unreadable.way };
        Self { packet: Some(*packet), recorded, way, ..unreadable }
    }

    /// Bytes that are no packet may be the wrong ones.
    fn saying(mut self, wrong: &str) -> Self {
        self.way.text += &format!(" Of what is given: {wrong}.");
        self
    }

    fn drop(&mut self, reason: DropReason) {
        self.reason = Some(reason);
        self.way.end = End::Dropped;
        self.way.reason = Some(reason.name().to_owned());
        self.way.text = rows::meaning(reason);
    }

    fn egress(&self) -> Option<&Egress<'a>> {
        match &self.decision.as_ref()?.verdict {
            Verdict::Forward { egress, .. } | Verdict::ForwardError { egress, .. } => Some(egress),
            Verdict::EchoReply | Verdict::Reject(_) | Verdict::Drop(_) => None,
        }
    }

    /// The last next hop that was looked up.
    pub(super) fn next_hop(&self) -> Option<NextHop> {
        steps::next_hop(&self.recorded)
    }
}
