//! Applies a decision to the connection table. The only place where a packet changes shared state.

use super::decide::{Decision, Tracked};
use super::verdict::DropReason;
use crate::lb::conntrack::{Conntrack, InsertError, Unscheduled};
use crate::time::Instant;
use crate::wire::inner::InnerPacket;
use crate::wire::protocol::L4;

/// Why a decision could not be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCommitted {
    /// Another worker changed the table in between: decide again.
    DecideAgain,
    /// The packet is dropped.
    Drop(DropReason),
}

/// Applies `decision`, made for `packet` at `now`, on behalf of worker `worker`. A new connection's timer is left to be set
/// when the batch ends.
///
/// # Errors
/// See [`NotCommitted`]. Nothing has been changed then, but for a connection that was over.
pub fn commit(
    connections: &Conntrack,
    decision: &Decision<'_>,
    packet: &InnerPacket,
    now: Instant,
    worker: usize,
    unscheduled: &mut Unscheduled,
) -> Result<(), NotCommitted> {
    if let Some(old) = &decision.replaces {
        connections.remove(old);
    }
    let flags = if let L4::Tcp { flags } = packet.l4 { flags } else { 0 };
    match &decision.tracked {
        Tracked::No => {}
        Tracked::Known(connection, direction) => {
            connections.advance(connection, *direction, flags, now, worker);
            if !connection.is_live() {
                return Err(NotCommitted::DecideAgain);
            }
        }
        Tracked::New(connection, affinity) => {
            connection.open(flags);
            connections.insert_of_batch(connection, worker, unscheduled).map_err(|error| match error {
                InsertError::Exists | InsertError::ReplyTaken => NotCommitted::DecideAgain,
                InsertError::Full => NotCommitted::Drop(DropReason::ConnectionTableFull),
            })?;
            if let Some((stays_at, lasts)) = affinity {
                let client = connection.original.src;
                connections.remember_affinity(client, *stays_at, connection.backend(), *lasts, now, worker);
            }
        }
    }
    Ok(())
}
