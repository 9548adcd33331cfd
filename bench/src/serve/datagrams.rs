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

use super::ECHO;

const BATCH: usize = 64;
const BUFFER_LEN: usize = 2048;
const SOCKET_BUFFER: usize = 8 << 20;

/// How many datagrams came.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Reads when nothing has come for 50 ms.
    pub(super) fn read_at_rest(&self) -> u64 {
        let mut last = self.read();
        loop {
            thread::sleep(Duration::from_millis(50));
            let count = self.read();
            if count == last {
                return count;
            }
            last = count;
        }
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
            Ok(counted) => counter.0.fetch_add(counted, Ordering::Relaxed),
            Err(Errno::EINTR | Errno::ECONNREFUSED) => 0,
            Err(error) => return Err(error).context("recvmmsg"),
        };
    }
}

/// One call: answers what wants an answer, and gives how many were to be counted.
fn receive(
    socket: &UdpSocket,
    headers: &mut MultiHeaders<SockaddrStorage>,
    buffers: &mut [[u8; BUFFER_LEN]],
) -> nix::Result<u64> {
    let fd = socket.as_raw_fd();
    let mut slices: Vec<[IoSliceMut<'_>; 1]> =
        buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let mut counted = 0;
    for message in recvmmsg(fd, headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None)? {
        let bytes = message.iovs().next().unwrap_or_default();
        match message.address {
            Some(from) if bytes.first() == Some(&ECHO) => {
                // A lost answer is what the client is there to see.
                let _ = sendto(fd, bytes, &from, MsgFlags::empty());
            }
            _ => counted += 1,
        }
    }
    Ok(counted)
}
