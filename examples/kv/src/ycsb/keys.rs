//! The choice of the record of the next request.

use rand::Rng;
use rand_distr::{Distribution, Zipf};

/// The skew of the original.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;

/// The original draws popularity ranks from a set much larger than the records and hashes them to
/// records, so that the hottest record gets 1 / zeta = 3.8% of requests, whatever the number of
/// records. This is the size of the set for its constant, `ZETAN = 26.469`.
const SCRAMBLED_ITEMS: f64 = 1e10;

/// The original's hash of 64-bit numbers: FNV-1a over the eight bytes, least significant first, without
/// its sign, as by Java's `Math.abs`.
#[must_use]
pub fn fnv_hash64(number: u64) -> u64 {
    const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    let hash = number
        .to_le_bytes()
        .iter()
        .fold(OFFSET_BASIS, |hash, &octet| (hash ^ u64::from(octet)).wrapping_mul(PRIME));
    (hash as i64).unsigned_abs()
}

fn zipf(items: f64) -> Zipf<f64> {
    Zipf::new(items.max(1.0), ZIPFIAN_CONSTANT).expect("at least one item, a positive constant")
}

/// A Zipfian distribution whose popular records are scattered.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    ranks: Zipf<f64>,
    records: u64,
}

impl ScrambledZipfian {
    /// A distribution over the records `0..records`, which must not be empty.
    #[must_use]
    pub fn new(records: u64) -> Self {
        assert!(records > 0, "no record to choose");
        Self { ranks: zipf(SCRAMBLED_ITEMS), records }
    }

    /// The next record.
    pub fn next(&self, rng: &mut impl Rng) -> u64 {
        let rank = self.ranks.sample(rng) as u64 - 1;
        fnv_hash64(rank) % self.records
    }
}

/// The distance of the next request from the last of `records`, usually small.
pub fn latest_distance(records: u64, rng: &mut impl Rng) -> u64 {
    assert!(records > 0, "no record to choose");
    let rank = zipf(records as f64).sample(rng) as u64;
    rank.clamp(1, records) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    #[test]
    fn the_hash_is_fnv1a_without_sign() {
        // FNV-1a of eight zero bytes, as published. Its sign bit is set, so its negation is used.
        assert_eq!(fnv_hash64(0), 0xa8c7_f832_281a_39c5_u64.wrapping_neg());
    }

    #[test]
    fn the_hottest_record_has_the_expected_share() {
        let mut rng = SmallRng::seed_from_u64(7);
        let chooser = ScrambledZipfian::new(100_000);
        let draws = 200_000;
        let hottest = fnv_hash64(0) % 100_000;
        let hits = (0..draws).filter(|_| chooser.next(&mut rng) == hottest).count();
        let share = hits as f64 / f64::from(draws);
        assert!((0.035..0.041).contains(&share), "1 / 26.469 = 3.8%, found {share}");
    }

    #[test]
    fn popularity_decreases_with_the_expected_exponent() {
        let mut rng = SmallRng::seed_from_u64(8);
        let mut hits = [0u32; 100];
        for _ in 0..400_000 {
            hits[latest_distance(100, &mut rng) as usize] += 1;
        }
        let ratio = f64::from(hits[0]) / f64::from(hits[9]);
        let expected = 10f64.powf(ZIPFIAN_CONSTANT);
        assert!((ratio / expected - 1.0).abs() < 0.1, "{ratio} against {expected}");
    }

    #[test]
    fn only_existing_records_are_chosen() {
        let mut rng = SmallRng::seed_from_u64(9);
        for records in [1, 2, 3, 1000] {
            let chooser = ScrambledZipfian::new(records);
            for _ in 0..1000 {
                assert!(chooser.next(&mut rng) < records);
                assert!(latest_distance(records, &mut rng) < records);
            }
        }
    }
}
