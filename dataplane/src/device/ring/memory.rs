//! Rings in memory, laid out and used as Wintun's are, for tests and measurements.
//!
//! Packets lie behind their lengths, aligned to four bytes, in order; none wraps. The reader may give them back in any
//! order, and their room is free when all before them are back. The writer leaves four bytes free, so that a full ring
//! is not an empty one. Read first: wintun.h and api/session.c of Wintun.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Refused, Ring, RingPacket};

/// The longest packet.
const MAX_LEN: usize = 0xFFFF;

/// What stands before each packet: its length, and whether the reader has given it back.
const HEADER_LEN: usize = 4;
const RELEASED: u32 = 1 << 31;

/// Room that a packet takes.
const fn room(len: usize) -> usize {
    (HEADER_LEN + len).next_multiple_of(HEADER_LEN)
}

/// One ring; clones share it.
#[derive(Clone, Debug)]
pub struct MemoryRing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Longer than the capacity by one packet.
    words: Box<[UnsafeCell<u32>]>,
    capacity: usize,
    /// Where what is not given back begins, and where the next packet will be written.
    head: AtomicUsize,
    tail: AtomicUsize,
    reader: Mutex<Reader>,
    writer: Mutex<()>,
}

/// Where the reader stands: `next` is to be taken, `done` is given back.
#[derive(Debug, Default)]
struct Reader {
    next: usize,
    done: usize,
    taken: usize,
}

// SAFETY: the bytes between `head` and `tail` are the reader's, one packet one `Received`; the others are the
// writer's, who holds `writer`. `head` and `tail` hand them over.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl MemoryRing {
    /// An empty ring.
    ///
    /// # Panics
    /// Unless `capacity` is a power of two of at least 128 KiB, as for Wintun.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two() && capacity >= 128 << 10, "a ring of {capacity} bytes");
        let words = (capacity + room(MAX_LEN)) / HEADER_LEN;
        Self(Arc::new(Shared {
            words: (0..words).map(|_| UnsafeCell::new(0)).collect(),
            capacity,
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            reader: Mutex::default(),
            writer: Mutex::default(),
        }))
    }

    /// Writes a packet of `len` bytes at its end; `false` when there is no room.
    pub fn write(&self, len: u16, build: impl FnOnce(&mut [u8])) -> bool {
        let ring = &*self.0;
        let _writer = lock(&ring.writer);
        let (len, tail) = (usize::from(len), ring.tail.load(Ordering::Relaxed));
        let free = ring.wrap(ring.head.load(Ordering::Acquire).wrapping_sub(tail + HEADER_LEN));
        if room(len) > free {
            return false;
        }
        // SAFETY: `len` free bytes behind `tail`, which only this writer touches until they are handed over.
        unsafe {
            ring.header(tail).write(len as u32);
            build(slice::from_raw_parts_mut(ring.content(tail).as_ptr(), len));
        }
        ring.tail.store(ring.wrap(tail + room(len)), Ordering::Release);
        true
    }

    /// The next packet, if there is one.
    #[must_use]
    pub fn read(&self) -> Option<Received> {
        let ring = &self.0;
        let mut reader = lock(&ring.reader);
        if reader.next == ring.tail.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the writer has handed over what lies before `tail`.
        let len = unsafe { ring.header(reader.next).read() } as usize;
        let received = Received { bytes: ring.content(reader.next), len, ring: Arc::clone(ring) };
        reader.next = ring.wrap(reader.next + room(len));
        reader.taken += 1;
        Some(received)
    }
}

impl Shared {
    fn wrap(&self, place: usize) -> usize {
        place & (self.capacity - 1)
    }

    /// The length of the packet at `place`, a multiple of four below the capacity.
    fn header(&self, place: usize) -> *mut u32 {
        self.words[place / HEADER_LEN].get()
    }

    fn content(&self, place: usize) -> NonNull<u8> {
        let all = NonNull::from(&*self.words).cast::<u8>();
        // SAFETY: `place` is below the capacity, behind which there is room for a packet.
        unsafe { all.add(place + HEADER_LEN) }
    }

    /// Gives a packet back, and the room of all that are back before the first that is not.
    fn release(&self, content: NonNull<u8>) {
        let mut reader = lock(&self.reader);
        // SAFETY: the header before a packet that the reader has.
        unsafe { *content.sub(HEADER_LEN).cast::<u32>().as_ptr() |= RELEASED };
        while reader.taken > 0 {
            // SAFETY: the header of a packet that the reader has not given back.
            let header = unsafe { self.header(reader.done).read() };
            if header & RELEASED == 0 {
                break;
            }
            reader.done = self.wrap(reader.done + room((header & !RELEASED) as usize));
            reader.taken -= 1;
        }
        self.head.store(reader.done, Ordering::Release);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A packet that was read, until it is dropped.
#[derive(Debug)]
pub struct Received {
    bytes: NonNull<u8>,
    len: usize,
    ring: Arc<Shared>,
}

// SAFETY: its bytes are its own, and giving them back takes the ring's lock.
unsafe impl Send for Received {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Received {}

impl Deref for Received {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: bytes of the ring, which lives as long, that are this packet's until it is dropped.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl DerefMut for Received {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.ring.release(self.bytes);
    }
}

/// Both rings of an adapter in memory.
#[derive(Clone, Debug)]
pub struct MemoryRings {
    /// What the device receives.
    pub received: MemoryRing,
    /// What the device has sent.
    pub sent: MemoryRing,
}

impl MemoryRings {
    /// Two empty rings of `capacity` bytes each.
    ///
    /// # Panics
    /// As [`MemoryRing::new`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { received: MemoryRing::new(capacity), sent: MemoryRing::new(capacity) }
    }
}

impl Ring for MemoryRings {
    fn receive(&self) -> io::Result<Option<RingPacket>> {
        Ok(self.received.read().map(RingPacket::from))
    }

    fn send(&self, len: u16, build: impl FnOnce(&mut [u8])) -> Result<(), Refused> {
        if self.sent.write(len, build) { Ok(()) } else { Err(Refused::Full) }
    }
}
