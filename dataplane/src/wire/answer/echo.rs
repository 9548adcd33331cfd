//! Echo replies, made of their requests.
//!
//! Read first: RFC 792 and RFC 4443 section 4.

use super::{FRESH_TTL, may_answer};
use crate::wire::icmp::{Icmp, v4, v6};
use crate::wire::inner::{Fragment, InnerPacket};
use crate::wire::protocol::L4;
use crate::wire::{checksum, ipv4, ipv6};

/// Turns an echo request into its reply in place: addresses swapped, type and checksums updated, a fresh TTL.
/// `false`, and nothing written, for anything but a whole request between two single hosts.
pub fn echo_reply_in_place(packet: &mut [u8]) -> bool {
    let Ok(inner) = InnerPacket::parse(packet) else { return false };
    if inner.l4 != L4::EchoRequest || inner.fragment != Fragment::Whole || !may_answer(&inner) {
        return false;
    }
    let reply = if inner.flow.src.is_ipv4() { v4::ECHO_REPLY } else { v6::ECHO_REPLY };
    swap_addresses(packet);
    let Some(Ok(mut message)) = packet.get_mut(usize::from(inner.l4_offset)..).map(Icmp::new_checked) else {
        return false;
    };
    let before = u16::from(message.message_type()) << 8;
    let delta = checksum::Delta::default().replace_u16(before, u16::from(reply) << 8);
    let checksum = delta.apply(message.checksum());
    message.set_message_type(reply);
    message.set_checksum(checksum);
    true
}

/// Swapping leaves every sum over both addresses as it is; the fresh TTL changes that of the IPv4 header.
fn swap_addresses(packet: &mut [u8]) {
    if let Ok(mut ip) = ipv4::Ipv4::new_header(&mut *packet) {
        let (src, dst) = (ip.src(), ip.dst());
        ip.set_src(dst);
        ip.set_dst(src);
        let ttl = |ttl: u8| u16::from(ttl) << 8;
        let delta = checksum::Delta::default().replace_u16(ttl(ip.ttl()), ttl(FRESH_TTL));
        let checksum = delta.apply(ip.checksum());
        ip.set_ttl(FRESH_TTL);
        ip.set_checksum(checksum);
    } else if let Ok(mut ip) = ipv6::Ipv6::new_header(packet) {
        let (src, dst) = (ip.src(), ip.dst());
        ip.set_src(dst);
        ip.set_dst(src);
        ip.set_hop_limit(FRESH_TTL);
    }
}

#[cfg(test)]
mod tests;
