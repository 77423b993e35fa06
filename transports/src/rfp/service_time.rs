//! How long the server had a request, in the two bytes of a message's note (RFP, figure 8: 16 bits).

/// Nanoseconds of a unit: the longest time that can be told is 8 ms.
const UNIT_NANOS: u64 = 128;

/// The note of a time; one too long for it is the longest.
pub(super) fn to_note(nanos: u64) -> u16 {
    u16::try_from(nanos / UNIT_NANOS).unwrap_or(u16::MAX)
}

/// The time of a note, in nanoseconds.
pub(super) fn from_note(note: u16) -> u64 {
    u64::from(note) * UNIT_NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_a_unit_and_long_ones_stay_long() {
        for nanos in [0, 127, 128, 5_000, 1_000_000] {
            assert_eq!(from_note(to_note(nanos)), nanos / 128 * 128);
        }
        assert!(from_note(to_note(u64::MAX)) > 8_000_000);
    }
}
