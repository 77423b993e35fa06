//! What can go wrong.

use std::io;
use std::sync::Arc;

use crate::lsn::Lsn;
use crate::record::Invalid;

/// What can go wrong with a log.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed.
    #[error("cannot {doing} {file}: {source}{}", mend(source))]
    Io {
        /// What was tried, such as `write`.
        doing: &'static str,
        /// The file.
        file: String,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Another log is open on the same directory.
    #[error("{0}; stop the other process, or use another directory")]
    Locked(String),
    /// The log has another version of the format.
    #[error(
        "{file} has version {found} of the format, and this program reads version {known}; open it with the program that wrote it"
    )]
    Version {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The only version that is known here.
        known: u32,
    },
    /// A file that should be a segment is none.
    #[error("{file} is no segment: {why}; restore it from a copy")]
    NotASegment {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Records are damaged that had been persistent.
    #[error("{0}")]
    Corrupt(Corruption),
    /// A record that was read is damaged.
    #[error(
        "the record at {lsn} in {file} is damaged: {why}; `farcall-persist verify DIR` says what else is"
    )]
    Damaged {
        /// Where it begins.
        lsn: Lsn,
        /// The file that it is in.
        file: String,
        /// What is wrong.
        why: Invalid,
    },
    /// Segments are missing that recovery needs.
    #[error(
        "segments {from} to {to} are missing, which recovery needs; restore their files from a copy"
    )]
    MissingSegments {
        /// The first that is missing.
        from: u64,
        /// The last that is missing.
        to: u64,
    },
    /// The payload is longer than a record may be.
    #[error(
        "a record of {length} bytes is too large: at most {limit} bytes; split it, or open the log with larger segments and a larger queue"
    )]
    TooLarge {
        /// Its length, in bytes.
        length: usize,
        /// The most, in bytes.
        limit: usize,
    },
    /// The queue of records to be written is full, and the caller did not want to wait. Nothing was appended.
    #[error("the queue of records is full; wait for an acknowledgement and try again")]
    QueueFull,
    /// A write or a sync failed before: the log acknowledges nothing any more until it is opened again. What was read stays readable.
    #[error("the log takes no more records after a failure: {0}; open it again")]
    Poisoned(Arc<Error>),
    /// The log is closed.
    #[error("the log is closed")]
    Closed,
    /// The record was truncated.
    #[error("the record at {lsn} is truncated; the log begins at {first}")]
    Truncated {
        /// The record asked for.
        lsn: Lsn,
        /// Where the log begins.
        first: Lsn,
    },
    /// The log ends before this position.
    #[error("there is no record at {lsn} yet: what can be read of the log ends at {end}")]
    BeyondEnd {
        /// The record asked for.
        lsn: Lsn,
        /// Where the part of the log ends that can be read.
        end: Lsn,
    },
    /// No record begins at this position.
    #[error("no record begins at {lsn}: {why}")]
    NoRecord {
        /// The record asked for.
        lsn: Lsn,
        /// What is there.
        why: Invalid,
    },
    /// What is to be truncated is needed by recovery.
    #[error(
        "cannot truncate before {asked}: recovery begins at {restart}; make a checkpoint first"
    )]
    NeededForRecovery {
        /// Up to where the caller wanted to truncate.
        asked: Lsn,
        /// Where recovery begins.
        restart: Lsn,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
}

impl Error {
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> Self {
        Self::Io { doing, file: file.to_owned(), source: Arc::new(source) }
    }
}

/// What the user can do about an error of the system.
fn mend(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free space, or truncate the log, and try again"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; mount the file system for writing",
        io::ErrorKind::PermissionDenied => "; give this user the right to write there",
        _ => "",
    }
}

/// Damage of records that had been persistent, which recovery refuses to cut.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "records are damaged at lsn {from} ({file}, byte {offset}): {why}. Later records say that they had been persistent. \
     Lost are the records from {from} to {until}; all before and after are whole. Restore {file} from a copy, or give these records up \
     with `farcall-persist repair DIR`"
)]
pub struct Corruption {
    /// Where the damage begins.
    pub from: Lsn,
    /// Where the next whole record begins.
    pub until: Lsn,
    /// The file with the damage.
    pub file: String,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub why: Invalid,
}
