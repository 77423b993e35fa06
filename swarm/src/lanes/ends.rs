//! A client's ends of the lanes of one connection, and the calls over them.

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::{PendingCall, RpcError};

use super::service::TallyPollClient;
use crate::records::Counts;

/// One lane's end.
pub(super) struct LaneEnd {
    /// The index of its backend among those that the server offers.
    pub(super) backend: usize,
    pub(super) client: TallyPollClient,
}

struct Waiting {
    pending: PendingCall<Result<(), RpcError>>,
    backend: usize,
    ends_by_ns: u64,
}

/// The lanes of a client's connection; none: it has no connection.
#[derive(Default)]
pub(super) struct Lanes {
    pub(super) ends: Vec<LaneEnd>,
    /// The connection, for the services.
    pub(super) tag: u64,
    waiting: Vec<Waiting>,
    calls: u64,
    /// No lane may break but by its client.
    pub(super) is_masked: bool,
    pub(super) counts: Counts,
    /// Answers since the last look.
    pub(super) answers: u64,
    pub(super) last_error: String,
    pub(super) failure: Option<String>,
}

impl Lanes {
    pub(super) fn new(is_masked: bool) -> Lanes {
        Lanes { is_masked, ..Lanes::default() }
    }

    /// Drives all lanes, and takes what has come.
    pub(super) fn turn(&mut self, now: Instant) -> Progress {
        let mut all = Progress::IDLE;
        for end in &mut self.ends {
            all = all.and(end.client.connection().turn(now));
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain_mut(|call| !self.has_ended(call, now));
        self.waiting = waiting;
        let (ends, masked) = (self.ends.len(), self.is_masked);
        self.ends.retain_mut(|end| !end.client.connection().is_closed());
        if masked && self.ends.len() < ends {
            self.fail("a lane has broken, and no fault breaks one".to_owned());
        }
        let first = self.waiting.iter().map(|call| call.ends_by_ns).min();
        if let Some(at) = first {
            all.next = all.next.earlier(PollAt::At(Instant::from_nanos(at + 1)));
        }
        all
    }

    fn has_ended(&mut self, call: &mut Waiting, now: Instant) -> bool {
        let Some(end) = self.ends.iter_mut().find(|end| end.backend == call.backend) else {
            self.fail("a lane is over, and a call on it is not".to_owned());
            return true;
        };
        match end.client.take(&mut call.pending) {
            Some(result) => self.take(result),
            None if now.as_nanos() > call.ends_by_ns => {
                self.fail("a call did not end in time".to_owned());
            }
            None => return false,
        }
        true
    }

    fn take(&mut self, result: Result<(), RpcError>) {
        match result {
            Ok(()) => {
                self.counts.answered += 1;
                self.answers += 1;
            }
            Err(error) => {
                let may_happen = match error {
                    RpcError::DeadlineExceeded { .. } | RpcError::Overloaded(_) => true,
                    RpcError::PeerGone { .. } => !self.is_masked,
                    _ => false,
                };
                if !may_happen {
                    self.fail(format!("a call has failed: {error}"));
                }
                self.last_error = error.to_string();
                match error.may_have_run() {
                    true => self.counts.unknown += 1,
                    false => self.counts.never_ran += 1,
                }
            }
        }
    }

    /// Starts a call over the lane of this index. `false`: it has no room for another.
    pub(super) fn start(&mut self, lane: usize, ends_by_ns: u64) -> bool {
        let (tag, call) = (self.tag, self.calls);
        let Some(LaneEnd { backend, client }) = self.ends.get_mut(lane) else { return true };
        match client.start_count(tag, call) {
            Ok(pending) => {
                self.calls += 1;
                self.waiting.push(Waiting { pending, backend: *backend, ends_by_ns });
            }
            Err(RpcError::Overloaded(_)) => return false,
            Err(RpcError::PeerGone { .. }) if !self.is_masked => {}
            Err(error) => self.fail(format!("a call did not start: {error}")),
        }
        true
    }

    /// No call is under way.
    pub(super) fn are_quiet(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Drops a lane, with its calls.
    pub(super) fn drop_lane(&mut self, lane: usize) {
        let LaneEnd { backend, .. } = self.ends.swap_remove(lane);
        let before = self.waiting.len();
        self.waiting.retain(|call| call.backend != backend);
        self.counts.unknown += (before - self.waiting.len()) as u64;
    }

    /// Drops the connection, with its calls.
    pub(super) fn clear(&mut self) {
        while !self.ends.is_empty() {
            self.drop_lane(0);
        }
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }
}
