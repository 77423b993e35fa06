//! The NIC's cache of queue-pair contexts and work requests: lines of 64 bytes, any of which may be replaced.

/// A possible location of a line in the cache. It is valid if the line's name is still stored there.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Line(u32);

impl Default for Line {
    fn default() -> Self {
        Line(u32::MAX)
    }
}

/// The cache content: names of lines.
#[derive(Debug, Default)]
pub(super) struct Cache {
    lines: Vec<u64>,
    random: u64,
}

impl Cache {
    pub(super) fn new(seed: u64) -> Cache {
        Cache { lines: Vec::new(), random: seed }
    }

    /// Whether a line is in the cache.
    #[inline]
    pub(super) fn has(&self, line: Line, name: u64) -> bool {
        self.lines.get(line.0 as usize) == Some(&name)
    }

    /// Looks a line up and inserts it if it is missing. Returns whether it was there.
    #[inline]
    pub(super) fn touch(&mut self, line: &mut Line, name: u64, capacity: u32) -> bool {
        if self.has(*line, name) {
            return true;
        }
        self.insert(line, name, capacity);
        false
    }

    /// Inserts a line, in a free location or else instead of a random line. Random replacement makes the decline
    /// behind the knee as gradual as measured (ScaleRPC, Fig. 3a; FaSST, Fig. 2).
    #[inline]
    pub(super) fn insert(&mut self, line: &mut Line, name: u64, capacity: u32) {
        if self.lines.len() < capacity as usize {
            line.0 = self.lines.len() as u32;
            return self.lines.push(name);
        }
        line.0 = self.below(capacity);
        if let Some(place) = self.lines.get_mut(line.0 as usize) {
            *place = name;
        }
    }

    /// A number below `bound` from a separate generator (SplitMix64), so that it does not affect other random
    /// choices.
    #[inline]
    fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((word >> 32) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hit rate of `count` lines that are used cyclically.
    fn hits(count: usize, capacity: u32) -> f64 {
        let (mut cache, mut lines) = (Cache::default(), vec![Line::default(); count]);
        let mut turn =
            || (0..count).filter(|n| cache.touch(&mut lines[*n], *n as u64, capacity)).count();
        for _ in 0..50 {
            turn();
        }
        (0..100).map(|_| turn()).sum::<usize>() as f64 / (100 * count) as f64
    }

    #[test]
    fn what_fits_is_never_missed() {
        assert_eq!(hits(100, 100), 1.0);
    }

    /// Used cyclically and replaced at random, a line survives with h = exp(-(count / capacity)(1 - h)).
    #[test]
    fn what_does_not_fit_is_missed_as_often_as_chance_says() {
        for (count, wanted) in [(150, 0.417), (200, 0.203), (400, 0.020)] {
            let hits = hits(count, 100);
            assert!((hits - wanted).abs() < 0.03, "{count}: {hits}");
        }
    }
}
