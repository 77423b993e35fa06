//! The file of bounds: tab-separated, one case per line.

use std::fmt;

use anyhow::{Context, Result, bail};

/// The comment that ends with the compiler's version.
const COMPILER: &str = "# Compiled by ";

const COLUMNS: &str = "client\tbackend\twindow\tinstructions";

/// Counts may be so many percent above or below their bound.
const TOLERANCE_PERCENT: u64 = 1;

/// What is counted: calls of this client over this backend, so many outstanding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) client: String,
    pub(super) backend: String,
    pub(super) window: u16,
}

/// Instructions of one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) case: Case,
    pub(super) instructions: u64,
}

/// What was recorded, with the compiler that built it: another one makes other instructions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    pub(super) rustc: String,
    pub(super) counts: Vec<Count>,
}

/// How a count compares to its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Within,
    Above,
    /// The bound is no longer one.
    Below,
}

impl Case {
    /// Reads the client's name, the backend's, and the window, with white space between them.
    pub(super) fn parse(text: &str) -> Option<Case> {
        let mut words = text.split_whitespace();
        let (client, backend, window) = (words.next()?, words.next()?, words.next()?);
        let (client, backend) = (client.to_owned(), backend.to_owned());
        words.next().is_none().then_some(Case { client, backend, window: window.parse().ok()? })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {} with window {}", self.client, self.backend, self.window)
    }
}

impl Verdict {
    pub(super) fn of(instructions: u64, bound: u64) -> Verdict {
        if instructions * 100 > bound * (100 + TOLERANCE_PERCENT) {
            Verdict::Above
        } else if instructions * 100 < bound * (100 - TOLERANCE_PERCENT) {
            Verdict::Below
        } else {
            Verdict::Within
        }
    }
}

impl Bounds {
    pub(super) fn of(&self, case: &Case) -> Option<u64> {
        self.counts.iter().find(|count| count.case == *case).map(|count| count.instructions)
    }

    pub(super) fn to_tsv(&self) -> String {
        let mut text = format!(
            "# Instructions of an echo of 32 bytes over shm://, both ends together; a check fails at {TOLERANCE_PERCENT} % more.\n\
             # Written by `cargo xtask instructions --record`.\n\
             {COMPILER}{}\n\
             {COLUMNS}\n",
            self.rustc
        );
        for Count { case: Case { client, backend, window }, instructions } in &self.counts {
            text.push_str(&format!("{client}\t{backend}\t{window}\t{instructions}\n"));
        }
        text
    }

    pub(super) fn from_tsv(text: &str) -> Result<Bounds> {
        let mut lines = text.lines();
        let comments = lines.by_ref().take_while(|line| *line != COLUMNS);
        let Some(rustc) = comments.filter_map(|line| line.strip_prefix(COMPILER)).last() else {
            bail!("no line starts with `{COMPILER}`");
        };
        let counts = lines.map(|line| {
            let (case, instructions) = line.rsplit_once('\t')?;
            Some(Count { case: Case::parse(case)?, instructions: instructions.parse().ok()? })
        });
        let counts: Option<Vec<Count>> = counts.collect();
        Ok(Bounds { rustc: rustc.to_owned(), counts: counts.context("a line is no bound")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(client: &str, backend: &str, window: u16) -> Case {
        Case { client: client.to_owned(), backend: backend.to_owned(), window }
    }

    #[test]
    fn bounds_are_read_as_they_were_written() {
        let counts = vec![
            Count { case: case("poll", "write_imm", 1), instructions: 3000 },
            Count { case: case("await", "datagram", 32), instructions: 2000 },
        ];
        let bounds = Bounds { rustc: "rustc 1.95.0 (59807616e 2026-04-14)".into(), counts };
        let read = Bounds::from_tsv(&bounds.to_tsv()).expect("it was just written");
        assert_eq!(read, bounds);
        assert_eq!(read.of(&case("await", "datagram", 32)), Some(2000));
        assert_eq!(read.of(&case("poll", "datagram", 32)), None);
    }

    #[test]
    fn a_file_that_is_no_table_of_bounds_is_refused() {
        let head = format!("{COMPILER}rustc 1\n{COLUMNS}\n");
        assert!(Bounds::from_tsv(&head).is_ok());
        assert!(Bounds::from_tsv(COLUMNS).is_err(), "no compiler");
        let lines = ["wait\twrite_imm\t1", "write_imm\t1\t3000", "wait\twrite_imm\tone\t3000"];
        for line in lines.into_iter().chain(["wait\twrite_imm\t1\tmany", ""]) {
            assert!(Bounds::from_tsv(&format!("{head}{line}\n")).is_err(), "{line:?}");
        }
    }

    #[test]
    fn one_percent_is_tolerated_in_both_directions() {
        let verdicts = [989, 990, 1000, 1010, 1011].map(|count| Verdict::of(count, 1000));
        use Verdict::{Above, Below, Within};
        assert_eq!(verdicts, [Below, Within, Within, Within, Above]);
    }
}
