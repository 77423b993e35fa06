//! The NIC's cache of queue-pair contexts and work requests: lines of 64 bytes, any of which may be replaced.

/// Where a line may lie in the cache. It does, if its name is still written there.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Line(u32);

impl Default for Line {
    fn default() -> Self {
        Line(u32::MAX)
    }
}

/// What is in the cache: names of lines.
#[derive(Debug, Default)]
pub(super) struct Cache {
    lines: Vec<u64>,
    random: u64,
}

impl Cache {
    pub(super) fn new(seed: u64) -> Cache {
        Cache { lines: Vec::new(), random: seed }
    }

    /// Whether a line is there.
    #[inline]
    pub(super) fn has(&self, line: Line, name: u64) -> bool {
        self.lines.get(line.0 as usize) == Some(&name)
    }

    /// Looks for a line, and puts it in if it is not there: whether it was.
    #[inline]
    pub(super) fn touch(&mut self, line: &mut Line, name: u64, capacity: u32) -> bool {
        if self.has(*line, name) {
            return true;
        }
        self.insert(line, name, capacity);
        false
    }

    /// Puts a line in: where there is room, or else in the place of any other one. Random replacement is what makes the fall
    /// behind the knee as soft as it was measured (ScaleRPC, Fig. 3a; FaSST, Fig. 2).
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

    /// A number below `bound`, from a generator of its own (SplitMix64), so that how a run goes depends on no other chance.
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

    /// The share of hits of `count` lines that are used in turn.
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

    /// Used in turn and replaced at random, a line survives with h = exp(-(count / capacity)(1 - h)).
    #[test]
    fn what_does_not_fit_is_missed_as_often_as_chance_says() {
        for (count, wanted) in [(150, 0.417), (200, 0.203), (400, 0.020)] {
            let hits = hits(count, 100);
            assert!((hits - wanted).abs() < 0.03, "{count}: {hits}");
        }
    }
}
