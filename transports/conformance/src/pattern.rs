//! Message contents made from a seed and the position, so that a torn, shifted, stale or foreign message is noticed.

/// The word of pattern `seed` at word position `index` (splitmix64's finalizer).
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes after which the pattern repeats: a prime, so that no two chunks of a message that begin at multiples of a
/// power of two are the same; and short, because the words are computed in tests that are not optimized.
const PERIOD_BYTES: usize = 65_521;

/// The first `len` bytes of the pattern, at most one period.
fn period(seed: u64, len: usize) -> Vec<u8> {
    let len = len.min(PERIOD_BYTES);
    let mut bytes = Vec::with_capacity(len + 8);
    let mut index = 0;
    while bytes.len() < len {
        bytes.extend_from_slice(&word(seed, index).to_le_bytes());
        index += 1;
    }
    bytes.truncate(len);
    bytes
}

/// Fills `bytes` with the pattern of `seed`.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    let period = period(seed, bytes.len());
    for chunk in bytes.chunks_mut(PERIOD_BYTES) {
        chunk.copy_from_slice(&period[..chunk.len()]);
    }
}

/// `len` bytes of the pattern of `seed`.
pub fn make(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(seed, &mut bytes);
    bytes
}

/// The offset of the first byte of `bytes` that is not the pattern of `seed`.
pub fn mismatch(seed: u64, bytes: &[u8]) -> Option<usize> {
    let period = period(seed, bytes.len());
    for (index, chunk) in bytes.chunks(PERIOD_BYTES).enumerate() {
        if chunk != &period[..chunk.len()] {
            let wrong = chunk.iter().zip(&period).position(|(found, right)| found != right);
            return wrong.map(|offset| index * PERIOD_BYTES + offset);
        }
    }
    None
}

/// Panics, naming the place, unless `bytes` is `len` bytes of the pattern of `seed`.
#[track_caller]
pub fn assert_is(seed: u64, len: usize, bytes: &[u8]) {
    assert_eq!(bytes.len(), len, "length of the message with pattern {seed}");
    if let Some(at) = mismatch(seed, bytes) {
        let shown = &bytes[at..bytes.len().min(at + 16)];
        panic!("message of {len} bytes with pattern {seed} differs at offset {at}: {shown:02x?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_itself_at_every_length() {
        for len in (0..40).chain([PERIOD_BYTES, PERIOD_BYTES + 1, 200_000]) {
            assert_eq!(mismatch(7, &make(7, len)), None);
        }
    }

    #[test]
    fn a_changed_byte_and_a_foreign_seed_are_seen() {
        let mut bytes = make(7, 37);
        bytes[33] ^= 1;
        assert_eq!(mismatch(7, &bytes), Some(33));
        assert_eq!(mismatch(8, &make(7, 37)), Some(0));
    }
}
