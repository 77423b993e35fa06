//! How safe a write is.

use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::lsn::Lsn;

/// How safe a write is. Each level includes those before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Shape,
)]
pub enum Level {
    /// The log has the record in its memory. It is lost with the process.
    Received,
    /// The operating system has the record: readers see it, and it survives a killed process. It is lost with the power.
    Visible,
    /// A sync of the storage has ended after the record was written. It survives a power cut.
    Persistent,
}

/// What is known of an acknowledged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Ack {
    /// Where the record is.
    pub lsn: Lsn,
    /// The level that was reached. At least the one asked for, and never more than what was proved.
    pub level: Level,
}
