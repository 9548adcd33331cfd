//! Packets the engine makes itself: resets and ICMP errors, toward the overlay device.

use std::net::IpAddr;

use super::{Engine, Outbox};
use crate::packet::{PacketBuf, PacketPool};
use crate::time::Instant;
use crate::wire::answer::error::{Error, emit_error};
use crate::wire::answer::may_answer;
use crate::wire::answer::reset::emit_reset;
use crate::wire::inner::InnerPacket;
use crate::wire::protocol::L4;

/// What a sender is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Nobody serves this: TCP RST, else port unreachable, from the VIP itself.
    Refusal {
        /// The VIP.
        source: IpAddr,
    },
    /// Fragmentation needed (RFC 792, RFC 1191), or Packet Too Big (RFC 4443 section 3.2).
    TooBig {
        /// The source VIP: an address of this node's would be dropped by the kernel as martian.
        source: IpAddr,
        /// What would fit, in bytes.
        mtu: u32,
    },
}

impl Engine {
    /// Tells the sender of `packet`, unless no error may be sent about it (RFC 1122 section 3.2.2,
    /// RFC 4443 section 2.4) or too many have been sent.
    pub(super) fn respond(
        &mut self,
        pool: &mut PacketPool,
        packet: &PacketBuf,
        inner: &InnerPacket,
        answer: Answer,
        now: Instant,
        out: &mut Outbox,
    ) {
        let is_tcp = matches!(inner.l4, L4::Tcp { .. });
        let error = match answer {
            Answer::Refusal { .. } => Error::PortUnreachable,
            Answer::TooBig { .. } if !inner.dont_fragment => return,
            Answer::TooBig { mtu, .. } => Error::FragmentationNeeded { mtu },
        };
        if !may_answer(inner) {
            return;
        }
        if !self.limit.allow(now) {
            return self.counters.errors_suppressed.add(1);
        }
        let made = match answer {
            Answer::Refusal { .. } if is_tcp => reset(pool, packet),
            Answer::Refusal { source } | Answer::TooBig { source, .. } => {
                unreachable(pool, packet, error, source)
            }
        };
        if let Some(response) = made {
            self.counters.generated.add(1);
            out.packets.push(response);
        }
    }
}

fn reset(pool: &mut PacketPool, of: &PacketBuf) -> Option<PacketBuf> {
    let mut buffer = [0; MAX_RESET_LEN];
    let len = emit_reset(&mut buffer, pool.bytes(of))?;
    let response = pool.generate(len)?;
    pool.bytes_mut(&response).copy_from_slice(&buffer[..len]);
    Some(response)
}

/// The error that tells the sender of an IP packet that it was too long, in room of its own.
pub(super) fn too_big(pool: &mut PacketPool, of: &PacketBuf, source: IpAddr, mtu: u32) -> Option<PacketBuf> {
    unreachable(pool, of, Error::FragmentationNeeded { mtu }, source)
}

fn unreachable(pool: &mut PacketPool, of: &PacketBuf, error: Error, source: IpAddr) -> Option<PacketBuf> {
    let mut buffer = [0; MAX_ERROR_LEN];
    let len = emit_error(&mut buffer, error, source, pool.bytes(of));
    let response = pool.generate(len).filter(|_| len > 0)?;
    pool.bytes_mut(&response).copy_from_slice(&buffer[..len]);
    Some(response)
}

/// An IPv6 and a TCP header.
const MAX_RESET_LEN: usize = 60;

/// RFC 4443 section 2.4 (c): an error fits the minimum IPv6 MTU.
const MAX_ERROR_LEN: usize = 1_280;
