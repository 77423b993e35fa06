//! Batches of a polling client that are not on its lane: they travel as calls, by which the lane is opened and windows are bound.

use std::mem;

use farcall_core::time::Instant;
use farcall_transports::remote_memory::{
    BatchError, BatchId, ClientLane, LaneEnd, Operation, Outcome, Remote, Submitted, Window,
    lane_devices,
};

use super::super::operation::{batch_error, gone};
use super::{Lane, PendingBatch, PollMemory};
use crate::{Bytes, CallError, PendingCall, RpcError};

/// A lane that the server is asked to connect to.
pub(super) struct Opening {
    lane: ClientLane,
    call: PendingCall<Result<(u64, Bytes), CallError<String>>>,
}

type Batched = Result<Vec<Outcome>, CallError<BatchError>>;
type Bound = Result<(Vec<Outcome>, Option<Window>), CallError<BatchError>>;

/// A batch, or what is left of it, that is not on the lane.
pub(super) enum Elsewhere {
    Calling(PendingCall<Batched>),
    /// A call that also has the server bind a window to a lend on the lane with this number.
    Binding {
        call: PendingCall<Bound>,
        lend: Remote,
        number: u64,
        asked: Instant,
    },
    Ended(Result<Vec<Outcome>, BatchError>),
}

impl PollMemory {
    /// The lane has ended before the batch. Whether this has ended with it: otherwise its rest travels as a call.
    #[cold]
    pub(super) fn go_on_after_lane(&mut self, id: BatchId, end: LaneEnd) -> bool {
        let at = self.local.batches.done_of(id);
        let may_have_landed = self.local.batches.changes_from(id, at);
        let rest = self.local.batches.operations_from(id, at);
        let why = match (end, rest) {
            (LaneEnd::NotDone, Some(rest)) => {
                self.call(id, at, rest);
                return false;
            }
            // The call says what has become of the owner.
            (LaneEnd::Lost, Some(rest)) if !may_have_landed => {
                self.call(id, at, rest);
                return false;
            }
            (LaneEnd::NotDone, None) => {
                gone(false, "its lane has ended with the bytes of its buffer")
            }
            (LaneEnd::Late, _) => gone(may_have_landed, "it took longer than its timeout"),
            _ => gone(may_have_landed, "the owner's queue pair does not answer any more"),
        };
        self.set_elsewhere(id, Elsewhere::Ended(Err(BatchError { at: at as u32, error: why })));
        true
    }

    /// Looks at the call of a batch.
    #[cold]
    pub(super) fn has_ended_elsewhere(&mut self, id: BatchId) -> bool {
        let Some(Some(elsewhere)) = self.elsewhere.get_mut(id.index()) else { return false };
        let connection = self.calls.connection();
        let ended = match &mut **elsewhere {
            Elsewhere::Ended(_) => return true,
            Elsewhere::Calling(call) => connection.take(call).map(|it| it.map_err(batch_error)),
            Elsewhere::Binding { call, lend, number, asked } => {
                connection.take(call).map(|ended| {
                    let (outcomes, window) = ended.map_err(batch_error)?;
                    // Another lane may have been opened meanwhile, for which it is not.
                    if let Lane::Open(lane) = &mut self.local.lane
                        && lane.number() == *number
                    {
                        lane.learn(lend, window, *asked);
                    }
                    Ok(outcomes)
                })
            }
        };
        let Some(ended) = ended else { return false };
        self.calling -= 1;
        let done = self.local.batches.done_of(id);
        let rest = self.local.batches.len_of(id) - done;
        let ended = match ended {
            Ok(outcomes) if outcomes.len() == rest => Ok(outcomes),
            Ok(_) => {
                let error = gone(true, "the server answered another number of operations");
                Err(BatchError { at: done as u32, error })
            }
            Err(BatchError { at, error }) => {
                Err(BatchError { at: at.saturating_add(done as u32), error })
            }
        };
        self.set_elsewhere(id, Elsewhere::Ended(ended));
        true
    }

    fn set_elsewhere(&mut self, id: BatchId, elsewhere: Elsewhere) {
        if self.elsewhere.len() <= id.index() {
            self.elsewhere.resize_with(id.index() + 1, || None);
        }
        self.elsewhere[id.index()] = Some(Box::new(elsewhere));
    }

    /// Has a call do the operations, and prepares for the next ones to be one-sided.
    #[cold]
    pub(super) fn submit_elsewhere(
        &mut self,
        id: BatchId,
        refused: Option<Submitted>,
    ) -> Result<PendingBatch, BatchError> {
        if let Lane::Closed = self.local.lane {
            self.open();
        }
        let operations = self.local.batches.operations_from(id, 0).unwrap_or_default();
        match (refused, &self.local.lane) {
            (Some(Submitted::Unknown(lend)), Lane::Open(lane)) => {
                let (number, asked) = (lane.number(), self.site.now());
                let started = self.calls.start_bind(number, lend, operations);
                self.note_started(id, started, |call| Elsewhere::Binding {
                    call,
                    lend,
                    number,
                    asked,
                });
            }
            _ => self.call(id, 0, operations),
        }
        Ok(PendingBatch::new(id, &self.dropped))
    }

    /// Has a call do the operations of a batch from this index on.
    fn call(&mut self, id: BatchId, at: usize, operations: Vec<Operation>) {
        debug_assert_eq!(at + operations.len(), self.local.batches.len_of(id));
        let started = self.calls.start_batch(operations);
        self.note_started(id, started, Elsewhere::Calling);
    }

    fn note_started<R>(
        &mut self,
        id: BatchId,
        started: Result<PendingCall<R>, RpcError>,
        calling: impl FnOnce(PendingCall<R>) -> Elsewhere,
    ) {
        let elsewhere = match started {
            Ok(call) => {
                self.calling += 1;
                calling(call)
            }
            Err(error) => Elsewhere::Ended(Err(batch_error(CallError::Rpc(error)))),
        };
        self.set_elsewhere(id, elsewhere);
    }

    /// Asks the server to connect to a lane on the next device that it has not refused.
    fn open(&mut self) {
        let device = lane_devices(&self.site).into_iter().nth(self.refused);
        let prepared = device
            .and_then(|it| ClientLane::prepare(&it, &self.site, &mut self.local.batches).ok());
        let Some(lane) = prepared else {
            self.local.lane = Lane::Unavailable;
            return;
        };
        // Without room for the call, the next operation tries again.
        if let Ok(call) = self.calls.start_open_lane(lane.endpoint()) {
            self.local.lane = Lane::Opening(Box::new(Opening { lane, call }));
        }
    }

    /// Connects, if the server has.
    #[cold]
    pub(super) fn end_opening(&mut self) {
        let Lane::Opening(opening) = &mut self.local.lane else { return };
        let Some(answer) = self.calls.connection().take(&mut opening.call) else { return };
        let Lane::Opening(opening) = mem::replace(&mut self.local.lane, Lane::Closed) else {
            return;
        };
        let mut lane = opening.lane;
        self.local.lane = match answer {
            Ok((number, endpoint)) if lane.connect(number, &endpoint).is_ok() => {
                Lane::Open(Box::new(lane))
            }
            Ok(_) | Err(CallError::Service(_)) => {
                self.refused += 1;
                match self.refused < lane_devices(&self.site).len() {
                    true => Lane::Closed,
                    false => Lane::Unavailable,
                }
            }
            // The call has failed, and the next operation tries again.
            Err(CallError::Rpc(_)) => Lane::Closed,
        };
    }

    #[cold]
    pub(super) fn release_elsewhere(&mut self, id: BatchId) {
        let Some(elsewhere) = self.elsewhere[id.index()].take() else { return };
        let connection = self.calls.connection();
        match *elsewhere {
            Elsewhere::Calling(call) => connection.cancel(call),
            Elsewhere::Binding { call, .. } => connection.cancel(call),
            Elsewhere::Ended(_) => return,
        }
        self.calling -= 1;
    }
}
