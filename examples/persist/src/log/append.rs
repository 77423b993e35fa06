//! Appending as a future: waiting for room, and for the level, without blocking.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::state::{Place, State};
use super::{Log, Shared, Waiter};
use crate::error::Error;
use crate::level::{Ack, Level};
use crate::record::{Draft, Kind, size_of_record};

/// A record that is being appended: see [`Log::append_async`].
#[must_use = "futures do nothing unless polled"]
pub struct Append<'a, P> {
    log: &'a Log,
    payload: P,
    level: Level,
    step: Step,
}

enum Step {
    /// The queue or the segment was full when this was polled last, if it was: then so many segments had failed.
    Room(Option<u64>),
    Level(Waiter),
}

impl Log {
    /// Appends a record that is part of no transaction, and waits for its level, on any executor. Nothing here blocks: a thread writes, syncs
    /// and makes segments.
    ///
    /// Dropping it before it was polled to its end leaves the record in the log, or not.
    ///
    /// # Errors
    ///
    /// As for [`append`](Self::append) and [`Waiter::wait`].
    pub fn append_async<P: AsRef<[u8]>>(&self, payload: P, level: Level) -> Append<'_, P> {
        Append { log: self, payload, level, step: Step::Room(None) }
    }
}

impl<P: AsRef<[u8]> + Unpin> Future for Append<'_, P> {
    type Output = Result<Ack, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match &mut this.step {
                Step::Level(waiter) => return Pin::new(waiter).poll(context),
                Step::Room(failures) => {
                    let payload = this.payload.as_ref();
                    let shared = &this.log.shared;
                    match shared.push_or_register(payload, this.level, failures, context)? {
                        Some(waiter) => this.step = Step::Level(waiter),
                        None => return Poll::Pending,
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Appends if there is room; else notes whom to wake when there may be.
    fn push_or_register(
        self: &Arc<Self>,
        payload: &[u8],
        level: Level,
        failures: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Result<Option<Waiter>, Error> {
        let limit = self.max_payload();
        if payload.len() > limit {
            return Err(Error::TooLarge { length: payload.len(), limit });
        }
        let mut state = self.lock();
        state.check()?;
        let place = state.place(self.geometry, size_of_record(payload.len()));
        if let Place::Here = place {
            let draft = Draft { transaction: 0, kind: Kind::Entry, payload };
            return Ok(Some(self.push_here(&mut state, draft, level)));
        }
        let needs_segment = matches!(place, Place::NextSegment);
        let (failed, why) = &state.segment_failures;
        if needs_segment
            && failures.is_some_and(|before| before < *failed)
            && let Some(why) = why
        {
            return Err(Error::clone(why));
        }
        *failures = Some(*failed);
        state.wait_for_room(needs_segment, context.waker());
        self.start_committer(&mut state)?;
        Ok(None)
    }

    /// Appends a record for which there is room.
    pub(super) fn push_here(
        self: &Arc<Self>,
        state: &mut State,
        draft: Draft<'_>,
        level: Level,
    ) -> Waiter {
        let lsn = state.push(self.epoch, draft);
        let end = state.end;
        state.want(end, level);
        if state.is_gathered() {
            self.arrivals.notify_one();
        }
        Waiter::new(self, lsn, end, state.batch, level)
    }
}
