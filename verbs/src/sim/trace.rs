//! What has happened: a running hash of everything, and readable lines on demand.

use std::collections::VecDeque;

/// The record of a run.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    max_lines: usize,
}

impl Trace {
    pub(super) fn new(seed: u64) -> Trace {
        let mut trace = Trace { hash: 0xcbf2_9ce4_8422_2325, lines: VecDeque::new(), max_lines: 0 };
        trace.mix(seed);
        trace
    }

    /// Takes a word into the hash; their order counts.
    #[inline]
    pub(super) fn mix(&mut self, word: u64) {
        let mixed = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Keeps the last `max` lines from now on.
    pub(super) fn keep(&mut self, max: usize) {
        self.max_lines = max;
        self.lines.truncate(max);
    }

    /// Whether anybody reads lines.
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.max_lines > 0
    }

    #[cold]
    pub(super) fn line(&mut self, line: String) {
        if self.lines.len() == self.max_lines {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_what_happens_changes_the_hash() {
        let hash = |words: [u64; 3]| {
            let mut trace = Trace::new(1);
            words.into_iter().for_each(|word| trace.mix(word));
            trace.hash()
        };
        assert_eq!(hash([1, 2, 3]), hash([1, 2, 3]));
        assert_ne!(hash([1, 2, 3]), hash([2, 1, 3]));
        assert_ne!(hash([0, 0, 1]), hash([0, 1, 0]));
    }

    #[test]
    fn the_last_lines_are_kept() {
        let mut trace = Trace::new(1);
        assert!(!trace.is_read());
        trace.keep(2);
        (0..5).for_each(|number| trace.line(number.to_string()));
        assert_eq!(trace.lines(), ["3", "4"]);
    }
}
