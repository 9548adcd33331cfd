//! IP protocol numbers, and what the headers behind them are to the engine.

use std::fmt;
use std::net::IpAddr;

/// An IP protocol number. The named ones are those the engine looks into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4 (1).
    pub const ICMP: Self = Self(1);
    /// TCP (6).
    pub const TCP: Self = Self(6);
    /// UDP (17).
    pub const UDP: Self = Self(17);
    /// ICMPv6 (58).
    pub const ICMPV6: Self = Self(58);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ICMP => f.write_str("icmp"),
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self::ICMPV6 => f.write_str("icmpv6"),
            Self(number) => write!(f, "proto-{number}"),
        }
    }
}

/// What the transport header is, as far as the engine treats it apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum L4 {
    /// TCP with its flags, 0 in a later fragment.
    Tcp {
        /// The low eight bits: CWR, ECE, URG, ACK, PSH, RST, SYN, FIN.
        flags: u8,
    },
    /// UDP.
    Udp,
    /// An ICMP or ICMPv6 echo request.
    EchoRequest,
    /// An ICMP or ICMPv6 echo reply.
    EchoReply,
    /// An ICMP or ICMPv6 message about another packet (a redirect too), to which no error answers.
    IcmpError,
    /// Any other ICMP or ICMPv6 message, and a later fragment of one.
    Icmp,
    /// Any other protocol, ESP and AH among them.
    #[default]
    Other,
}

/// ICMP over IPv4 or ICMPv6 over IPv6; over the other version the number means nothing.
#[inline]
pub(crate) fn is_icmp(protocol: Protocol, addr: IpAddr) -> bool {
    protocol == if addr.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 }
}
