//! A received packet that lies in a ring.

use std::ops::{Deref, DerefMut};

use super::memory;

/// A packet in a ring, which may be changed; it is given back to the ring when it is dropped.
#[derive(Debug)]
pub struct RingPacket(Kind);

enum Kind {
    Memory(memory::Received),
    #[cfg(windows)]
    Wintun(wintun::Packet),
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            #[cfg(windows)]
            Self::Wintun(_) => "Wintun",
        })
    }
}

impl From<memory::Received> for RingPacket {
    fn from(packet: memory::Received) -> Self {
        Self(Kind::Memory(packet))
    }
}

#[cfg(windows)]
impl From<wintun::Packet> for RingPacket {
    fn from(packet: wintun::Packet) -> Self {
        Self(Kind::Wintun(packet))
    }
}

impl Deref for RingPacket {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Memory(packet) => packet,
            #[cfg(windows)]
            Kind::Wintun(packet) => packet.bytes(),
        }
    }
}

impl DerefMut for RingPacket {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Memory(packet) => packet,
            #[cfg(windows)]
            Kind::Wintun(packet) => packet.bytes_mut(),
        }
    }
}
