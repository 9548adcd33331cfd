//! The measures of a comparison and of each sweep, and the figures that they give.

use super::cross_check::Checked;
use super::raw::Spread;
use super::rr::Transport;
use super::udp::{Flood, Sender};
use crate::figures::{Better, Figure};

/// The traffic of a measure.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Bulk TCP over that many connections, from the client or, in reverse, from the server.
    Tcp {
        /// Number of connections.
        streams: usize,
        /// Whether the server sends.
        reverse: bool,
    },
    /// A flood of datagrams.
    Udp(Flood),
    /// A flood over so many flows that each has no socket of its own.
    Raw(Spread),
    /// The highest rate of datagrams with so many payload bytes at which no more are lost than the goal allows.
    LossFree(&'static [usize]),
    /// Bulk traffic by iperf3 and then by our own tool.
    CrossCheck(Checked),
    /// One request after the other.
    RoundTrip(Transport),
    /// UDP requests at a fixed rate beside one bulk TCP stream.
    LoadedRoundTrip,
    /// Connections one after the other, by that many clients at once.
    Connect {
        /// Number of clients.
        clients: usize,
    },
}

/// One kind of traffic and the figures that it gives.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name on the command line and in the JSON.
    pub key: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// What it is, for the head of a column.
    pub short: &'static str,
    /// The traffic.
    pub kind: Kind,
    /// The numbers it gives.
    pub figures: &'static [Figure],
    /// Whether `--quick` takes it too.
    pub quick: bool,
}

/// The measures of a comparison, in the order in which a round takes them.
pub const MEASURES: [Measure; 14] = [
    of("tcp-1", "TCP, 1 stream", "TCP 1", tcp(1, false), BULK),
    of("tcp-4", "TCP, 4 streams", "TCP 4", tcp(4, false), BULK),
    of("tcp-reverse", "TCP, 1 stream, reverse", "TCP reverse", tcp(1, true), BULK),
    of("udp-small-1", "UDP 18 B, 1 flow, sendmmsg", "18 B, 1 flow", udp(1, &[18]), PACKETS),
    of("udp-small-64", "UDP 18 B, 64 flows, sendmmsg", "18 B, 64 flows", udp(64, &[18]), PACKETS),
    of("udp-small-gso", "UDP 18 B, 1 flow, UDP_SEGMENT", "18 B, UDP_SEGMENT", SEGMENTED, PACKETS)
        .not_in_quick(),
    of("udp-1400", "UDP 1,400 B, 1 flow, sendmmsg", "1,400 B", udp(1, &[1400]), GOODPUT),
    of("tcp-rr", "TCP request-response", "TCP RR", Kind::RoundTrip(Transport::Tcp), LATENCY),
    of("udp-rr", "UDP request-response", "UDP RR", Kind::RoundTrip(Transport::Udp), LATENCY),
    of("udp-rr-loaded", LOADED, "UDP RR loaded", Kind::LoadedRoundTrip, LATENCY),
    of(
        "connect-16",
        "New TCP connections, 16 clients",
        "New TCP",
        Kind::Connect { clients: 16 },
        CONNECTIONS,
    ),
    of("iperf3", "TCP, 1 stream, by iperf3 and by our tool", "iperf3", Kind::CrossCheck(Checked::Tcp), CHECK)
        .not_in_quick(),
    of("iperf3-reverse", CHECKED_REVERSE, "iperf3 reverse", Kind::CrossCheck(Checked::TcpReverse), CHECK)
        .not_in_quick(),
    of("iperf3-udp", CHECKED_UDP, "iperf3 UDP", Kind::CrossCheck(Checked::Udp), CHECK).not_in_quick(),
];

/// The sweep over payload sizes. IMIX is 7 small, 4 middle and 1 large packet: frames of 64, 594 and 1,446 bytes.
pub const PACKET_SIZES: [Measure; 8] = [
    of("size-18", "UDP 18 B (a frame of 64), 1 flow", "18 B", udp(1, &[18]), SIZED),
    of("size-64", "UDP 64 B, 1 flow", "64 B", udp(1, &[64]), SIZED),
    of("size-128", "UDP 128 B, 1 flow", "128 B", udp(1, &[128]), SIZED),
    of("size-256", "UDP 256 B, 1 flow", "256 B", udp(1, &[256]), SIZED),
    of("size-512", "UDP 512 B, 1 flow", "512 B", udp(1, &[512]), SIZED),
    of("size-1024", "UDP 1,024 B, 1 flow", "1,024 B", udp(1, &[1024]), SIZED),
    of("size-1400", "UDP 1,400 B, 1 flow", "1,400 B", udp(1, &[1400]), SIZED),
    of("size-imix", "UDP IMIX (7 x 18, 4 x 548, 1 x 1,400 B), 1 flow", "IMIX", udp(1, IMIX), SIZED),
];

/// The sweep over numbers of flows.
pub const FLOWS: [Measure; 3] = [
    of("flows-1", "UDP 18 B, 1 flow, raw socket", "1 flow", flows(1), PACKETS),
    of("flows-1k", "UDP 18 B, 1,000 flows, raw socket", "1,000 flows", flows(1000), PACKETS),
    of("flows-100k", "UDP 18 B, 100,000 flows, raw socket", "100,000 flows", flows(100_000), PACKETS),
];

/// The sweep over numbers of VTEPs that are sent to.
pub const PEERS: [Measure; 3] = [
    of("peers-1", "UDP 18 B to 1 VTEP, raw socket", "1 VTEP", peers(1), PACKETS),
    of("peers-100", "UDP 18 B to 100 VTEPs, raw socket", "100 VTEPs", peers(100), PACKETS),
    of("peers-1k", "UDP 18 B to 1,000 VTEPs, raw socket", "1,000 VTEPs", peers(1000), PACKETS),
];

/// The search for the highest rate without loss.
pub const LOSS_FREE: [Measure; 2] = [
    of("ndr-18", "Loss-free rate, UDP 18 B, 1 flow", "NDR 18 B", Kind::LossFree(&[18]), RATE),
    of("ndr-1400", "Loss-free rate, UDP 1,400 B, 1 flow", "NDR 1,400 B", Kind::LossFree(&[1400]), RATE),
];

/// Every measure there is.
pub fn all() -> impl Iterator<Item = Measure> {
    MEASURES.into_iter().chain(PACKET_SIZES).chain(FLOWS).chain(PEERS).chain(LOSS_FREE)
}

const CHECKED_REVERSE: &str = "TCP, 1 stream, reverse, by iperf3 and by our tool";
const CHECKED_UDP: &str = "UDP 1,400 B, 1 flow, by iperf3 and by our tool";
const LOADED: &str = "UDP 1,000 requests/s beside a TCP stream";
const SEGMENTED: Kind = Kind::Udp(Flood { flows: 1, sizes: &[18], sender: Sender::Segment });
const IMIX: &[usize] = &[18, 548, 18, 18, 548, 18, 1400, 18, 548, 18, 18, 548];

const BUSY: Figure = higher("busy_cores", "busy cores", "cores").lower().hidden();
const BULK: &[Figure] = &[
    higher("gbit", "throughput", "Gbit/s"),
    higher("gbit_per_core", "per busy core", "Gbit/s/core").hidden(),
    BUSY,
];
const PACKETS: &[Figure] = &[
    higher("kpps", "received", "k packets/s"),
    higher("kpps_per_core", "per busy core", "k packets/s/core").hidden(),
    higher("loss", "loss", "%").lower().hidden(),
    BUSY,
];
const GOODPUT: &[Figure] = &[
    higher("gbit", "goodput", "Gbit/s"),
    higher("loss", "loss", "%").lower(),
    higher("gbit_per_core", "per busy core", "Gbit/s/core").hidden(),
    BUSY,
];
const SIZED: &[Figure] = &[
    higher("kpps", "received", "k packets/s"),
    higher("gbit", "goodput", "Gbit/s").hidden(),
    higher("loss", "loss", "%").lower().hidden(),
    higher("kpps_per_core", "per busy core", "k packets/s/core").hidden(),
    BUSY,
];
const RATE: &[Figure] = &[
    higher("kpps", "loss-free", "k packets/s"),
    higher("overload_kpps", "received, unpaced", "k packets/s").hidden(),
];
const LATENCY: &[Figure] = &[
    higher("p50_us", "p50", "us").lower(),
    higher("p99_us", "p99", "us").lower(),
    higher("p999_us", "p99.9", "us").lower().hidden(),
    higher("lost", "unanswered", "%").lower().hidden(),
    BUSY,
];
const CONNECTIONS: &[Figure] = &[
    higher("per_s", "connections", "1/s"),
    higher("per_s_per_core", "per busy core", "1/s/core").hidden(),
    BUSY,
];
const CHECK: &[Figure] = &[
    higher("iperf3_gbit", "by iperf3", "Gbit/s"),
    higher("own_gbit", "by our tool", "Gbit/s").hidden(),
    higher("agreement", "iperf3 / our tool", "").hidden(),
];

const fn of(
    key: &'static str,
    title: &'static str,
    short: &'static str,
    kind: Kind,
    figures: &'static [Figure],
) -> Measure {
    Measure { key, title, short, kind, figures, quick: true }
}

const fn tcp(streams: usize, reverse: bool) -> Kind {
    Kind::Tcp { streams, reverse }
}

const fn udp(flows: usize, sizes: &'static [usize]) -> Kind {
    Kind::Udp(Flood { flows, sizes, sender: Sender::Mmsg })
}

const fn flows(count: usize) -> Kind {
    Kind::Raw(Spread::Flows(count))
}

const fn peers(count: usize) -> Kind {
    Kind::Raw(Spread::Peers(count))
}

const fn higher(key: &'static str, title: &'static str, unit: &'static str) -> Figure {
    Figure { key, title, unit, better: Better::Higher, headline: true }
}

impl Measure {
    const fn not_in_quick(mut self) -> Self {
        self.quick = false;
        self
    }
}

impl Figure {
    const fn lower(mut self) -> Self {
        self.better = Better::Lower;
        self
    }

    const fn hidden(mut self) -> Self {
        self.headline = false;
        self
    }
}
