//! Joins wire-size segments of one flow into the superpacket they were cut from.
//!
//! The rules are those of the kernel's GRO (net/ipv4/tcp_offload.c, udp_offload.c) without its exceptions, so that
//! [`segment`](super::segment::segment) makes the same bytes of the superpacket again: what cannot be restored is
//! not joined. Read first: RFC 9293 section 3.1, RFC 6864 for IPv4 identifications.

use crate::packet::{Checksum, PacketBuf, PacketPool};
use crate::wire::bytes::put_u16;
use crate::wire::checksum::{self, fold, pseudo_header};
use crate::wire::flow::FlowKey;
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::L4;
use crate::wire::{ipv4, ipv6, tcp, udp};

/// Most segments of one superpacket: the kernel's GRO stops at 64 for UDP, and 64 KB hold fewer of any useful size.
pub const MAX_SEGMENTS: usize = 64;

/// Longest headers a superpacket can have, in bytes: IPv4 and TCP with all their options.
pub const MAX_HEADERS_LEN: usize = 60 + 60;

/// Longest IP packet, in bytes.
const MAX_TOTAL_LEN: u32 = 65_535;

/// Places for flows with an open group; a flow that loses its place begins a new group.
const PLACES: usize = 256;

const NONE: u32 = u32::MAX;

/// The packets of one superpacket, or one packet that stays alone.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    first: u32,
    last: u32,
    segments: u32,
    /// Of the first packet; `None` when nothing can be joined to it.
    candidate: Option<Candidate>,
    payload_len: u32,
    /// TCP flags that only the last segment has.
    last_flags: u8,
    first_is_verified: bool,
}

impl Group {
    /// How many packets it has.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.segments as usize
    }

    /// Transport payload bytes per segment, when it has several.
    pub fn segment_len(&self) -> u16 {
        self.candidate.map_or(0, |candidate| candidate.payload_len)
    }

    /// Length of the headers, when it has several packets, in bytes.
    pub fn headers_len(&self) -> usize {
        self.candidate.map_or(0, |candidate| candidate.inner.headers_len())
    }

    /// Writes the headers of the superpacket, whose first packet is `first`, to the start of `out`, and returns the
    /// state of its checksum; `None` for a packet that stays alone, or when `out` is too short.
    pub fn write_headers(&self, first: &[u8], out: &mut [u8]) -> Option<Checksum> {
        let inner = self.candidate.as_ref()?.inner;
        let headers_len = inner.headers_len();
        let out = out.get_mut(..headers_len)?;
        out.copy_from_slice(first.get(..headers_len)?);
        let total_len = u16::try_from(headers_len as u32 + self.payload_len).ok()?;
        if let Ok(mut ip) = ipv4::Ipv4::new_header(&mut *out) {
            ip.set_total_len(total_len);
            ip.fill_checksum();
        } else {
            ipv6::Ipv6::new_header(&mut *out).ok()?.set_payload_len(total_len - ipv6::HEADER_LEN as u16);
        }
        let l4_len = total_len - inner.l4_offset;
        let l4 = &mut out[usize::from(inner.l4_offset)..];
        let offset = if let L4::Tcp { flags } = inner.l4 {
            tcp::Tcp::new_checked(&mut *l4).ok()?.set_flags(flags | self.last_flags);
            tcp::CHECKSUM
        } else {
            udp::Udp::new_header(&mut *l4).ok()?.set_datagram_len(l4_len);
            udp::CHECKSUM
        };
        let FlowKey { src, dst, protocol, .. } = inner.flow;
        put_u16(l4, offset, fold(pseudo_header(src, dst, protocol, u32::from(l4_len))));
        Some(Checksum::Partial { start: inner.l4_offset, offset: offset as u16 })
    }

    fn alone(index: u32, candidate: Option<Candidate>) -> Self {
        Self {
            first: index,
            last: index,
            segments: 1,
            candidate,
            payload_len: candidate.map_or(0, |candidate| u32::from(candidate.payload_len)),
            last_flags: 0,
            first_is_verified: false,
        }
    }
}

/// A packet that may be part of a superpacket, by itself.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    inner: InnerPacket,
    payload_len: u16,
    checksum: Checksum,
    /// Nothing can follow it: it ends what the sender pushed.
    is_last: bool,
}

impl Candidate {
    fn new(bytes: &[u8], inner: InnerPacket, checksum: Checksum) -> Option<Self> {
        let bytes = bytes.get(..inner.total_len as usize)?;
        let payload_len = bytes.len().checked_sub(inner.headers_len()).filter(|len| *len > 0)? as u16;
        let offset = match inner.l4 {
            L4::Tcp { flags } => {
                let is_plain = flags & tcp::ACK != 0 && flags & NEVER_JOINED == 0;
                is_plain.then_some(tcp::CHECKSUM)?
            }
            L4::Udp => {
                let header = udp::Udp::new_header(&bytes[usize::from(inner.l4_offset)..]).ok()?;
                let is_plain = header.checksum() != 0
                    && usize::from(header.datagram_len()) == udp::HEADER_LEN + usize::from(payload_len);
                is_plain.then_some(udp::CHECKSUM)?
            }
            _ => return None,
        };
        let here = Checksum::Partial { start: inner.l4_offset, offset: offset as u16 };
        let is_plain_ip = match ipv4::Ipv4::new_header(bytes) {
            Ok(ip) => ip.verify_checksum() && ip.checksum() != 0xffff,
            Err(_) => usize::from(inner.l4_offset) == ipv6::HEADER_LEN,
        };
        if !is_plain_ip
            || inner.fragment != Fragment::Whole
            || ![Checksum::Complete, here].contains(&checksum)
        {
            return None;
        }
        let is_last = matches!(inner.l4, L4::Tcp { flags } if flags & ONLY_LAST != 0);
        Some(Self { inner, payload_len, checksum, is_last })
    }

    /// Whether the transport checksum is the one that would be computed. A partial one is right by definition.
    fn is_right(&self, bytes: &[u8]) -> bool {
        if self.checksum != Checksum::Complete {
            return true;
        }
        let l4 = &bytes[usize::from(self.inner.l4_offset)..self.inner.total_len as usize];
        // 0xFFFF passes the check, but TCP's computed checksum is never that.
        let is_computed =
            matches!(self.inner.l4, L4::Udp) || l4[tcp::CHECKSUM..tcp::CHECKSUM + 2] != [0xff, 0xff];
        let FlowKey { src, dst, protocol, .. } = self.inner.flow;
        is_computed && checksum::verify(src, dst, protocol, l4)
    }
}

/// TCP flags of segments that are never joined.
const NEVER_JOINED: u8 = tcp::SYN | tcp::RST | tcp::URG | tcp::CWR;

/// TCP flags that only the last segment of a superpacket has.
const ONLY_LAST: u8 = tcp::PSH | tcp::FIN;

/// Finds what can be joined in a batch. Its room is kept from batch to batch.
#[derive(Debug)]
pub struct Coalescer {
    groups: Vec<Group>,
    /// For each packet the next one of its group.
    next: Vec<u32>,
    /// The newest group of each flow, by the flow's hash.
    newest: Box<[u32; PLACES]>,
    /// Whether any place is taken.
    is_touched: bool,
    joins_udp: bool,
}

impl Coalescer {
    /// Joins TCP segments, and UDP datagrams when `joins_udp`.
    pub fn new(joins_udp: bool) -> Self {
        Self {
            groups: Vec::new(),
            next: Vec::new(),
            newest: Box::new([NONE; PLACES]),
            is_touched: false,
            joins_udp,
        }
    }

    /// Sorts a batch into groups. Packets of one flow keep their order; a group stands where its first packet stood.
    pub fn join(&mut self, pool: &PacketPool, packets: &[PacketBuf]) {
        self.groups.clear();
        self.next.clear();
        self.next.resize(packets.len(), NONE);
        self.forget_flows();
        for (packet, index) in packets.iter().zip(0..) {
            self.add(pool, packets, packet, index);
        }
    }

    /// The groups of the last batch, in order.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The places in the batch of a group's packets, in order.
    pub fn members(&self, group: &Group) -> impl Iterator<Item = usize> + use<'_> {
        let next = |index: &u32| Some(self.next[*index as usize]).filter(|next| *next != NONE);
        std::iter::successors(Some(group.first), next).map(|index| index as usize)
    }

    fn add(&mut self, pool: &PacketPool, packets: &[PacketBuf], packet: &PacketBuf, index: u32) {
        let bytes = pool.bytes(packet);
        let Ok(inner) = InnerPacket::parse(bytes) else {
            return self.groups.push(Group::alone(index, None));
        };
        if inner.fragment != Fragment::Whole {
            // It may belong to any flow between its addresses, and nothing of that may overtake it.
            self.forget_flows();
            return self.groups.push(Group::alone(index, None));
        }
        let is_wanted = packet.segment_len == 0 && (self.joins_udp || inner.l4 != L4::Udp);
        let candidate = if is_wanted { Candidate::new(bytes, inner, packet.checksum) } else { None };
        let place = inner.flow.fixed_hash() as usize % PLACES;
        if let (Some(candidate), Some(group)) = (&candidate, self.groups.get_mut(self.newest[place] as usize))
        {
            let first = pool.bytes(&packets[group.first as usize]);
            if group.takes(first, candidate, bytes) {
                self.next[group.last as usize] = index;
                return group.append(index, candidate);
            }
        }
        if matches!(inner.l4, L4::Tcp { .. } | L4::Udp) {
            self.newest[place] = self.groups.len() as u32;
            self.is_touched = true;
        }
        self.groups.push(Group::alone(index, candidate.filter(|candidate| !candidate.is_last)));
    }

    fn forget_flows(&mut self) {
        if std::mem::take(&mut self.is_touched) {
            self.newest.fill(NONE);
        }
    }
}

impl Group {
    /// Whether `next`, whose bytes are `bytes`, is the segment after this group's last.
    fn takes(&mut self, first: &[u8], next: &Candidate, bytes: &[u8]) -> bool {
        let Some(candidate) = self.candidate else { return false };
        let inner = &candidate.inner;
        let total_len = inner.headers_len() as u32 + self.payload_len + u32::from(next.payload_len);
        let is_open =
            self.payload_len == self.segments * u32::from(candidate.payload_len) && self.last_flags == 0;
        let fits = is_open
            && self.len() < MAX_SEGMENTS
            && next.payload_len <= candidate.payload_len
            && total_len <= MAX_TOTAL_LEN
            && inner.flow == next.inner.flow
            && inner.headers_len() == next.inner.headers_len()
            && inner.l4_offset == next.inner.l4_offset;
        if !fits || !self.headers_follow(inner, first, bytes) {
            return false;
        }
        if !self.first_is_verified {
            self.first_is_verified = candidate.is_right(first);
            if !self.first_is_verified {
                self.candidate = None;
            }
        }
        self.first_is_verified && next.is_right(bytes)
    }

    /// Whether the headers of `bytes` are those of the next segment: equal to the first's, but for the fields that
    /// count up, lengths, checksums and the flags of a last segment.
    fn headers_follow(&self, inner: &InnerPacket, first: &[u8], bytes: &[u8]) -> bool {
        let l4 = usize::from(inner.l4_offset);
        let (Some((first_ip, first_l4)), Some((ip, next_l4))) =
            (first.split_at_checked(l4), bytes.split_at_checked(l4))
        else {
            return false;
        };
        self.ip_follows(first_ip, ip)
            && match inner.l4 {
                L4::Tcp { .. } => self.tcp_follows(first_l4, next_l4),
                _ => true,
            }
    }

    fn ip_follows(&self, first: &[u8], next: &[u8]) -> bool {
        let (Ok(first_ip), Ok(next_ip)) = (ipv4::Ipv4::new_header(first), ipv4::Ipv4::new_header(next))
        else {
            // IPv6 without extension headers: version, traffic class and flow label, then next header and hop limit.
            return first[..4] == next[..4] && first[6..8] == next[6..8];
        };
        next_ip.ident() == first_ip.ident().wrapping_add(self.segments as u16)
            && first[..2] == next[..2]
            && first[6..10] == next[6..10]
            && first[ipv4::HEADER_LEN..] == next[ipv4::HEADER_LEN..]
    }

    fn tcp_follows(&self, first: &[u8], next: &[u8]) -> bool {
        let (Ok(first), Ok(next)) = (tcp::Tcp::new_checked(first), tcp::Tcp::new_checked(next)) else {
            return false;
        };
        next.seq() == first.seq().wrapping_add(self.payload_len)
            && next.ack() == first.ack()
            && next.window() == first.window()
            && next.urgent() == first.urgent()
            && next.reserved_bits() == first.reserved_bits()
            && next.flags() & !ONLY_LAST == first.flags()
            && next.options() == first.options()
    }

    fn append(&mut self, index: u32, next: &Candidate) {
        self.last = index;
        self.segments += 1;
        self.payload_len += u32::from(next.payload_len);
        if let L4::Tcp { flags } = next.inner.l4 {
            self.last_flags = flags & ONLY_LAST;
        }
    }
}

#[cfg(test)]
mod tests;
