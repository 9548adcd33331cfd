//! A worker's turn in memory, over slabs as on Linux and over rings as on Windows: from what waits in the device or the
//! socket, through the engine, to what the other has been given. Without system calls on either side; the copies that
//! they make are made.

use std::hint::black_box;
use std::net::SocketAddr;

use windlass_dataplane::device::OverlayDevice;
use windlass_dataplane::device::ring::RingDevice;
use windlass_dataplane::device::ring::memory::MemoryRings;
use windlass_dataplane::engine::{Engine, Outbox};
use windlass_dataplane::packet::{DatagramBatch, MAX_PACKET_LEN, PacketBatch};
use windlass_dataplane::time::Instant;

use crate::engine::{BURST, Case, PacketMaker, Path, Tables, tables};

/// Windlass's own default.
const RING_CAPACITY: usize = 8 << 20;

/// Where peers send from.
const PEER_PORT: u16 = 50_000;

/// What kind of memory an overlay device has its packets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A packet is copied to a slab when it is read, and from it when it is written, as by a TUN device's system calls.
    Slab,
    /// A packet stays in the device's ring when it is read, and is built in the ring when it is written.
    Ring,
}

/// A worker's turn with one batch of packets.
pub struct Turn {
    case: Case,
    memory: Memory,
    engine: Engine,
    maker: PacketMaker,
    next_flow: u32,
    /// What waits in the system until it is read, and who has sent it.
    waiting: Vec<(Vec<u8>, SocketAddr)>,
    device: RingDevice<MemoryRings>,
    packets: PacketBatch,
    datagrams: DatagramBatch,
    out: Outbox,
    /// Where the system copies what it sends.
    sent: Vec<u8>,
}

impl Turn {
    /// A worker whose flows are decided already.
    ///
    /// # Panics
    /// If packets are dropped that should be sent: nothing would be measured then.
    #[must_use]
    pub fn new(case: Case, memory: Memory, tables: &Tables) -> Self {
        let (engine, _, counters) = case.engine(tables);
        let mut turn = Self {
            case,
            memory,
            engine,
            maker: PacketMaker::new(&case),
            next_flow: 0,
            waiting: vec![(Vec::new(), SocketAddr::new(tables::underlay(0), PEER_PORT)); BURST],
            device: RingDevice(MemoryRings::new(RING_CAPACITY)),
            packets: PacketBatch::new(BURST, 0),
            datagrams: DatagramBatch::new(BURST, 0),
            out: Outbox::default(),
            sent: vec![0; MAX_PACKET_LEN],
        };
        for _ in 0..(case.flows as usize).div_ceil(BURST) {
            turn.refill();
            turn.run();
        }
        assert_eq!(counters.totals().dropped, 0, "{case}: packets were dropped");
        turn
    }

    /// What the system does meanwhile: puts the next packets where they are read, and takes those that were written.
    /// Not part of what is measured.
    ///
    /// # Panics
    /// When the ring is full, which a batch cannot fill.
    pub fn refill(&mut self) {
        while self.device.0.sent.read().is_some() {}
        self.packets.clear();
        for (waiting, peer) in &mut self.waiting {
            peer.set_ip(tables::underlay(self.maker.node(self.next_flow)));
            let packet = self.maker.packet(self.next_flow);
            self.next_flow = self.case.flow_after(self.next_flow);
            if self.case.path != Path::Decap && self.memory == Memory::Ring {
                let ring = &self.device.0.received;
                assert!(ring.write(packet.len() as u16, |slot| slot.copy_from_slice(packet)), "a full ring");
            } else {
                waiting.clear();
                waiting.extend_from_slice(packet);
            }
        }
    }

    /// Reads the batch, has the engine decide, and sends.
    #[inline(never)]
    pub fn run(&mut self) {
        match self.case.path {
            Path::Decap => self.decap(),
            _ => self.encap(),
        }
        self.out.clear();
    }

    fn encap(&mut self) {
        let Self { engine, waiting, device, packets, out, sent, .. } = self;
        match self.memory {
            Memory::Slab => {
                packets.clear();
                waiting.iter().for_each(|(packet, _)| assert!(packets.receive_copy(packet)));
            }
            Memory::Ring => assert_eq!(device.recv_batch(packets).ok(), Some(BURST)),
        }
        engine.encap(packets, Instant::ZERO, out);
        for datagram in &out.datagrams {
            copy_out(sent, packets.pool.pieces(&datagram.packet));
        }
    }

    fn decap(&mut self) {
        let Self { engine, waiting, device, datagrams, out, sent, .. } = self;
        datagrams.clear();
        for (datagram, peer) in waiting.iter() {
            assert!(datagrams.receive_copy(datagram, *peer, 0));
        }
        engine.decap(datagrams, Instant::ZERO, out);
        match self.memory {
            Memory::Slab => {
                for packet in &out.packets {
                    copy_out(sent, datagrams.pool.pieces(packet));
                }
            }
            Memory::Ring => {
                let report = device.send_batch(&datagrams.pool, &out.packets);
                assert_eq!(report.sent, BURST as u64);
            }
        }
    }
}

/// What the system does with the pieces of a message.
fn copy_out(sent: &mut [u8], [head, rest]: [&[u8]; 2]) {
    let (first, others) = sent.split_at_mut(head.len());
    first.copy_from_slice(head);
    others[..rest.len()].copy_from_slice(rest);
    black_box(sent);
}
