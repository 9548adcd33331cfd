//! An inner IP packet, read in one pass.
//!
//! Read first: RFC 791 section 3.1 and RFC 8200 section 4 for the lengths that may lie, RFC 1858 and RFC 3128
//! for fragments made to hide a transport header.

use super::bytes::Malformed;
use super::flow::{FlowKey, portless};
use super::ip::ip_version;
use super::protocol::{L4, Protocol, is_icmp};
use super::{icmp, ipv4, ipv6, tcp, udp};

/// Which part of an IP packet a packet is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fragment {
    /// All of it; an IPv6 atomic fragment too.
    #[default]
    Whole,
    /// The first fragment, with the transport header.
    First,
    /// A later fragment, without ports.
    Later,
}

/// What one pass over an inner packet finds. Every length in it has been checked against the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InnerPacket {
    /// Its flow; ports 0 for protocols without them and for later fragments.
    pub flow: FlowKey,
    /// Its transport.
    pub l4: L4,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// Bytes from the IP header's start to the transport header, options and extension headers passed.
    pub l4_offset: u16,
    /// Length of the transport header in bytes: TCP with options, 8 for UDP and ICMP, 0 for other protocols
    /// and for later fragments.
    pub l4_header_len: u16,
    /// Length of the IP packet in bytes; what lies beyond is Ethernet padding.
    pub total_len: u32,
    /// TOS byte or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Whether routers must not fragment it; always true for IPv6.
    pub dont_fragment: bool,
}

impl InnerPacket {
    /// Reads an IPv4 or IPv6 packet of up to 65,535 bytes.
    ///
    /// # Errors
    /// When any length or version in it is not what its bytes can hold, when it has more than eight IPv6
    /// extension headers, or when it is a fragment too small for its transport header.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut packet = Self::default();
        packet.read(bytes).map(|()| packet)
    }

    /// [`Self::parse`] into a packet that is there: a result of this size would be copied for every packet. After an
    /// error its content means nothing.
    ///
    /// # Errors
    /// As [`Self::parse`].
    #[inline]
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        match ip_version(bytes) {
            Some(4) => self.read_v4(bytes),
            Some(6) => self.read_v6(bytes),
            Some(_) => Err(Malformed::Invalid),
            None => Err(Malformed::Truncated),
        }
    }

    /// Length of the IP and transport headers, in bytes.
    #[inline]
    pub fn headers_len(&self) -> usize {
        usize::from(self.l4_offset) + usize::from(self.l4_header_len)
    }

    #[inline]
    fn read_v4(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let ip = ipv4::Ipv4::new_checked(bytes)?;
        *self = Self {
            flow: portless(ip.src().into(), ip.dst().into(), ip.protocol()),
            l4: L4::Other,
            fragment: fragment(ip.fragment_offset(), ip.more_fragments()),
            l4_offset: ip.header_len() as u16,
            l4_header_len: 0,
            total_len: u32::from(ip.total_len()),
            tos: ip.tos(),
            ttl: ip.ttl(),
            dont_fragment: ip.dont_fragment(),
        };
        self.read_transport(ip.payload(), ip.fragment_offset())
    }

    #[inline]
    fn read_v6(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let ip = ipv6::Ipv6::new_checked(bytes)?;
        let upper = ip.upper_layer()?;
        let offset = upper.fragment.map_or(0, |header| header.offset);
        let total_len = ip.total_len();
        if total_len > usize::from(u16::MAX) {
            return Err(Malformed::Invalid);
        }
        *self = Self {
            flow: portless(ip.src().into(), ip.dst().into(), upper.protocol),
            l4: L4::Other,
            fragment: fragment(offset, upper.fragment.is_some_and(|header| header.more)),
            l4_offset: upper.offset as u16,
            l4_header_len: 0,
            total_len: total_len as u32,
            tos: ip.traffic_class(),
            ttl: ip.hop_limit(),
            dont_fragment: true,
        };
        self.read_transport(&ip.payload()[upper.offset - ipv6::HEADER_LEN..], offset)
    }

    #[inline]
    fn read_transport(&mut self, l4: &[u8], fragment_offset: usize) -> Result<(), Malformed> {
        if self.fragment == Fragment::Later {
            return self.read_later_fragment(l4, fragment_offset);
        }
        match self.flow.protocol {
            Protocol::TCP => {
                let header = tcp::Tcp::new_checked(l4)?;
                self.l4 = L4::Tcp { flags: header.flags() };
                self.l4_header_len = header.header_len() as u16;
                (self.flow.src_port, self.flow.dst_port) = (header.src_port(), header.dst_port());
            }
            Protocol::UDP => {
                let header = udp::Udp::new_header(l4)?;
                let len = usize::from(header.datagram_len());
                if len < udp::HEADER_LEN {
                    return Err(Malformed::Invalid);
                }
                if self.fragment == Fragment::Whole && len > l4.len() {
                    return Err(Malformed::Truncated);
                }
                self.l4 = L4::Udp;
                self.l4_header_len = udp::HEADER_LEN as u16;
                (self.flow.src_port, self.flow.dst_port) = (header.src_port(), header.dst_port());
            }
            protocol if is_icmp(protocol, self.flow.src) => {
                let header = icmp::Icmp::new_checked(l4)?;
                self.l4 = icmp::classify(protocol, header.message_type());
                self.l4_header_len = icmp::HEADER_LEN as u16;
                if matches!(self.l4, L4::EchoRequest | L4::EchoReply) {
                    (self.flow.src_port, self.flow.dst_port) = (header.ident(), header.ident());
                }
            }
            _ => {}
        }
        Ok(())
    }

    #[cold]
    fn read_later_fragment(&mut self, payload: &[u8], offset: usize) -> Result<(), Malformed> {
        // A piece that would overwrite a part of TCP's header on reassembly: its flags (RFC 3128), or the checksum that
        // a translation has adapted in the first fragment. Or one that ends past the longest packet.
        let overwrites_header = self.flow.protocol == Protocol::TCP && offset < tcp::HEADER_LEN;
        if overwrites_header || offset + payload.len() > usize::from(u16::MAX) {
            return Err(Malformed::Invalid);
        }
        self.l4 = match self.flow.protocol {
            Protocol::TCP => L4::Tcp { flags: 0 },
            Protocol::UDP => L4::Udp,
            protocol if is_icmp(protocol, self.flow.src) => L4::Icmp,
            _ => L4::Other,
        };
        Ok(())
    }
}

/// The identification, offset and More flag of a fragment; `None` for a whole packet and for bytes that are none.
pub fn fragment_header(packet: &[u8]) -> Option<ipv6::FragmentHeader> {
    let header = match ip_version(packet)? {
        4 => {
            let ip = ipv4::Ipv4::new_checked(packet).ok()?;
            ipv6::FragmentHeader {
                ident: u32::from(ip.ident()),
                offset: ip.fragment_offset(),
                more: ip.more_fragments(),
            }
        }
        6 => ipv6::Ipv6::new_checked(packet).ok()?.upper_layer().ok()?.fragment?,
        _ => return None,
    };
    (!header.is_atomic()).then_some(header)
}

#[inline]
fn fragment(offset: usize, more: bool) -> Fragment {
    match (offset, more) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    }
}

#[cfg(test)]
mod tests;
