//! Packets as people write them and as bytes: `windlass trace` says what the engine does.
//!
//! Input: whether it is text, whether it comes from the underlay, the outer TOS, then the text or the bytes.

use windlass_control::compile::compile;
use windlass_control::inspect::packet::{describe, parse};
use windlass_control::inspect::trace::{Arrival, End, Request, TraceError, trace};
use windlass_control::inspect::{Inspection, Origin};
use windlass_dataplane::engine::Settings;
use windlass_dataplane::packet::MAX_PACKET_LEN;
use windlass_dataplane::tables::TableSet;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{EngineNode, MAC_A, Outcome, VNI, addr, flow, mac};
use windlass_tests::packets::{Tcp, tcp, udp, vxlan};

use crate::Seed;
use crate::cluster::{example, settings_of};
use crate::input::Input;
use crate::node::UNDERLAY_B;

thread_local! {
    static NODE: (Inspection, TableSet) = node();
}

fn settings() -> Settings {
    Settings { flow_cache_entries: 64, ..Settings::default() }
}

/// Node a of the worked example, without connections.
fn node() -> (Inspection, TableSet) {
    let state = example();
    let settings_of_a = settings_of(&state, "node-a").unwrap_or_else(|error| unreachable!("{error}"));
    let compiled = compile(&state, &settings_of_a);
    let tables = compiled.tables.clone();
    let origin = Origin { state, settings: settings_of_a, problems: compiled.problems.clone() };
    (Inspection::offline(origin, compiled, settings()), tables)
}

/// A node as it answers questions.
pub(super) fn inspection() -> Inspection {
    NODE.with(|(inspection, _)| inspection.clone())
}

/// A text is refused, or read again as it is described; what is said of bytes is what becomes of them.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (is_text, is_arrival, tos) = (input.flag(), input.flag(), input.byte());
    let arrival = is_arrival.then(|| Arrival { from: addr(UNDERLAY_B), vni: None, mac: None, tos });
    if is_text {
        text(&String::from_utf8_lossy(input.rest()), arrival);
    } else if input.rest().len() <= MAX_PACKET_LEN && !input.is_empty() {
        bytes(input.rest(), arrival);
    }
}

fn text(text: &str, arrival: Option<Arrival>) {
    if let Ok(packet) = parse(text) {
        assert_eq!(parse(&describe(&packet)), Ok(packet));
    }
    let request = Request { flow: Some(text.to_owned()), hex: None, arrival, vni: None };
    match NODE.with(|(node, _)| trace(node, &request)) {
        Ok(report) => assert_eq!(report.forward.end.is_well(), report.forward.reason.is_none()),
        Err(error) => assert!(matches!(error, TraceError::Packet(_)) && parse(text).is_err(), "{error}"),
    }
}

fn bytes(bytes: &[u8], arrival: Option<Arrival>) {
    let is_ip = matches!(bytes[0] >> 4, 4 | 6);
    if arrival.is_some() && is_ip {
        // A bare inner packet, which the engine never receives.
        return;
    }
    let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let outcome = engine(bytes, arrival.as_ref());
    let request = Request { flow: None, hex: Some(hex), arrival, vni: None };
    let report = NODE.with(|(node, _)| trace(node, &request));
    let way = report.unwrap_or_else(|error| unreachable!("{error}")).forward;
    let sent = outcome.datagrams.len() + outcome.packets.len();
    if sent == 0 && outcome.drops.is_empty() {
        // The engine keeps it until its first fragment comes.
        assert_eq!(way.steps.first().map(|row| row.step.as_str()), Some("fragment"), "{way:#?}");
        return;
    }
    let reasons: Vec<_> = outcome.drops.iter().map(|(reason, _)| reason.name()).collect();
    assert_eq!(way.reason.as_deref(), reasons.first().copied(), "trace and engine: {way:#?}");
    assert!(sent > 0 || matches!(way.end, End::Dropped | End::Rejected), "{way:#?}");
}

/// What the engine does with the packet, on a node that has seen nothing yet.
fn engine(bytes: &[u8], arrival: Option<&Arrival>) -> Outcome {
    let mut node = EngineNode::new(NODE.with(|(_, tables)| tables.clone()), settings());
    match arrival {
        Some(arrival) => node.decap(bytes, arrival.from, arrival.tos),
        None => node.encap(bytes),
    }
}

/// Texts right and wrong, and bytes of each kind.
pub fn seeds() -> Vec<Seed> {
    let text = |name, arrival, text: &str| (name, [&[1, arrival, 0], text.as_bytes()].concat());
    let bytes = |name, arrival, packet: Vec<u8>| (name, [&[0, arrival, 0][..], &packet].concat());
    let plain = udp(&flow(Protocol::UDP, "10.244.2.15:4000", "10.244.0.14:80"), b"data");
    vec![
        text("tcp", 0, "tcp 10.244.0.14:40000 > 10.96.0.10:53 flags syn|ack len 60"),
        text("udp-v6", 0, "udp [fd00:10:244::14]:40000 > [fd00:10:96::a]:53"),
        text("ping", 0, "icmp 10.244.0.14 > 10.244.2.15 len 84"),
        text("from-the-underlay", 1, "tcp 10.244.2.15:1>10.244.0.14:2 flags ack"),
        text("no-port", 0, "tcp 10.244.0.14 > 10.96.0.10"),
        text("two-families", 0, "udp 10.0.0.1 > [fd00::1]:53"),
        bytes("syn-to-a-vip", 0, tcp(&flow(Protocol::TCP, "10.244.0.14:1", "10.96.0.1:443"), Tcp::Syn, b"")),
        bytes("pod", 0, udp(&flow(Protocol::UDP, "10.244.0.14:1", "10.244.2.15:2"), b"data")),
        bytes("vxlan", 1, vxlan(VNI, mac(MAC_A), &plain)),
        bytes("vxlan-to-another-mac", 1, vxlan(VNI, mac("02:00:00:00:00:09"), &plain)),
        bytes("vxlan-of-another-vni", 1, vxlan(9, mac(MAC_A), &plain)),
    ]
}
