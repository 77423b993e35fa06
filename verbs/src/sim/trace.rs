//! The trace of a run: a running hash of all events, and optional readable lines, which are kept (the last
//! ones) or written out (all).

use std::collections::VecDeque;
use std::fmt;
use std::io;

/// The trace of a run.
#[derive(Debug)]
pub(super) struct Trace {
    hash: u64,
    lines: VecDeque<String>,
    max_lines: usize,
    written: Option<Written>,
}

/// The writer of all lines.
struct Written {
    to: Box<dyn io::Write + Send>,
    /// The error after which nothing more is written.
    failed: Option<io::Error>,
}

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Written").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl Trace {
    pub(super) fn new(seed: u64) -> Trace {
        let mut trace = Trace {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: VecDeque::new(),
            max_lines: 0,
            written: None,
        };
        trace.mix(seed);
        trace
    }

    /// Adds a word to the hash, which depends on their order.
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
        self.lines.drain(..self.lines.len().saturating_sub(max));
    }

    /// Writes all lines from now on.
    pub(super) fn write_to(&mut self, to: Box<dyn io::Write + Send>) {
        self.written = Some(Written { to, failed: None });
    }

    /// Flushes the written lines.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.written {
            Some(Written { failed: Some(_), .. }) => {
                self.written.take().and_then(|written| written.failed).map_or(Ok(()), Err)
            }
            Some(written) => written.to.flush(),
            None => Ok(()),
        }
    }

    /// Whether readable lines are enabled.
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.max_lines > 0 || self.written.is_some()
    }

    #[cold]
    pub(super) fn line(&mut self, line: String) {
        if let Some(written) = self.written.as_mut().filter(|written| written.failed.is_none()) {
            written.failed = writeln!(written.to, "{line}").err();
        }
        if self.max_lines == 0 {
            return;
        }
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
    fn the_order_of_events_changes_the_hash() {
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
        trace.keep(1);
        assert_eq!(trace.lines(), ["4"]);
    }

    #[test]
    fn a_failure_to_write_lines_is_reported() {
        /// Accepts a few bytes.
        struct Full(usize);

        impl io::Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let room = self.0.min(bytes.len());
                self.0 -= room;
                Ok(room)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let mut trace = Trace::new(1);
        trace.write_to(Box::new(Full(8)));
        assert!(trace.is_read());
        trace.line("seven".to_owned());
        assert!(trace.flush().is_ok());
        (0..3).for_each(|_| trace.line("too long".to_owned()));
        assert_eq!(trace.flush().unwrap_err().kind(), io::ErrorKind::WriteZero);
    }
}
