//! The versions of the protocol, and which one two ends take.

use std::fmt;
use std::ops::RangeInclusive;

/// The versions that this end speaks, of everything that two ends must agree on: the handshake's frames, and each backend's
/// layout. An end that speaks an older version too lets its peers be upgraded after it.
///
/// - 1: one service per connection.
/// - 2: several.
/// - 3: several lanes per connection.
/// - 4: a client may name the server thread that is to serve it, and says why it opens a lane.
pub const SPOKEN: Versions = Versions { lowest: 1, highest: 4 };

/// A range of versions, as each frame's first bytes say it. A peer can say one that is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The lowest.
    pub lowest: u16,
    /// The highest.
    pub highest: u16,
}

impl Versions {
    /// This version alone: the one that two ends have agreed on.
    pub const fn only(version: u16) -> Versions {
        Versions { lowest: version, highest: version }
    }

    /// The highest version in both ranges.
    pub fn highest_common(self, theirs: Versions) -> Option<u16> {
        let lowest = self.lowest.max(theirs.lowest);
        let highest = self.highest.min(theirs.highest);
        (lowest <= highest).then_some(highest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Versions { lowest, highest } if lowest == highest => write!(f, "{lowest}"),
            Versions { lowest, highest } => write!(f, "{lowest} to {highest}"),
        }
    }
}

impl From<Versions> for RangeInclusive<u16> {
    fn from(versions: Versions) -> RangeInclusive<u16> {
        versions.lowest..=versions.highest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lowest: u16, highest: u16) -> Versions {
        Versions { lowest, highest }
    }

    #[test]
    fn the_highest_common_version_is_taken() {
        for (ours, theirs, common) in [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 3), range(2, 5), Some(3)),
            (range(2, 5), range(1, 3), Some(3)),
            (range(1, 9), range(4, 6), Some(6)),
            (range(1, 2), range(3, 4), None),
            (range(3, 4), range(1, 2), None),
            (range(1, 3), range(3, 1), None),
            (range(0, u16::MAX), range(u16::MAX, u16::MAX), Some(u16::MAX)),
        ] {
            assert_eq!(ours.highest_common(theirs), common, "{ours} and {theirs}");
        }
    }

    #[test]
    fn a_range_of_one_is_said_as_one() {
        assert_eq!(Versions::only(3).to_string(), "3");
        assert_eq!(range(3, 5).to_string(), "3 to 5");
    }
}
