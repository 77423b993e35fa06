//! How safe a write is, and what an acknowledgement proves.

use std::fmt;

use farcall::Shape;
use serde::{Deserialize, Serialize};

/// How safe a write must be before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Shape)]
pub enum Level {
    /// The primary has the record in its memory. It is lost with the primary.
    Received,
    /// All members of the epoch have the record in memory, and readers see it.
    Visible,
    /// Visible, and synced by one replica.
    Persistent,
    /// Visible, and in the memory of so many replicas, the primary included.
    Replicated(u32),
    /// Visible, and synced by so many replicas.
    ReplicatedPersistent(u32),
}

impl Level {
    /// How many replicas must have it in memory.
    #[must_use]
    pub fn copies(self) -> u32 {
        match self {
            Level::Received | Level::Visible | Level::Persistent => 1,
            Level::Replicated(copies) | Level::ReplicatedPersistent(copies) => copies.max(1),
        }
    }

    /// How many replicas must have synced it.
    #[must_use]
    pub fn synced(self) -> u32 {
        match self {
            Level::Received | Level::Visible | Level::Replicated(_) => 0,
            Level::Persistent => 1,
            Level::ReplicatedPersistent(synced) => synced.max(1),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Level::Received => f.write_str("received"),
            Level::Visible => f.write_str("visible"),
            Level::Persistent => f.write_str("persistent"),
            Level::Replicated(copies) => write!(f, "replicated({copies})"),
            Level::ReplicatedPersistent(synced) => write!(f, "replicated and persistent({synced})"),
        }
    }
}

/// What was proved of a record when it was acknowledged. Only the primary's count of completed writes and of syncs makes one, so it says no
/// more than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Reached {
    committed: bool,
    copies: u32,
    synced: u32,
}

impl Reached {
    /// The primary has the record, and nothing else is known.
    pub(crate) const RECEIVED: Reached = Reached { committed: false, copies: 1, synced: 0 };

    /// All members have it: `copies` in memory, `synced` of them on their disks.
    pub(crate) fn committed(copies: u32, synced: u32) -> Reached {
        Reached { committed: true, copies, synced }
    }

    /// Whether all members of the epoch have it, and readers see it.
    #[must_use]
    pub fn is_visible(&self) -> bool {
        self.committed
    }

    /// How many replicas have it in memory.
    #[must_use]
    pub fn copies(&self) -> u32 {
        self.copies
    }

    /// How many replicas have synced it.
    #[must_use]
    pub fn synced(&self) -> u32 {
        self.synced
    }

    /// Whether that is as much as `level` asks for.
    #[must_use]
    pub fn covers(&self, level: Level) -> bool {
        level == Level::Received
            || self.committed && self.copies >= level.copies() && self.synced >= level.synced()
    }
}

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.committed {
            return f.write_str("received");
        }
        write!(f, "in memory at {}, synced at {}", self.copies, self.synced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_covers_what_was_proved_and_no_more() {
        let levels = [
            Level::Received,
            Level::Visible,
            Level::Replicated(2),
            Level::Replicated(3),
            Level::Persistent,
            Level::ReplicatedPersistent(2),
        ];
        let covered = |reached: Reached| levels.map(|level| reached.covers(level));
        assert_eq!(covered(Reached::RECEIVED), [true, false, false, false, false, false]);
        assert_eq!(covered(Reached::committed(2, 0)), [true, true, true, false, false, false]);
        assert_eq!(covered(Reached::committed(3, 1)), [true, true, true, true, true, false]);
        assert_eq!(covered(Reached::committed(3, 2)), [true; 6]);
    }
}
