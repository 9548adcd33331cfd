//! ARP and Neighbor Discovery: what a message asks and says, and the answer in the place of the station that is asked.
//!
//! Read first: RFC 826, RFC 5227 (probes and announcements), RFC 4861 sections 4.3, 7.1.1 and 7.2.4, RFC 4862
//! section 5.4.

use std::net::{IpAddr, Ipv6Addr};

use super::frame::{Frame, PAYLOAD_OFFSET};
use crate::packet::{PacketBuf, PacketPool};
use crate::wire::arp::{self, Arp};
use crate::wire::checksum;
use crate::wire::ethernet::{self, Mac};
use crate::wire::inner::Fragment;
use crate::wire::ipv6;
use crate::wire::ndp::{self, Ndp};
use crate::wire::protocol::Protocol;
use crate::wire::vxlan;

/// What an ARP or ND message is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// Which address is asked for.
    pub(super) asks: Option<IpAddr>,
    /// Which address is said to be at which MAC.
    pub(super) says: Option<(IpAddr, Mac)>,
}

/// Reads a frame's message; `None` for every other frame, and for messages that no station believes.
pub(super) fn claim(frame: &Frame, bytes: &[u8]) -> Option<Claim> {
    let payload = bytes.get(PAYLOAD_OFFSET..)?;
    match frame.ethertype {
        ethernet::ARP => Arp::new_checked(payload).ok().map(|arp| Claim {
            // An announcement asks for nothing.
            asks: (arp.is_request() && arp.sender_ip() != arp.target_ip()).then(|| arp.target_ip().into()),
            // A probe's sender has no address yet.
            says: (!arp.sender_ip().is_unspecified()).then(|| (arp.sender_ip().into(), arp.sender_mac())),
        }),
        ethernet::IPV6 => ndp_message(frame, payload).map(|(src, message)| {
            let asks = message.is_solicitation();
            let about = if asks { src } else { message.target() };
            let says = message.link_layer().filter(|_| !about.is_unspecified());
            Claim { asks: asks.then(|| message.target().into()), says: says.map(|mac| (about.into(), mac)) }
        }),
        _ => None,
    }
}

/// The sender and the message of a packet that RFC 4861 section 7.1 lets nodes believe.
fn ndp_message<'a>(frame: &Frame, packet: &'a [u8]) -> Option<(Ipv6Addr, Ndp<&'a [u8]>)> {
    let ip = frame.ip.as_ref()?;
    let IpAddr::V6(src) = ip.flow.src else { return None };
    let is_plain = ip.flow.protocol == Protocol::ICMPV6
        && ip.fragment == Fragment::Whole
        && usize::from(ip.l4_offset) == ipv6::HEADER_LEN
        && ip.ttl == ndp::HOP_LIMIT;
    if !is_plain {
        return None;
    }
    let message = packet.get(ipv6::HEADER_LEN..ip.total_len as usize)?;
    let parsed = Ndp::new_checked(message).ok()?;
    checksum::verify(ip.flow.src, ip.flow.dst, Protocol::ICMPV6, message).then_some((src, parsed))
}

/// Writes the answer to the question that `bytes` hold: the asked address is at `mac`. `None` when there is no room.
pub(super) fn answer(
    pool: &mut PacketPool,
    question: &PacketBuf,
    frame: &Frame,
    addr: IpAddr,
    mac: Mac,
) -> Option<PacketBuf> {
    let mut message = [0; LONGEST];
    let (len, ethertype, dst) = match addr {
        IpAddr::V4(_) => {
            let request = Arp::new_checked(pool.bytes(question).get(PAYLOAD_OFFSET..)?).ok()?;
            arp::emit_reply(&mut message, &request, mac);
            (arp::LEN, ethernet::ARP, frame.src)
        }
        IpAddr::V6(target) => {
            let asker = match frame.ip?.flow.src {
                IpAddr::V6(src) => src,
                IpAddr::V4(_) => return None,
            };
            ndp::emit_advertisement(&mut message, target, mac, asker);
            // Who has no address yet hears what is said to all nodes.
            let dst = if asker.is_unspecified() { ndp::multicast_mac(ALL_NODES) } else { frame.src };
            (ndp::PACKET_LEN, ethernet::IPV6, dst)
        }
    };
    let answer = pool.generate(PAYLOAD_OFFSET + len)?;
    let (headers, payload) = pool.bytes_mut(&answer).split_at_mut_checked(PAYLOAD_OFFSET)?;
    vxlan::emit(headers, frame.vni);
    ethernet::emit(&mut headers[vxlan::HEADER_LEN..], dst, mac, ethertype);
    payload.copy_from_slice(&message[..len]);
    Some(answer)
}

/// The longer of the two answers.
const LONGEST: usize = if ndp::PACKET_LEN > arp::LEN { ndp::PACKET_LEN } else { arp::LEN };

/// ff02::1.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ASKER: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn frame_of(dst: Mac, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; PAYLOAD_OFFSET];
        vxlan::emit(&mut bytes, vxlan::Vni::new(1).unwrap());
        ethernet::emit(&mut bytes[vxlan::HEADER_LEN..], dst, ASKER, ethertype);
        [&bytes[..], payload].concat()
    }

    fn claim_of(bytes: &[u8]) -> Option<Claim> {
        claim(&Frame::parse(bytes).unwrap(), bytes)
    }

    #[test]
    fn arp_questions_probes_and_announcements_are_told_apart() {
        let (own, other) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let request = |sender, target| {
            let mut message = [0; arp::LEN];
            arp::emit_request(&mut message, ASKER, sender, target);
            claim_of(&frame_of(Mac::BROADCAST, ethernet::ARP, &message)).unwrap()
        };
        let says = Some((own.into(), ASKER));
        assert_eq!(request(own, other), Claim { asks: Some(other.into()), says });
        assert_eq!(request(own, own), Claim { asks: None, says });
        let probe = request(Ipv4Addr::UNSPECIFIED, other);
        assert_eq!(probe, Claim { asks: Some(other.into()), says: None });
        assert_eq!(claim_of(&frame_of(Mac::BROADCAST, ethernet::ARP, &[0; arp::LEN])), None);
    }

    #[test]
    fn nd_messages_that_no_station_believes_say_nothing() {
        let [own, other]: [Ipv6Addr; 2] = ["fd00::1", "fd00::2"].map(|addr| addr.parse().unwrap());
        let mut packet = [0; ndp::PACKET_LEN];
        ndp::emit_solicitation(&mut packet, own, ASKER, other);
        let group = ndp::multicast_mac(ndp::solicited_node(other));
        let good = frame_of(group, ethernet::IPV6, &packet);
        let says = Some((own.into(), ASKER));
        assert_eq!(claim_of(&good), Some(Claim { asks: Some(other.into()), says }));
        ndp::emit_advertisement(&mut packet, own, ASKER, other);
        let advertisement = frame_of(group, ethernet::IPV6, &packet);
        assert_eq!(claim_of(&advertisement), Some(Claim { asks: None, says }));
        for at in [PAYLOAD_OFFSET + 7, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(claim_of(&bad), None, "byte {at}");
        }
    }
}
