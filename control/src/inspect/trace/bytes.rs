//! What is wrong with bytes that are no packet: what was expected, and what is there.

use windlass_dataplane::wire::{ethernet, ipv4, ipv6, vxlan};

/// Of bytes that should be an IP packet.
pub(super) fn of_ip(bytes: &[u8]) -> String {
    let found = bytes.len();
    match bytes.first().map(|first| first >> 4) {
        None => "expected an IP packet, found nothing".to_owned(),
        Some(4) => of_ipv4(bytes),
        Some(6) if found < ipv6::HEADER_LEN => {
            format!("expected an IPv6 header of {} B, found {found} B", ipv6::HEADER_LEN)
        }
        Some(6) => {
            let total = ipv6::HEADER_LEN + number(bytes, 4);
            too_short("IPv6", total, found).unwrap_or_else(|| behind("IPv6"))
        }
        Some(_) => format!(
            "expected an IP header, which begins with the digit 4 or 6, found {found} B that begin with {}; begin at \
             the IP header, not at the Ethernet header",
            start(bytes)
        ),
    }
}

fn of_ipv4(bytes: &[u8]) -> String {
    let found = bytes.len();
    if found < ipv4::HEADER_LEN {
        return format!("expected an IPv4 header of {} B at least, found {found} B", ipv4::HEADER_LEN);
    }
    let (header, total) = (usize::from(bytes[0] & 0xf) * 4, number(bytes, 2));
    if header < ipv4::HEADER_LEN || total < header {
        return format!(
            "expected an IPv4 header of {} to 60 B within the packet, found one that says {header} B of {total} B",
            ipv4::HEADER_LEN
        );
    }
    too_short("IPv4", total, found).unwrap_or_else(|| behind("IPv4"))
}

fn too_short(what: &str, said: usize, found: usize) -> Option<String> {
    (said > found).then(|| {
        format!(
            "expected {said} B, as the {what} header says, found {found} B; give the whole packet (a capture may have \
             cut it off: tcpdump -s 0)"
        )
    })
}

fn behind(what: &str) -> String {
    format!("the {what} header is well, but what follows it is too short for the protocol that it names")
}

/// Of bytes that should be the payload of a VXLAN datagram.
pub(super) fn of_vxlan(bytes: &[u8]) -> String {
    let found = bytes.len();
    let inner = vxlan::HEADER_LEN + ethernet::HEADER_LEN;
    match bytes.first() {
        None => "expected a VXLAN header or an IP packet, found nothing".to_owned(),
        Some(first) if first & vxlan::HAS_VNI == 0 => format!(
            "expected a VXLAN header (first byte {:02x}) or an IP packet (first digit 4 or 6), found {found} B that \
             begin with {}; begin at the VXLAN or at the IP header",
            vxlan::HAS_VNI,
            start(bytes)
        ),
        Some(_) if found < inner => {
            format!("expected a VXLAN and an Ethernet header, {inner} B together, found {found} B")
        }
        Some(_) => match u16::try_from(number(bytes, inner - 2)).unwrap_or_default() {
            ethernet::IPV4 | ethernet::IPV6 => of_ip(&bytes[inner..]),
            ethernet::VLAN => "expected a VLAN tag and an IP packet of its EtherType after it".to_owned(),
            other => format!(
                "expected the EtherType of IPv4 (0800) or IPv6 (86dd) after the VXLAN header, found {other:04x}: \
                 Windlass carries IP alone"
            ),
        },
    }
}

/// Two bytes as a number; 0 where there are none.
fn number(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 2).map_or(0, |two| usize::from(u16::from_be_bytes([two[0], two[1]])))
}

fn start(bytes: &[u8]) -> String {
    bytes.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
