//! Completion queues as their NIC sees them.

use std::collections::VecDeque;
use std::sync::Arc;

use super::channel::Channel;
use super::event::QpId;
use super::world::World;
use crate::{Buffer, CompletionOpcode, CqError, DatagramSource, QpNumber, Status, WorkCompletion};

/// The work that a completion ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// The send work request of this number.
    Send(u64),
    /// A receive of the queue pair.
    Receive,
    /// A receive of this shared queue.
    Shared(u32),
}

/// A completion that has not been polled.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) id: u64,
    pub(super) qp: u32,
    pub(super) status: Status,
    pub(super) opcode: CompletionOpcode,
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    pub(super) source: Option<QpId>,
    pub(super) buffer: Option<Buffer>,
    pub(super) ended: Ended,
}

#[derive(Debug)]
pub(super) struct Queue {
    capacity: usize,
    completions: VecDeque<Completion>,
    overrun: bool,
    armed: bool,
    channel: Option<Arc<Channel>>,
    /// The actor that polls it. Without one, any actor of the node may.
    poller: Option<u32>,
}

impl Queue {
    pub(super) fn new(capacity: usize, channel: Option<Arc<Channel>>) -> Queue {
        let completions = VecDeque::new();
        Queue { capacity, completions, overrun: false, armed: false, channel, poller: None }
    }

    /// Appends a completion. `false`: there was no room.
    fn push(&mut self, completion: Completion) -> bool {
        if self.completions.len() >= self.capacity {
            self.overrun = true;
        } else {
            self.completions.push_back(completion);
        }
        if std::mem::take(&mut self.armed) {
            self.signal();
        }
        !self.overrun
    }

    fn signal(&self) {
        if let Some(channel) = &self.channel {
            channel.signal();
        }
    }

    /// Requests an event for the next completion, or immediately if one is available.
    pub(super) fn arm(&mut self) {
        if self.completions.is_empty() && !self.overrun {
            self.armed = true;
        } else {
            self.signal();
        }
    }

    /// Removes the completions of a destroyed queue pair.
    pub(super) fn forget(&mut self, qp: u32) -> VecDeque<Completion> {
        let all = std::mem::take(&mut self.completions);
        let (gone, kept) = all.into_iter().partition(|completion| completion.qp == qp);
        self.completions = kept;
        gone
    }
}

impl World {
    /// Puts the completion of a work request into the queue.
    pub(super) fn complete(&mut self, at: QpId, cq: u32, completion: Completion) {
        self.trace.mix(completion.id);
        self.trace.mix(u64::from(completion.byte_len) << 32 | u64::from(at.number));
        self.note(at, || {
            let Completion { id, status, opcode, byte_len, .. } = &completion;
            format!("{opcode:?} {id} completes: {status:?}, {byte_len} bytes")
        });
        let node = &mut self.nodes[usize::from(at.node)];
        let Some(queue) = node.queues.get_mut(cq) else { return };
        let fits = queue.push(completion);
        match queue.poller {
            Some(actor) => self.wake(actor),
            None => self.wake_all(at.node),
        }
        if !fits {
            self.break_pair(at);
        }
    }

    /// Takes available completions.
    pub(super) fn poll(
        &mut self,
        node: u16,
        cq: u32,
        out: &mut [WorkCompletion],
    ) -> Result<usize, CqError> {
        self.charge(self.config.costs.poll_ns);
        let turn = self.actors.on_turn();
        let node = &mut self.nodes[usize::from(node)];
        let Some(queue) = node.queues.get_mut(cq) else { return Ok(0) };
        if let Some(actor) = turn
            && queue.poller != turn
        {
            queue.poller = turn;
            if let Some(channel) = &queue.channel {
                channel.polled_by(actor);
            }
        }
        if queue.overrun {
            return Err(CqError::Overrun);
        }
        let count = queue.completions.len().min(out.len());
        if count == 0 {
            return Ok(0);
        }
        queue.armed = false;
        for (into, completion) in out.iter_mut().zip(queue.completions.drain(..count)) {
            match completion.ended {
                Ended::Send(number) => {
                    if let Some(pair) = node.pairs.get_mut(completion.qp) {
                        pair.retired = number + 1;
                    }
                }
                Ended::Receive => {
                    if let Some(pair) = node.pairs.get_mut(completion.qp) {
                        pair.receives.polled();
                    }
                }
                Ended::Shared(srq) => {
                    if let Some(receives) = node.srqs.get_mut(srq) {
                        receives.polled();
                    }
                }
            }
            *into = completion.into_work_completion();
        }
        self.charge(count as u64 * self.config.costs.completion_ns);
        Ok(count)
    }
}

impl Completion {
    fn into_work_completion(self) -> WorkCompletion {
        let Completion { id, qp, status, opcode, byte_len, imm, source, buffer, .. } = self;
        let source = source.map(|from| DatagramSource {
            qp: QpNumber(from.number),
            gid: Some(super::node::gid(from.node)),
        });
        WorkCompletion {
            id,
            qp: QpNumber(qp),
            status,
            opcode,
            byte_len,
            imm,
            source,
            buffer,
            ..WorkCompletion::default()
        }
    }
}
