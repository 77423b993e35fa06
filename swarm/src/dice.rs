//! The swarm's random numbers: faults of a rack, and calls of its clients.

/// A generator with a seed (SplitMix64: Steele, Lea, Flood, OOPSLA 2014), with the same numbers in every version.
/// The rack has its own generator.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The numbers of a seed for one of several purposes.
    pub(crate) fn new(seed: u64, purpose: u64) -> Dice {
        let mut dice = Dice(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.word();
        dice
    }

    /// A random 64-bit number.
    pub(crate) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least) + 1)
    }

    /// True with probability one in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A number from `least` to `most` with a uniformly distributed logarithm: as often between 1 and 10 as between
    /// 10 and 100.
    pub(crate) fn magnitude(&mut self, least: u64, most: u64) -> u64 {
        let mut top = most;
        while top / 2 >= least.max(1) && self.once_in(2) {
            top /= 2;
        }
        self.between(least, top)
    }

    /// A random element.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_gives_the_same_numbers_and_purposes_differ() {
        let mut dice = Dice::new(1, 0);
        let words: Vec<_> = (0..3).map(|_| dice.word()).collect();
        let mut again = Dice::new(1, 0);
        assert!(words.iter().all(|word| *word == again.word()));
        assert_ne!(Dice::new(1, 1).word(), words[0]);
        assert!((0..1000).all(|_| dice.magnitude(10, 1000) >= 10));
        assert!((0..1000).filter(|_| dice.magnitude(10, 1000) < 100).count() > 200);
        assert!((0..1000).all(|_| (3..=5).contains(&dice.between(3, 5))));
    }
}
