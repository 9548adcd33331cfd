//! Writes one superpacket from the packets of a batch that belong together, without copying their payload.

use std::fs::File;
use std::io::{self, IoSlice, Write};

use super::patience::Patience;
use super::virtio;
use crate::offload::coalesce::{Coalescer, Group, MAX_HEADERS_LEN, MAX_SEGMENTS};
use crate::packet::{PacketBuf, PacketPool};

/// Pieces of one write: the device's header, the packet's headers, and each segment's payload.
const PIECES: usize = MAX_SEGMENTS + 2;

/// Writes the packets of `group` as one. `None` when they cannot be said as one.
///
/// # Errors
/// The system's: nothing has been written then.
pub(super) fn write(
    mut file: &File,
    patience: &mut Patience,
    pool: &PacketPool,
    packets: &[PacketBuf],
    coalescer: &Coalescer,
    group: &Group,
) -> Option<io::Result<usize>> {
    let mut headers = [0; MAX_HEADERS_LEN];
    let headers_len = group.headers_len();
    let first = pool.bytes(&packets[coalescer.members(group).next()?]);
    let checksum = group.write_headers(first, &mut headers)?;
    let headers = headers.get(..headers_len)?;
    let virtio = virtio::encode(headers, group.segment_len(), checksum)?;
    let mut pieces = [IoSlice::new(&[]); PIECES];
    pieces[0] = IoSlice::new(&virtio);
    pieces[1] = IoSlice::new(headers);
    for (piece, member) in pieces[2..].iter_mut().zip(coalescer.members(group)) {
        *piece = IoSlice::new(&pool.bytes(&packets[member])[headers_len..]);
    }
    let pieces = pieces.get(..group.len() + 2)?;
    let written = patience.retry(file, || file.write_vectored(pieces));
    Some(written.map(|len| len - virtio::HEADER_LEN))
}
