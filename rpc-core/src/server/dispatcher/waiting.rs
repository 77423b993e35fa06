//! Runs the requests that wait in the [backlog](crate::server::backlog).

use super::{Dispatcher, SLICE_NS, may_give};
use crate::server::backlog::Waiting;
use crate::server::clients::ClientKey;
use crate::server::context::CallContext;
use crate::server::executor::Task;
use crate::server::paths::ReplyPaths;
use crate::server::reply::UnansweredCall;
use crate::time::PollAt;
use crate::wire::{HEADER_BYTES, Status};

/// A thread polls at most so often for more that has arrived before it runs a handler: what arrives may never end.
const POLLS_BEFORE_RUNS: u32 = 16;

impl Dispatcher {
    /// Removes the requests whose callers have given up. If nothing else has arrived, runs others for a [slice](SLICE_NS) of time.
    #[inline(never)]
    pub(super) fn work_off_backlog(&mut self, next: PollAt, paths: &mut ReplyPaths<'_>) -> u32 {
        let mut worked = 0;
        while let Some(request) = self.backlog.take_cancelled() {
            self.end_waiting(request, Status::Cancelled, paths);
            worked += 1;
        }
        self.polls += 1;
        if next == PollAt::Now && self.polls < POLLS_BEFORE_RUNS {
            return worked + 1;
        }
        self.polls = 0;
        self.turn.read_clock();
        let began = self.turn.now;
        while (self.turn.now - began).as_nanos() < u128::from(SLICE_NS) {
            let Some(request) = self.backlog.take_next(self.turn.now, &self.services.run_times)
            else {
                break;
            };
            worked += 1;
            match request.is_late(self.turn.now) {
                true => self.end_waiting(request, Status::Late, paths),
                false => self.run_waiting(request, paths),
            }
        }
        self.turn.backlog_ns += (self.turn.now - began).as_nanos() as u64;
        worked
    }

    /// Answers a request that has not run.
    pub(super) fn end_waiting(
        &mut self,
        request: Waiting,
        status: Status,
        paths: &mut ReplyPaths<'_>,
    ) {
        let Waiting { call, transport, target, arrived, deadline, content, .. } = request;
        let task = Task::new(call, transport, target.row, arrived, deadline);
        let replies = paths.enter(transport, &mut self.turn);
        self.turn.counters.started(target.row);
        UnansweredCall::new(task, replies, &mut self.turn, None).reply().fail_with(status);
        self.backlog.keep(content);
    }

    /// Runs the handler of a request that has waited, here or on another thread.
    fn run_waiting(&mut self, request: Waiting, paths: &mut ReplyPaths<'_>) {
        let Dispatcher { services, turn, executor, backlog, giver, .. } = self;
        let Waiting { mut call, transport, target, arrived, deadline, identity, content, .. } =
            request;
        let replies = paths.enter(transport, turn);
        let waited_ns = turn.now.as_nanos().saturating_sub(arrived.as_nanos());
        if let Some(giver) = giver
            && may_give(giver, target, &call, turn, waited_ns)
        {
            match giver.give(call, &content.message(), (transport, identity.clone())) {
                None => {
                    turn.counters.stolen(target.row);
                    return backlog.keep(content);
                }
                Some(kept) => call = kept,
            }
        }
        turn.counters.started(target.row);
        let client = ClientKey::of(transport, &call);
        let task = Task::new(call, transport, target.row, arrived, deadline);
        let now = turn.now;
        let mut unanswered = UnansweredCall::new(task, replies, turn, Some(executor));
        CallContext::enter(deadline, now, false, client);
        CallContext::identify(identity.as_ref());
        if let Some(arguments) = content.message().skip(HEADER_BYTES) {
            services.dispatch(target, arguments, unanswered.reply());
        }
        CallContext::leave();
        let nanos = turn.read_clock();
        turn.charge(client, nanos);
        services.run_times.record(target.row, nanos);
        if let Some(giver) = giver {
            giver.ran(target.row, nanos);
        }
        backlog.keep(content);
    }
}
