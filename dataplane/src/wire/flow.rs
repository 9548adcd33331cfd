//! What a packet belongs to: its flow, and the hashes of flows.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub use super::protocol::Protocol;
use super::{ipv4, ipv6};

/// A service's virtual address: one port number may serve TCP and UDP apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vip {
    /// Address.
    pub addr: IpAddr,
    /// Port.
    pub port: u16,
    /// TCP or UDP.
    pub protocol: Protocol,
}

/// In one word (IPv4) or three.
impl Hash for Vip {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addr_with(self.addr, u32::from(self.port) << 8 | u32::from(self.protocol.0), state);
    }
}

/// An address and what makes a key of it, in one word (IPv4) or three, instead of field by field and byte by byte: a new
/// flow looks up a dozen keys.
#[inline]
pub(crate) fn hash_addr_with<H: Hasher>(addr: IpAddr, rest: u32, state: &mut H) {
    match addr {
        IpAddr::V4(addr) => state.write_u64(u64::from(addr.to_bits()) << 32 | u64::from(rest)),
        IpAddr::V6(addr) => {
            state.write_u128(addr.to_bits());
            state.write_u32(rest);
        }
    }
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, SocketAddr::new(self.addr, self.port))
    }
}

/// What tells one flow's packets of one direction from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Source port; the identifier of an ICMP echo; else 0.
    pub src_port: u16,
    /// Destination port; the identifier of an ICMP echo; else 0.
    pub dst_port: u16,
}

/// In two words (IPv4) or five, instead of field by field: the connection table hashes four keys per new flow.
impl Hash for FlowKey {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                state.write_u64(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
            }
            (src, dst) => {
                state.write_u128(ipv6_bits(src));
                state.write_u128(ipv6_bits(dst));
            }
        }
        state.write_u64(self.ports_and_protocol());
    }
}

/// Nobody's: unspecified IPv4 addresses.
impl Default for FlowKey {
    fn default() -> Self {
        portless(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into(), Protocol(0))
    }
}

impl FlowKey {
    /// The key of the replies.
    #[inline]
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: self.protocol,
        }
    }

    /// Where it leads, if that is a service.
    #[inline]
    pub fn vip(&self) -> Vip {
        Vip { addr: self.dst, port: self.dst_port, protocol: self.protocol }
    }

    #[inline]
    fn ports_and_protocol(&self) -> u64 {
        u64::from(self.src_port) << 24 | u64::from(self.dst_port) << 8 | u64::from(self.protocol.0)
    }

    /// A hash that both directions share: for the outer source port and for picking a worker. Version 1, the
    /// same on every node and after every restart.
    #[inline]
    pub fn symmetric_hash(&self) -> u32 {
        let ends = hash_end(self.src, self.src_port).wrapping_add(hash_end(self.dst, self.dst_port));
        (mix(ends ^ u64::from(self.protocol.0)) >> 32) as u32
    }

    /// A hash of this direction, for choosing a backend. Version 1, the same on every node and after every
    /// restart. Anyone can compute it: a table that strangers fill must not be keyed by it.
    #[inline]
    pub fn fixed_hash(&self) -> u64 {
        let rest = self.ports_and_protocol();
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                mix(mix(SEED_V4 ^ (u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()))) ^ rest)
            }
            (src, dst) => mix(mix(hash_addr(src)).wrapping_add(hash_addr(dst)) ^ rest),
        }
    }
}

/// Both addresses of a flow as they stand in an IP header, the source before the destination: 8 bytes (IPv4) or 32
/// (IPv6).
pub trait Addresses: Copy + Eq + Default + AsRef<[u8]> {
    /// The IP version.
    const IS_V4: bool;

    /// Where they begin in the IP header.
    const OFFSET: usize;

    /// Those of a flow of this family; zeros for the other family.
    fn of(flow: &FlowKey) -> Self;
}

impl Addresses for [u8; 8] {
    const IS_V4: bool = true;
    const OFFSET: usize = ipv4::SRC;

    #[inline]
    fn of(flow: &FlowKey) -> Self {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else { return Self::default() };
        (u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits())).to_be_bytes()
    }
}

impl Addresses for [u8; 32] {
    const IS_V4: bool = false;
    const OFFSET: usize = ipv6::SRC;

    #[inline]
    fn of(flow: &FlowKey) -> Self {
        let mut both = Self::default();
        if let (IpAddr::V6(src), IpAddr::V6(dst)) = (flow.src, flow.dst) {
            both[..16].copy_from_slice(&src.octets());
            both[16..].copy_from_slice(&dst.octets());
        }
        both
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let src = SocketAddr::new(self.src, self.src_port);
        let dst = SocketAddr::new(self.dst, self.dst_port);
        write!(f, "{} {src} > {dst}", self.protocol)
    }
}

// Version 1 of the hashes is these seeds, `mix` and the order in which the fields go in. Nodes of one cluster
// must agree, so a change is a new version. The seeds are the fractions of the square roots of 2 and 3.
const SEED_V4: u64 = 0x6a09_e667_f3bc_c908;
const SEED_V6: u64 = 0xbb67_ae85_84ca_a73b;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014, variant 13 of Stafford's): a bijection in which every input bit
/// moves every output bit.
#[inline]
fn mix(mut value: u64) -> u64 {
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// An IPv4 address as IPv4-mapped (RFC 4291 section 2.5.5.2).
#[inline]
fn ipv6_bits(addr: IpAddr) -> u128 {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[inline]
fn hash_addr(addr: IpAddr) -> u64 {
    match addr {
        IpAddr::V4(v4) => mix(SEED_V4 ^ u64::from(v4.to_bits())),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            mix(mix(SEED_V6 ^ (bits >> 64) as u64) ^ bits as u64)
        }
    }
}

#[inline]
fn hash_end(addr: IpAddr, port: u16) -> u64 {
    match addr {
        IpAddr::V4(v4) => mix(SEED_V4 ^ (u64::from(v4.to_bits()) << 16 | u64::from(port))),
        IpAddr::V6(_) => mix(hash_addr(addr) ^ u64::from(port)),
    }
}

#[inline]
pub(crate) fn portless(src: IpAddr, dst: IpAddr, protocol: Protocol) -> FlowKey {
    FlowKey { src, dst, protocol, src_port: 0, dst_port: 0 }
}

#[cfg(test)]
mod tests;
