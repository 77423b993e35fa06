//! Numbers that look random, the same for the same seed.

/// A sequence of numbers made from a seed (xorshift).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of that seed.
    pub fn new(seed: u64) -> Dice {
        // Small seeds have few bits set: spread them. The state must not be zero.
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.roll() >> 11) % bound
    }
}
