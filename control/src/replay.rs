//! A capture through a node that does not run: the real worker and engine, on devices in memory and the capture's clock.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use windlass_dataplane::counters::{Counters, Totals};
use windlass_dataplane::device::Ready;
use windlass_dataplane::device::memory::{
    MemoryDatagram, MemoryDevice, MemoryPacket, MemorySocket, worker_io,
};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::{self, Engine, decap};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::packet::{MAX_PACKET_LEN, PacketBatch};
use windlass_dataplane::tables::{TableSet, Writer};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::worker::Worker;

use crate::capture::outer::{self, FIRST_SOURCE_PORT};
use crate::capture::{Captured, UdpDatagram};
use crate::inspect::packet::describe;
use crate::node::NodeSettings;

/// As many connections as a running node remembers.
const CONNECTIONS: usize = 1_000_000;

/// VXLAN and Ethernet header before the inner packet of a sent datagram.
const HEADERS_LEN: usize = 22;

/// A node that a capture is replayed on.
pub struct Replay {
    worker: Worker,
    device: MemoryDevice,
    socket: MemorySocket,
    settings: NodeSettings,
    scratch: PacketBatch,
    began_at: Option<Duration>,
    /// What the worker's tables are published by.
    _writer: Writer,
}

/// How a packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Sent on, or answered.
    Sent,
    /// Dropped, and the sender was told.
    Rejected,
    /// Dropped.
    Dropped,
    /// Not this node's to handle, or not to be read.
    PassedOver,
}

impl Verdict {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Rejected => "rejected",
            Self::Dropped => "dropped",
            Self::PassedOver => "passed over",
        }
    }
}

/// What became of one captured packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// The packet; of a datagram the inner one where it can be read.
    pub packet: String,
    /// How it ended.
    pub verdict: Verdict,
    /// The name of the drop reason, or why it was passed over.
    pub reason: Option<String>,
    /// What was sent for it: where to, and the packet.
    pub sent: Vec<String>,
    /// What was written to the overlay device, from the IP header on.
    #[serde(skip)]
    pub to_overlay: Vec<Vec<u8>>,
    /// What was sent to the underlay, from the outer IP header on.
    #[serde(skip)]
    pub to_underlay: Vec<Vec<u8>>,
}

/// All of a capture in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Captured packets by how they ended.
    pub verdicts: BTreeMap<Verdict, u64>,
    /// Wire-size packets dropped, by reason.
    pub drops: BTreeMap<&'static str, u64>,
    /// Wire-size packets received.
    pub received: u64,
    /// Wire-size packets the engine made itself.
    pub generated: u64,
    /// Wire-size packets sent.
    pub sent: u64,
    /// Wire-size packets dropped; received + generated = sent + dropped.
    pub dropped: u64,
}

/// Where a captured packet enters.
enum Entry<'a> {
    Overlay(InnerPacket),
    Underlay(UdpDatagram<'a>),
    PassedOver(String),
}

impl Replay {
    /// A node with these tables and no connections.
    pub fn new(tables: TableSet, settings: NodeSettings, engine: engine::Settings) -> Self {
        let writer = Writer::new(tables);
        let connections = Arc::new(Conntrack::new(CONNECTIONS, 1));
        let engine = Engine::new(writer.reader(), connections, Arc::<Counters>::default(), engine, 0);
        let (io, device, socket, _) = worker_io();
        let scratch = PacketBatch::new(1, 0);
        let worker = Worker::new(io, engine);
        Self { worker, device, socket, settings, scratch, began_at: None, _writer: writer }
    }

    /// Replays one packet, the clock at its time stamp.
    ///
    /// # Errors
    /// Never by a packet: only when a device in memory fails.
    pub fn packet(&mut self, captured: &Captured<'_>) -> io::Result<Replayed> {
        let began_at = *self.began_at.get_or_insert(captured.at);
        let now = Instant::ZERO + captured.at.saturating_sub(began_at);
        let ip = match whole_ip_packet(captured) {
            Ok(ip) => ip,
            Err(reason) => return Ok(passed_over(String::new(), reason)),
        };
        let packet = match self.entry(ip) {
            Entry::PassedOver(reason) => return Ok(passed_over(description(ip), reason)),
            Entry::Overlay(inner) => {
                self.device.inject(as_the_device_gives_it(&mut self.scratch, ip, &inner, &self.settings));
                describe(&inner)
            }
            Entry::Underlay(datagram) => {
                let remote = SocketAddr::new(datagram.source, datagram.source_port);
                self.socket.inject(datagram.payload.to_vec(), remote, datagram.tos);
                let inner = datagram.payload.get(HEADERS_LEN..).map_or_else(String::new, description);
                format!("from VTEP {}: {inner}", datagram.source)
            }
        };
        self.turn(now, packet)
    }

    /// What has been counted so far, without the verdicts.
    pub fn summary(&self) -> Summary {
        let counters = self.worker.counters();
        let Totals { received, generated, sent, dropped } = counters.totals();
        let drops = DropReason::ALL.iter().map(|reason| (reason.name(), counters.dropped(*reason)));
        let drops = drops.filter(|(_, count)| *count > 0).collect();
        Summary { verdicts: BTreeMap::new(), drops, received, generated, sent, dropped }
    }

    fn entry<'a>(&self, ip: &'a [u8]) -> Entry<'a> {
        let is_own = |addr: IpAddr| self.settings.underlay.iter().any(|choice| choice.addr == addr);
        if let Some(datagram) = UdpDatagram::in_packet(ip)
            && datagram.destination_port == self.settings.port
        {
            if is_own(datagram.destination) {
                return Entry::Underlay(datagram);
            }
            if is_own(datagram.source) {
                return Entry::PassedOver("this node sent it, encapsulated already".to_owned());
            }
        }
        let Ok(inner) = InnerPacket::parse(ip) else {
            return Entry::PassedOver("it is no whole IP packet".to_owned());
        };
        let settings = &self.settings;
        let src = inner.flow.src;
        let is_from_here =
            settings.pod_cidrs.iter().any(|cidr| cidr.contains(&src)) || settings.addresses.contains(&src);
        match is_from_here {
            true => Entry::Overlay(inner),
            false => Entry::PassedOver(format!("{src} is neither of this node nor of its pods")),
        }
    }

    fn turn(&mut self, now: Instant, packet: String) -> io::Result<Replayed> {
        let counters = Arc::clone(self.worker.counters());
        let dropped = |reason: &&DropReason| counters.dropped(**reason);
        let before: Vec<u64> = DropReason::ALL.iter().map(|reason| dropped(&reason)).collect();
        self.worker.turn(Ready::ALL, now)?;
        let reason = DropReason::ALL.iter().zip(before).find(|(reason, before)| dropped(reason) > *before);
        let to_overlay: Vec<_> = self.device.take_all().into_iter().map(|packet| packet.bytes).collect();
        let datagrams = self.socket.take_all();
        let is_silent = to_overlay.is_empty() && datagrams.is_empty();
        let verdict = match reason {
            None => Verdict::Sent,
            Some(_) if is_silent => Verdict::Dropped,
            Some(_) => Verdict::Rejected,
        };
        let into_device = to_overlay.iter().map(|bytes| format!("to the device: {}", description(bytes)));
        let to_vteps = datagrams.iter().map(|datagram| {
            let inner = datagram.payload.get(HEADERS_LEN..).unwrap_or_default();
            format!("to VTEP {}: {}", datagram.remote.ip(), description(inner))
        });
        Ok(Replayed {
            packet,
            verdict,
            reason: reason.map(|(reason, _)| reason.name().to_owned()),
            sent: into_device.chain(to_vteps).collect(),
            to_underlay: datagrams.iter().map(|datagram| self.outer(datagram)).collect(),
            to_overlay,
        })
    }

    fn outer(&self, datagram: &MemoryDatagram) -> Vec<u8> {
        let own = self.settings.underlay.iter().find(|own| own.addr.is_ipv4() == datagram.remote.is_ipv4());
        let addr = own.map_or(datagram.remote.ip(), |own| own.addr);
        let source = SocketAddr::new(addr, FIRST_SOURCE_PORT | datagram.source_port);
        outer::datagram(source, datagram.remote, datagram.tos, &datagram.payload)
    }
}

fn whole_ip_packet<'a>(captured: &Captured<'a>) -> Result<&'a [u8], String> {
    let kept = captured.bytes.len();
    if kept < captured.original_len as usize {
        let all = captured.original_len;
        return Err(format!(
            "only {kept} of its {all} bytes were captured: capture whole packets (tcpdump -s 0)"
        ));
    }
    let ip = captured.ip_packet().map_err(|error| error.to_string())?;
    if ip.len() > MAX_PACKET_LEN {
        return Err(format!("it has {} bytes, and no packet has more than {MAX_PACKET_LEN}", ip.len()));
    }
    Ok(ip)
}

/// A capture on the sending host shows what its kernel leaves to the device: superpackets, partial checksums.
fn as_the_device_gives_it(
    scratch: &mut PacketBatch,
    ip: &[u8],
    inner: &InnerPacket,
    settings: &NodeSettings,
) -> MemoryPacket {
    scratch.clear();
    let mut packet = MemoryPacket::from(ip.to_vec());
    if scratch.receive_copy(ip)
        && let Some(received) = scratch.packets.first_mut()
    {
        decap::mend_superpacket(&scratch.pool, received, inner, settings.overlay_mtu);
        (packet.segment_len, packet.checksum) = (received.segment_len, received.checksum);
    }
    packet
}

fn passed_over(packet: String, reason: String) -> Replayed {
    Replayed {
        packet,
        verdict: Verdict::PassedOver,
        reason: Some(reason),
        sent: Vec::new(),
        to_overlay: Vec::new(),
        to_underlay: Vec::new(),
    }
}

fn description(ip: &[u8]) -> String {
    InnerPacket::parse(ip).map_or_else(|_| "no IP packet".to_owned(), |inner| describe(&inner))
}

#[cfg(test)]
mod tests;
