//! A flood over more flows than there are sockets: whole IPv4 packets through one raw socket, `sendmmsg`. The UDP
//! checksum is 0, which RFC 768 allows, so that a packet costs the sender the same whatever its ports.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockProtocol, SockType, SockaddrIn, sendmmsg, socket,
};

use super::udp::{Sent, connected, watched};
use crate::figures::{Figures, Span};
use crate::peers;
use crate::protocol::COUNTED;

const PAYLOAD_LEN: usize = 18;
const HEADERS_LEN: usize = 28;
const BATCH: usize = 64;
/// Source ports that one source address has.
const PORTS: usize = 50_000;
const FIRST_PORT: usize = 10_000;
/// Further source addresses are that much above the pod's own: in its podCIDR, and no pod's.
const NEXT_SOURCE: usize = 100;

/// Over what the packets are spread, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Source ports and addresses, that many in all.
    Flows(usize),
    /// A pod behind each of that many [`peers`].
    Peers(usize),
}

/// Sends as fast as it goes.
///
/// # Errors
/// When the server has no IPv4 address, there is no right to a raw socket, or sending fails for good.
pub fn measure(server: SocketAddr, spread: Spread, span: Span) -> Result<Figures> {
    let (SocketAddr::V4(server_v4), IpAddr::V4(own)) = (server, connected(server)?.local_addr()?.ip()) else {
        bail!("raw packets are IPv4 only, and {server} is not")
    };
    Ok(watched(server, span, || send(own, server_v4, spread, span))?.figures())
}

fn send(own: Ipv4Addr, server: SocketAddrV4, spread: Spread, span: Span) -> Result<u64> {
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw)
        .context("a raw socket")?;
    let begun = Instant::now();
    let mut sent = Sent::default();
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut number = 0;
    while begun.elapsed() < span.whole() {
        let packets: Vec<_> =
            (number..number + BATCH).map(|number| spread.packet(own, server, number)).collect();
        let slices: Vec<_> = packets.iter().map(|(_, packet)| [IoSlice::new(packet)]).collect();
        let targets: Vec<_> =
            packets.iter().map(|(target, _)| Some(SockaddrIn::from(SocketAddrV4::new(*target, 0)))).collect();
        let taken = sendmmsg(raw.as_raw_fd(), &mut headers, &slices, &targets, [], MsgFlags::empty());
        sent.note(taken.map(Iterator::count))?;
        number += BATCH;
    }
    Ok(u64::try_from(sent.packets)?)
}

impl Spread {
    /// The packet of that number, and where it goes. The kernel fills in length, id and header checksum (raw(7)).
    #[allow(clippy::cast_possible_truncation)]
    fn packet(
        self,
        own: Ipv4Addr,
        server: SocketAddrV4,
        number: usize,
    ) -> (Ipv4Addr, [u8; HEADERS_LEN + PAYLOAD_LEN]) {
        let (flow, target) = match self {
            Self::Flows(count) => (number % count, *server.ip()),
            Self::Peers(count) => (0, peers::pod(number % count)),
        };
        let offset = if flow < PORTS { 0 } else { NEXT_SOURCE + flow / PORTS };
        let source = Ipv4Addr::from(u32::from(own) + offset as u32);
        let source_port = (FIRST_PORT + flow % PORTS) as u16;
        let mut packet = [COUNTED; HEADERS_LEN + PAYLOAD_LEN];
        packet[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        packet[12..16].copy_from_slice(&source.octets());
        packet[16..20].copy_from_slice(&target.octets());
        packet[20..22].copy_from_slice(&source_port.to_be_bytes());
        packet[22..24].copy_from_slice(&server.port().to_be_bytes());
        packet[24..26].copy_from_slice(&(8 + PAYLOAD_LEN as u16).to_be_bytes());
        packet[26..28].fill(0);
        (target, packet)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, SocketAddrV4};

    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

    use super::Spread;

    #[test]
    fn as_many_flows_as_named_and_each_a_packet_that_parses() -> anyhow::Result<()> {
        let (own, server) =
            (Ipv4Addr::new(10, 244, 0, 2), SocketAddrV4::new(Ipv4Addr::new(10, 244, 2, 2), 8080));
        let mut flows = BTreeSet::new();
        for number in 0..120_000 {
            let (_, packet) = Spread::Flows(100_000).packet(own, server, number);
            flows.insert(packet[12..22].to_vec());
        }
        assert_eq!(flows.len(), 100_000);
        let (target, mut packet) = Spread::Peers(3).packet(own, server, 5);
        assert_eq!(target, crate::peers::pod(2));
        packet[3] = u8::try_from(packet.len())?;
        let parsed = PacketHeaders::from_ip_slice(&packet)?;
        assert!(matches!(parsed.net, Some(NetHeaders::Ipv4(header, _)) if header.source == own.octets()));
        assert!(matches!(parsed.transport, Some(TransportHeader::Udp(udp)) if udp.destination_port == 8080));
        Ok(())
    }
}
