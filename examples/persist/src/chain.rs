//! Reading a log record by record, to where it ends.

use std::sync::Arc;

use crate::error::{Corruption, Error};
use crate::lsn::{Geometry, Lsn};
use crate::record::{self, ALIGN_BYTES, HEADER_BYTES, Header, Invalid, Seed};
use crate::segment;
use crate::segments;
use crate::storage::{Access, File, Storage};

/// Segments are read in pieces of at least this size.
const READ_BYTES: usize = 256 << 10;

/// Most records are in a piece of this size.
const ONE_READ_BYTES: usize = 1 << 10;

/// Reads records at positions.
pub(crate) struct Reader {
    storage: Arc<dyn Storage>,
    geometry: Geometry,
    log_id: u64,
    seed: Seed,
    open: Option<(u64, Arc<dyn File>)>,
    buffer: Vec<u8>,
    /// How much of the buffer was read, and where it begins.
    buffered: usize,
    buffer_at: Lsn,
    /// So much is read at least, in bytes.
    ahead: usize,
}

impl Reader {
    /// A reader of many records in order.
    pub(crate) fn new(storage: Arc<dyn Storage>, geometry: Geometry, log_id: u64) -> Self {
        let seed = Seed::of(log_id);
        let (open, buffer, buffered) = (None, Vec::new(), 0);
        let (buffer_at, ahead) = (Lsn(0), READ_BYTES);
        Self { storage, geometry, log_id, seed, open, buffer, buffered, buffer_at, ahead }
    }

    /// A reader of one record.
    pub(crate) fn of_one(storage: Arc<dyn Storage>, geometry: Geometry, log_id: u64) -> Self {
        Self { ahead: ONE_READ_BYTES, ..Self::new(storage, geometry, log_id) }
    }

    /// The record at a position, of an epoch not before `epoch`. Nothing at `limit` or after it is read.
    pub(crate) fn record(
        &mut self,
        at: Lsn,
        epoch: u32,
        limit: Lsn,
    ) -> Result<Result<(Header, &[u8]), Invalid>, Error> {
        let seed = self.seed;
        let size = match record::parse(seed, at, epoch, self.bytes(at, HEADER_BYTES, limit)?) {
            Err(Invalid::Short(size)) => usize::try_from(size).unwrap_or(usize::MAX),
            _ => HEADER_BYTES,
        };
        Ok(record::parse(seed, at, epoch, self.bytes(at, size, limit)?))
    }

    /// Bytes of one segment: as many as asked for, or fewer at its end or at `limit`.
    fn bytes(&mut self, at: Lsn, len: usize, limit: Lsn) -> Result<&[u8], Error> {
        let segment_end = Lsn((self.geometry.segment(at) + 1) * self.geometry.segment_bytes);
        let most = usize::try_from(limit.min(segment_end).0.saturating_sub(at.0));
        let most = most.unwrap_or(usize::MAX);
        let len = len.min(most);
        let is_buffered =
            at >= self.buffer_at && at.0 + len as u64 <= self.buffer_at.0 + self.buffered as u64;
        if !is_buffered {
            self.fill(at, len.max(self.ahead).min(most))?;
        }
        let from = usize::try_from(at.0 - self.buffer_at.0).unwrap_or(usize::MAX);
        let to = (from + len).min(self.buffered);
        Ok(&self.buffer[from.min(to)..to])
    }

    fn fill(&mut self, at: Lsn, len: usize) -> Result<(), Error> {
        let number = self.geometry.segment(at);
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            self.open = None;
            let (file, header) = segments::open(&*self.storage, number, Access::Read)?;
            if header.log_id != self.log_id {
                let file = segment::name(number);
                return Err(Error::NotASegment { file, why: "it belongs to another log" });
            }
            self.open = Some((number, file));
        }
        let Some((_, file)) = &self.open else { return Ok(()) };
        if self.buffer.len() < len {
            self.buffer.resize(len, 0);
        }
        (self.buffered, self.buffer_at) = (0, at);
        let offset = self.geometry.offset(at);
        let count = file.read_at(&mut self.buffer[..len], offset);
        self.buffered = count.map_err(|why| Error::io("read", &segment::name(number), why))?;
        Ok(())
    }

    /// The first position after `after` in a segment at which a whole record of an epoch not before `epoch` begins.
    fn find(&mut self, after: Lsn, epoch: u32) -> Result<Option<Header>, Error> {
        let end = Lsn((self.geometry.segment(after) + 1) * self.geometry.segment_bytes);
        let mut at = after;
        while at < end {
            let bytes = self.bytes(at, READ_BYTES, end)?;
            let place = (0..bytes.len())
                .step_by(ALIGN_BYTES)
                .find(|offset| record::names(Lsn(at.0 + *offset as u64), &bytes[*offset..]));
            let Some(offset) = place else {
                if bytes.len() < READ_BYTES {
                    return Ok(None);
                }
                // A header may begin within the last bytes.
                at.0 += (READ_BYTES - HEADER_BYTES) as u64;
                continue;
            };
            at.0 += offset as u64;
            if let Ok((header, _)) = self.record(at, epoch, end)? {
                return Ok(Some(header));
            }
            at.0 += ALIGN_BYTES as u64;
        }
        Ok(None)
    }
}

/// The records of a log in order, from one on to where the log ends.
pub(crate) struct Chain {
    pub(crate) reader: Reader,
    /// Where the next record begins, if there is one.
    pub(crate) at: Lsn,
    /// The epoch of the last record.
    pub(crate) epoch: u32,
    /// The last segment that is there.
    last_segment: u64,
    /// Why there is no record where the log ends.
    pub(crate) stopped: Option<Invalid>,
}

impl Chain {
    pub(crate) fn new(reader: Reader, at: Lsn, epoch: u32, last_segment: u64) -> Self {
        Self { reader, at, epoch, last_segment, stopped: None }
    }

    /// The next record, or nothing where the log ends.
    ///
    /// # Errors
    ///
    /// [`Error::MissingSegments`] if the log goes on in a segment that is not there.
    pub(crate) fn next(&mut self) -> Result<Option<(Header, &[u8])>, Error> {
        let geometry = self.reader.geometry;
        self.at = geometry.place_after(self.at);
        let number = geometry.segment(self.at);
        if number > self.last_segment {
            return Err(Error::MissingSegments { from: number, to: number });
        }
        let limit = Lsn((number + 1) * geometry.segment_bytes);
        match self.reader.record(self.at, self.epoch, limit)? {
            Ok((header, payload)) if header.end() <= limit => {
                self.at = header.end();
                self.epoch = header.epoch;
                Ok(Some((header, payload)))
            }
            Ok((header, _)) => {
                self.stopped = Some(Invalid::Short(header.size()));
                Ok(None)
            }
            Err(why) => {
                self.stopped = Some(why);
                Ok(None)
            }
        }
    }

    /// Tells a torn tail, which may be cut, from damage of records that had been persistent.
    ///
    /// A later record that was written when the log was synced beyond the place where the chain stopped proves that there was a
    /// persistent record here. Without such a record, nothing from here on was ever known to be persistent: not by the log, and so not by
    /// its callers, except for the callers of the very last batch.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`].
    pub(crate) fn check_tail(&mut self) -> Result<(), Error> {
        let geometry = self.reader.geometry;
        let tail = self.at;
        let mut first_whole = None;
        for number in geometry.segment(tail)..=self.last_segment {
            let mut after = geometry.start(number).max(Lsn(tail.0 + HEADER_BYTES as u64));
            while geometry.segment(after) == number
                && let Some(header) = self.reader.find(after, self.epoch)?
            {
                let until = *first_whole.get_or_insert(header.lsn);
                if header.synced > tail {
                    return Err(Error::Corrupt(Corruption {
                        from: tail,
                        until,
                        file: segment::name(geometry.segment(tail)),
                        offset: geometry.offset(tail),
                        why: self.stopped.unwrap_or(Invalid::Elsewhere),
                    }));
                }
                after = header.end();
            }
        }
        Ok(())
    }
}
