//! Failure and destruction of queue pairs.

use super::event::{Event, QpId};
use super::queue::{Completion, Ended};
use super::receives::Receive;
use super::world::World;
use crate::{CompletionOpcode, QpState, Status};

impl World {
    /// Completes work request `number` as failed, and flushes all behind it.
    pub(super) fn fail(&mut self, qp: QpId, number: u64, status: Status) {
        if self.pair(qp).is_some_and(|pair| pair.state != QpState::Error) {
            self.stop_packets(qp);
        }
        let Some(pair) = self.pair(qp) else { return };
        pair.state = QpState::Error;
        pair.epoch = pair.epoch.wrapping_add(1);
        let (base, cq) = (pair.base, pair.send_cq);
        let sends = std::mem::take(&mut pair.sends);
        pair.base += sends.len() as u64;
        (pair.next, pair.notified, pair.rung) = (pair.base, pair.base, pair.base);
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

    /// Flushes all work of a queue pair in error.
    pub(super) fn flush(&mut self, qp: QpId) {
        if self.pair(qp).is_some_and(|pair| pair.state == QpState::Error) {
            self.fail(qp, u64::MAX, Status::Flushed);
        }
    }

    /// Moves a queue pair to the error state immediately.
    pub(super) fn break_pair(&mut self, qp: QpId) {
        if self.pair(qp).is_some_and(|pair| pair.state != QpState::Error) {
            self.note(qp, || "breaks".to_owned());
            self.fail(qp, u64::MAX, Status::Flushed);
            self.tell_of_shared(qp);
        }
    }

    /// A queue pair that receives from a shared queue has no receives to flush. A NIC reports by an event of its own that it
    /// takes no more of them (InfiniBand specification, "last WQE reached"); here a flushed receive without a buffer does.
    fn tell_of_shared(&mut self, qp: QpId) {
        let Some(cq) = self.pair(qp).filter(|pair| pair.srq.is_some()).map(|pair| pair.recv_cq)
        else {
            return;
        };
        let completion = Completion {
            id: 0,
            qp: qp.number,
            status: Status::Flushed,
            opcode: CompletionOpcode::Recv,
            byte_len: 0,
            imm: None,
            source: None,
            buffer: None,
            ended: Ended::Receive,
        };
        self.complete(qp, cq, completion);
    }

    /// Moves a queue pair to the error state for its owner: sending stops, and the flush follows.
    pub(super) fn break_by_owner(&mut self, qp: QpId) {
        if self.pair(qp).is_some_and(|pair| pair.state != QpState::Error) {
            self.stop_packets(qp);
        }
        let Some(pair) = self.pair(qp) else { return };
        pair.state = QpState::Error;
        pair.epoch = pair.epoch.wrapping_add(1);
        self.flush_soon(qp);
    }

    /// Schedules the flush of a queue pair in error.
    pub(super) fn flush_soon(&mut self, qp: QpId) {
        let at_ns = self.now_ns + self.actors.charged_ns() + self.config.costs.mmio_ns;
        self.events.push(at_ns, Event::Flush(qp));
    }

    /// Destroys a queue pair: its posted work and its completions are gone, without any completion for them. When this returns, the NIC
    /// no longer uses its memory.
    pub(super) fn destroy(&mut self, qp: QpId) {
        self.end_dynamic(qp);
        self.stop_packets(qp);
        self.land_rest(qp);
        self.finish_atomics_of(qp);
        let node = &mut self.nodes[usize::from(qp.node)];
        let Some(mut pair) = node.pairs.remove(qp.number) else { return };
        if pair.has_skipped {
            node.regions.windows.free_of(qp.number);
        }
        for wqe in pair.sends.drain(..) {
            // Messages that have left may still arrive: they contain their bytes.
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
