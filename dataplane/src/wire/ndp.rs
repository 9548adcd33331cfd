//! Neighbor Discovery: solicitations and advertisements.
//!
//! Read first: RFC 4861 sections 4.3, 4.4 and 7.1 (what to ignore), RFC 4291 section 2.7.1 for the
//! solicited-node address, RFC 2464 section 7 for multicast over Ethernet.

use std::net::Ipv6Addr;

use super::bytes::{Malformed, array, put, put_u16};
use super::ethernet::Mac;
use super::protocol::Protocol;
use super::{checksum, ipv6};

/// Length of the IPv6 packets that [`emit_solicitation`] and [`emit_advertisement`] write, in bytes.
pub const PACKET_LEN: usize = ipv6::HEADER_LEN + MESSAGE_LEN + OPTION_LEN;

/// The only hop limit that is believed: no router passed it on.
pub const HOP_LIMIT: u8 = 255;

const MESSAGE_LEN: usize = 24;
const OPTION_LEN: usize = 8;

const TYPE: usize = 0;
const CODE: usize = 1;
const CHECKSUM: usize = 2;
const FLAGS: usize = 4;
const TARGET: usize = 8;
const OPTIONS: usize = 24;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_LINK_LAYER: u8 = 1;
const TARGET_LINK_LAYER: u8 = 2;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A neighbor solicitation or advertisement, from its ICMPv6 header on.
#[derive(Clone, Copy, Debug)]
pub struct Ndp<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Ndp<T> {
    /// `bytes` end where the message does; its hop limit and checksum are the caller's to check.
    ///
    /// # Errors
    /// For other types or codes, fewer bytes than the message has, a multicast target, and options of no
    /// length or cut off.
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let data = bytes.as_ref();
        if data.len() < MESSAGE_LEN {
            return Err(Malformed::Truncated);
        }
        if !matches!(data[TYPE], SOLICITATION | ADVERTISEMENT) || data[CODE] != 0 {
            return Err(Malformed::Invalid);
        }
        let mut options = &data[OPTIONS..];
        while let [_, words, ..] = *options {
            let len = usize::from(words) * 8;
            options = options.get(len..).filter(|_| len > 0).ok_or(Malformed::Invalid)?;
        }
        let whole = options.is_empty() && !Ipv6Addr::from(array::<16>(data, TARGET)).is_multicast();
        if whole { Ok(Self { bytes }) } else { Err(Malformed::Invalid) }
    }

    /// Whether it asks; else it answers.
    pub fn is_solicitation(&self) -> bool {
        self.bytes.as_ref()[TYPE] == SOLICITATION
    }

    /// The address asked for.
    pub fn target(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.bytes.as_ref(), TARGET))
    }

    /// The Ethernet address of a solicitation's sender or of an advertisement's target, if given.
    pub fn link_layer(&self) -> Option<Mac> {
        let wanted = if self.is_solicitation() { SOURCE_LINK_LAYER } else { TARGET_LINK_LAYER };
        let mut options = &self.bytes.as_ref()[OPTIONS..];
        while let [kind, words, ..] = *options {
            if kind == wanted && words == 1 {
                return Some(Mac(array(options, 2)));
            }
            options = options.get(usize::from(words) * 8..)?;
        }
        None
    }
}

/// The multicast address on which `addr` is asked for.
pub fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

/// The Ethernet address of an IPv6 multicast address.
pub fn multicast_mac(addr: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = addr.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

/// Writes an IPv6 packet that asks for `target`'s Ethernet address to the first [`PACKET_LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit_solicitation(out: &mut [u8], src: Ipv6Addr, src_mac: Mac, target: Ipv6Addr) {
    let message = Message { kind: SOLICITATION, flags: 0, target, option: SOURCE_LINK_LAYER, mac: src_mac };
    message.emit(out, src, solicited_node(target));
}

/// Writes an IPv6 packet that answers `dst`: `target` is at `mac`. An unspecified `dst` is answered to all nodes.
///
/// # Panics
/// If `out` is shorter than [`PACKET_LEN`].
pub fn emit_advertisement(out: &mut [u8], target: Ipv6Addr, mac: Mac, dst: Ipv6Addr) {
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let (flags, dst) = if dst.is_unspecified() { (OVERRIDE, all_nodes) } else { (SOLICITED | OVERRIDE, dst) };
    let message = Message { kind: ADVERTISEMENT, flags, target, option: TARGET_LINK_LAYER, mac };
    message.emit(out, target, dst);
}

struct Message {
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: u8,
    mac: Mac,
}

impl Message {
    fn emit(&self, out: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
        let (header, message) = out[..PACKET_LEN].split_at_mut(ipv6::HEADER_LEN);
        let (next_header, hop_limit) = (Protocol::ICMPV6, HOP_LIMIT);
        let payload_len = message.len() as u16;
        let fields =
            ipv6::Header { src, dst, next_header, traffic_class: 0, flow_label: 0, hop_limit, payload_len };
        ipv6::emit(header, fields);
        message.fill(0);
        message[TYPE] = self.kind;
        message[FLAGS] = self.flags;
        put(message, TARGET, &self.target.octets());
        put(message, OPTIONS, &[self.option, 1]);
        put(message, OPTIONS + 2, &self.mac.0);
        let checksum = checksum::transport(src.into(), dst.into(), Protocol::ICMPV6, message);
        put_u16(message, CHECKSUM, checksum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn message(packet: &[u8]) -> Ndp<&[u8]> {
        let ip = ipv6::Ipv6::new_checked(packet).unwrap();
        assert_eq!((ip.hop_limit(), ip.next_header()), (HOP_LIMIT, Protocol::ICMPV6));
        let payload = &packet[ipv6::HEADER_LEN..];
        assert!(checksum::verify(ip.src().into(), ip.dst().into(), Protocol::ICMPV6, payload));
        Ndp::new_checked(payload).unwrap()
    }

    #[test]
    fn an_advertisement_answers_a_solicitation() {
        let (asker, target) = ("fd00::1".parse().unwrap(), "fd00::12:3456".parse().unwrap());
        let mut packet = [0xff; PACKET_LEN];
        emit_solicitation(&mut packet, asker, MAC, target);
        let solicitation = message(&packet);
        assert!(solicitation.is_solicitation());
        assert_eq!((solicitation.target(), solicitation.link_layer()), (target, Some(MAC)));
        let group = ipv6::Ipv6::new_checked(&packet).unwrap().dst();
        assert_eq!(group, "ff02::1:ff12:3456".parse::<Ipv6Addr>().unwrap());
        assert_eq!(multicast_mac(group), Mac([0x33, 0x33, 0xff, 0x12, 0x34, 0x56]));

        emit_advertisement(&mut packet, target, MAC, asker);
        let advertisement = message(&packet);
        assert!(!advertisement.is_solicitation());
        assert_eq!((advertisement.target(), advertisement.link_layer()), (target, Some(MAC)));
        assert_eq!(packet[44], SOLICITED | OVERRIDE);
        emit_advertisement(&mut packet, target, MAC, Ipv6Addr::UNSPECIFIED);
        message(&packet);
        assert_eq!(packet[44], OVERRIDE);
    }

    #[test]
    fn bad_options_and_targets_are_malformed() {
        let mut packet = [0; PACKET_LEN];
        emit_solicitation(&mut packet, "fd00::1".parse().unwrap(), MAC, "fd00::2".parse().unwrap());
        let good = &packet[ipv6::HEADER_LEN..];
        for (at, byte) in [(TYPE, 128), (CODE, 1), (TARGET, 0xff), (OPTIONS + 1, 0), (OPTIONS + 1, 2)] {
            let mut bad = good.to_vec();
            bad[at] = byte;
            assert_eq!(Ndp::new_checked(bad).unwrap_err(), Malformed::Invalid, "byte {at}");
        }
        for len in (0..good.len()).filter(|len| *len != MESSAGE_LEN) {
            assert!(Ndp::new_checked(&good[..len]).is_err(), "{len}");
        }
        assert_eq!(Ndp::new_checked(&good[..MESSAGE_LEN]).unwrap().link_layer(), None);
    }
}
