//! Queue pairs that break, and those that go.

use super::event::{Event, QpId};
use super::queue::{Completion, Ended};
use super::receives::Receive;
use super::world::World;
use crate::{CompletionOpcode, QpState, Status};

impl World {
    /// Work request `number` has failed: it ends so, and all behind it is flushed.
    pub(super) fn fail(&mut self, qp: QpId, number: u64, status: Status) {
        let Some(pair) = self.pair(qp) else { return };
        pair.state = QpState::Error;
        pair.epoch = pair.epoch.wrapping_add(1);
        let (base, cq) = (pair.base, pair.send_cq);
        let sends = std::mem::take(&mut pair.sends);
        pair.base += sends.len() as u64;
        (pair.next, pair.heard, pair.rung) = (pair.base, pair.base, pair.base);
        pair.asking = 0;
        for (number_here, wqe) in (base..).zip(sends) {
            self.messages.release(wqe.message);
            let status = match number_here {
                here if here == number => status,
                here if here < number && wqe.done => Status::Success,
                _ => Status::Flushed,
            };
            if status == Status::Success && !wqe.signaled {
                continue;
            }
            let completion = Completion {
                id: wqe.id,
                qp: qp.number,
                status,
                opcode: wqe.opcode,
                byte_len: if status == Status::Success { wqe.len } else { 0 },
                imm: None,
                source: None,
                buffer: None,
                ended: Ended::Send(number_here),
            };
            self.complete(qp, cq, completion);
        }
        while let Some(receive) = self.pair(qp).and_then(|pair| pair.receives.take()) {
            let Receive { id, buffer } = receive;
            let Some(cq) = self.pair(qp).map(|pair| pair.recv_cq) else { return };
            let completion = Completion {
                id,
                qp: qp.number,
                status: Status::Flushed,
                opcode: CompletionOpcode::Recv,
                byte_len: 0,
                imm: None,
                source: None,
                buffer,
                ended: Ended::Receive,
            };
            self.complete(qp, cq, completion);
        }
    }

    /// Gives back all that a queue pair in error holds.
    pub(super) fn flush(&mut self, qp: QpId) {
        if self.pair(qp).is_some_and(|pair| pair.state == QpState::Error) {
            self.fail(qp, u64::MAX, Status::Flushed);
        }
    }

    /// Into the error state, now.
    pub(super) fn break_pair(&mut self, qp: QpId) {
        if self.pair(qp).is_some_and(|pair| pair.state != QpState::Error) {
            self.note(qp, || "breaks".to_owned());
            self.fail(qp, u64::MAX, Status::Flushed);
        }
    }

    /// Into the error state by its owner's wish: no more is sent, and the flush follows.
    pub(super) fn break_by_owner(&mut self, qp: QpId) {
        let Some(pair) = self.pair(qp) else { return };
        pair.state = QpState::Error;
        pair.epoch = pair.epoch.wrapping_add(1);
        self.flush_soon(qp);
    }

    /// A queue pair in error has got something to be flushed.
    pub(super) fn flush_soon(&mut self, qp: QpId) {
        let at_ns = self.now_ns + self.actors.charged_ns() + self.config.costs.mmio_ns;
        self.events.push(at_ns, Event::Flush(qp));
    }

    /// A queue pair goes, and takes its completions along. When this returns the NIC touches none of its
    /// memory any more.
    pub(super) fn destroy(&mut self, qp: QpId) {
        let node = &mut self.nodes[usize::from(qp.node)];
        let Some(mut pair) = node.pairs.remove(qp.number) else { return };
        for wqe in pair.sends.drain(..) {
            // What has left may still arrive: it has its bytes.
            self.messages[wqe.message].source = None;
            self.messages.release(wqe.message);
        }
        for cq in [pair.send_cq, pair.recv_cq] {
            let Some(queue) = node.queues.get_mut(cq) else { continue };
            for gone in queue.forget(qp.number) {
                if let Ended::Shared(srq) = gone.ended
                    && let Some(shared) = node.srqs.get_mut(srq)
                {
                    shared.polled();
                }
            }
        }
    }
}
