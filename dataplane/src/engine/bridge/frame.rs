//! A frame of an L2 segment behind its VXLAN header, read in one pass.

use crate::drop_reason::DropReason;
use crate::engine::{Settings, source_port};
use crate::packet::{PacketBuf, PacketPool};
use crate::wire::ethernet::{self, Ethernet, Mac};
use crate::wire::inner::InnerPacket;
use crate::wire::vxlan::{self, Vni, Vxlan};

/// Bytes before what a frame without tags carries.
pub const PAYLOAD_OFFSET: usize = vxlan::HEADER_LEN + ethernet::HEADER_LEN;

/// What one pass over a VXLAN header and a frame finds.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Network.
    pub vni: Vni,
    /// Whether any of the 39 reserved bits is set.
    pub reserved_bits: bool,
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// What it carries, tags passed.
    pub ethertype: u16,
    /// 802.1Q and 802.1ad tags.
    pub tags: usize,
    /// The IP packet that it carries, if it does.
    pub ip: Option<InnerPacket>,
}

impl Frame {
    /// Parses a UDP payload, or what an L2 device has received.
    ///
    /// # Errors
    /// Truncated, without a VNI, or with an IP packet whose lengths lie.
    pub fn parse(payload: &[u8]) -> Result<Self, DropReason> {
        let vxlan = Vxlan::new_checked(payload).map_err(|_| DropReason::VxlanTruncated)?;
        let frame = Ethernet::new_checked(vxlan.payload()).map_err(|_| DropReason::VxlanTruncated)?;
        if !vxlan.has_vni() {
            return Err(DropReason::VxlanNoVni);
        }
        let (mut ethertype, mut carried, mut tags) = (frame.ethertype(), frame.payload(), 0);
        while matches!(ethertype, ethernet::VLAN | ethernet::QINQ) {
            let [_, _, high, low, rest @ ..] = carried else { return Err(DropReason::VxlanTruncated) };
            (ethertype, carried, tags) = (u16::from_be_bytes([*high, *low]), rest, tags + 1);
        }
        let ip = match ethertype {
            ethernet::IPV4 | ethernet::IPV6 => {
                let ip = InnerPacket::parse(carried).map_err(|_| DropReason::Malformed)?;
                if ip.flow.src.is_ipv4() != (ethertype == ethernet::IPV4) {
                    return Err(DropReason::Malformed);
                }
                Some(ip)
            }
            _ => None,
        };
        let (vni, reserved_bits) = (vxlan.vni(), vxlan.reserved_bits());
        Ok(Self { vni, reserved_bits, dst: frame.dst(), src: frame.src(), ethertype, tags, ip })
    }

    /// Why a deployment wants no such frames: reserved bits, if the setting is strict, and tags, unless they are to be taken
    /// away (RFC 7348 sections 5 and 6.1).
    pub fn refusal(&self, settings: &Settings) -> Option<DropReason> {
        if self.reserved_bits && settings.strict_reserved_bits {
            Some(DropReason::VxlanReservedBits)
        } else if self.tags > 0 && !settings.accept_inner_vlan {
            Some(DropReason::InnerVlan)
        } else {
            None
        }
    }

    /// Takes tags and Ethernet padding away, in place: what is left is the frame as it crosses the underlay.
    pub fn trim(&self, pool: &mut PacketPool, packet: &mut PacketBuf) {
        let tags_len = self.tags * ethernet::VLAN_TAG_LEN;
        if tags_len > 0 {
            // The VXLAN header and both addresses move up to what the tags stood before.
            pool.bytes_mut(packet).copy_within(..PAYLOAD_OFFSET - 2, tags_len);
            packet.pop(tags_len);
        }
        match &self.ip {
            Some(ip) => packet.truncate(PAYLOAD_OFFSET + ip.total_len as usize),
            None => packet.segment_len = 0,
        }
    }

    /// The outer source port's number in the pool: the flow's, or else one for each pair of stations.
    pub fn source_port(&self) -> u16 {
        match &self.ip {
            Some(ip) => source_port(&ip.flow, ip.fragment),
            None => {
                let word = |mac: Mac| mac.0.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                let pair = word(self.src) ^ word(self.dst) ^ u64::from(self.ethertype);
                (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
            }
        }
    }

    /// Bytes behind the Ethernet header of the longest segment that `packet`, trimmed, stands for.
    pub fn payload_len(&self, packet: &PacketBuf) -> u32 {
        let len = (packet.len() - PAYLOAD_OFFSET) as u32;
        match (&self.ip, packet.segment_len) {
            (Some(ip), segment_len) if segment_len > 0 => {
                len.min(ip.headers_len() as u32 + u32::from(segment_len))
            }
            _ => len,
        }
    }

    /// Wire-size segments that `packet` stands for.
    pub(super) fn segments(&self, packet: &PacketBuf) -> u64 {
        self.ip.as_ref().map_or(1, |ip| crate::engine::segments(packet, ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::PacketBatch;

    const DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn payload(tags: &[[u8; 4]], ethertype: [u8; 2], carried: &[u8]) -> Vec<u8> {
        [&[8, 0, 0, 0, 0, 0, 100, 0], &DST[..], &SRC, &tags.concat(), &ethertype, carried].concat()
    }

    #[test]
    fn a10_tags_are_taken_away_in_place() {
        for tags in [vec![], vec![[0x81, 0, 0, 7]], vec![[0x88, 0xa8, 0, 7], [0x81, 0, 0xe0, 9]]] {
            let tagged = payload(&tags, [0x88, 0xb5], b"carried");
            let mut batch = PacketBatch::new(1, 0);
            assert!(batch.receive_copy(&tagged));
            let mut packet = batch.packets[0];
            let frame = Frame::parse(batch.pool.bytes(&packet)).unwrap();
            assert_eq!((frame.tags, frame.ethertype, frame.vni.get()), (tags.len(), 0x88b5, 100));
            assert_eq!((frame.dst, frame.src), (Mac(DST), Mac(SRC)));
            frame.trim(&mut batch.pool, &mut packet);
            assert_eq!(batch.pool.bytes(&packet), payload(&[], [0x88, 0xb5], b"carried"));
        }
    }

    #[test]
    fn a13_lengths_that_lie_are_malformed_and_cut_frames_truncated() {
        let ip =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8];
        let good = payload(&[[0x81, 0, 0, 1]], [8, 0], &ip);
        assert!(Frame::parse(&good).unwrap().ip.is_some());
        for len in 0..good.len() {
            let expected = if len < 26 { DropReason::VxlanTruncated } else { DropReason::Malformed };
            assert_eq!(Frame::parse(&good[..len]).unwrap_err(), expected, "{len}");
        }
        let other_version = payload(&[], [0x86, 0xdd], &ip);
        assert_eq!(Frame::parse(&other_version).unwrap_err(), DropReason::Malformed);
    }

    #[test]
    fn both_directions_of_a_pair_leave_by_one_source_port() {
        let there = Frame::parse(&payload(&[], [0x88, 0xb5], b"")).unwrap();
        let back = Frame { src: there.dst, dst: there.src, ..there };
        assert_eq!(there.source_port(), back.source_port());
    }
}
