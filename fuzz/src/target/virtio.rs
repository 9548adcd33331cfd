//! The header before each packet of a TUN device, read and written.
//!
//! Input: ten bytes of header, then the packet.

use windlass_dataplane::device::virtio::{HEADER_LEN, decode, encode};

use crate::Seed;

/// What is written for what was read says the same when it is read again.
///
/// # Panics
/// When it does not.
pub fn run(data: &[u8]) {
    let Some((header, packet)) = data.split_first_chunk::<HEADER_LEN>() else { return };
    let Some((segment_len, checksum)) = decode(header) else { return };
    if let Some(written) = encode(packet, segment_len, checksum) {
        assert_eq!(decode(&written), Some((segment_len, checksum)));
    }
}

/// Headers of a TUN device, with a packet that suits them.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, flags: u8, kind: u8, start: u16, offset: u16, version: u8| {
        let (headers_len, segment_len) = ((start + 20).to_ne_bytes(), 1_400_u16.to_ne_bytes());
        let mut packet = vec![0; 200];
        packet[0] = version << 4 | 5;
        packet[usize::from(start) + 12] = 5 << 4;
        let (start, offset) = (start.to_ne_bytes(), offset.to_ne_bytes());
        (name, [&[flags, kind][..], &headers_len, &segment_len, &start, &offset, &packet].concat())
    };
    vec![
        seed("plain", 0, 0, 20, 16, 4),
        seed("partial", 1, 0, 20, 16, 4),
        seed("tso-v4", 1, 1, 20, 16, 4),
        seed("tso-v4-ecn", 1, 0x81, 20, 16, 4),
        seed("tso-v6", 1, 4, 40, 16, 6),
        seed("uso", 1, 5, 20, 6, 4),
        seed("ufo", 1, 3, 20, 6, 4),
    ]
}
