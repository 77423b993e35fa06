//! The NIC's cache of queue-pair contexts, in sets of lines of 64 bytes, and its buffer of work requests.

/// A possible location of a line in the cache. It is valid if the line's name is still stored there.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct Line(u32);

impl Default for Line {
    fn default() -> Self {
        Line(u32::MAX)
    }
}

/// The cache content: names of lines, by set.
#[derive(Debug, Default)]
pub(super) struct Cache {
    lines: Vec<u64>,
    random: u64,
}

/// The lines of a set. A line belongs to one set, by a hash of its name, and replaces a random line of that set.
/// Some sets are full before others, so misses begin before the whole cache is full (FaSST, Fig. 2; HERD, Fig. 6).
const WAYS: u32 = 8;

/// The name of no line.
const FREE: u64 = u64::MAX;

impl Cache {
    pub(super) fn new(seed: u64) -> Cache {
        Cache { lines: Vec::new(), random: seed }
    }

    /// Looks a line up and inserts it if it is missing. Returns whether it was there.
    #[inline]
    pub(super) fn touch(&mut self, line: &mut Line, name: u64, capacity: u32) -> bool {
        if self.lines.get(line.0 as usize) == Some(&name) {
            return true;
        }
        self.insert(line, name, capacity);
        false
    }

    /// Inserts a line, in a free location of its set or else instead of a random line. Random replacement makes the
    /// decline behind the knee as gradual as measured (ScaleRPC, Fig. 3a; FaSST, Fig. 2).
    #[inline]
    fn insert(&mut self, line: &mut Line, name: u64, capacity: u32) {
        let sets = (capacity / WAYS).max(1);
        if self.lines.is_empty() {
            self.lines.resize((sets * WAYS) as usize, FREE);
        }
        let set = scale(mix(name), sets) * WAYS;
        let ways = &self.lines[set as usize..(set + WAYS) as usize];
        let way = match ways.iter().position(|line| *line == FREE) {
            Some(free) => free as u32,
            None => self.below(WAYS),
        };
        line.0 = set + way;
        self.lines[line.0 as usize] = name;
    }

    /// A number below `bound` from a separate generator (SplitMix64), so that it does not affect other random
    /// choices.
    #[inline]
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scale(mix(self.random), bound)
    }
}

/// The final step of SplitMix64.
#[inline]
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// A number below `bound` from the high bits of a word.
#[inline]
fn scale(word: u64, bound: u32) -> u32 {
    (((word >> 32) * u64::from(bound)) >> 32) as u32
}

/// When a work request arrived in the NIC's [`Requests`].
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim) struct Arrival(u64);

/// The NIC's buffer of READs and atomics: it keeps the last ones that arrived.
#[derive(Debug, Default)]
pub(super) struct Requests {
    arrived: u64,
}

impl Requests {
    /// Inserts a work request.
    #[inline]
    pub(super) fn insert(&mut self, arrival: &mut Arrival) {
        self.arrived += 1;
        arrival.0 = self.arrived;
    }

    /// Whether a work request is in the buffer. It stays until as many others have arrived as the capacity says, on average:
    /// from half to three halves of that, at random. With a sharp limit, a few requests more would make all of them miss.
    #[inline]
    pub(super) fn has(&self, arrival: Arrival, capacity: u32) -> bool {
        let word = mix(arrival.0.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Four random numbers, so that most requests stay for about the mean.
        let random = (0..64).step_by(16).map(|shift| word >> shift & 0xffff).sum::<u64>();
        let stays = (u64::from(capacity) * ((1 << 17) + random)) >> 18;
        arrival.0 > 0 && self.arrived - arrival.0 < stays
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
    fn what_fits_easily_is_never_missed_and_what_just_fits_seldom() {
        assert_eq!(hits(100, 400), 1.0);
        let hits = hits(400, 400);
        assert!((0.7..0.95).contains(&hits), "{hits}");
    }

    /// Used cyclically and replaced at random, a line survives with h = exp(-(count / capacity)(1 - h)).
    #[test]
    fn what_does_not_fit_is_missed_about_as_often_as_chance_says() {
        for (count, wanted) in [(600, 0.417), (800, 0.203), (1600, 0.020)] {
            let hits = hits(count, 400);
            assert!((hits - wanted).abs() < 0.06, "{count}: {hits}");
        }
    }

    #[test]
    fn the_last_requests_are_kept_and_no_sharp_limit_separates_them_from_others() {
        let (mut requests, capacity) = (Requests::default(), 1_000);
        let mut arrivals = [Arrival::default(); 3_000];
        assert!(!requests.has(arrivals[0], capacity), "it never arrived");
        arrivals.iter_mut().for_each(|arrival| requests.insert(arrival));
        // By the number of requests that have arrived since.
        let kept = |ages: std::ops::Range<usize>| {
            let kept = arrivals.iter().rev().skip(ages.start).take(ages.len());
            kept.filter(|arrival| requests.has(**arrival, capacity)).count() as f64
                / ages.len() as f64
        };
        assert_eq!((kept(0..500), kept(1_500..3_000)), (1.0, 0.0));
        let falling = [500..750, 750..1_000, 1_000..1_250, 1_250..1_500].map(kept);
        assert!(falling.is_sorted_by(|more, fewer| more > fewer), "{falling:?}");
        assert!((0.4..0.6).contains(&kept(500..1_500)), "{falling:?}");
    }
}
