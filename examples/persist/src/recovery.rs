//! Finding where a log ends, and what recovery needs to know before it writes anything. Nothing here writes.
//!
//! Recovery looks from the last place on at which everything before is known to be persistent: the record that the index names, else the
//! checkpoint that the header of the last segment names, else the first segment. The index only shortens the way.

use std::sync::Arc;

use crate::chain::{Chain, Reader};
use crate::error::Error;
use crate::hint::Hint;
use crate::log::Checkpoint;
use crate::lsn::{Geometry, Lsn};
use crate::planted::{Bug, is_planted};
use crate::record::Kind;
use crate::segment::SegmentHeader;
use crate::segments;
use crate::storage::{Access, Storage};

#[cfg(test)]
mod fuzz;

/// The segments of a log: those without a gap up to the last, and those before the gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) leftovers: Vec<u64>,
}

impl Run {
    /// The run in the numbers of all segments, which are in order.
    pub(crate) fn of(numbers: &[u64]) -> Option<Self> {
        let last = *numbers.last()?;
        let connected = numbers.iter().rev().zip((0..=last).rev()).take_while(|(a, b)| *a == b);
        let count = connected.count();
        let first = last + 1 - count as u64;
        Some(Self { first, last, leftovers: numbers[..numbers.len() - count].to_vec() })
    }

    fn has(&self, segment: u64) -> bool {
        (self.first..=self.last).contains(&segment)
    }
}

/// What recovery has found.
pub(crate) struct Found {
    pub(crate) log_id: u64,
    pub(crate) geometry: Geometry,
    /// Where the next record begins.
    pub(crate) end: Lsn,
    /// The highest epoch of a record that counts.
    pub(crate) epoch: u32,
    /// Everything before this is known to be persistent.
    pub(crate) synced: Lsn,
    pub(crate) checkpoint: Option<Checkpoint>,
}

/// Finds where the log ends.
///
/// # Errors
///
/// [`Error::Corrupt`], [`Error::MissingSegments`], [`Error::NotASegment`], [`Error::Version`], [`Error::Io`].
pub(crate) fn find_end(storage: &Arc<dyn Storage>, run: &Run) -> Result<Found, Error> {
    let (_, header) = segments::open(&**storage, run.last, Access::Read)?;
    let geometry = Geometry { segment_bytes: header.segment_bytes };
    let mut reader = Reader::new(storage.clone(), geometry, header.log_id);
    let start = Start::choose(&mut reader, geometry, storage, run, header)?;
    if is_planted(Bug::IndexBelieved)
        && let Some(end) = start.hinted_end
    {
        let (epoch, synced, checkpoint) = (header.epoch, end, start.checkpoint);
        return Ok(Found { log_id: header.log_id, geometry, end, epoch, synced, checkpoint });
    }
    let mut chain = Chain::new(reader, start.at, 0, run.last);
    let mut synced = start.at;
    let mut checkpoint = start.checkpoint;
    while let Some((header, payload)) = chain.next()? {
        synced = synced.max(header.synced);
        if header.kind == Kind::Checkpoint {
            checkpoint = Checkpoint::parse(header.lsn, header.kind, payload).or(checkpoint);
        }
    }
    chain.check_tail()?;
    let needed = checkpoint.as_ref().map_or(FIRST_SEGMENT, |c| geometry.segment(c.restart));
    if needed < run.first {
        return Err(Error::MissingSegments { from: needed, to: run.first - 1 });
    }
    let (end, epoch) = (chain.at, chain.epoch);
    Ok(Found { log_id: header.log_id, geometry, end, epoch, synced, checkpoint })
}

/// The number of the first segment that a log has.
pub(crate) const FIRST_SEGMENT: u64 = 1;

/// Where recovery begins to look.
struct Start {
    at: Lsn,
    checkpoint: Option<Checkpoint>,
    hinted_end: Option<Lsn>,
}

impl Start {
    fn choose(
        reader: &mut Reader,
        geometry: Geometry,
        storage: &Arc<dyn Storage>,
        run: &Run,
        header: SegmentHeader,
    ) -> Result<Self, Error> {
        let hint = Hint::read(&**storage).filter(|hint| hint.log_id == header.log_id);
        if let Some(hint) = hint
            && run.has(geometry.segment(hint.last))
            && let Some(kind) = kind_at(reader, geometry, hint.last)?
            && matches!(kind, Kind::Close | Kind::Checkpoint)
        {
            let checkpoint = checkpoint_at(reader, geometry, run, hint.checkpoint)?;
            if checkpoint.is_some() || hint.checkpoint == Lsn(0) {
                return Ok(Self { at: hint.last, checkpoint, hinted_end: Some(hint.end) });
            }
        }
        let checkpoint = checkpoint_at(reader, geometry, run, header.checkpoint)?;
        let at = checkpoint.as_ref().map_or(geometry.start(run.first), |known| known.lsn);
        Ok(Self { at, checkpoint, hinted_end: None })
    }
}

fn kind_at(reader: &mut Reader, geometry: Geometry, lsn: Lsn) -> Result<Option<Kind>, Error> {
    let limit = Lsn((geometry.segment(lsn) + 1) * geometry.segment_bytes);
    Ok(reader.record(lsn, 0, limit)?.ok().map(|(header, _)| header.kind))
}

fn checkpoint_at(
    reader: &mut Reader,
    geometry: Geometry,
    run: &Run,
    lsn: Lsn,
) -> Result<Option<Checkpoint>, Error> {
    if !run.has(geometry.segment(lsn)) {
        return Ok(None);
    }
    let limit = Lsn((geometry.segment(lsn) + 1) * geometry.segment_bytes);
    let record = reader.record(lsn, 0, limit)?.ok();
    Ok(record.and_then(|(header, payload)| Checkpoint::parse(lsn, header.kind, payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_at_the_last_segment() {
        let run = |first, last, leftovers: &[u64]| {
            Some(Run { first, last, leftovers: leftovers.to_vec() })
        };
        assert_eq!(Run::of(&[]), None);
        assert_eq!(Run::of(&[1]), run(1, 1, &[]));
        assert_eq!(Run::of(&[4, 5, 6]), run(4, 6, &[]));
        assert_eq!(Run::of(&[1, 2, 5, 6]), run(5, 6, &[1, 2]));
    }
}
