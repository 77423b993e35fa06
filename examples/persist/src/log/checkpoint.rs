//! Checkpoints: where recovery begins; and truncation, which frees what is before.

use std::sync::PoisonError;

use super::state::Known;
use super::{Log, Record};
use crate::error::Error;
use crate::hint::Hint;
use crate::level::Level;
use crate::lsn::Lsn;
use crate::record::{Draft, Kind};
use crate::segments;

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where its record is.
    pub lsn: Lsn,
    /// The program needs no record before this for its recovery.
    pub restart: Lsn,
    /// What the program keeps with it.
    pub payload: Vec<u8>,
}

/// Where recovery begins comes before the program's payload.
const RESTART_BYTES: usize = 8;

impl Checkpoint {
    /// Reads a checkpoint's record.
    pub(crate) fn parse(lsn: Lsn, kind: Kind, payload: &[u8]) -> Option<Self> {
        let (restart, payload) = payload.split_first_chunk::<RESTART_BYTES>()?;
        let restart = Lsn(u64::from_le_bytes(*restart));
        let is_one = kind == Kind::Checkpoint && restart <= lsn;
        is_one.then(|| Self { lsn, restart, payload: payload.to_vec() })
    }
}

impl Log {
    /// Notes durably that recovery needs no record before `restart`, with what the program wants to keep with it. Writers go on meanwhile.
    ///
    /// Returns where the checkpoint is.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append); [`Error::Truncated`] and [`Error::BeyondEnd`] if `restart` is no position in the log.
    pub fn checkpoint(&self, restart: Lsn, payload: &[u8]) -> Result<Lsn, Error> {
        let shared = &self.shared;
        let _one = shared.maintenance.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (self.first(), self.end());
        if restart < first {
            return Err(Error::Truncated { lsn: restart, first });
        }
        if restart > end {
            return Err(Error::BeyondEnd { lsn: restart, end });
        }
        let payload = [&restart.0.to_le_bytes()[..], payload].concat();
        let draft = Draft { transaction: 0, kind: Kind::Checkpoint, payload: &payload };
        let lsn = self.push(draft, Level::Persistent, true)?.wait()?.lsn;
        shared.lock().checkpoint = Some(Known { lsn, restart });
        let end = Lsn(lsn.0 + crate::record::size_of_record(payload.len()));
        let log_id = shared.log_id;
        Hint { log_id, last: lsn, end, checkpoint: lsn }.write(&*shared.storage);
        Ok(lsn)
    }

    /// The last checkpoint that is persistent, if there is one.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn last_checkpoint(&self) -> Result<Option<Checkpoint>, Error> {
        let Some(known) = self.shared.lock().checkpoint else { return Ok(None) };
        let Record { header, payload } = self.read(known.lsn)?;
        Ok(Checkpoint::parse(known.lsn, header.kind, &payload))
    }

    /// Frees the segments whose records are all before `before`. Returns how many.
    ///
    /// # Errors
    ///
    /// [`Error::NeededForRecovery`] if the last checkpoint says so; [`Error::Io`]: what could not be freed is freed when the log is opened
    /// again.
    pub fn truncate(&self, before: Lsn) -> Result<u64, Error> {
        let shared = &self.shared;
        let _one = shared.maintenance.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = shared.lock();
        let first = state.first_segment;
        let restart = state.checkpoint.map_or(shared.geometry.start(first), |known| known.restart);
        if before > restart {
            return Err(Error::NeededForRecovery { asked: before, restart });
        }
        let keep = shared.geometry.segment(before);
        if keep <= first {
            return Ok(0);
        }
        state.first_segment = keep;
        let mut spares = state.spares.clone();
        drop(state);
        // The oldest first: what is left after a crash are the newest, or some that the checkpoint says nobody needs.
        for number in first..keep {
            let had = spares.len();
            let max = shared.options.spare_segments;
            segments::retire(&*shared.storage, number, &mut spares, max)?;
            shared.lock().spares.extend(spares.get(had..).unwrap_or_default().iter().cloned());
        }
        segments::sync_names(&*shared.storage)?;
        Ok(keep - first)
    }
}
