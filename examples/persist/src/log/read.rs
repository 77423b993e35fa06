//! Reading records of an open log.

use std::sync::Arc;

use super::{Log, Shared};
use crate::chain::Reader;
use crate::error::Error;
use crate::level::Level;
use crate::lsn::Lsn;
use crate::record::{Header, Invalid, Kind};
use crate::segment;

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What its header says.
    pub header: Header,
    /// What was appended.
    pub payload: Vec<u8>,
}

impl Record {
    /// Where it begins.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.header.lsn
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.header.kind
    }
}

impl Log {
    /// Reads the record that begins at a position. Its level is [`Level::Visible`] at least; so it may be lost with the power, unless it
    /// lies before [`reached(Level::Persistent)`](Self::reached). Works on a poisoned log, too.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`], [`Error::BeyondEnd`], [`Error::NoRecord`], [`Error::Io`].
    pub fn read(&self, lsn: Lsn) -> Result<Record, Error> {
        let shared = &self.shared;
        let storage = shared.storage.clone();
        let mut reader = Reader::of_one(storage, shared.geometry, shared.log_id);
        let limit = shared.check_readable(lsn)?;
        match shared.read_at(&mut reader, lsn, limit)? {
            Ok(record) => Ok(record),
            Err(why) => Err(Error::NoRecord { lsn, why }),
        }
    }

    /// All records from one on, or from the first on, that are [`Level::Visible`] when the iterator comes to them. Those that the log itself
    /// makes are among them.
    #[must_use]
    pub fn records(&self, from: Option<Lsn>) -> Records {
        let shared = self.shared.clone();
        let reader = Reader::new(shared.storage.clone(), shared.geometry, shared.log_id);
        Records { at: from.unwrap_or_else(|| self.first()), reader, shared, failed: false }
    }
}

impl Shared {
    /// Checks that a position is in the part of the log that can be read. Returns where that ends.
    fn check_readable(&self, lsn: Lsn) -> Result<Lsn, Error> {
        let state = self.lock();
        let (first, end) =
            (self.geometry.start(state.first_segment), state.reached_by(Level::Visible));
        if lsn < first {
            return Err(Error::Truncated { lsn, first });
        }
        if lsn >= end {
            return Err(Error::BeyondEnd { lsn, end });
        }
        Ok(end)
    }

    fn read_at(
        &self,
        reader: &mut Reader,
        lsn: Lsn,
        limit: Lsn,
    ) -> Result<Result<Record, Invalid>, Error> {
        let read = reader.record(lsn, 0, limit);
        let read = read
            .map(|read| read.map(|(header, payload)| Record { header, payload: payload.to_vec() }));
        if !matches!(read, Ok(Ok(_))) {
            // The segment may have been truncated, and its file used for another, after the check.
            self.check_readable(lsn)?;
        }
        read
    }
}

/// Iterates over records. It ends where the log ends at that time; after more was appended, it goes on.
pub struct Records {
    shared: Arc<Shared>,
    reader: Reader,
    at: Lsn,
    failed: bool,
}

impl Records {
    fn read_next(&mut self) -> Result<Option<Record>, Error> {
        loop {
            self.at = self.shared.geometry.place_after(self.at);
            let limit = match self.shared.check_readable(self.at) {
                Err(Error::BeyondEnd { .. }) => return Ok(None),
                other => other?,
            };
            let record = match self.shared.read_at(&mut self.reader, self.at, limit)? {
                Ok(record) => record,
                Err(why) => return Err(self.damage(why)),
            };
            self.at = record.header.end();
            if record.kind() != Kind::Next {
                return Ok(Some(record));
            }
        }
    }

    fn damage(&self, why: Invalid) -> Error {
        let file = segment::name(self.shared.geometry.segment(self.at));
        Error::Damaged { lsn: self.at, file, why }
    }
}

impl Iterator for Records {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.read_next();
        self.failed = next.is_err();
        next.transpose()
    }
}
