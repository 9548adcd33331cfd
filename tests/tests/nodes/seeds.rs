//! What really passes a node, captured for the fuzz targets to begin from.
//!
//! `WINDLASS_CAPTURES=$PWD/fuzz/captures cargo test -p windlass-tests --test nodes captured` renews `node.pcapng` there;
//! `cargo run -p windlass-fuzz --example seeds` makes seeds of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use windlass_control::capture::write::{Direction, PcapngWriter, Record};
use windlass_control::capture::{self, UdpDatagram};
use windlass_tests::netns::scratch_folder;
use windlass_tests::node::WindlassNode;
use windlass_tests::objects::Objects;
use windlass_tests::packets::kind;
use windlass_tests::peer::KernelPeer;
use windlass_tests::pod::Pods;
use windlass_tests::process::{Guarded, wait_until};
use windlass_tests::topology::{FAMILIES, Topology, VXLAN_PORT};
use windlass_tests::traffic::{PORT, ping_sizes};

use crate::services::WEB;
use crate::traffic;

const LIMIT: Duration = Duration::from_secs(30);
const WANTED: [&str; 9] = [
    "v4-ping",
    "v4-pong",
    "v4-tcp-syn",
    "v4-tcp-rst-ack",
    "v4-udp",
    "v4-udp-first-fragment",
    "v4-icmp-error",
    "v6-tcp-syn",
    "v6-icmp-error",
];
/// VXLAN and Ethernet headers.
const FRAME_LEN: usize = 22;
/// Superpackets of the tunnel show nothing that shorter packets of their kind do not.
const LONGEST_KEPT: usize = 2_000;
/// A capture holds no more.
const MAX_PACKETS: usize = 100_000;
/// A few segments.
const TCP_BYTES: usize = 4_000;
/// One packet, and one in fragments.
const SIZES: [usize; 2] = [100, 2_900];

#[test]
fn traffic_of_every_kind_is_captured_for_the_fuzz_targets() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    let traffic = traffic();
    let topology = Topology::pair()?;
    let (ours, stock) = (topology.host(0)?, topology.host(1)?);
    let _peer = KernelPeer::new(stock, &topology.specs())?;
    let (near, far) = (Pods::with_pods(ours, 1)?, Pods::with_pods(stock, 1)?);
    let (client, server) = (near.pod(0)?, far.pod(0)?);
    let backends = FAMILIES.map(|family| (server.ip(family), stock.spec.name));
    let objects = Objects::cluster(&topology.specs()).with_service(&WEB, &backends);
    let node = WindlassNode::start(ours, &objects, &[])?;

    let folder = scratch_folder("seeds")?;
    let file = folder.path().join("node.pcapng");
    let mut capturing = Guarded::spawn(node.asking(&["capture"])?.arg("--out").arg(&file))?;
    wait_until("the capture to begin", LIMIT, || Ok(file.exists()))?;
    for family in FAMILIES {
        let _server = traffic.serve(&server.netns, server.ip(family), PORT)?;
        ping_sizes(&client.netns, server.ip(family))?;
        traffic.tcp(&client.netns, server.ip(family), PORT, TCP_BYTES)?;
        traffic.udp(&client.netns, server.ip(family), PORT, &SIZES)?;
        traffic.tcp(&client.netns, WEB.vip(family), WEB.port, TCP_BYTES)?;
        traffic.udp(&client.netns, WEB.vip(family), WEB.port, &SIZES)?;
        traffic.refused(&client.netns, WEB.vip(family), WEB.port + 1)?;
        traffic.refused(&client.netns, server.ip(family), PORT + 1)?;
    }
    capturing.signal("INT")?;
    ensure!(capturing.wait(LIMIT)? == 0, "the capture failed");

    let bytes = fs::read(&file)?;
    let kinds = kinds(&bytes)?;
    for wanted in WANTED {
        assert!(kinds.contains(wanted), "{wanted} is not in {kinds:?}");
    }
    if let Ok(folder) = std::env::var("WINDLASS_CAPTURES") {
        fs::create_dir_all(&folder)?;
        fs::write(Path::new(&folder).join("node.pcapng"), one_of_each(&bytes)?).context(folder)?;
    }
    node.stop()
}

/// A capture with the first packet of each kind and way.
fn one_of_each(file: &[u8]) -> Result<Vec<u8>> {
    let mut writer = PcapngWriter::new(Vec::new(), &["overlay device and underlay"])?;
    let mut seen = BTreeSet::new();
    for captured in capture::packets(file, MAX_PACKETS)? {
        let packet = captured.ip_packet()?;
        let carried =
            UdpDatagram::in_packet(packet).filter(|datagram| datagram.destination_port == VXLAN_PORT);
        let key = match carried {
            Some(datagram) => (Some(datagram.source), datagram.payload.get(FRAME_LEN..).and_then(kind)),
            None => (None, kind(packet)),
        };
        if packet.len() <= LONGEST_KEPT && seen.insert(key) {
            writer.packet(&Record {
                interface: 0,
                at: captured.at,
                bytes: packet,
                original_len: captured.original_len,
                direction: Direction::Inbound,
                comment: "",
            })?;
        }
    }
    Ok(writer.finish()?)
}

/// The kinds of packets in a capture.
fn kinds(file: &[u8]) -> Result<BTreeSet<String>> {
    let captured = capture::packets(file, MAX_PACKETS)?;
    Ok(captured.iter().filter_map(|captured| kind(captured.ip_packet().ok()?)).collect())
}
