//! A leader writes and syncs a batch for all who wait.

use std::sync::MutexGuard;
use std::time::Instant;

use super::Shared;
use super::state::{Batch, State};
use crate::error::Error;
use crate::level::Level;
use crate::lsn::Lsn;
use crate::planted::{Bug, is_planted};
use crate::record::seal_batch;
use crate::segment;

impl Shared {
    /// Waits until everything before `end`, which is in batch `batch`, is at a level. Returns the level that it is at.
    pub(super) fn wait_for(&self, end: Lsn, batch: u64, level: Level) -> Result<Level, Error> {
        let mut state = self.lock();
        let reached = loop {
            let reached = state.level_of(end);
            if reached >= level {
                break Ok(reached);
            }
            if let Err(why) = state.check() {
                break Err(why);
            }
            state = if state.leading {
                self.wait(self.batch_condition(batch), state)
            } else {
                self.lead(state)
            };
        };
        // This caller may have been woken to lead, and has nothing to write any more.
        if !state.leading && state.has_work() {
            self.call_a_leader(&state);
        }
        reached
    }

    fn batch_condition(&self, batch: u64) -> &std::sync::Condvar {
        &self.batch_done[usize::from(batch % 2 == 1)]
    }

    /// Writes what is pending, and syncs it if somebody wants that.
    pub(super) fn lead<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.leading = true;
        state = self.gather(state);
        let batch = state.take_batch();
        self.write_out(state, batch)
    }

    /// Writes a batch as the leader, and is the leader no more afterwards.
    pub(super) fn write_out<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut batch: Batch,
    ) -> MutexGuard<'a, State> {
        drop(state);
        let begun = Instant::now();
        let outcome = self.write_and_sync(&mut batch);
        let took = begun.elapsed();
        let mut state = self.lock();
        if batch.sync {
            state.last_sync = took;
        }
        let number = batch.number;
        state.finish(batch, outcome);
        self.announce(state, number)
    }

    fn write_and_sync(&self, batch: &mut Batch) -> Result<(), Error> {
        let number = self.geometry.segment(batch.start);
        let failed = |doing| move |why| Error::io(doing, &segment::name(number), why);
        if !batch.bytes.is_empty() {
            seal_batch(self.seed, &mut batch.bytes, batch.synced);
            let offset = self.geometry.offset(batch.start);
            batch.segment.write_at(&batch.bytes, offset).map_err(failed("write"))?;
        }
        if batch.sync && !is_planted(Bug::AcknowledgedBeforeSync) {
            let synced = batch.segment.sync().map_err(failed("sync"));
            if !is_planted(Bug::PoisonedLogAnswers) {
                synced?;
            }
        }
        Ok(())
    }

    /// Ends this caller's leadership: wakes all who waited for the batch, and one who leads next.
    pub(super) fn announce<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        batch: u64,
    ) -> MutexGuard<'a, State> {
        state.leading = false;
        state.collect_room_wakers();
        self.batch_condition(batch).notify_all();
        self.room.notify_all();
        if state.failure.is_some() {
            self.batch_condition(batch + 1).notify_all();
        } else if state.has_work() {
            self.call_a_leader(&state);
        }
        if state.ready.is_empty() {
            return state;
        }
        // A waker is the program's code: not under the lock.
        let mut ready = std::mem::take(&mut state.ready);
        drop(state);
        ready.drain(..).for_each(std::task::Waker::wake);
        state = self.lock();
        if state.ready.is_empty() {
            state.ready = ready;
        }
        state
    }

    fn call_a_leader(&self, state: &State) {
        self.batch_condition(state.batch).notify_one();
        if state.has_wakers() {
            self.futures.notify_one();
        }
    }

    /// Gives the writers of the batch before time to come back. Otherwise the first of them would lead a batch of its own, and all others
    /// would wait for two syncs.
    fn gather<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let wanted = state.last_batch_records;
        let longest = self.options.gather.min(state.last_sync / 4);
        if wanted < 2 || longest.is_zero() || !state.wants_sync() {
            return state;
        }
        let until = Instant::now() + longest;
        state.gathers = Some(wanted);
        while !state.is_gathered() && !state.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.arrivals.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        state.gathers = None;
        state
    }

    /// Has room made in the queue: writes it, or waits for the caller that does.
    #[cold]
    pub(super) fn make_room<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.leading { self.wait(&self.room, state) } else { self.lead(state) }
    }
}
