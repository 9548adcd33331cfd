//! What both versions of IP have.
//!
//! Read first: RFC 3168 section 5 for ECN.

use super::{checksum, ipv4, ipv6};

/// The ECN bits of a TOS byte or traffic class (RFC 3168 section 5).
pub const ECN_MASK: u8 = 0b11;

/// Writes the two ECN bits of an IPv4 or IPv6 packet and, for IPv4, updates its header checksum; bytes that
/// are no IP header stay as they are.
pub fn set_ecn(packet: &mut [u8], ecn: u8) {
    match ip_version(packet) {
        Some(4) => {
            if let Ok(mut header) = ipv4::Ipv4::new_header(packet) {
                let tos = header.tos();
                let marked = tos & !ECN_MASK | ecn & ECN_MASK;
                // The TOS byte is the low half of the header's first word.
                let delta = checksum::Delta::default().replace_u16(u16::from(tos), u16::from(marked));
                let checksum = delta.apply(header.checksum());
                header.set_tos(marked);
                header.set_checksum(checksum);
            }
        }
        Some(6) => {
            if let Ok(mut header) = ipv6::Ipv6::new_header(packet) {
                let marked = header.traffic_class() & !ECN_MASK | ecn & ECN_MASK;
                header.set_traffic_class(marked);
            }
        }
        _ => {}
    }
}

/// The first four bits of an IP packet; `None` for no bytes at all.
pub fn ip_version(packet: &[u8]) -> Option<u8> {
    packet.first().map(|byte| byte >> 4)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::protocol::Protocol;

    #[test]
    fn an_ecn_change_keeps_the_ipv4_header_checksum_right() {
        // B3
        for (tos, ecn) in (0..=255).flat_map(|tos| (0..4).map(move |ecn| (tos, ecn))) {
            let mut packet = [0; ipv4::HEADER_LEN];
            let header = ipv4::Header {
                src: Ipv4Addr::new(10, 244, 0, 7),
                dst: Ipv4Addr::new(10, 244, 1, 9),
                protocol: Protocol::UDP,
                tos,
                ttl: 64,
                ident: u16::from(tos) << 8,
                dont_fragment: true,
                total_len: 20,
            };
            ipv4::emit(&mut packet, header);
            set_ecn(&mut packet, ecn);
            assert_eq!(packet[1], tos & 0xfc | ecn);
            assert_eq!(checksum::checksum(&packet), 0);
        }
    }

    #[test]
    fn an_ecn_change_of_ipv6_touches_nothing_but_two_bits() {
        let mut packet = [0xff; ipv6::HEADER_LEN];
        packet[0] = 0x6f;
        let before = packet;
        set_ecn(&mut packet, 0b01);
        assert_eq!(packet[1], 0b1101_1111);
        packet[1] = 0xff;
        assert_eq!(packet, before);
    }

    #[test]
    fn an_ecn_change_leaves_bytes_that_are_no_ip_header() {
        for mut bytes in [vec![], vec![0x45], vec![0x60; 39], vec![0x50; 64], vec![0x41; 40]] {
            let before = bytes.clone();
            set_ecn(&mut bytes, 3);
            assert_eq!(bytes, before);
        }
    }
}
