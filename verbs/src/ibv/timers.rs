//! The encoded times of RC queue pairs.

/// Waiting times of the receiver-not-ready timer by code, in hundredths of a millisecond (InfiniBand
/// specification volume 1, table 46). Code 0 is the longest.
const RNR_CENTIMILLIS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How often an unacknowledged message is sent again. The field holds up to 7, but Soft-RoCE treats 7 as
/// "forever" (`rxe_completer`, COMPST_ERROR_RETRY), which the specification only does for receivers that
/// are not ready.
pub(super) const RETRIES: u8 = 6;

/// The code of the shortest waiting time of at least `nanoseconds`, or of the longest available.
pub(super) fn rnr_code(nanoseconds: u64) -> u8 {
    let wanted = nanoseconds.div_ceil(10_000);
    let codes = (1..32).chain([0_u8]);
    codes
        .into_iter()
        .find(|code| u64::from(RNR_CENTIMILLIS[usize::from(*code)]) >= wanted)
        .unwrap_or(0)
}

/// The code of the acknowledge timeout (4.096 us times two to the code) with which a silent peer is
/// declared dead after about `nanoseconds`: after the first attempt and all [`RETRIES`].
pub(super) fn timeout_code(nanoseconds: u64) -> u8 {
    let each = nanoseconds / (u64::from(RETRIES) + 1);
    // 0 would mean forever, and below 1 ms the timers of NICs are inaccurate.
    (1..31).rev().find(|code| 4_096_u64 << code <= each).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_gets_at_least_the_requested_time() {
        assert_eq!(rnr_code(0), 1);
        assert_eq!(rnr_code(10_000), 1);
        assert_eq!(rnr_code(10_001), 2);
        assert_eq!(rnr_code(100_000), 7);
        assert_eq!(rnr_code(400_000_000), 31);
        assert_eq!(rnr_code(500_000_000), 0);
        assert_eq!(rnr_code(u64::MAX), 0);
    }

    #[test]
    fn all_attempts_together_take_about_the_requested_time() {
        for asked in [300_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000_u64] {
            let all = (4_096_u64 << timeout_code(asked)) * (u64::from(RETRIES) + 1);
            assert!(all <= asked && 2 * all > asked, "{all} for {asked}");
        }
        assert_eq!(timeout_code(0), 1);
        assert_eq!(timeout_code(u64::MAX), 30);
    }
}
