//! Packets as descriptors over slabs.
//!
//! A [`PacketPool`] owns a fixed number of slabs, allocated once and side by side. A [`PacketBuf`] names a range of one slab;
//! headers are pushed into the headroom before the range and popped off its front, in place, and nothing is
//! copied. Descriptors are plain `Copy` data, so that a packet moves between lists for the price of its
//! descriptor. Nothing outlives a batch: the pool is reset before the next one is received.
//!
//! A device that has packets in memory of its own (a ring) [lends](PacketBatch::receive_lent) them instead of copying
//! them to a slab. Such a packet has its headroom elsewhere, so that with headers pushed it lies in
//! [two pieces](PacketPool::pieces).
//!
//! One packet may be a superpacket (up to 64 KB that stand for many wire-size segments): its `segment_len`
//! is then not zero. Counters count wire-size segments.

use std::net::SocketAddr;
use std::ops::Range;

use crate::device::hints;
use crate::device::ring::RingPacket;

/// Bytes kept free before a received packet: outer Ethernet, IPv6, UDP, VXLAN and inner Ethernet, rounded up.
pub const HEADROOM: usize = 128;

/// The longest packet a slab holds, in bytes: an IP packet's 65,535, the 22 bytes of VXLAN and inner Ethernet
/// before it, an 802.1Q tag, and room for a device's own header.
pub const MAX_PACKET_LEN: usize = 65_535 + 64;

/// An odd number of cache lines: packets that started at the same offset modulo the page size would share a few
/// cache sets.
const SLAB_LEN: usize = (HEADROOM + MAX_PACKET_LEN).next_multiple_of(64) | 64;

/// Headroom of a packet that a device lends, in bytes: VXLAN and inner Ethernet, rounded up.
const LENT_HEADROOM: usize = 32;

/// What stands in a packet's transport checksum field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// A whole checksum (or, for IPv4 UDP, the zero that means none).
    #[default]
    Complete,
    /// The uncomplemented sum of the pseudo-header: whoever sends the packet on a wire must still add the
    /// bytes from `start` to the end of the packet, and store the complement at `start + offset`.
    Partial {
        /// Where the summed bytes begin, in bytes from the start of the packet's IP header.
        start: u16,
        /// Where the checksum field lies, in bytes from `start`.
        offset: u16,
    },
}

/// One packet: a range of a slab and what is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketBuf {
    /// Those of lent packets are counted on from the pool's.
    slab: u16,
    start: u32,
    end: u32,
    /// Transport payload bytes per wire-size segment; 0 for an ordinary packet.
    pub segment_len: u16,
    /// State of the inner transport checksum. Its offsets count from the inner IP header, whatever has been
    /// pushed before it.
    pub checksum: Checksum,
}

impl PacketBuf {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Where it lies in the pool's memory.
    #[inline]
    fn range(&self) -> Range<usize> {
        let slab = usize::from(self.slab) * SLAB_LEN;
        slab + self.start as usize..slab + self.end as usize
    }

    /// Free bytes before the packet.
    pub fn headroom(&self) -> usize {
        self.start as usize
    }

    /// Removes `len` bytes from the front.
    ///
    /// # Panics
    /// If the packet is shorter: callers have parsed what they pop.
    pub fn pop(&mut self, len: usize) {
        assert!(len <= self.len(), "pop of {len} bytes from {}", self.len());
        self.start += len as u32;
    }

    /// The `len` bytes from `offset` on, as a packet of their own.
    ///
    /// # Panics
    /// If they lie outside the packet.
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        assert!(offset + len <= self.len(), "slice of {offset}+{len} bytes of {}", self.len());
        let start = self.start + offset as u32;
        Self { start, end: start + len as u32, segment_len: 0, ..*self }
    }

    /// Cuts the packet to `len` bytes; longer than it is leaves it as it is.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len as u32);
    }
}

/// A fixed number of slabs, part of them for receiving and part for packets the engine generates.
#[derive(Debug)]
pub struct PacketPool {
    slabs: Box<[u8]>,
    count: usize,
    receive_slabs: usize,
    /// The spare slab being filled, and how far.
    spare: usize,
    spare_end: usize,
    lent: Vec<Lent>,
}

/// A packet in a device's memory, given back when it is dropped, and the room for what is pushed before it. Its
/// descriptor counts from the beginning of that room.
#[derive(Debug)]
struct Lent {
    head: [u8; LENT_HEADROOM],
    bytes: RingPacket,
}

impl Lent {
    /// Both parts of that range.
    fn pieces(&self, start: usize, end: usize) -> [&[u8]; 2] {
        let head = &self.head[start.min(LENT_HEADROOM)..end.min(LENT_HEADROOM)];
        let at = |place: usize| place.saturating_sub(LENT_HEADROOM);
        [head, &self.bytes[at(start)..at(end)]]
    }
}

impl PacketPool {
    /// A pool of `receive_slabs` packets to receive and `spare_slabs` x 64 KB for generated ones.
    ///
    /// # Panics
    /// If both together, and a lent packet for each to receive, exceed 65,535.
    pub fn new(receive_slabs: usize, spare_slabs: usize) -> Self {
        let count = receive_slabs + spare_slabs;
        assert!(count + receive_slabs <= usize::from(u16::MAX), "a pool of {count} slabs");
        let mut slabs = vec![0; count * SLAB_LEN].into_boxed_slice();
        hints::advise_huge(&mut slabs);
        Self { slabs, count, receive_slabs, spare: receive_slabs, spare_end: 0, lent: Vec::new() }
    }

    /// How many packets can be received before a reset.
    pub fn receive_slabs(&self) -> usize {
        self.receive_slabs
    }

    /// Gives all spare room and all lent packets back. Descriptors made before must not be used after.
    pub fn reset(&mut self) {
        self.spare = self.receive_slabs;
        self.spare_end = 0;
        self.lent.clear();
    }

    /// The whole of receive slab `index` behind its headroom: where a device writes what it receives.
    pub fn receive_area(&mut self, index: usize) -> &mut [u8] {
        let start = index * SLAB_LEN + HEADROOM;
        &mut self.slabs[start..start + MAX_PACKET_LEN]
    }

    /// The packet of `len` bytes that a device has written to [`receive_area`](Self::receive_area), without
    /// the first `skip` bytes.
    pub fn received(&self, index: usize, skip: usize, len: usize) -> PacketBuf {
        debug_assert!(skip + len <= MAX_PACKET_LEN && index < self.receive_slabs);
        let start = (HEADROOM + skip) as u32;
        PacketBuf {
            slab: index as u16,
            start,
            end: start + len as u32,
            segment_len: 0,
            checksum: Checksum::Complete,
        }
    }

    /// A new packet of `len` bytes with headroom, its content unspecified; `None` when the spare slabs are full.
    pub fn generate(&mut self, len: usize) -> Option<PacketBuf> {
        if len > MAX_PACKET_LEN {
            return None;
        }
        let mut start = self.spare_end + HEADROOM;
        if start + len > SLAB_LEN {
            self.spare += 1;
            start = HEADROOM;
        }
        if self.spare >= self.count {
            return None;
        }
        self.spare_end = start + len;
        Some(PacketBuf {
            slab: self.spare as u16,
            start: start as u32,
            end: (start + len) as u32,
            segment_len: 0,
            checksum: Checksum::Complete,
        })
    }

    /// The bytes of a packet.
    ///
    /// # Panics
    /// If it is lent and has had headers pushed: [`pieces`](Self::pieces) gives it in two.
    #[inline]
    pub fn bytes(&self, packet: &PacketBuf) -> &[u8] {
        match self.slabs.get(packet.range()) {
            Some(bytes) => bytes,
            None => self.lent_bytes(packet),
        }
    }

    /// The bytes of a packet, to change in place.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    #[inline]
    pub fn bytes_mut(&mut self, packet: &PacketBuf) -> &mut [u8] {
        match self.slabs.get_mut(packet.range()) {
            Some(bytes) => bytes,
            None => lent_bytes_mut(&mut self.lent, self.count, packet),
        }
    }

    /// The bytes of a packet in two pieces; the first is empty unless headers were pushed before a lent packet.
    #[inline]
    pub fn pieces(&self, packet: &PacketBuf) -> [&[u8]; 2] {
        match self.slabs.get(packet.range()) {
            Some(bytes) => [&[], bytes],
            None => self.lent_of(packet).pieces(packet.start as usize, packet.end as usize),
        }
    }

    /// Grows the packet by `len` bytes at its front and returns those bytes, their content unspecified.
    ///
    /// # Panics
    /// If the headroom is shorter than `len`: [`HEADROOM`] covers every header the engine pushes.
    #[inline]
    pub fn push(&mut self, packet: &mut PacketBuf, len: usize) -> &mut [u8] {
        assert!(len <= packet.headroom(), "push of {len} bytes into {} of headroom", packet.headroom());
        packet.start -= len as u32;
        let start = packet.range().start;
        match self.slabs.get_mut(start..start + len) {
            Some(bytes) => bytes,
            None => {
                let pushed = PacketBuf { end: packet.start + len as u32, ..*packet };
                lent_bytes_mut(&mut self.lent, self.count, &pushed)
            }
        }
    }

    /// Adds a packet that a device lends; `None` when there are as many as there are slabs to receive.
    fn lend(&mut self, bytes: RingPacket) -> Option<PacketBuf> {
        if self.lent.len() >= self.receive_slabs {
            return None;
        }
        let packet = PacketBuf {
            slab: (self.count + self.lent.len()) as u16,
            start: LENT_HEADROOM as u32,
            end: (LENT_HEADROOM + bytes.len()) as u32,
            segment_len: 0,
            checksum: Checksum::Complete,
        };
        self.lent.push(Lent { head: [0; LENT_HEADROOM], bytes });
        Some(packet)
    }

    fn lent_of(&self, packet: &PacketBuf) -> &Lent {
        &self.lent[usize::from(packet.slab) - self.count]
    }

    #[cold]
    fn lent_bytes(&self, packet: &PacketBuf) -> &[u8] {
        let [head, bytes] = self.pieces(packet);
        assert!(head.is_empty() || bytes.is_empty(), "a packet in two pieces asked for in one");
        if head.is_empty() { bytes } else { head }
    }
}

/// Outside of the pool's borrow, of which the slabs have a part.
#[cold]
fn lent_bytes_mut<'a>(lent: &'a mut [Lent], slabs: usize, packet: &PacketBuf) -> &'a mut [u8] {
    let Lent { head, bytes } = &mut lent[usize::from(packet.slab) - slabs];
    let (start, end) = (packet.start as usize, packet.end as usize);
    if end <= LENT_HEADROOM {
        return &mut head[start..end];
    }
    assert!(start >= LENT_HEADROOM, "a packet in two pieces asked for in one");
    &mut bytes[start - LENT_HEADROOM..end - LENT_HEADROOM]
}

/// Packets received from an overlay device, in order, and the pool they lie in.
#[derive(Debug)]
pub struct PacketBatch {
    /// The slabs.
    pub pool: PacketPool,
    /// The packets: inner IP packets from a TUN device; from L2 devices a VXLAN header and a frame.
    pub packets: Vec<PacketBuf>,
}

impl PacketBatch {
    /// An empty batch for up to `receive_slabs` packets.
    pub fn new(receive_slabs: usize, spare_slabs: usize) -> Self {
        Self { pool: PacketPool::new(receive_slabs, spare_slabs), packets: Vec::with_capacity(receive_slabs) }
    }

    /// Forgets all packets: the batch is ready for the next receive.
    pub fn clear(&mut self) {
        self.packets.clear();
        self.pool.reset();
    }

    /// Adds a copy of `bytes` as a received packet, for tests and in-memory devices; `false` when full.
    pub fn receive_copy(&mut self, bytes: &[u8]) -> bool {
        let index = self.packets.len();
        if index >= self.pool.receive_slabs() || bytes.len() > MAX_PACKET_LEN {
            return false;
        }
        self.pool.receive_area(index)[..bytes.len()].copy_from_slice(bytes);
        self.packets.push(self.pool.received(index, 0, bytes.len()));
        true
    }

    /// Adds a packet as it lies in a device's memory, until the batch is cleared; `false` when full.
    pub fn receive_lent(&mut self, bytes: RingPacket) -> bool {
        let lent = self.pool.lend(bytes);
        self.packets.extend(lent);
        lent.is_some()
    }
}

/// The payload of one UDP datagram of the underlay (a VXLAN header and what follows), and its outer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// VXLAN header and frame.
    pub packet: PacketBuf,
    /// Received: where it came from. Sent: the remote VTEP.
    pub remote: SocketAddr,
    /// The outer TOS byte or IPv6 traffic class: DSCP and ECN.
    pub tos: u8,
    /// Sent: which socket of the source-port pool, modulo its size. Received: 0.
    pub source_port: u16,
}

/// Datagrams received from the underlay, in order, and the pool they lie in.
#[derive(Debug)]
pub struct DatagramBatch {
    /// The slabs.
    pub pool: PacketPool,
    /// The datagrams.
    pub datagrams: Vec<Datagram>,
}

impl DatagramBatch {
    /// An empty batch for up to `receive_slabs` datagrams.
    pub fn new(receive_slabs: usize, spare_slabs: usize) -> Self {
        Self {
            pool: PacketPool::new(receive_slabs, spare_slabs),
            datagrams: Vec::with_capacity(receive_slabs),
        }
    }

    /// Forgets all datagrams: the batch is ready for the next receive.
    pub fn clear(&mut self) {
        self.datagrams.clear();
        self.pool.reset();
    }

    /// Adds a copy of `payload` as a datagram received from `remote`, for tests and in-memory sockets;
    /// `false` when full.
    pub fn receive_copy(&mut self, payload: &[u8], remote: SocketAddr, tos: u8) -> bool {
        let index = self.datagrams.len();
        if index >= self.pool.receive_slabs() || payload.len() > MAX_PACKET_LEN {
            return false;
        }
        self.pool.receive_area(index)[..payload.len()].copy_from_slice(payload);
        let packet = self.pool.received(index, 0, payload.len());
        self.datagrams.push(Datagram { packet, remote, tos, source_port: 0 });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_and_pop_move_the_front_in_place() {
        let mut batch = PacketBatch::new(2, 0);
        assert!(batch.receive_copy(b"payload"));
        let mut packet = batch.packets[0];
        batch.pool.push(&mut packet, 4).copy_from_slice(b"head");
        assert_eq!(batch.pool.bytes(&packet), b"headpayload");
        packet.pop(4);
        packet.truncate(3);
        assert_eq!(batch.pool.bytes(&packet), b"pay");
    }

    #[test]
    fn generated_packets_share_a_spare_slab_and_run_out() {
        let mut pool = PacketPool::new(1, 1);
        let first = pool.generate(2_500).unwrap();
        let second = pool.generate(100).unwrap();
        pool.bytes_mut(&first).fill(1);
        pool.bytes_mut(&second).fill(2);
        assert!(pool.bytes(&first).iter().all(|byte| *byte == 1));
        assert!(second.headroom() >= HEADROOM);
        assert!(pool.generate(MAX_PACKET_LEN).is_none(), "what is left of the slab is too short");
        pool.reset();
        assert!(pool.generate(MAX_PACKET_LEN).is_some());
    }

    #[test]
    fn a_full_batch_takes_no_more() {
        let mut batch = PacketBatch::new(1, 0);
        assert!(batch.receive_copy(b"a"));
        assert!(!batch.receive_copy(b"b"));
        batch.clear();
        assert!(batch.receive_copy(b"c"));
    }
}
