//! Looking at a log offline: what is whole, torn or damaged, and giving up what is damaged.

use std::ops::Range;
use std::sync::Arc;

use crate::chain::{Chain, Reader};
use crate::error::{Corruption, Error};
use crate::log::{Checkpoint, Record};
use crate::lsn::{Geometry, Lsn};
use crate::record::{HEADER_BYTES, Invalid, Kind, Seed, skip};
use crate::recovery::{FIRST_SEGMENT, Run};
use crate::segment::{self, SegmentHeader};
use crate::segments;
use crate::storage::{Access, Storage};

/// What is in a log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Where the log begins.
    pub first: Lsn,
    /// Where it ends: the next record would begin there, or in the next segment.
    pub end: Lsn,
    /// Whole records, those that the log itself makes included.
    pub records: u64,
    /// Bytes of them in the log.
    pub bytes: u64,
    /// How often the log was opened.
    pub epoch: u32,
    /// Records that are damaged although they had been persistent.
    pub damaged: Vec<Corruption>,
    /// Records that were damaged and that a repair has given up.
    pub lost: Vec<Range<Lsn>>,
    /// Why there is no record at the end, if it is not just zeros or old records: a tail that was torn.
    pub torn: Option<Invalid>,
    /// Segments that are missing, from one number to another.
    pub missing: Option<(u64, u64)>,
}

impl Report {
    /// Whether recovery would succeed, and nothing was lost.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.lost.is_empty() && self.missing.is_none()
    }
}

/// Reads all of a log and calls `visit` with each whole record. Nothing is changed. The log should not be open for writing.
///
/// # Errors
///
/// [`Error::NotASegment`] and [`Error::Version`] for files that cannot be read at all, [`Error::Io`], and those of `visit`.
pub fn verify(
    storage: &Arc<dyn Storage>,
    mut visit: impl FnMut(&Record) -> Result<(), Error>,
) -> Result<Report, Error> {
    let (run, header) = whole_run(storage)?;
    let geometry = Geometry { segment_bytes: header.segment_bytes };
    let reader = Reader::new(storage.clone(), geometry, header.log_id);
    let mut chain = Chain::new(reader, geometry.start(run.first), 0, run.last);
    let mut report = Report {
        first: geometry.start(run.first),
        end: Lsn(0),
        records: 0,
        bytes: 0,
        epoch: 0,
        damaged: Vec::new(),
        lost: Vec::new(),
        torn: None,
        missing: None,
    };
    // Without a checkpoint, recovery needs the first segment that the log ever had.
    let mut needed = FIRST_SEGMENT;
    let mut visit = |record: &Record| {
        let header = &record.header;
        if let Some(known) = Checkpoint::parse(header.lsn, header.kind, &record.payload) {
            needed = geometry.segment(known.restart);
        }
        visit(record)
    };
    loop {
        match read_run(&mut chain, &mut report, &mut visit) {
            Ok(()) => {}
            Err(Error::MissingSegments { from, to }) => {
                report.missing = Some((from, to));
                break;
            }
            Err(other) => return Err(other),
        }
        match chain.check_tail() {
            Ok(()) => break,
            Err(Error::Corrupt(damage)) => {
                chain.at = damage.until;
                report.damaged.push(damage);
            }
            Err(other) => return Err(other),
        }
    }
    if needed < run.first {
        report.missing = Some((needed, run.first - 1));
    }
    report.end = chain.at;
    report.epoch = chain.epoch;
    report.torn = chain.stopped.filter(|why| *why == Invalid::Checksum);
    Ok(report)
}

/// Reads records up to where the chain stops.
fn read_run(
    chain: &mut Chain,
    report: &mut Report,
    visit: &mut impl FnMut(&Record) -> Result<(), Error>,
) -> Result<(), Error> {
    while let Some((header, payload)) = chain.next()? {
        report.records += 1;
        report.bytes += match header.kind {
            Kind::Next | Kind::Lost => HEADER_BYTES as u64,
            _ => header.size(),
        };
        if header.kind == Kind::Lost {
            report.lost.push(header.lsn..header.end());
        }
        visit(&Record { header, payload: payload.to_vec() })?;
    }
    Ok(())
}

/// The segments of a log that is there, and the header of the last.
fn whole_run(storage: &Arc<dyn Storage>) -> Result<(Run, SegmentHeader), Error> {
    let (numbers, _) = segments::list(&**storage)?;
    let Some(run) = Run::of(&numbers) else {
        let file = storage.describe();
        return Err(Error::NotASegment { file, why: "there is no log here" });
    };
    let (_, header) = segments::open(&**storage, run.last, Access::Read)?;
    Ok((run, header))
}

/// Gives up records that are damaged, so that the log can be opened again: puts a record over each damaged part that says so. Returns what
/// was given up. Records before and after stay.
///
/// # Errors
///
/// [`Error::Locked`] if the log is open; as for [`verify`].
pub fn repair(storage: &Arc<dyn Storage>) -> Result<Vec<Corruption>, Error> {
    let _lock = storage.lock().map_err(|why| Error::Locked(why.to_string()))?;
    let mut given_up = Vec::new();
    // What is damaged in several segments without a whole record between is one damage in each segment.
    loop {
        let damaged = verify(storage, |_| Ok(()))?.damaged;
        if damaged.is_empty() {
            return Ok(given_up);
        }
        give_up(storage, &damaged)?;
        given_up.extend(damaged);
    }
}

fn give_up(storage: &Arc<dyn Storage>, damaged: &[Corruption]) -> Result<(), Error> {
    let (_, header) = whole_run(storage)?;
    let geometry = Geometry { segment_bytes: header.segment_bytes };
    let mut reader = Reader::new(storage.clone(), geometry, header.log_id);
    // The last first: a crash in between leaves damage before, which is found again.
    for damage in damaged.iter().rev() {
        let number = geometry.segment(damage.from);
        let until = damage.until.min(Lsn((number + 1) * geometry.segment_bytes));
        let limit = Lsn((geometry.segment(damage.until) + 1) * geometry.segment_bytes);
        let epoch = match reader.record(damage.until, 0, limit)? {
            Ok((next, _)) => next.epoch,
            Err(why) => return Err(Error::NoRecord { lsn: damage.until, why }),
        };
        // No whole record begins within the header of one that was there.
        let length = until.0.saturating_sub(damage.from.0 + HEADER_BYTES as u64);
        let kind_and_length = (Kind::Lost, u32::try_from(length).unwrap_or(u32::MAX));
        let seed = Seed::of(header.log_id);
        let lost = skip(seed, damage.from, epoch, damage.from, kind_and_length);
        let name = segment::name(number);
        let failed = |doing| {
            let name = name.clone();
            move |why| Error::io(doing, &name, why)
        };
        let file = storage.open(&name, Access::Write).map_err(failed("open"))?;
        file.write_at(&lost, geometry.offset(damage.from)).map_err(failed("write"))?;
        file.sync().map_err(failed("sync"))?;
    }
    Ok(())
}
