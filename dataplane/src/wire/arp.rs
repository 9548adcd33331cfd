//! ARP for IPv4 over Ethernet.
//!
//! Read first: RFC 826, RFC 5227 section 2.3 for announcements.

use std::net::Ipv4Addr;

use super::bytes::{Malformed, array, put, put_u16, u16_at};
use super::ethernet::{self, Mac};

/// Length of a message in bytes; Ethernet pads it.
pub const LEN: usize = 28;

const HARDWARE: usize = 0;
const PROTOCOL: usize = 2;
const LENGTHS: usize = 4;
const OPERATION: usize = 6;
const SENDER_MAC: usize = 8;
const SENDER_IP: usize = 14;
const TARGET_MAC: usize = 18;
const TARGET_IP: usize = 24;

const ETHERNET: u16 = 1;
const MAC_AND_IPV4_LEN: u16 = 0x0604;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// A request or a reply.
#[derive(Clone, Copy, Debug)]
pub struct Arp<T: AsRef<[u8]>> {
    bytes: T,
}

impl<T: AsRef<[u8]>> Arp<T> {
    /// # Errors
    /// For fewer than [`LEN`] bytes, for other hardware or protocols, and for other operations.
    pub fn new_checked(bytes: T) -> Result<Self, Malformed> {
        let data = bytes.as_ref();
        if data.len() < LEN {
            return Err(Malformed::Truncated);
        }
        let kind = (u16_at(data, HARDWARE), u16_at(data, PROTOCOL), u16_at(data, LENGTHS));
        let known = matches!(u16_at(data, OPERATION), REQUEST | REPLY);
        if kind != (ETHERNET, ethernet::IPV4, MAC_AND_IPV4_LEN) || !known {
            return Err(Malformed::Invalid);
        }
        Ok(Self { bytes })
    }

    /// Whether it asks; else it answers.
    pub fn is_request(&self) -> bool {
        u16_at(self.bytes.as_ref(), OPERATION) == REQUEST
    }

    /// The sender's Ethernet address.
    pub fn sender_mac(&self) -> Mac {
        Mac(array(self.bytes.as_ref(), SENDER_MAC))
    }

    /// The sender's IPv4 address.
    pub fn sender_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.bytes.as_ref(), SENDER_IP))
    }

    /// The target's Ethernet address; meaningless in a request.
    pub fn target_mac(&self) -> Mac {
        Mac(array(self.bytes.as_ref(), TARGET_MAC))
    }

    /// The target's IPv4 address.
    pub fn target_ip(&self) -> Ipv4Addr {
        Ipv4Addr::from(array(self.bytes.as_ref(), TARGET_IP))
    }
}

/// Writes the request "who has `target`? tell `sender_ip` at `sender_mac`" to the first [`LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit_request(out: &mut [u8], sender_mac: Mac, sender_ip: Ipv4Addr, target: Ipv4Addr) {
    emit(out, REQUEST, (sender_mac, sender_ip), (Mac::default(), target));
}

/// Writes the reply "`ip` is at `mac`" to `request`'s sender to the first [`LEN`] bytes.
///
/// # Panics
/// If `out` is shorter.
pub fn emit_reply<T: AsRef<[u8]>>(out: &mut [u8], request: &Arp<T>, mac: Mac) {
    emit(out, REPLY, (mac, request.target_ip()), (request.sender_mac(), request.sender_ip()));
}

fn emit(out: &mut [u8], operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) {
    let out = &mut out[..LEN];
    put_u16(out, HARDWARE, ETHERNET);
    put_u16(out, PROTOCOL, ethernet::IPV4);
    put_u16(out, LENGTHS, MAC_AND_IPV4_LEN);
    put_u16(out, OPERATION, operation);
    put(out, SENDER_MAC, &sender.0.0);
    put(out, SENDER_IP, &sender.1.octets());
    put(out, TARGET_MAC, &target.0.0);
    put(out, TARGET_IP, &target.1.octets());
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKER: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 0, 0, 1));
    const ANSWERER: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 0, 0, 2));

    #[test]
    fn a_reply_answers_its_request() {
        let mut request = [0xff; LEN + 18];
        emit_request(&mut request, ASKER.0, ASKER.1, ANSWERER.1);
        assert_eq!(request[..8], [0, 1, 8, 0, 6, 4, 0, 1]);
        let request = Arp::new_checked(&request).unwrap();
        assert!(request.is_request());
        assert_eq!((request.sender_mac(), request.sender_ip()), ASKER);
        let mut reply = [0xff; LEN];
        emit_reply(&mut reply, &request, ANSWERER.0);
        let reply = Arp::new_checked(&reply).unwrap();
        assert!(!reply.is_request());
        assert_eq!((reply.sender_mac(), reply.sender_ip()), ANSWERER);
        assert_eq!((reply.target_mac(), reply.target_ip()), ASKER);
    }

    #[test]
    fn other_hardware_protocols_and_operations_are_malformed() {
        let mut good = [0; LEN];
        emit_request(&mut good, ASKER.0, ASKER.1, ANSWERER.1);
        for at in 0..8 {
            let mut bad = good;
            bad[at] ^= 0x40;
            assert_eq!(Arp::new_checked(bad).unwrap_err(), Malformed::Invalid, "byte {at}");
        }
        for len in 0..LEN {
            assert_eq!(Arp::new_checked(&good[..len]).unwrap_err(), Malformed::Truncated);
        }
    }
}
