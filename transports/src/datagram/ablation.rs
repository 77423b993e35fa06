//! Optimizations that can be turned off, to measure what each is worth.
//!
//! Only with the cargo feature `ablation`. Without it a [`Without`] is empty, and its checks are constants.

/// What `backend=datagram` does to be fast or safe, and can be told not to do: `without=inline,coalescing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Optimization {
    /// One doorbell for all datagrams of a turn. Without it each has its own.
    Doorbells,
    /// Completions are polled in batches. Without it one at a time.
    Polls,
    /// One send in many is signaled. Without it each of them.
    Selective,
    /// Small datagrams are part of their work request. Without it the NIC fetches all from memory.
    Inline,
    /// Receives are posted again in bulk. Without it each alone.
    Bulk,
    /// Requests, or responses, to one peer share a datagram. Without it each has its own.
    Coalescing,
    /// The client times its requests, and sends again what was lost. Without it the calls of a lost datagram end by their
    /// deadlines and their slots stay taken: only for measurements where nothing is lost.
    Recovery,
    /// The client sends less while round trips are long. Without it, as much as its window and its credits allow.
    Congestion,
}

#[cfg(not(feature = "ablation"))]
mod switches {
    use super::Optimization;
    use crate::contract::{Config, OptionSpec};

    /// Nothing is turned off.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Without;

    impl Without {
        /// The option's value.
        #[inline(always)]
        pub(crate) const fn of(_: &Config) -> Without {
            Without
        }

        /// Whether this is turned off.
        #[inline(always)]
        pub const fn has(self, _: Optimization) -> bool {
            false
        }
    }

    /// The option `without`.
    pub(crate) const OPTIONS: &[OptionSpec] = &[];
}

#[cfg(feature = "ablation")]
mod switches {
    use std::fmt;

    use super::Optimization;
    use crate::contract::{Config, OptionSpec};

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
    }

    /// A set of [optimizations](Optimization) that one end turns off. It does not affect the other end.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Without(u16);

    impl Without {
        /// The option's value.
        pub(crate) fn of(config: &Config) -> Without {
            config.options.value_or(&OPTIONS[0], Without::parse, Without::default())
        }

        /// Turns this off too.
        pub fn and(self, optimization: Optimization) -> Without {
            Without(self.0 | 1 << optimization as u16)
        }

        /// Whether this is turned off.
        pub fn has(self, optimization: Optimization) -> bool {
            self.0 & 1 << optimization as u16 != 0
        }

        /// Whether nothing is turned off.
        pub fn is_empty(self) -> bool {
            self.0 == 0
        }

        /// Reads names with commas between them.
        pub(super) fn parse(names: &str) -> Option<Without> {
            names.split(',').try_fold(Without::default(), |without, name| {
                Some(without.and(Optimization::from_name(name)?))
            })
        }
    }

    impl fmt::Display for Without {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let off = Optimization::ALL.iter().filter(|optimization| self.has(**optimization));
            let names: Vec<_> = off.map(|optimization| optimization.name()).collect();
            f.write_str(&names.join(","))
        }
    }

    /// The option `without`.
    pub(crate) const OPTIONS: &[OptionSpec] = &[OptionSpec {
        name: "without",
        expected: || {
            let names: Vec<_> = Optimization::ALL.iter().map(|it| it.name()).collect();
            format!("some of {}, with commas between them", names.join(", "))
        },
        accepts: |value| Without::parse(value).is_some(),
    }];
}

pub(crate) use switches::OPTIONS;
pub use switches::Without;

#[cfg(all(test, feature = "ablation"))]
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
