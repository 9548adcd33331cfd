//! The packets that ICMP errors quote.
//!
//! Read first: RFC 792 and RFC 4443 section 3 for what is quoted, RFC 5508 section 4 for errors through a NAT.

use super::bytes::u16_at;
use super::flow::{FlowKey, portless};
use super::inner::{Fragment, InnerPacket};
use super::protocol::{L4, Protocol, is_icmp};
use super::{checksum, icmp, ipv4, ipv6};

/// The packet an ICMP error is about, as far as the error quotes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Its flow, in the direction it was sent in: the reverse of the error's.
    pub flow: FlowKey,
    /// Bytes from the error packet's start to the quoted IP header.
    pub offset: usize,
    /// Bytes from the error packet's start to the quoted transport header, of which at least 8 are there.
    pub l4_offset: usize,
    /// Whether the quoted transport header goes as far as its checksum.
    pub has_l4_checksum: bool,
}

impl Quoted {
    /// Bytes from the error packet's start to the quoted transport checksum, if that is there.
    pub fn l4_checksum_offset(&self) -> Option<usize> {
        let field = checksum::field_offset(self.flow.protocol).filter(|_| self.has_l4_checksum)?;
        Some(self.l4_offset + field)
    }
}

/// Finds the TCP, UDP or echo packet that a whole ICMP error quotes. `None` for any other packet, and when the
/// quote has not at least 8 bytes of transport header or is of a later fragment.
pub fn quoted(packet: &[u8]) -> Option<Quoted> {
    let inner = InnerPacket::parse(packet).ok()?;
    if inner.l4 != L4::IcmpError || inner.fragment != Fragment::Whole {
        return None;
    }
    let offset = inner.headers_len();
    let quote = packet.get(offset..inner.total_len as usize)?;
    let (mut flow, l4_offset) = quoted_ip(quote, inner.flow.src.is_ipv6())?;
    let l4 = quote.get(l4_offset..)?;
    if l4.len() < 8 {
        return None;
    }
    (flow.src_port, flow.dst_port) = match flow.protocol {
        Protocol::TCP | Protocol::UDP => ports(l4),
        protocol if is_icmp(protocol, flow.src) => {
            let message = icmp::Icmp::new_checked(l4).ok()?;
            let kind = icmp::classify(protocol, message.message_type());
            let echo = matches!(kind, L4::EchoRequest | L4::EchoReply);
            echo.then_some((message.ident(), message.ident()))?
        }
        _ => return None,
    };
    let has_l4_checksum = checksum::field_offset(flow.protocol).is_some_and(|at| at + 2 <= l4.len());
    Some(Quoted { flow, offset, l4_offset: offset + l4_offset, has_l4_checksum })
}

/// The flow without ports of a quoted IP packet of the given version, and the offset of its transport header.
fn quoted_ip(quote: &[u8], ipv6: bool) -> Option<(FlowKey, usize)> {
    if ipv6 {
        let ip = ipv6::Ipv6::new_header(quote).ok()?;
        let upper = ip.upper_layer().ok()?;
        let first = upper.fragment.is_none_or(|header| header.offset == 0);
        first.then(|| (portless(ip.src().into(), ip.dst().into(), upper.protocol), upper.offset))
    } else {
        let ip = ipv4::Ipv4::new_header(quote).ok()?;
        let first = ip.fragment_offset() == 0;
        first.then(|| (portless(ip.src().into(), ip.dst().into(), ip.protocol()), ip.header_len()))
    }
}

/// The ports of a TCP or UDP header's first four bytes.
fn ports(l4: &[u8]) -> (u16, u16) {
    (u16_at(l4, 0), u16_at(l4, 2))
}

#[cfg(test)]
mod tests;
