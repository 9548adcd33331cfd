//! What would happen to a frame of an L2 segment: the bridge's own decision, and nothing is learned.

use std::sync::Arc;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::bridge::forward::{self, Toward};
use windlass_dataplane::engine::bridge::frame::{Frame, PAYLOAD_OFFSET};
use windlass_dataplane::engine::decap::decap_ecn;
use windlass_dataplane::packet::PacketBatch;
use windlass_dataplane::tables::{Place, RemoteVtep, Segment};
use windlass_dataplane::wire::arp;
use windlass_dataplane::wire::ethernet::{self, Mac};
use windlass_dataplane::wire::vxlan::{self, Vni};

use super::super::Inspection;
use super::super::packet::from_hex;
use super::super::rows::meaning;
use super::{Arrival, End, Report, Request, StepRow, TraceError, Way};

/// Traces a frame of a node that bridges segments.
///
/// # Errors
/// When the question cannot be understood.
pub(super) fn trace(node: &Inspection, request: &Request) -> Result<Report, TraceError> {
    let wanted = request.arrival.as_ref().map_or(request.vni, |arrival| arrival.vni);
    let bytes = match (&request.flow, &request.hex) {
        (Some(text), None) => behind_header(vni(node, wanted)?, &written(text)?),
        (None, Some(hex)) if request.arrival.is_some() => from_hex(hex)?,
        (None, Some(hex)) => behind_header(vni(node, wanted)?, &from_hex(hex)?),
        _ => return Err(TraceError::Question(FORMS.to_owned())),
    };
    let mut tracer = Tracer { node, steps: Vec::new() };
    let (packet, outcome) = tracer.frame(&bytes, request.arrival.as_ref());
    let (end, reason, text) = match outcome {
        Ok((end, text)) => (end, None, text),
        Err(reason) => (End::Dropped, Some(reason.name().to_owned()), meaning(reason)),
    };
    let ingress = match &request.arrival {
        Some(arrival) => format!("from the underlay address {}", arrival.from),
        None => "from the segment's device".to_owned(),
    };
    let forward = Way { packet, ingress, steps: tracer.steps, end, reason, text };
    Ok(Report { forward, advice: Vec::new(), reply: None })
}

/// How frames are written.
const FORMS: &str = "this node bridges segments: give a frame like 'frame 02:00:00:00:00:a1 > 02:00:00:00:00:b2' or 'arp \
     02:00:00:00:00:a1 10.0.0.1 > 10.0.0.2', with --packet-vni where it has several, or --hex (from the destination MAC \
     on; with --decap from the VXLAN header on)";

/// Whether a text is a frame's, and no IP packet's.
pub fn is_frame(text: &str) -> bool {
    matches!(text.split_whitespace().next(), Some("frame" | "arp"))
}

/// The segment that is meant: the only one, unless it is said.
fn vni(node: &Inspection, wanted: Option<u32>) -> Result<Vni, TraceError> {
    let known = || node.tables.segments().iter().map(|(vni, _)| vni);
    let mut names: Vec<_> = known().map(|vni| vni.to_string()).collect();
    names.sort_unstable();
    match (wanted, known().next()) {
        (Some(number), _) => Vni::new(number)
            .ok_or_else(|| TraceError::Question(format!("--packet-vni {number} is above 16777215"))),
        (None, Some(only)) if names.len() == 1 => Ok(only),
        _ => Err(TraceError::Question(format!("say which segment with --packet-vni: {}", names.join(", ")))),
    }
}

fn behind_header(vni: Vni, frame: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; vxlan::HEADER_LEN];
    vxlan::emit(&mut bytes, vni);
    bytes.extend_from_slice(frame);
    bytes
}

/// The frame that a text describes.
fn written(text: &str) -> Result<Vec<u8>, TraceError> {
    let words: Vec<_> = text.split_whitespace().collect();
    let question = || TraceError::Question(FORMS.to_owned());
    let mac = |word: &str| word.parse::<Mac>().map_err(|error| TraceError::Question(error.to_string()));
    let mut frame = vec![0; ethernet::HEADER_LEN];
    match words.as_slice() {
        ["frame", src, ">", dst] => ethernet::emit(&mut frame, mac(dst)?, mac(src)?, EXPERIMENTAL),
        ["arp", src, sender, ">", target] => {
            let (src, mut message) = (mac(src)?, [0; arp::LEN]);
            let addr = |word: &str| word.parse().map_err(|_| question());
            arp::emit_request(&mut message, src, addr(sender)?, addr(target)?);
            ethernet::emit(&mut frame, Mac::BROADCAST, src, ethernet::ARP);
            frame.extend(message);
        }
        _ => return Err(question()),
    }
    Ok(frame)
}

/// Local experimental EtherType 1 (IEEE 802): a frame that carries nothing.
const EXPERIMENTAL: u16 = 0x88b5;

struct Tracer<'a> {
    node: &'a Inspection,
    steps: Vec<StepRow>,
}

type Outcome = Result<(End, String), DropReason>;

impl Tracer<'_> {
    fn frame(&mut self, bytes: &[u8], arrival: Option<&Arrival>) -> (String, Outcome) {
        let mut batch = PacketBatch::new(1, 0);
        let parsed = if batch.receive_copy(bytes) { Frame::parse(bytes) } else { Err(DropReason::Malformed) };
        let frame = match parsed {
            Ok(frame) => frame,
            Err(reason) => return (format!("{} B that are no frame", bytes.len()), Err(reason)),
        };
        let mut packet = batch.packets[0];
        frame.trim(&mut batch.pool, &mut packet);
        let what =
            format!("frame {} > {} of VNI {}, {} B", frame.src, frame.dst, frame.vni, packet.len() - 8);
        let Some(segment) = self.node.tables.segments().lookup(frame.vni) else {
            return (what, Err(DropReason::UnknownVni));
        };
        let segment = Arc::clone(segment);
        self.say("segment", format!("{}, {} other VTEPs", segment.name, segment.vteps().len()));
        self.say("source", self.place(&segment, &frame, frame.src));
        self.say("destination", self.place(&segment, &frame, frame.dst));
        let bytes = batch.pool.bytes(&packet);
        let outcome = match arrival {
            None => self.sent(&segment, &frame, bytes, frame.payload_len(&packet)),
            Some(arrival) => self.arrived(&segment, &frame, bytes, arrival),
        };
        (what, outcome)
    }

    fn sent(&self, segment: &Segment, frame: &Frame, bytes: &[u8], len: u32) -> Outcome {
        let (learned, now) = (&self.node.learned, self.node.now);
        let mtu = |vtep: &RemoteVtep| vtep.inner_mtu(self.node.tables.local().overlay_mtu, now);
        match forward::from_device(segment, learned, frame, bytes, now)? {
            Toward::Vtep(vtep) if len > mtu(&vtep) => Err(match &frame.ip {
                None => DropReason::FrameTooLong,
                Some(ip) if ip.dont_fragment => DropReason::TooBig,
                Some(_) => DropReason::TooBigMayFragment,
            }),
            Toward::Vtep(vtep) => Ok((End::Sent, format!("to VTEP {}", vtep.addr))),
            Toward::Everybody => {
                let fits = |vtep: &&Arc<RemoteVtep>| len <= mtu(vtep);
                let vteps: Vec<_> =
                    segment.vteps().iter().filter(fits).map(|vtep| vtep.addr.to_string()).collect();
                match vteps.is_empty() {
                    true => Err(DropReason::FrameTooLong),
                    false => Ok((End::Sent, format!("to every VTEP: {}", vteps.join(", ")))),
                }
            }
            Toward::Answer(addr, mac) => {
                Ok((End::Answered, format!("here, in its place: {addr} is at {mac}; nobody else is asked")))
            }
        }
    }

    fn arrived(&self, segment: &Segment, frame: &Frame, bytes: &[u8], arrival: &Arrival) -> Outcome {
        let Inspection { learned, now, engine, .. } = self.node;
        if let Some(reason) = frame.refusal(engine) {
            return Err(reason);
        }
        forward::from_vtep(segment, learned, engine, arrival.from, frame, bytes, *now)?;
        if let Some(ip) = &frame.ip {
            decap_ecn(arrival.tos, ip.tos).ok_or(DropReason::EcnIllegal)?;
        }
        Ok((End::Sent, format!("into the segment's device, {} B", bytes.len() - PAYLOAD_OFFSET + 14)))
    }

    fn place(&self, segment: &Segment, frame: &Frame, mac: Mac) -> String {
        if mac.is_multicast() {
            return format!("{mac} is {}", if mac.is_broadcast() { "everybody" } else { "a group" });
        }
        let how = if segment.place(mac).is_some() { "by its static entry" } else { "as learned" };
        match forward::place(segment, &self.node.learned, frame.vni, mac, self.node.now) {
            Some(Place::Device) => format!("{mac} is behind this node's device, {how}"),
            Some(Place::Vtep(vtep)) => format!("{mac} is behind VTEP {}, {how}", vtep.addr.ip()),
            None => format!("{mac} is in no entry"),
        }
    }

    fn say(&mut self, step: &str, text: String) {
        self.steps.push(StepRow { step: step.to_owned(), text });
    }
}

#[cfg(test)]
mod tests {
    use windlass_dataplane::device::SegmentDevice;

    use super::*;
    use crate::compile::compile;
    use crate::inspect::Origin;
    use crate::node::{NodeSettings, UnderlayChoice};

    const MANIFEST: &str = r#"{"apiVersion": "windlass.dev/v1alpha1", "kind": "Segment", "metadata": {"name": "blue"},
        "spec": {"vni": 100, "vteps": ["192.0.2.1", "192.0.2.2", "192.0.2.3"], "stations": [
            {"mac": "02:00:00:00:00:a1", "ips": ["10.0.0.1"], "vtep": "192.0.2.1"},
            {"mac": "02:00:00:00:00:b2", "ips": ["10.0.0.2"], "vtep": "192.0.2.2"}]}}"#;

    fn node() -> Inspection {
        let state = crate::source::manifests::load_text("f.json", MANIFEST, "").unwrap().state;
        let vni = Vni::new(100).unwrap();
        let settings = NodeSettings {
            underlay: vec![UnderlayChoice { addr: [192, 0, 2, 1].into(), why: String::new() }],
            segments: vec![SegmentDevice { vni, name: "seg100".into() }],
            ..crate::compile::tests::settings()
        };
        let compiled = compile(&state, &settings);
        let origin = Origin { state, settings, problems: Vec::new() };
        Inspection::offline(origin, compiled, windlass_dataplane::engine::Settings::default())
    }

    fn ends(flow: &str, from: Option<&str>) -> (End, String) {
        let arrival = from.map(|from| Arrival { from: from.parse().unwrap(), vni: None, mac: None, tos: 0 });
        let request = Request { flow: Some(flow.to_owned()), arrival, ..Request::default() };
        let way = super::super::trace(&node(), &request).unwrap().forward;
        (way.end, way.reason.unwrap_or(way.text))
    }

    #[test]
    fn frames_are_traced_by_the_bridges_own_decision() {
        let known = "frame 02:00:00:00:00:a1 > 02:00:00:00:00:b2";
        assert_eq!(ends(known, None), (End::Sent, "to VTEP 192.0.2.2:4789".to_owned()));
        let (end, text) = ends("frame 02:00:00:00:00:a1 > ff:ff:ff:ff:ff:ff", None);
        assert_eq!((end, text.matches("192.0.2.").count()), (End::Sent, 2));
        assert_eq!(ends("arp 02:00:00:00:00:a1 10.0.0.1 > 10.0.0.2", None).0, End::Answered);
        assert_eq!(ends(known, Some("192.0.2.2")), (End::Dropped, "source_mac_spoofed".to_owned()));
        let back = "frame 02:00:00:00:00:b2 > 02:00:00:00:00:a1";
        assert_eq!(ends(back, Some("192.0.2.2")).0, End::Sent);
        assert_eq!(ends(back, Some("192.0.2.9")), (End::Dropped, "unknown_vtep".to_owned()));
    }

    #[test]
    fn what_is_no_frame_says_how_one_is_written() {
        let request = Request { flow: Some("tcp 10.0.0.1:1 > 10.0.0.2:2".to_owned()), ..Request::default() };
        let error = super::super::trace(&node(), &request).unwrap_err().to_string();
        assert!(error.starts_with("this node bridges segments: give a frame like"), "{error}");
    }
}
