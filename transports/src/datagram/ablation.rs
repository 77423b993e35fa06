//! Which optimizations an end does without, so that what each is worth can be measured.

use std::fmt;

/// What `backend=datagram` does to be fast or safe, and can be told to leave: `without=inline,coalescing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Optimization {
    /// One doorbell for all datagrams of a turn. Without it each has its own.
    Doorbells,
    /// Completions are polled by the batch. Without it one at a time.
    Polls,
    /// One send in many is signaled. Without it each of them.
    Selective,
    /// Small datagrams are part of their work request. Without it the NIC fetches all from memory.
    Inline,
    /// Receives are posted again in bulk. Without it each alone.
    Bulk,
    /// Requests, or responses, to one peer share a datagram. Without it each has its own.
    Coalescing,
    /// The client times its requests, and sends again what was lost. Without it a lost datagram's calls end by their
    /// deadlines and their slots stay taken: only for measuring, where nothing is lost.
    Recovery,
    /// The client sends less while round trips are long. Without it, as much as its window and its credits allow.
    Congestion,
}

impl Optimization {
    /// All of them.
    pub const ALL: &'static [Optimization] = &[
        Optimization::Doorbells,
        Optimization::Polls,
        Optimization::Selective,
        Optimization::Inline,
        Optimization::Bulk,
        Optimization::Coalescing,
        Optimization::Recovery,
        Optimization::Congestion,
    ];

    /// Its name in an address.
    pub fn name(self) -> &'static str {
        match self {
            Optimization::Doorbells => "doorbells",
            Optimization::Polls => "polls",
            Optimization::Selective => "selective",
            Optimization::Inline => "inline",
            Optimization::Bulk => "bulk",
            Optimization::Coalescing => "coalescing",
            Optimization::Recovery => "recovery",
            Optimization::Congestion => "congestion",
        }
    }

    /// The optimization of that name.
    pub fn from_name(name: &str) -> Option<Optimization> {
        Self::ALL.iter().copied().find(|optimization| optimization.name() == name)
    }

    /// The names of all, as an error lists them.
    pub(crate) fn names() -> String {
        let names: Vec<_> = Self::ALL.iter().map(|optimization| optimization.name()).collect();
        names.join(", ")
    }
}

/// A set of [optimizations](Optimization) that one end does without. Each end says it of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Without(u16);

impl Without {
    /// This one too.
    pub fn and(self, optimization: Optimization) -> Without {
        Without(self.0 | 1 << optimization as u16)
    }

    /// Whether it is left.
    pub fn has(self, optimization: Optimization) -> bool {
        self.0 & 1 << optimization as u16 != 0
    }

    /// Whether nothing is left.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Reads names with commas between them.
    pub(crate) fn parse(names: &str) -> Option<Without> {
        names.split(',').try_fold(Without::default(), |without, name| {
            Some(without.and(Optimization::from_name(name)?))
        })
    }
}

impl fmt::Display for Without {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = Optimization::ALL.iter().filter(|optimization| self.has(**optimization));
        for (number, optimization) in left.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{}", optimization.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_and_written_back() {
        for &one in Optimization::ALL {
            let without = Without::default().and(one);
            assert_eq!(without.to_string(), one.name());
            for &other in Optimization::ALL {
                assert_eq!(without.has(other), one == other);
                let both = without.and(other);
                assert_eq!(Without::parse(&both.to_string()), Some(both));
            }
        }
    }

    #[test]
    fn an_unknown_name_is_none() {
        for names in ["", "inline,", ",inline", "speed", "inline coalescing"] {
            assert_eq!(Without::parse(names), None, "{names}");
        }
    }
}
