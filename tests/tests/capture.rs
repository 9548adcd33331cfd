//! What a capture shows of a worker, and that the worker does the same as without one.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use windlass_dataplane::counters::Counters;
use windlass_dataplane::device::Ready;
use windlass_dataplane::device::memory::{MemoryDevice, MemorySocket, worker_io};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::{Engine, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::Writer;
use windlass_dataplane::tap::{Filter, Kept, Side, Tap, Wanted};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::worker::Worker;
use windlass_tests::engine_node::{MAC_A, VNI, flow, mac, socket, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp, vxlan};

const ALL: Wanted = Wanted {
    overlay: true,
    underlay: true,
    only_drops: false,
    snap_len: 65_535,
    filter: Filter { protocol: None, addr: None, port: None },
};

const CAPTURE: u64 = 7;

struct Watched {
    worker: Worker,
    device: MemoryDevice,
    underlay: MemorySocket,
    tap: Arc<Tap>,
    _writer: Writer,
}

impl Watched {
    fn new() -> Self {
        let writer = Writer::new(worked_example("a"));
        let connections = Arc::new(Conntrack::new(1_000, 1));
        let counters = Arc::<Counters>::default();
        let engine = Engine::new(writer.reader(), connections, counters, Settings::default(), 0);
        let (io, device, underlay, _) = worker_io();
        let tap = Arc::<Tap>::default();
        let worker = Worker::new(io, engine).watched_by(Arc::clone(&tap));
        Self { worker, device, underlay, tap, _writer: writer }
    }

    fn capture(&self, wanted: Wanted) {
        self.tap.take(CAPTURE, wanted, Instant::ZERO, Instant::from_nanos(u64::MAX)).unwrap();
    }

    /// A request to a VIP, its answer, a packet without a route and one from a stranger, all in one turn.
    fn traffic(&mut self) {
        let request = flow(Protocol::TCP, "10.244.0.14:40000", "10.96.0.21:80");
        self.device.inject(tcp(&request, Tcp::Syn, b""));
        self.device.inject(udp(&flow(Protocol::UDP, "10.244.0.14:1", "10.244.9.9:2"), b"lost"));
        let answer = tcp(&flow(Protocol::TCP, "10.244.2.15:8080", "10.244.0.14:40000"), Tcp::SynAck, b"");
        let payload = vxlan(VNI, mac(MAC_A), &answer);
        self.underlay.inject(payload.clone(), socket("192.168.1.51:50000"), 0);
        self.underlay.inject(payload, socket("192.168.1.77:50000"), 0);
        self.worker.turn(Ready::ALL, Instant::ZERO).unwrap();
    }

    fn taken(&self) -> Vec<(Kept, Vec<u8>)> {
        let take = self.tap.end(CAPTURE);
        assert_eq!(take.lost, 0);
        take.packets().map(|(kept, bytes)| (kept.clone(), bytes.to_vec())).collect()
    }
}

#[test]
fn a_capture_shows_every_packet_as_it_came_and_as_it_went_and_why_it_did_not() {
    let mut node = Watched::new();
    node.capture(ALL);
    node.traffic();
    let taken = node.taken();
    let seen: Vec<_> = taken.iter().map(|(kept, _)| (kept.side, kept.received, kept.dropped)).collect();
    let expected = [
        (Side::Overlay, true, None),
        (Side::Underlay, false, None),
        (Side::Overlay, true, Some(DropReason::NoRoute)),
        (Side::Underlay, true, None),
        (Side::Overlay, false, None),
        (Side::Underlay, true, Some(DropReason::UnknownVtep)),
    ];
    assert_eq!(seen, expected);
    let vip = tcp(&flow(Protocol::TCP, "10.244.0.14:40000", "10.96.0.21:80"), Tcp::Syn, b"");
    assert_eq!(taken[0].1, vip, "before the translation");
    let restored = tcp(&flow(Protocol::TCP, "10.96.0.21:80", "10.244.0.14:40000"), Tcp::SynAck, b"");
    assert_eq!(taken[4].1, restored, "after it");
    assert_eq!(taken[1].1, node.underlay.take().unwrap().payload);
}

#[test]
fn drops_alone_and_filters_show_what_was_asked_for() {
    let mut node = Watched::new();
    node.capture(Wanted { only_drops: true, ..ALL });
    node.traffic();
    let reasons: Vec<_> = node.taken().iter().filter_map(|(kept, _)| kept.dropped).collect();
    assert_eq!(reasons, [DropReason::NoRoute, DropReason::UnknownVtep]);

    let filter = Filter { protocol: Some(Protocol::UDP), ..Filter::default() };
    node.capture(Wanted { overlay: true, underlay: false, filter, ..ALL });
    node.traffic();
    assert_eq!(node.taken().len(), 1);
}

#[test]
fn a_watched_worker_does_and_counts_what_an_unwatched_one_does() {
    let (mut watched, mut unwatched) = (Watched::new(), Watched::new());
    watched.capture(ALL);
    watched.traffic();
    unwatched.traffic();
    assert_eq!(watched.device.take_all(), unwatched.device.take_all());
    assert_eq!(watched.underlay.take_all(), unwatched.underlay.take_all());
    let totals = |node: &Watched| node.worker.counters().totals();
    assert_eq!(totals(&watched), totals(&unwatched));
    assert_eq!(totals(&watched).difference(), 0);
}
