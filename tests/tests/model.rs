//! The engine against the reference model: the same packets, and byte for byte the same results.

#![allow(clippy::panic)]

use std::time::Duration;

use proptest::prelude::*;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_A6, MAC_B, MAC_B6, Outcome, VNI, addr, mac, worked_example,
};
use windlass_tests::model::{Arrival, Described, Fate, Model};
use windlass_tests::packets::{
    Tcp, completed, opened, tcp, udp, verified_flow, verified_icmp, vxlan, with_tos,
};

/// Who talks, and to whom, in one family; few of each, so that flows meet.
struct Ends {
    clients: &'static [&'static str],
    places: &'static [(&'static str, u16)],
    peers: &'static [&'static str],
}

const V4: Ends = Ends {
    clients: &["10.244.0.14", "10.244.0.15", "192.168.1.40"],
    places: &[
        ("10.96.0.10", 53),
        ("10.96.0.20", 80),
        ("10.96.0.21", 80),
        ("10.96.0.1", 443),
        ("10.96.0.30", 80),
        ("10.96.0.21", 81),
        ("10.96.9.9", 80),
        ("10.244.2.15", 8_080),
        ("10.244.0.14", 8_080),
        ("10.244.9.9", 80),
        ("169.254.77.1", 40_000),
        ("192.0.2.1", 80),
        ("10.244.2.10", 53),
    ],
    peers: &["10.244.2.15", "10.244.2.10", "192.168.1.51", "10.244.7.7", "10.244.0.15"],
};
const V6: Ends = Ends {
    clients: &["fd00:10:244::14", "fd00:10:244::15", "fd00:10:244::"],
    places: &[
        ("fd00:10:96::a", 53),
        ("fd00:10:96::21", 80),
        ("fd00:10:96::21", 81),
        ("fd00:10:96::99", 80),
        ("fd00:10:244:2::15", 8_080),
        ("fd00:10:244::14", 8_080),
        ("fd00:10:244:9::9", 80),
        ("fd77:6e64:6c61:7373::1", 40_000),
        ("2001:db8::1", 80),
        ("fd00:10:244:2::10", 53),
    ],
    peers: &[
        "fd00:10:244:2::15",
        "fd00:10:244:2::10",
        "fd00:10:244:2::",
        "fd00:10:244:7::7",
        "fd00:10:244::15",
    ],
};
const PORTS: [u16; 2] = [40_000, 40_001];
const FLAGS: [Tcp; 5] = [Tcp::Syn, Tcp::SynAck, Tcp::Ack, Tcp::Fin, Tcp::Rst];

/// One thing that happens to the node.
#[derive(Clone, Debug)]
enum Event {
    /// A pod or the host sends.
    FromDevice(Described),
    /// A peer sends.
    FromUnderlay(Described, Arrival),
    /// The receiver of an earlier packet, by its place among those sent, answers it.
    Answer(prop::sample::Index, Tcp, usize),
}

fn described(family: &Ends) -> impl Strategy<Value = Described> + use<> {
    let ends = (
        prop::sample::select(family.clients),
        prop::sample::select(&PORTS[..]),
        prop::sample::select(family.places),
    );
    (ends, any::<bool>(), prop::sample::select(&FLAGS[..]), 0..1_300_usize, any::<u8>()).prop_map(
        |((src, src_port, (dst, dst_port)), is_tcp, flags, len, tos)| {
            let protocol = if is_tcp { Protocol::TCP } else { Protocol::UDP };
            let flow = FlowKey { src: addr(src), dst: addr(dst), protocol, src_port, dst_port };
            Described { flow, flags, len, tos }
        },
    )
}

/// Events of both families.
fn event() -> impl Strategy<Value = Event> {
    prop_oneof![event_of(&V4), event_of(&V6)]
}

fn event_of(family: &Ends) -> impl Strategy<Value = Event> + use<> {
    let from_peer = (described(family), prop::sample::select(family.peers), 0..12_u8, any::<u8>());
    prop_oneof![
        4 => described(family).prop_map(Event::FromDevice),
        2 => from_peer.prop_map(|(packet, src, odd, tos)| {
            let FlowKey { src: client, src_port, .. } = packet.flow;
            let flow = FlowKey { src: addr(src), src_port: 8_080, dst: client, dst_port: src_port, ..packet.flow };
            let arrival = Arrival { from_b: odd != 0, our_vni: odd != 1, our_mac: odd != 2, tos };
            Event::FromUnderlay(Described { flow, ..packet }, arrival)
        }),
        4 => (any::<prop::sample::Index>(), prop::sample::select(&FLAGS[..]), 0..1_300_usize)
            .prop_map(|(which, flags, len)| Event::Answer(which, flags, len)),
    ]
}

fn bytes(packet: &Described) -> Vec<u8> {
    let payload: Vec<u8> = (0..packet.len).map(|index| index as u8).collect();
    let made = match packet.flow.protocol {
        Protocol::TCP => tcp(&packet.flow, packet.flags, &payload),
        _ => udp(&packet.flow, &payload),
    };
    with_tos(made, packet.tos)
}

/// Engine and model side by side, and what has been sent.
struct Pair {
    engine: EngineNode,
    model: Model,
    sent: Vec<Fate>,
}

impl Pair {
    fn new() -> Self {
        // Few places in the cache: flows push each other out.
        let settings = Settings { flow_cache_entries: 8, ..Settings::default() };
        Self {
            engine: EngineNode::new(worked_example("a"), settings),
            model: Model::default(),
            sent: Vec::new(),
        }
    }

    fn happens(&mut self, event: &Event) {
        // Within one second an answer may still go the way of a flow that was there before its connection.
        self.engine.now = self.engine.now + Duration::from_secs(1);
        match event {
            Event::FromDevice(packet) => self.device_gives(packet),
            Event::FromUnderlay(packet, arrival) => self.underlay_gives(packet, arrival),
            Event::Answer(which, flags, len) if !self.sent.is_empty() => {
                let answer =
                    |to: &Described| Described { flow: to.flow.reversed(), flags: *flags, len: *len, tos: 0 };
                match *which.get(&self.sent) {
                    Fate::ToDevice(to) => self.device_gives(&answer(&to)),
                    Fate::ToPeer(to) => {
                        let arrival = Arrival { from_b: true, our_vni: true, our_mac: true, tos: 0 };
                        self.underlay_gives(&answer(&to), &arrival);
                    }
                    Fate::Rejected(_) | Fate::Dropped(_) => {}
                }
            }
            Event::Answer(..) => {}
        }
    }

    fn device_gives(&mut self, packet: &Described) {
        let outcome = self.engine.encap(&bytes(packet));
        let out = outcome.datagrams.first().map(|sent| sent.payload[22..].to_vec());
        let out = out.or_else(|| outcome.packets.first().map(|delivered| delivered.bytes.clone()));
        let seen = out.filter(|_| outcome.drops.is_empty()).map(|bytes| verified_flow(&bytes));
        let fate = self.model.from_device(*packet, seen);
        self.compare(packet, fate, &outcome);
    }

    fn underlay_gives(&mut self, packet: &Described, arrival: &Arrival) {
        let fate = self.model.from_underlay(*packet, *arrival);
        let vni = if arrival.our_vni { VNI } else { VNI + 1 };
        let (ours, theirs) = macs(packet);
        let dst = mac(if arrival.our_mac { ours } else { theirs });
        let from = addr(if arrival.from_b { "192.168.1.51" } else { "192.168.1.77" });
        let outcome = self.engine.decap(&vxlan(vni, dst, &bytes(packet)), from, arrival.tos);
        self.compare(packet, fate, &outcome);
    }

    fn compare(&mut self, packet: &Described, fate: Fate, outcome: &Outcome) {
        let drops: Vec<_> = outcome.drops.iter().map(|(reason, _)| *reason).collect();
        match (&fate, &outcome.datagrams[..], &outcome.packets[..], &drops[..]) {
            (Fate::ToPeer(expected), [sent], [], []) => {
                let frame = opened(&sent.payload);
                let (ours, theirs) = macs(packet);
                assert_eq!((frame.dst, frame.src), (mac(theirs), mac(ours)));
                assert_eq!(frame.header, [8, 0, 0, 0, 0, 16, 0, 0]);
                assert_eq!((sent.remote.ip(), sent.tos), (addr("192.168.1.51"), packet.tos));
                assert_eq!(frame.inner, bytes(expected), "{packet:?}");
            }
            (Fate::ToDevice(expected), [], [delivered], []) => {
                // A whole checksum that happens to be the pseudo-header's sum passes for a partial one.
                let whole = completed(delivered.bytes.clone(), delivered.checksum);
                assert_eq!(whole, bytes(expected), "{packet:?}");
            }
            (Fate::Rejected(reason), [], told, [dropped]) => {
                assert_eq!(dropped, reason, "{packet:?}");
                told.iter().for_each(|told| tells(&told.bytes, packet));
            }
            (Fate::Dropped(reason), [], [], [dropped]) => assert_eq!(dropped, reason, "{packet:?}"),
            _ => panic!("{packet:?} should be {fate:?}, and is {outcome:?}"),
        }
        self.sent.push(fate);
    }
}

/// The VTEP MACs of node a and node b: each family has its own.
fn macs(packet: &Described) -> (&'static str, &'static str) {
    if packet.flow.dst.is_ipv4() { (MAC_A, MAC_B) } else { (MAC_A6, MAC_B6) }
}

/// The sender of a refused packet is told by the VIP: TCP with a reset, UDP with port unreachable.
fn tells(answer: &[u8], refused: &Described) {
    match refused.flow.protocol {
        Protocol::TCP => assert_eq!(verified_flow(answer), refused.flow.reversed()),
        _ => {
            let message = verified_icmp(answer);
            let kind = if refused.flow.dst.is_ipv4() { (3, 3) } else { (1, 4) };
            assert_eq!((message.src, message.dst, message.kind), (refused.flow.dst, refused.flow.src, kind));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_does_what_the_reference_model_says(events in prop::collection::vec(event(), 1..60)) {
        let mut pair = Pair::new();
        events.iter().for_each(|event| pair.happens(event));
    }
}
