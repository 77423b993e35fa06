//! Payloads that say who wrote them, and that show each changed byte.

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

/// Who wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Stamp {
    pub(crate) round: u32,
    pub(crate) writer: u32,
    pub(crate) sequence: u64,
}

const STAMP_BYTES: usize = 16;
const MAX_FILLER_BYTES: usize = 900;

impl Stamp {
    /// The payload: the stamp, and bytes that follow from it.
    pub(crate) fn payload(self) -> Vec<u8> {
        let seed = u64::from(self.round) << 40 ^ u64::from(self.writer) << 56 ^ self.sequence;
        let mut random = SmallRng::seed_from_u64(seed);
        let mut payload = vec![0; STAMP_BYTES + random.random_range(0..=MAX_FILLER_BYTES)];
        random.fill_bytes(&mut payload);
        payload[..4].copy_from_slice(&self.round.to_le_bytes());
        payload[4..8].copy_from_slice(&self.writer.to_le_bytes());
        payload[8..STAMP_BYTES].copy_from_slice(&self.sequence.to_le_bytes());
        payload
    }

    /// Who wrote a payload, if it is whole.
    pub(crate) fn of(payload: &[u8]) -> Option<Self> {
        let stamp = Self {
            round: u32::from_le_bytes(*payload.first_chunk()?),
            writer: u32::from_le_bytes(*payload.get(4..)?.first_chunk()?),
            sequence: u64::from_le_bytes(*payload.get(8..)?.first_chunk()?),
        };
        (stamp.payload() == payload).then_some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_names_its_writer_and_shows_each_change() {
        let stamp = Stamp { round: 3, writer: 2, sequence: 77 };
        let payload = stamp.payload();
        assert_eq!(Stamp::of(&payload), Some(stamp));
        for byte in 0..payload.len() {
            let mut changed = payload.clone();
            changed[byte] ^= 0x10;
            assert_ne!(Stamp::of(&changed), Some(stamp));
        }
        assert_eq!(Stamp::of(&payload[..payload.len() - 1]), None);
    }
}
