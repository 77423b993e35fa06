//! The log as a service: each append says how safe its record must be, and the answer says how safe it is.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use farcall::Shape;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::level::{Ack, Level};
use crate::log::Log;
use crate::lsn::Lsn;
use crate::record::Kind;

/// An append-only log.
///
/// A caller that gets no answer to an append does not know whether the record is there.
#[farcall::service]
pub trait Persistent {
    /// Appends a record, and answers when it is at `level`. The answer says where it is, and which level was reached: at least the one asked
    /// for, and never more than what was proved.
    async fn append(&self, payload: Bytes, level: Level) -> Result<Ack, PersistError>;

    /// The record that begins at a position, once it is visible.
    #[rpc(idempotent)]
    fn read(&self, lsn: Lsn) -> Result<Bytes, PersistError>;

    /// Records that were appended, from a position on, or from the first: at most `limit`, and at most a page of
    /// [`PAGE_BYTES`] or one larger record. An empty answer means that there are no more yet; else
    /// [`Page::next`] is where to go on.
    #[rpc(idempotent)]
    fn scan(&self, from: Option<Lsn>, limit: u32) -> Result<Page, PersistError>;

    /// Brings all that was appended before to a level. Answers up to where the log is at that level.
    #[rpc(idempotent)]
    async fn flush(&self, level: Level) -> Result<Lsn, PersistError>;

    /// Where the log begins, and up to where it is persistent.
    #[rpc(idempotent)]
    fn bounds(&self) -> (Lsn, Lsn);
}

/// Records of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Page {
    /// Where each begins, and what was appended.
    pub records: Vec<(Lsn, Bytes)>,
    /// Where the next scan goes on.
    pub next: Lsn,
}

/// The largest page of a scan, in bytes of payload, unless its first record alone is larger.
pub const PAGE_BYTES: usize = 1 << 20;

/// A scan reads at most so many records, those that the log itself makes included: it bounds how long it keeps the server's thread.
const PAGE_RECORDS: usize = 4096;

/// Why the service did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize, Shape)]
#[non_exhaustive]
pub enum PersistError {
    /// The payload is longer than a record may be.
    #[error("a record of {length} bytes is too large: at most {limit} bytes")]
    TooLarge {
        /// Its length, in bytes.
        length: u64,
        /// The most, in bytes.
        limit: u64,
    },
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
    /// No record that was appended begins there.
    #[error("no record begins at {lsn}")]
    NoRecord {
        /// The record asked for.
        lsn: Lsn,
    },
    /// The storage of the server failed. An append may have taken effect.
    #[error("the server's storage failed: {why}")]
    Storage {
        /// What the server says.
        why: String,
    },
}

impl From<Error> for PersistError {
    fn from(error: Error) -> Self {
        match error {
            Error::TooLarge { length, limit } => {
                Self::TooLarge { length: length as u64, limit: limit as u64 }
            }
            Error::Truncated { lsn, first } => Self::Truncated { lsn, first },
            Error::BeyondEnd { lsn, end } => Self::BeyondEnd { lsn, end },
            Error::NoRecord { lsn, .. } => Self::NoRecord { lsn },
            other => Self::Storage { why: other.to_string() },
        }
    }
}

/// Serves a [`Log`]. After its storage has failed, the next append opens the log again: it answers an error until that succeeds.
#[derive(Clone)]
pub struct LogService {
    log: Arc<Mutex<Arc<Log>>>,
}

impl LogService {
    /// Serves `log`, which the caller may also use directly.
    #[must_use]
    pub fn new(log: Arc<Log>) -> Self {
        Self { log: Arc::new(Mutex::new(log)) }
    }

    /// The log that is served now.
    #[must_use]
    pub fn log(&self) -> Arc<Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The log that is served, opened again if it takes no more records after a failure.
    fn sound_log(&self) -> Result<Arc<Log>, Error> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.failure().is_some() {
            *log = Arc::new(log.open_again()?);
        }
        Ok(log.clone())
    }
}

impl Persistent for LogService {
    async fn append(&self, payload: Bytes, level: Level) -> Result<Ack, PersistError> {
        let log = self.sound_log()?;
        Ok(log.append_async(payload, level).await?)
    }

    fn read(&self, lsn: Lsn) -> Result<Bytes, PersistError> {
        let record = self.log().read(lsn)?;
        match record.kind() {
            Kind::Entry => Ok(record.payload.into()),
            _ => Err(PersistError::NoRecord { lsn }),
        }
    }

    fn scan(&self, from: Option<Lsn>, limit: u32) -> Result<Page, PersistError> {
        let log = self.log();
        let mut page = Page { records: Vec::new(), next: from.unwrap_or_else(|| log.first()) };
        let mut bytes = 0;
        for record in log.records(Some(page.next)).take(PAGE_RECORDS) {
            let record = record?;
            let is_first = page.records.is_empty();
            bytes += record.payload.len();
            if limit == 0
                || !is_first
                    && (bytes > PAGE_BYTES || page.records.len() as u64 >= u64::from(limit))
            {
                break;
            }
            page.next = record.header.end();
            if record.kind() == Kind::Entry {
                page.records.push((record.lsn(), record.payload.into()));
            }
        }
        Ok(page)
    }

    async fn flush(&self, level: Level) -> Result<Lsn, PersistError> {
        let log = self.log();
        log.flush(level)?.await?;
        Ok(log.reached(level))
    }

    fn bounds(&self) -> (Lsn, Lsn) {
        let log = self.log();
        (log.first(), log.reached(Level::Persistent))
    }
}
