//! The MSS that TCP peers are told, so that a connection works where every ICMP error is filtered (C6).

use crate::packet::{Checksum, PacketBuf, PacketPool};
use crate::wire::inner::InnerPacket;
use crate::wire::protocol::L4;
use crate::wire::tcp::{SYN, Tcp};
use crate::wire::{ipv4, ipv6, tcp};

/// Lowers the MSS option of a SYN to what fits `mtu`, the longest inner IP packet in bytes (RFC 6691: options are not
/// subtracted).
pub(super) fn clamp(pool: &mut PacketPool, packet: &PacketBuf, inner: &InnerPacket, mtu: u32) {
    let L4::Tcp { flags } = inner.l4 else { return };
    if flags & SYN == 0 {
        return;
    }
    let ip_len = if inner.flow.src.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let mss = mtu.saturating_sub((ip_len + tcp::HEADER_LEN) as u32);
    let partial = matches!(packet.checksum, Checksum::Partial { .. });
    let segment = pool.bytes_mut(packet).get_mut(usize::from(inner.l4_offset)..).unwrap_or_default();
    if let Ok(mut segment) = Tcp::new_checked(segment) {
        segment.clamp_mss(u16::try_from(mss).unwrap_or(u16::MAX), partial);
    }
}
