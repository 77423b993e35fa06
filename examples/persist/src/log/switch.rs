//! The log goes on in another segment.

use std::sync::{Arc, MutexGuard};

use super::Shared;
use super::state::State;
use crate::error::Error;
use crate::lsn::Lsn;
use crate::record::{HEADER_BYTES, skip};
use crate::segment::SegmentHeader;
use crate::segments;

impl Shared {
    /// Makes the next segment, then completes and syncs the one before, as the leader; or waits for the leader.
    ///
    /// A segment has records only after everything before it is persistent. So a torn tail is in the last segment with records, and a full
    /// disk fails this without harm to what is there.
    #[cold]
    pub(super) fn next_segment<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        if state.leading {
            return Ok(self.wait(&self.room, state));
        }
        state.leading = true;
        let batch = state.batch;
        let header = SegmentHeader {
            log_id: self.log_id,
            number: self.geometry.segment(state.end) + 1,
            segment_bytes: self.geometry.segment_bytes,
            checkpoint: state.checkpoint.map_or(Lsn(0), |known| known.lsn),
            epoch: self.epoch,
        };
        let mut spares = std::mem::take(&mut state.spares);
        drop(state);
        let made = segments::create(&*self.storage, header, &mut spares);
        let mut state = self.lock();
        // A truncation may have put files there in the meantime.
        state.spares.append(&mut spares);
        match made {
            Ok(next) => {
                let left = self.geometry.left(state.end) - HEADER_BYTES as u64;
                let left = u32::try_from(left).expect("a segment's length fits");
                let (at, synced) = (state.end, Lsn(0));
                let mark = skip(self.seed, at, self.epoch, synced, (State::END_MARK, left));
                let last = state.end_segment(&mark, self.geometry, next);
                Ok(self.write_out(state, last))
            }
            Err(why) => {
                state.segment_failures.0 += 1;
                state.segment_failures.1 = Some(Arc::new(why.clone()));
                drop(self.announce(state, batch));
                Err(why)
            }
        }
    }
}
