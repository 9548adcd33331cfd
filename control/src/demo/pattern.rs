//! What the pods send: bytes that only the right place of the right stream has, so that a lost, doubled or
//! strayed byte is seen.

/// Writes the bytes of stream `seed` from `offset` on.
pub(super) fn fill(seed: u64, offset: u64, out: &mut [u8]) {
    let (mut at, mut rest) = (offset, out);
    while !rest.is_empty() {
        let block = mix(seed.wrapping_add((at / 8).wrapping_mul(GOLDEN_RATIO))).to_le_bytes();
        let skip = (at % 8) as usize;
        let len = rest.len().min(8 - skip);
        let (head, tail) = rest.split_at_mut(len);
        head.copy_from_slice(&block[skip..skip + len]);
        at += len as u64;
        rest = tail;
    }
}

/// Whether `bytes` are those of stream `seed` from `offset` on.
pub(super) fn matches(seed: u64, offset: u64, bytes: &[u8]) -> bool {
    let mut expected = [0; 1024];
    let mut at = offset;
    bytes.chunks(expected.len()).all(|chunk| {
        let expected = &mut expected[..chunk.len()];
        fill(seed, at, expected);
        at += chunk.len() as u64;
        expected == chunk
    })
}

const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_the_same_however_it_is_cut() {
        let mut whole = [0; 3000];
        fill(7, 0, &mut whole);
        for cut in [1, 7, 8, 13, 1024, 2999] {
            let mut tail = vec![0; whole.len() - cut];
            fill(7, cut as u64, &mut tail);
            assert_eq!(tail, whole[cut..]);
            assert!(matches(7, cut as u64, &tail));
        }
    }

    #[test]
    fn one_wrong_byte_or_place_is_seen() {
        let mut bytes = [0; 2000];
        fill(7, 0, &mut bytes);
        assert!(!matches(8, 0, &bytes) && !matches(7, 8, &bytes));
        bytes[1999] ^= 1;
        assert!(!matches(7, 0, &bytes));
    }
}
