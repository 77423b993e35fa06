//! How many lines of a response a READ asks for (RFP, section 3.2: the fetch size F).

/// What a READ costs besides its lines, in lines: an operation of a ConnectX-3, 90 ns, against 64 bytes of its link, 11 ns.
const READ_COST: u32 = 8;

/// Responses after which the older ones count half.
const MEMORY: u32 = 64;

/// Most lines that a response may have in the ring.
pub(super) const MAX_LINES: usize = 16;

const _: () = assert!(MAX_LINES <= super::lines::MOST_LINES_PER_READ as usize);

/// Chooses the fetch size that would have cost least for the responses seen: a longer one costs bytes with each response, a
/// shorter one a second READ with those that are longer.
#[derive(Debug)]
pub(super) struct FetchSize {
    most: u32,
    lines: u32,
    /// Responses seen, by their lines less one.
    seen: [u32; MAX_LINES],
    count: u32,
}

impl FetchSize {
    /// For responses of at most `most` lines.
    pub(super) fn new(most: u32) -> FetchSize {
        FetchSize {
            most: most.clamp(1, MAX_LINES as u32),
            lines: 1,
            seen: [0; MAX_LINES],
            count: 0,
        }
    }

    /// Lines to ask for, per response.
    #[inline]
    pub(super) fn lines(&self) -> u32 {
        self.lines
    }

    /// A response had so many lines.
    #[inline]
    pub(super) fn note(&mut self, lines: u32) {
        self.seen[lines as usize - 1] += 1;
        self.count += 1;
        if self.count >= MEMORY {
            self.choose();
        }
    }

    #[cold]
    fn choose(&mut self) {
        let all: u32 = self.seen.iter().sum();
        let mut covered = 0;
        let costs = (1..=self.most).map(|lines| {
            covered += self.seen[lines as usize - 1];
            (lines * all + (all - covered) * READ_COST, lines)
        });
        self.lines = costs.min().map_or(1, |(_, lines)| lines);
        self.seen.iter_mut().for_each(|count| *count /= 2);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(responses: &[u32]) -> u32 {
        let mut size = FetchSize::new(4);
        for lines in responses.iter().cycle().take(1000) {
            size.note(*lines);
        }
        size.lines()
    }

    #[test]
    fn the_size_fits_what_is_common() {
        assert_eq!(after(&[1]), 1);
        assert_eq!(after(&[3]), 3);
        assert_eq!(
            after(&[1, 3]),
            3,
            "a second READ of every other response costs more than two lines"
        );
        assert_eq!(after(&[1, 1, 1, 1, 1, 1, 1, 1, 1, 4]), 1, "a rare long one does not");
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut size = FetchSize::new(4);
        (0..10_000).for_each(|_| size.note(4));
        (0..1000).for_each(|_| size.note(1));
        assert_eq!(size.lines(), 1);
    }
}
