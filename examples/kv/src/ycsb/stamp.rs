//! The stamp of a written value, which identifies its write so that every answer can be checked.

use std::hash::{BuildHasher, Hasher};

use foldhash::quality::FixedState;
use thiserror::Error;

/// Bytes of a stamp, after the payload: run, record, writer, version, checksum.
pub const STAMP_BYTES: usize = 8 + 8 + 4 + 4 + 8;

/// Identifies the write of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Distinguishes the values of this run from those of others.
    pub run: u64,
    /// The record that the value was written for.
    pub record: u64,
    /// The writer.
    pub writer: u32,
    /// The writer's count of its writes to this record, from 1.
    pub version: u32,
}

/// Why a value has no valid stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unsealed {
    /// Too short to carry a stamp.
    #[error("{len} bytes cannot carry a stamp")]
    TooShort {
        /// The value's length.
        len: usize,
    },
    /// The bytes differ from those that were sealed.
    #[error("the checksum of its {len} bytes does not match")]
    BadChecksum {
        /// The value's length.
        len: usize,
    },
}

/// Appends a stamp to the payload in `value`, and a checksum over both.
pub fn seal(value: &mut Vec<u8>, stamp: Stamp) {
    value.extend_from_slice(&stamp.run.to_le_bytes());
    value.extend_from_slice(&stamp.record.to_le_bytes());
    value.extend_from_slice(&stamp.writer.to_le_bytes());
    value.extend_from_slice(&stamp.version.to_le_bytes());
    let sum = checksum(value);
    value.extend_from_slice(&sum.to_le_bytes());
}

/// Returns the payload and stamp of a sealed value.
///
/// # Errors
/// If the value was not sealed, or any byte has changed.
pub fn open(value: &[u8]) -> Result<(&[u8], Stamp), Unsealed> {
    let len = value.len();
    let (sealed, sum) = value.split_last_chunk().ok_or(Unsealed::TooShort { len })?;
    let (rest, version) = sealed.split_last_chunk().ok_or(Unsealed::TooShort { len })?;
    let (rest, writer) = rest.split_last_chunk().ok_or(Unsealed::TooShort { len })?;
    let (rest, record) = rest.split_last_chunk().ok_or(Unsealed::TooShort { len })?;
    let (payload, run) = rest.split_last_chunk().ok_or(Unsealed::TooShort { len })?;
    if checksum(sealed) != u64::from_le_bytes(*sum) {
        return Err(Unsealed::BadChecksum { len });
    }
    let stamp = Stamp {
        run: u64::from_le_bytes(*run),
        record: u64::from_le_bytes(*record),
        writer: u32::from_le_bytes(*writer),
        version: u32::from_le_bytes(*version),
    };
    Ok((payload, stamp))
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(0x6661_7263_616c_6c21).build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn one_changed_bit_is_detected(
            payload in prop::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
            bit in 0..8u8,
        ) {
            let stamp = Stamp { run: 1, record: 2, writer: 3, version: 4 };
            let mut value = payload.clone();
            seal(&mut value, stamp);
            prop_assert_eq!(value.len(), payload.len() + STAMP_BYTES);
            prop_assert_eq!(open(&value), Ok((&payload[..], stamp)));

            let at = at.index(value.len());
            value[at] ^= 1 << bit;
            prop_assert!(open(&value).is_err());
        }

        #[test]
        fn a_truncated_value_is_detected(cut in 1usize..STAMP_BYTES + 10) {
            let mut value = b"0123456789".to_vec();
            seal(&mut value, Stamp { run: 1, record: 2, writer: 3, version: 4 });
            value.truncate(value.len() - cut);
            prop_assert!(open(&value).is_err());
        }
    }
}
