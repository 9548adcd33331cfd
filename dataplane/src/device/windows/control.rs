//! Control messages as winsock lays them out (ws2def.h: WSA_CMSG_LEN, WSA_CMSG_SPACE).
//!
//! Windows takes and tells the whole TOS byte where it knows IPV6_TCLASS as a socket option, else only its ECN bits
//! (IP_ECN). For IPv4 it takes IP_TOS and ignores it where it does not know it, so the question is asked of IPv6.

use windows_sys::Win32::Networking::WinSock::{
    IP_ECN, IP_TOS, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPV6_ECN, IPV6_TCLASS, UDP_COALESCED_INFO,
    UDP_SEND_MSG_SIZE,
};

/// Length of a header: its own length, level and type.
const HEADER_LEN: usize = 16;

/// A header and four bytes of value, rounded up to the headers' alignment.
const MESSAGE_LEN: usize = 24;

/// Room for one TOS and one segment size, and for one more that was not asked for.
pub(super) const CONTROL_LEN: usize = 3 * MESSAGE_LEN;

/// Bits of the TOS byte that are ECN.
const ECN: u8 = 0b11;

/// How much of the TOS byte the system handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TosLane {
    /// All of it.
    Whole,
    /// The ECN bits; DSCP is the socket's.
    Ecn,
    /// Nothing.
    Off,
}

/// Control messages being written or read, aligned as their headers must be.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; CONTROL_LEN],
    len: usize,
}

impl Control {
    /// No messages.
    pub(super) fn new() -> Self {
        Self { bytes: [0; CONTROL_LEN], len: 0 }
    }

    /// The messages.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    /// All the room there is, to receive into.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Says how much of the room has been filled.
    pub(super) fn filled(&mut self, len: usize) {
        self.len = len.min(CONTROL_LEN);
    }

    /// Adds the outer TOS, as far as `lane` carries it; nothing for 0, the socket's own.
    pub(super) fn push_tos(&mut self, tos: u8, ipv4: bool, lane: TosLane) {
        let (level, whole, ecn) =
            if ipv4 { (IPPROTO_IP, IP_TOS, IP_ECN) } else { (IPPROTO_IPV6, IPV6_TCLASS, IPV6_ECN) };
        let (kind, value) = match lane {
            TosLane::Whole => (whole, tos),
            TosLane::Ecn => (ecn, tos & ECN),
            TosLane::Off => return,
        };
        if value != 0 {
            self.push(level, kind, u32::from(value));
        }
    }

    /// Adds what makes Windows cut one message into datagrams of that length (USO).
    pub(super) fn push_segment_len(&mut self, segment_len: u16) {
        self.push(IPPROTO_UDP, UDP_SEND_MSG_SIZE, u32::from(segment_len));
    }

    fn push(&mut self, level: i32, kind: i32, value: u32) {
        let Some(room) = self.bytes.get_mut(self.len..self.len + MESSAGE_LEN) else { return };
        room[..8].copy_from_slice(&(HEADER_LEN + size_of::<u32>()).to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[16..20].copy_from_slice(&value.to_ne_bytes());
        self.len += MESSAGE_LEN;
    }

    /// The TOS byte (or its ECN bits) and the length of each datagram that Windows has joined to this message; 0
    /// where there is none.
    pub(super) fn read(&self) -> (u8, u16) {
        let (mut tos, mut segment_len) = (0, 0);
        let mut rest = &self.bytes[..self.len];
        while let Some((level, kind, value, next)) = first(rest) {
            match (level, kind) {
                (IPPROTO_IP, IP_TOS | IP_ECN) | (IPPROTO_IPV6, IPV6_TCLASS | IPV6_ECN) => tos = value as u8,
                (IPPROTO_UDP, kind) if kind == UDP_COALESCED_INFO as i32 => segment_len = value as u16,
                _ => {}
            }
            rest = next;
        }
        (tos, segment_len)
    }
}

/// Level, kind and value of the first message, and those behind it; `None` when there is no whole one.
fn first(bytes: &[u8]) -> Option<(i32, i32, u32, &[u8])> {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
    let len = usize::from_ne_bytes(bytes.get(..8)?.try_into().ok()?);
    let value = bytes.get(HEADER_LEN..len)?;
    // A TOS may come as one byte or as four, of which the first is the low one.
    let mut whole = [0; 4];
    let known = value.len().min(4);
    whole[..known].copy_from_slice(&value[..known]);
    let next = bytes.get(len.next_multiple_of(8)..).unwrap_or_default();
    Some((number(8)?, number(12)?, u32::from_ne_bytes(whole), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_what_is_written_is_read_for_each_lane_and_family() {
        for (lane, ipv4, expected) in [
            (TosLane::Whole, true, 0xb9),
            (TosLane::Whole, false, 0xb9),
            (TosLane::Ecn, true, 1),
            (TosLane::Ecn, false, 1),
            (TosLane::Off, true, 0),
        ] {
            let mut control = Control::new();
            control.push_tos(0xb9, ipv4, lane);
            assert_eq!(control.read(), (expected, 0), "{lane:?}");
        }
    }

    #[test]
    fn nothing_is_written_for_a_tos_of_zero() {
        let mut control = Control::new();
        control.push_tos(0, true, TosLane::Whole);
        control.push_tos(0x10, true, TosLane::Ecn);
        assert!(control.bytes_mut().is_empty());
    }

    #[test]
    fn a_segment_size_stands_beside_a_tos() {
        let mut control = Control::new();
        control.push_tos(3, true, TosLane::Whole);
        control.push(IPPROTO_UDP, UDP_COALESCED_INFO as i32, 1450);
        assert_eq!(control.read(), (3, 1450));
    }

    #[test]
    fn lying_lengths_end_the_reading() {
        for len in [0_usize, 7, 15, 1000, usize::MAX - 7, usize::MAX] {
            let mut control = Control::new();
            control.push_tos(3, true, TosLane::Whole);
            control.bytes[..8].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(control.read(), (0, 0), "{len}");
        }
    }
}
