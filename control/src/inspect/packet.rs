//! A packet as people write it: `tcp 10.244.0.14:40000 > 10.96.0.10:53 flags syn len 60`, or as hex.

use std::net::{IpAddr, SocketAddr};

use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::inner::{Fragment, InnerPacket};
use windlass_dataplane::wire::protocol::L4;
use windlass_dataplane::wire::tcp::{ACK, FIN, RST, SYN};

/// What a packet looks like, for messages.
pub const GRAMMAR: &str = "write (tcp|udp|icmp|icmpv6) SRC[:PORT] > DST[:PORT] [flags syn|ack|fin|rst] [len BYTES], an IPv6 address \
     with a port as [ADDR]:PORT";

/// The source port of a packet whose text has none.
const ANY_PORT: u16 = 40_000;

/// The identifier of an echo request.
const ANY_IDENT: u16 = 1;

const FLAGS: [(&str, u8); 4] = [("syn", SYN), ("ack", ACK), ("fin", FIN), ("rst", RST)];

/// Why a text is no packet.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("packet {text:?}: {reason}")]
pub struct PacketError {
    text: String,
    reason: String,
}

impl PacketError {
    /// An error about `text`.
    pub fn new(text: &str, reason: impl Into<String>) -> Self {
        Self { text: text.chars().take(200).collect(), reason: reason.into() }
    }
}

/// Parses a packet.
///
/// # Errors
/// With the part that is wrong and what it should be.
pub fn parse(text: &str) -> Result<InnerPacket, PacketError> {
    read(text).map_err(|reason| PacketError::new(text, reason))
}

fn read(text: &str) -> Result<InnerPacket, String> {
    let spaced = text.replace('>', " > ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let [protocol, src, ">", dst, options @ ..] = words.as_slice() else { return Err(GRAMMAR.to_owned()) };
    let ((src, src_port), (dst, dst_port)) = (endpoint(src)?, endpoint(dst)?);
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(format!("{src} and {dst} are of different families"));
    }
    let protocol = self::protocol(protocol, src)?;
    let (src_port, dst_port) = match (protocol, dst_port) {
        (Protocol::ICMP | Protocol::ICMPV6, None) if src_port.is_none() => (ANY_IDENT, ANY_IDENT),
        (Protocol::ICMP | Protocol::ICMPV6, _) => return Err(format!("{protocol} has no ports")),
        (_, Some(port)) => (src_port.unwrap_or(ANY_PORT), port),
        (_, None) => {
            return Err(format!("{protocol} needs a destination port: {}", SocketAddr::new(dst, 80)));
        }
    };
    let flow = FlowKey { src, dst, protocol, src_port, dst_port };
    let mut packet = of_flow(flow, SYN, true);
    options_of(&mut packet, options)?;
    Ok(packet)
}

fn protocol(word: &str, src: IpAddr) -> Result<Protocol, String> {
    match word.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Protocol::TCP),
        "udp" => Ok(Protocol::UDP),
        "icmp" if src.is_ipv6() => Err("write icmpv6 between IPv6 addresses".to_owned()),
        "icmpv6" if src.is_ipv4() => Err("write icmp between IPv4 addresses".to_owned()),
        "icmp" => Ok(Protocol::ICMP),
        "icmpv6" => Ok(Protocol::ICMPV6),
        other => Err(format!("{other:?} is not tcp, udp, icmp or icmpv6")),
    }
}

fn endpoint(word: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(addr) = word.parse::<SocketAddr>() {
        return Ok((addr.ip(), Some(addr.port())));
    }
    let bare = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(word);
    let wants = || format!("{word:?} is no address: write 10.96.0.10:53, 10.96.0.10 or [fd00::1]:53");
    bare.parse().map(|addr| (addr, None)).map_err(|_| wants())
}

fn options_of(packet: &mut InnerPacket, words: &[&str]) -> Result<(), String> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word:?} wants a value; {GRAMMAR}"))?;
        match (*word, &mut packet.l4) {
            ("flags", L4::Tcp { flags: of }) => *of = flags(value)?,
            ("flags", _) => return Err("only tcp has flags".to_owned()),
            ("len", _) => packet.total_len = length(value, packet)?,
            (other, _) => return Err(format!("{other:?} is not flags or len; {GRAMMAR}")),
        }
    }
    Ok(())
}

fn flags(text: &str) -> Result<u8, String> {
    let bit = |name: &str| {
        let known = FLAGS.iter().find(|(known, _)| *known == name.to_ascii_lowercase());
        known.map(|(_, bit)| *bit).ok_or_else(|| format!("flag {name:?} is not syn, ack, fin or rst"))
    };
    text.split(['|', ',', '+']).try_fold(0, |all, name| Ok(all | bit(name)?))
}

fn length(text: &str, packet: &InnerPacket) -> Result<u32, String> {
    let least = u32::from(packet.l4_offset + packet.l4_header_len);
    let len = text.parse().ok().filter(|len| (least..=65_535).contains(len));
    len.ok_or_else(|| format!("len {text:?} is not from {least} (the headers) to 65535 bytes"))
}

/// The shortest packet of a flow; `request` tells an echo request from a reply.
pub fn of_flow(flow: FlowKey, tcp_flags: u8, request: bool) -> InnerPacket {
    let (l4, l4_header_len) = match flow.protocol {
        Protocol::TCP => (L4::Tcp { flags: tcp_flags }, 20),
        Protocol::UDP => (L4::Udp, 8),
        _ if request => (L4::EchoRequest, 8),
        _ => (L4::EchoReply, 8),
    };
    let l4_offset: u16 = if flow.src.is_ipv4() { 20 } else { 40 };
    InnerPacket {
        flow,
        l4,
        fragment: Fragment::Whole,
        l4_offset,
        l4_header_len,
        total_len: u32::from(l4_offset + l4_header_len),
        tos: 0,
        ttl: 64,
        dont_fragment: true,
    }
}

/// A packet in one line, as [`parse`] reads it where that can say it.
pub fn describe(packet: &InnerPacket) -> String {
    let flow = &packet.flow;
    let mut text = match packet.l4 {
        L4::Tcp { .. } | L4::Udp if packet.fragment != Fragment::Later => flow.to_string(),
        _ => format!("{} {} > {}", flow.protocol, flow.src, flow.dst),
    };
    match packet.l4 {
        L4::Tcp { flags } => {
            let names: Vec<_> =
                FLAGS.iter().filter(|(_, bit)| flags & bit != 0).map(|(name, _)| *name).collect();
            if !names.is_empty() {
                text += &format!(" flags {}", names.join("|"));
            }
        }
        L4::EchoReply => text += " (echo reply)",
        L4::IcmpError => text += " (an ICMP error)",
        L4::EchoRequest | L4::Udp | L4::Icmp | L4::Other => {}
    }
    text += &format!(" len {}", packet.total_len);
    match packet.fragment {
        Fragment::Whole => text,
        Fragment::First => text + " (first fragment)",
        Fragment::Later => text + " (a later fragment)",
    }
}

/// Reads hexadecimal digits; blanks, colons and a leading 0x do not count.
///
/// # Errors
/// When anything else is in it.
pub fn from_hex(text: &str) -> Result<Vec<u8>, PacketError> {
    let digits = text.trim().trim_start_matches("0x");
    let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace() && *digit != ':').collect();
    let bytes = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((high.to_digit(16)? << 4 | low.to_digit(16)?) as u8),
        _ => None,
    });
    bytes
        .collect::<Option<Vec<u8>>>()
        .filter(|bytes| !bytes.is_empty())
        .ok_or_else(|| PacketError::new(text, "it is not pairs of hexadecimal digits, like 4500003c..."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_read_and_written_alike() {
        for text in [
            "tcp 10.244.0.14:40000 > 10.96.0.10:53 flags syn len 40",
            "tcp 10.244.0.14:1 > 10.96.0.10:2 flags ack|fin len 60",
            "udp 10.244.0.14:1 > 10.96.0.10:2 len 1400",
            "icmp 10.244.0.14 > 10.96.0.10 len 28",
            "icmpv6 fd00::1 > fd00::2 len 48",
            "udp [fd00::1]:5 > [fd00::2]:53 len 48",
        ] {
            assert_eq!(describe(&parse(text).unwrap()), text);
        }
        let short = parse("tcp 10.0.0.1>10.0.0.2:80").unwrap();
        assert_eq!(describe(&short), "tcp 10.0.0.1:40000 > 10.0.0.2:80 flags syn len 40");
    }

    #[test]
    fn what_is_wrong_with_a_packet_is_said() {
        for (text, expected) in [
            ("tcp 10.0.0.1", "write (tcp|udp|icmp|icmpv6) SRC[:PORT] > DST[:PORT]"),
            ("tcp 10.0.0.1 > 10.0.0.2", "tcp needs a destination port: 10.0.0.2:80"),
            ("sctp 10.0.0.1 > 10.0.0.2", "\"sctp\" is not tcp, udp, icmp or icmpv6"),
            ("icmp 10.0.0.1 > 10.0.0.2:1", "icmp has no ports"),
            ("icmp fd00::1 > fd00::2", "write icmpv6"),
            ("udp 10.0.0.1 > [fd00::2]:1", "different families"),
            ("udp 10.0.0 > 10.0.0.1:5", "\"10.0.0\" is no address"),
            ("udp 10.0.0.1 > 10.0.0.1:5 flags syn", "only tcp has flags"),
            ("tcp 10.0.0.1 > 10.0.0.1:5 flags push", "flag \"push\" is not"),
            ("tcp 10.0.0.1 > 10.0.0.1:5 len 3", "is not from 40"),
            ("tcp 10.0.0.1 > 10.0.0.1:5 ttl 3", "\"ttl\" is not flags or len"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(from_hex("0x45 00:0f").unwrap(), [0x45, 0, 0xf]);
        assert!(from_hex("450").is_err() && from_hex("").is_err() && from_hex("zz").is_err());
    }
}
