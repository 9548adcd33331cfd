//! Datagrams: counted or sent back, by one thread that receives many with one call.

use std::io::IoSliceMut;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendto, setsockopt, sockopt};

use crate::protocol::ECHO;

const BATCH: usize = 64;
const BUFFER_LEN: usize = 2048;
const SOCKET_BUFFER: usize = 8 << 20;

/// Datagrams that came.
#[derive(Debug, Default)]
pub(super) struct Counter {
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// Datagrams and their payload bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Counter {
    pub(super) fn read(&self) -> Count {
        Count { packets: self.packets.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }

    /// Reads when nothing has come for 50 ms.
    pub(super) fn read_at_rest(&self) -> Count {
        let mut last = self.read();
        loop {
            thread::sleep(Duration::from_millis(50));
            let count = self.read();
            if count.packets == last.packets {
                return count;
            }
            last = count;
        }
    }

    fn add(&self, count: Count) {
        self.packets.fetch_add(count.packets, Ordering::Relaxed);
        self.bytes.fetch_add(count.bytes, Ordering::Relaxed);
    }
}

/// Counts and echoes for ever.
pub(super) fn serve(socket: &UdpSocket, counter: &Counter) -> Result<()> {
    // Without the right to force it, the buffer stays as small as the system's limit.
    let _ = setsockopt(socket, sockopt::RcvBufForce, &SOCKET_BUFFER);
    let mut buffers = vec![[0_u8; BUFFER_LEN]; BATCH];
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    loop {
        match receive(socket, &mut headers, &mut buffers) {
            Ok(counted) => counter.add(counted),
            Err(Errno::EINTR | Errno::ECONNREFUSED) => {}
            Err(error) => return Err(error).context("recvmmsg"),
        }
    }
}

/// One call: answers what wants an answer, and gives how many were to be counted.
fn receive(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrStorage>,
    buffers: &mut [[u8; BUFFER_LEN]],
) -> nix::Result<Count> {
    let fd = socket.as_raw_fd();
    let mut slices: Vec<[IoSliceMut<'_>; 1]> =
        buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let mut counted = Count::default();
    for message in recvmmsg(fd, headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None)? {
        let bytes = message.iovs().next().unwrap_or_default();
        match message.address {
            Some(from) if bytes.first() == Some(&ECHO) => {
                // A lost answer is what the client is there to see.
                let _ = sendto(fd, bytes, &from, MsgFlags::empty());
            }
            _ => {
                counted.packets += 1;
                counted.bytes += u64::try_from(message.bytes).unwrap_or_default();
            }
        }
    }
    Ok(counted)
}
