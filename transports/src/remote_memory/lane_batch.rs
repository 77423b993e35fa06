//! Operations that travel on a lane together, from their post to their end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use farcall_core::time::Instant;

use super::{Action, Operation, Outcome};

/// A batch on a lane: shared by the lane, which does it, and the caller, who waits for it.
#[derive(Debug)]
pub struct LaneBatch {
    operations: Vec<Operation>,
    /// The indices of operations that begin when those before them have ended, ascending.
    fences: Vec<u32>,
    deadline: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the first operations, in their order.
    outcomes: Vec<Outcome>,
    /// How many operations were posted.
    posted: usize,
    end: Option<LaneEnd>,
    is_abandoned: bool,
    waker: Option<Waker>,
}

/// How a batch on a lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneEnd {
    /// All its operations have been done.
    Done,
    /// The lane is over. The operations without an outcome have not been done, and will not be: the owner has refused one of them, or one of
    /// another batch, or they were not posted.
    NotDone,
    /// The lane is over, because the owner does not answer. The operations without an outcome may have landed.
    Lost,
    /// The deadline has passed. The operations without an outcome may have landed, or may still do so.
    Late,
}

impl LaneBatch {
    /// Operations that were [`check`](Operation::check)ed, which end at this deadline at the latest.
    pub fn new(operations: Vec<Operation>, fences: Vec<u32>, deadline: Instant) -> LaneBatch {
        let state = State { outcomes: Vec::with_capacity(operations.len()), ..State::default() };
        LaneBatch { operations, fences, deadline, state: Mutex::new(state) }
    }

    /// Its operations.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The outcomes of the first operations, and how it has ended, if it has. Otherwise `waker` is called when it does.
    pub fn take(&self, waker: Option<&Waker>) -> Option<(Vec<Outcome>, LaneEnd)> {
        let mut state = self.lock();
        if state.end.is_none() {
            if let Some(waker) = waker {
                state.waker = Some(waker.clone());
            }
            return None;
        }
        Some((std::mem::take(&mut state.outcomes), state.end?))
    }

    /// Its caller has given it up. What was not posted is not done.
    pub fn abandon(&self) {
        let mut state = self.lock();
        (state.is_abandoned, state.waker) = (true, None);
    }

    /// No operation was posted.
    pub fn is_unposted(&self) -> bool {
        self.lock().posted == 0
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(super) fn action(&self, at: usize) -> &Action {
        &self.operations[at].action
    }

    /// It has ended, or its caller has given it up.
    pub(super) fn is_over(&self) -> bool {
        let state = self.lock();
        state.end.is_some() || state.is_abandoned
    }

    /// Whether the operation of this index may begin.
    pub(super) fn may_begin(&self, at: usize) -> bool {
        self.fences.binary_search(&(at as u32)).is_err() || self.lock().outcomes.len() == at
    }

    /// The next operation has been posted.
    pub(super) fn note_posted(&self) {
        self.lock().posted += 1;
    }

    /// The next operation has been done, and left these bytes. Gives what wakes the caller, if it was the last.
    pub(super) fn note_done(&self, filled: &[u8]) -> Option<Waker> {
        let mut state = self.lock();
        if state.end.is_some() || state.is_abandoned {
            return None;
        }
        let at = state.outcomes.len();
        match outcome(self.action(at), filled) {
            Some(outcome) => state.outcomes.push(outcome),
            None => return end(&mut state, LaneEnd::Lost),
        }
        let is_last = state.outcomes.len() == self.operations.len();
        if is_last { end(&mut state, LaneEnd::Done) } else { None }
    }

    /// It has ended. Gives what wakes the caller.
    pub(super) fn end(&self, how: LaneEnd) -> Option<Waker> {
        end(&mut self.lock(), how)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(state: &mut State, how: LaneEnd) -> Option<Waker> {
    state.end.get_or_insert(how);
    state.waker.take()
}

/// What an operation has come to whose buffer has these bytes. `None`: a buffer of another length.
fn outcome(action: &Action, filled: &[u8]) -> Option<Outcome> {
    Some(match action {
        Action::Read => Outcome::Read(Bytes::copy_from_slice(filled)),
        Action::Write(_) => Outcome::Written,
        Action::CompareAndSwap { .. } | Action::FetchAdd { .. } => {
            Outcome::Word(u64::from_ne_bytes(*filled.first_chunk()?))
        }
    })
}
