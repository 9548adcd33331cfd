//! The engine against the kernel: the same packets through the kernel's vxlan device and nftables' DNAT, and through the
//! engine. What comes out is the same byte for byte, but for the differences that are listed with their reason.
//!
//! The kernel routes and so takes one off the TTL; over a TUN device the host does that beside the engine (B5). So the
//! kernel gets its packets with one more.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use etherparse::PacketBuilder;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::tables::LocalVtep;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_B, MAC_B6, VNI, addr, flow, mac, net, vni, worked_example,
};
use windlass_tests::netns::{Netns, on_path};
use windlass_tests::packets::{Tcp, ping, tcp, tos, udp, vxlan, vxlan_of, with_header, with_tos};
use windlass_tests::process::{run, run_with_input};
use windlass_tests::skipped;

const POD_MAC: &str = "02:00:00:00:00:14";
const GATEWAY_MAC: &str = "02:00:00:00:00:01";
const UNDERLAY_MAC: &str = "02:00:00:00:01:40";
const PEER_MAC: &str = "02:00:00:00:01:51";

/// How long a packet that should come may take, and one that should not, in seconds.
const COMES: &str = "10";
const STAYS_OUT: &str = "0.3";

/// Where a packet is put in.
pub(crate) enum Side {
    /// From a pod.
    Pod,
    /// From a VTEP, with an outer TOS byte: the inner packet is made a VXLAN payload by the function.
    Wire { from: Ipv4Addr, outer_tos: u8, payload: fn(&[u8]) -> Vec<u8> },
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    side: Side,
    /// With a TTL of 64.
    inner: Vec<u8>,
    /// Why the kernel does something else, and what.
    differs: Option<(&'static str, Kernel)>,
}

/// What the kernel does instead.
enum Kernel {
    /// It lets the packet pass, which the engine drops.
    Passes,
    /// It drops what the engine lets pass.
    Drops,
}

pub(crate) fn case(name: &'static str, side: Side, inner: Vec<u8>) -> Case {
    Case { name, side, inner, differs: None }
}

pub(crate) fn from_peer(outer_tos: u8) -> Side {
    Side::Wire {
        from: Ipv4Addr::new(192, 168, 1, 51),
        outer_tos,
        payload: |inner| vxlan(VNI, mac(MAC_A), inner),
    }
}

pub(crate) fn udp_of(src: &str, dst: &str) -> Vec<u8> {
    udp(&flow(Protocol::UDP, src, dst), b"payload")
}

fn tcp_of(src: &str, dst: &str, kind: Tcp) -> Vec<u8> {
    tcp(&flow(Protocol::TCP, src, dst), kind, b"")
}

const CLIENT: &str = "10.244.0.14:40000";
const CLIENT6: &str = "[fd00:10:244::14]:40000";
const BACKEND: &str = "10.244.2.15:8080";
const BACKEND6: &str = "[fd00:10:244:2::15]:8080";

/// The same there and back; the order matters, since answers need their connection.
fn same() -> Vec<Case> {
    let no_checksum = |mut packet: Vec<u8>| {
        packet[26..28].fill(0);
        packet
    };
    let echo = ping(addr("10.244.0.14"), addr("10.244.2.15"), 7);
    let echo6 = ping(addr("fd00:10:244::14"), addr("fd00:10:244:2::15"), 7);
    vec![
        case("UDP", Side::Pod, udp_of(CLIENT, "10.244.2.15:80")),
        case("UDP, IPv6", Side::Pod, udp_of(CLIENT6, "[fd00:10:244:2::15]:80")),
        case("TCP", Side::Pod, tcp_of(CLIENT, "10.244.2.15:80", Tcp::Syn)),
        case("TCP, IPv6", Side::Pod, tcp_of(CLIENT6, "[fd00:10:244:2::15]:80", Tcp::Syn)),
        case("ping", Side::Pod, echo),
        case("ping, IPv6", Side::Pod, echo6),
        case("ECN", Side::Pod, with_tos(udp_of(CLIENT, "10.244.2.15:80"), 0b10)),
        case("VIP, UDP", Side::Pod, udp_of(CLIENT, "10.96.0.21:80")),
        case("VIP, UDP, the answer", from_peer(0), udp_of(BACKEND, CLIENT)),
        case("VIP, UDP without a checksum", Side::Pod, no_checksum(udp_of(CLIENT, "10.96.0.21:80"))),
        case("VIP, TCP", Side::Pod, tcp_of(CLIENT, "10.96.0.21:80", Tcp::Syn)),
        case("VIP, TCP, the answer", from_peer(0), tcp_of(BACKEND, CLIENT, Tcp::SynAck)),
        case("VIP, TCP, IPv6", Side::Pod, tcp_of(CLIENT6, "[fd00:10:96::21]:80", Tcp::Syn)),
        case("VIP, TCP, IPv6, the answer", from_peer(0), tcp_of(BACKEND6, CLIENT6, Tcp::SynAck)),
        case("from a peer's pod", from_peer(0), udp_of("10.244.2.99:1", "10.244.0.14:2")),
        case("from a peer's pod, IPv6", from_peer(0), udp_of("[fd00:10:244:2::99]:1", "[fd00:10:244::14]:2")),
        Case {
            side: Side::Wire {
                from: Ipv4Addr::new(192, 168, 1, 51),
                outer_tos: 0,
                payload: |inner| vxlan(VNI + 1, mac(MAC_A), inner),
            },
            ..case("another VNI: dropped", Side::Pod, udp_of("10.244.2.99:1", "10.244.0.14:2"))
        },
        Case {
            side: Side::Wire {
                from: Ipv4Addr::new(192, 168, 1, 51),
                outer_tos: 0,
                payload: |inner| vxlan(VNI, mac("02:aa:aa:aa:aa:aa"), inner),
            },
            ..case("another MAC: dropped", Side::Pod, udp_of("10.244.2.99:1", "10.244.0.14:2"))
        },
        Case {
            side: Side::Wire {
                from: Ipv4Addr::new(192, 168, 1, 51),
                outer_tos: 0,
                payload: |inner| vxlan_of(VNI, mac(MAC_A), 0x8100, &[&[0, 100, 0x08, 0x00], inner].concat()),
            },
            ..case("a VLAN tag: dropped", Side::Pod, udp_of("10.244.2.99:1", "10.244.0.14:2"))
        },
    ]
}

/// RFC 6040, figure 4.
fn ecn() -> Vec<Case> {
    let codepoints = [0b00, 0b10, 0b01, 0b11];
    let pairs = codepoints.iter().flat_map(|outer| codepoints.iter().map(move |inner| (*outer, *inner)));
    let made = |(outer, inner)| {
        case("ECN", from_peer(outer), with_tos(udp_of("10.244.2.99:1", "10.244.0.14:2"), inner))
    };
    pairs.map(made).collect()
}

fn differing() -> Vec<Case> {
    let differs = |why, kernel| Some((why, kernel));
    let inner = || udp_of("10.244.2.99:1", "10.244.0.14:2");
    vec![
        Case {
            side: Side::Wire {
                from: Ipv4Addr::new(192, 168, 1, 51),
                outer_tos: 0,
                payload: |inner| {
                    let mut payload = vxlan(VNI, mac(MAC_A), inner);
                    payload[0] |= 0x80;
                    payload
                },
            },
            differs: differs(
                "RFC 7348 section 5: reserved bits are ignored on receipt; Linux drops",
                Kernel::Drops,
            ),
            ..case("a reserved bit", Side::Pod, inner())
        },
        Case {
            side: Side::Wire {
                from: Ipv4Addr::new(192, 168, 1, 99),
                outer_tos: 0,
                payload: |inner| vxlan(VNI, mac(MAC_A), inner),
            },
            differs: differs("E1: Linux takes VXLAN from anybody", Kernel::Passes),
            ..case("an unknown VTEP", Side::Pod, inner())
        },
        Case {
            differs: differs("E2: Linux takes any inner source", Kernel::Passes),
            ..case("a spoofed source", from_peer(0), udp_of("10.244.7.7:1", "10.244.0.14:2"))
        },
    ]
}

/// The node of the worked example as the kernel makes it, in one namespace, and the ends of its links in another.
pub(crate) struct KernelNode {
    _node: Netns,
    edge: Netns,
}

impl KernelNode {
    pub(crate) fn new() -> Result<Self> {
        let (node, edge) = (Netns::new("oracle")?, Netns::new("edge")?);
        for (link, end, link_mac) in [("kpods", "pod", GATEWAY_MAC), ("kwire", "wire", UNDERLAY_MAC)] {
            node.ip(&format!(
                "link add {link} address {link_mac} type veth peer name {end} netns {}",
                edge.name()
            ))?;
            edge.sysctl(&format!("net.ipv6.conf.{end}.disable_ipv6"), "1")?;
            edge.ip(&format!("link set {end} up"))?;
            node.ip(&format!("link set {link} up"))?;
        }
        for (key, value) in [
            ("net.ipv4.ip_forward", "1"),
            ("net.ipv6.conf.all.forwarding", "1"),
            ("net.ipv4.conf.all.rp_filter", "0"),
            ("net.ipv4.conf.default.rp_filter", "0"),
        ] {
            node.sysctl(key, value)?;
        }
        for words in [
            "addr add 10.244.0.1/24 dev kpods".to_owned(),
            "addr add fd00:10:244::1/64 dev kpods nodad".to_owned(),
            "addr add 192.168.1.40/24 dev kwire".to_owned(),
            format!("neigh add 10.244.0.14 lladdr {POD_MAC} dev kpods nud permanent"),
            format!("neigh add fd00:10:244::14 lladdr {POD_MAC} dev kpods nud permanent"),
            format!("neigh add 192.168.1.51 lladdr {PEER_MAC} dev kwire nud permanent"),
            format!(
                "link add vx address {MAC_A} mtu 1450 type vxlan id {VNI} dev kwire local 192.168.1.40 dstport 4789 nolearning"
            ),
            "addr add 10.244.0.0/32 dev vx".to_owned(),
            "link set vx up".to_owned(),
            format!("neigh add 10.244.2.0 lladdr {MAC_B} dev vx nud permanent"),
            format!("neigh add fd00:10:244:2:: lladdr {MAC_B6} dev vx nud permanent"),
            "route add 10.244.2.0/24 via 10.244.2.0 dev vx onlink".to_owned(),
            "route add 10.244.7.0/24 via 10.244.2.0 dev vx onlink".to_owned(),
            "-6 route add fd00:10:244:2::/64 via fd00:10:244:2:: dev vx onlink".to_owned(),
        ] {
            node.ip(&words)?;
        }
        for peer in [MAC_B, MAC_B6] {
            run(node.command("bridge").args(["fdb", "append", peer, "dev", "vx", "dst", "192.168.1.51"]))?;
        }
        let rules = "table inet services { chain prerouting { type nat hook prerouting priority dstnat;
            ip daddr 10.96.0.21 udp dport 80 dnat ip to 10.244.2.15:8080
            ip daddr 10.96.0.21 tcp dport 80 dnat ip to 10.244.2.15:8080
            ip6 daddr fd00:10:96::21 tcp dport 80 dnat ip6 to [fd00:10:244:2::15]:8080
            }
            }";
        run_with_input(node.command("nft").args(["-f", "-"]), rules)?;
        // The handshakes' numbers are made up.
        node.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1")?;
        Ok(Self { _node: node, edge })
    }

    /// What comes out of the other link for each case: an IP packet, or outer TOS and VXLAN payload.
    pub(crate) fn runs(&self, cases: &[Case]) -> Result<Vec<Option<Came>>> {
        let lines: String = cases.iter().map(line).collect();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracles/edge.py");
        let answers = run_with_input(self.edge.command("python3").arg(script), &lines)?;
        let answers: Vec<_> = answers.lines().map(from_hex).collect();
        anyhow::ensure!(answers.len() == cases.len(), "{} answers to {} frames", answers.len(), cases.len());
        let came = |(case, frame): (&Case, Option<Vec<u8>>)| {
            let ip = frame?.split_off(14);
            Some(match case.side {
                Side::Pod => Came { outer_ecn: Some(ip[1] & 0b11), bytes: ip[28..].to_vec() },
                Side::Wire { .. } => Came { outer_ecn: None, bytes: ip },
            })
        };
        Ok(cases.iter().zip(answers).map(came).collect())
    }
}

/// What came out: for a datagram its outer ECN field and its payload.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Came {
    outer_ecn: Option<u8>,
    pub(crate) bytes: Vec<u8>,
}

/// A line for the script at the edge.
fn line(case: &Case) -> String {
    let inner = with_one_more_hop(&case.inner);
    let is_dropped = case.name.contains("dropped") || matches!(case.differs, Some((_, Kernel::Drops)));
    let patience = if is_dropped || is_illegal_ecn(case) { STAYS_OUT } else { COMES };
    let (link, frame) = match &case.side {
        Side::Pod => ("pod", framed(GATEWAY_MAC, POD_MAC, &inner)),
        Side::Wire { from, outer_tos, payload } => {
            let mut outer = Vec::new();
            PacketBuilder::ipv4(from.octets(), [192, 168, 1, 40], 64)
                .udp(50_000, 4_789)
                .write(&mut outer, &payload(&inner))
                .unwrap();
            ("wire", framed(UNDERLAY_MAC, PEER_MAC, &with_tos(outer, *outer_tos)))
        }
    };
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{link} {patience} {hex}\n")
}

fn is_illegal_ecn(case: &Case) -> bool {
    matches!(case.side, Side::Wire { outer_tos: 0b11, .. } if tos(&case.inner) & 0b11 == 0)
}

fn framed(dst: &str, src: &str, ip: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = if ip[0] >> 4 == 6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    [&mac(dst).0[..], &mac(src).0, &ethertype, ip].concat()
}

fn with_one_more_hop(packet: &[u8]) -> Vec<u8> {
    if packet[0] >> 4 == 6 {
        let mut packet = packet.to_vec();
        packet[7] += 1;
        return packet;
    }
    with_header(packet.to_vec(), |header| header.time_to_live += 1)
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What the engine makes of a case.
fn engine_runs(node: &mut EngineNode, case: &Case) -> Option<Came> {
    match &case.side {
        Side::Pod => {
            let outcome = node.encap(&case.inner);
            let sent = outcome.datagrams.into_iter().next()?;
            Some(Came { outer_ecn: Some(sent.tos & 0b11), bytes: sent.payload })
        }
        Side::Wire { from, outer_tos, payload } => {
            let outcome = node.decap(&payload(&case.inner), IpAddr::V4(*from), *outer_tos);
            outcome.packets.into_iter().next().map(|packet| Came { outer_ecn: None, bytes: packet.bytes })
        }
    }
}

/// Whether the script at the edge can run; says so where it cannot.
pub(crate) fn can_run() -> bool {
    let is_there = on_path("python3") && run(Command::new("python3").args(["-c", "import socket"])).is_ok();
    if !is_there {
        skipped("`python3` is not installed (Debian: python3)");
    }
    is_there
}

#[test]
fn a14_b2_d1_the_kernel_makes_the_same_of_the_same_packets_but_for_known_differences() -> Result<()> {
    let Some(_permit) = windlass_tests::start()? else { return Ok(()) };
    if !can_run() {
        return Ok(());
    }
    let cases: Vec<_> = [same(), ecn(), differing()].into_iter().flatten().collect();
    let kernel = KernelNode::new()?.runs(&cases).context("the kernel's part")?;
    let mut tables = worked_example("a");
    // The kernel's device has one MAC for both families.
    let own = LocalVtep { mac_v4: Some(mac(MAC_A)), mac_v6: Some(mac(MAC_A)) };
    Arc::make_mut(&mut tables.local).vteps.insert(vni(), own);
    assert!(tables.local.pod_cidrs.contains(&net("10.244.0.0/24")));
    let mut engine = EngineNode::new(tables, Settings::default());
    for (case, kernel) in cases.iter().zip(kernel) {
        let ours = engine_runs(&mut engine, case);
        let told = format!("{} (inner ECN {:02b})", case.name, tos(&case.inner) & 0b11);
        match &case.differs {
            None => assert_eq!(ours, kernel, "{told}"),
            Some((why, Kernel::Passes)) => assert!(ours.is_none() && kernel.is_some(), "{told}: {why}"),
            Some((why, Kernel::Drops)) => assert!(ours.is_some() && kernel.is_none(), "{told}: {why}"),
        }
    }
    Ok(())
}
