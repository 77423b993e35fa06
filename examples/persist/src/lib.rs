//! A log whose acknowledged writes survive a killed process, a power cut and a torn disk.
//!
//! ```
//! use farcall_persist::{Level, Log, Options};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("log");
//!
//! let log = Log::open(&path, Options::default())?;
//! // In the log when this returns, and durable: the storage was synced after it was written.
//! let first = log.append(b"first", Level::Persistent)?.wait()?;
//! assert_eq!(first.level, Level::Persistent);
//! // Many writers share one sync; so do the records of one writer that does not wait for each.
//! let waiters = [b"second", b"third!"].map(|payload| log.append(payload, Level::Persistent));
//! for waiter in waiters {
//!     waiter?.wait()?; // or `waiter?.await?`, on any executor
//! }
//! assert_eq!(log.read(first.lsn)?.payload, b"first");
//!
//! drop(log); // like a killed process
//! let log = Log::open(&path, Options::default())?;
//! let entries = log.records(None).filter(|record| {
//!     record.as_ref().is_ok_and(|record| record.kind() == farcall_persist::Kind::Entry)
//! });
//! assert_eq!(entries.count(), 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is promised
//!
//! - A record that was acknowledged as [`Level::Persistent`] is there after a power cut; one as [`Level::Visible`] after the process was
//!   killed. Nothing appears that was not appended, and if a record is there, so are all before it.
//! - After a write or a sync has failed, nothing is acknowledged until the log is opened again, and reads go on. A disk that is full fails the
//!   append that needs another segment, and harms nothing: a later append tries again.
//! - A torn tail is cut. Damage of records that had been persistent is refused, with what is lost and how to repair it. One case cannot
//!   be told apart: damage of the very last batch that was written looks like a tail that was torn, until another record is written after it.
//! - An index only says where recovery may begin to look. It is derived from the log and never believed.
#![forbid(unsafe_code)]

mod chain;
#[cfg(test)]
#[path = "../../../rpc-core/tests/support/corpus.rs"]
#[expect(unreachable_pub, reason = "it is public in the tests of another package")]
mod corpus;
mod error;
mod hint;
mod level;
mod log;
mod lsn;
mod planted;
pub mod ranges;
mod record;
mod recovery;
mod replay;
mod segment;
mod segments;
pub mod service;
pub mod storage;
#[cfg(test)]
mod tests;
mod verify;
pub mod ways;

pub use self::error::{Corruption, Error};
pub use self::level::{Ack, Level};
pub use self::log::{Append, Checkpoint, Log, Options, Record, Records, Stats, Waiter};
pub use self::lsn::Lsn;
pub use self::record::{HEADER_BYTES, Header, Invalid, Kind};
pub use self::replay::{Replay, Store};
pub use self::segment::{FORMAT_VERSION, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
pub use self::verify::{Report, repair, verify};
