//! Acknowledgements, refusals and timeouts of sent messages.

use super::event::{Answer, Event, QpId};
use super::pair::{RETRIES, RNR_RETRY_FOREVER};
use super::queue::{Completion, Ended};
use super::world::World;
use crate::{QpState, QpType, Status};

impl World {
    /// The responder `of` a message answers its sender.
    pub(super) fn answer(&mut self, of: QpId, to: QpId, psn: u32, answer: Answer) {
        self.note(of, || format!("answers message {psn}: {answer:?}"));
        let Some(delay_ns) = self.draw_wire_delay(of, to, QpType::Rc) else { return };
        let costs = &self.config.costs;
        let nic = &mut self.nodes[usize::from(of.node)].nic;
        // The answer left when the bytes were passed to PCIe, one write ago; its completion takes another such
        // write.
        let at_ns = nic.answer(costs, self.now_ns, of.node == to.node) + delay_ns;
        self.events.push(at_ns, Event::Answer { to, psn, answer, processed: false });
    }

    /// Handles an answer.
    pub(super) fn handle_answer(&mut self, to: QpId, psn: u32, answer: Answer, processed: bool) {
        if !processed {
            let processed_ns = self.process_answer(to, psn, answer);
            if processed_ns > self.now_ns {
                return self
                    .events
                    .push(processed_ns, Event::Answer { to, psn, answer, processed: true });
            }
        }
        self.trace.mix(self.now_ns << 8 | answer as u64);
        if let Answer::Connected | Answer::NotConnected = answer {
            return self.handle_reply(to, psn, answer == Answer::Connected);
        }
        let Some(pair) = self.pair(to).filter(|pair| pair.state == QpState::ReadyToSend) else {
            return;
        };
        let number = match pair.number_of(psn) {
            // The number that the peer missed is of a work request that stayed here and is done.
            None if answer == Answer::OutOfSequence && pair.has_skipped => Some(pair.base),
            number => number,
        };
        let Some(number) = number.filter(|number| *number < pair.next) else { return };
        pair.retries_left = RETRIES;
        pair.done_before(match answer {
            Answer::Sent | Answer::Done => number + 1,
            _ => number,
        });
        self.retire(to);
        match answer {
            Answer::Sent | Answer::Done => self.resume_initiator(to),
            Answer::Connected | Answer::NotConnected => {}
            Answer::OutOfSequence => {
                if let Some(pair) = self.pair(to) {
                    pair.go_back(number);
                }
                self.fetch(to);
            }
            Answer::NotReady => self.handle_not_ready(to, number),
            Answer::AccessError => self.refuse(to, number, Status::RemoteAccess),
            Answer::InvalidRequest => self.refuse(to, number, Status::RemoteInvalidRequest),
        }
    }

    /// Lets the requester's NIC process an answer. Returns when it is done.
    fn process_answer(&mut self, to: QpId, psn: u32, answer: Answer) -> u64 {
        let node = &mut self.nodes[usize::from(to.node)];
        let (costs, now_ns) = (&self.config.costs, self.now_ns);
        let processed_ns = node.nic.process_answer(costs, now_ns);
        if let Answer::Connected | Answer::NotConnected = answer {
            return processed_ns; // No work request was sent yet.
        }
        let Some(pair) = node.pairs.get_mut(to.number) else { return processed_ns };
        let Some(number) = pair.number_of(psn) else { return processed_ns };
        let Some(request) = pair.wqe(number).map(|wqe| wqe.arrival) else { return processed_ns };
        processed_ns.max(node.nic.find_for_ack(costs, now_ns, request))
    }

    /// Handles a refused message. Responses to earlier READs and atomics are still in flight, and come first.
    pub(super) fn refuse(&mut self, qp: QpId, number: u64, status: Status) {
        match self.pair(qp) {
            Some(pair) if pair.base < number => pair.refused = Some((number, status)),
            Some(_) => self.fail(qp, number, status),
            None => {}
        }
    }

    /// Handles a receiver that is not ready: retries later, unless the retries are used up.
    fn handle_not_ready(&mut self, qp: QpId, number: u64) {
        let Some(pair) = self.pair(qp) else { return };
        if pair.rnr_wait || pair.state != QpState::ReadyToSend {
            return;
        }
        if pair.retry_policy.rnr_retry != RNR_RETRY_FOREVER {
            if pair.rnr_left == 0 {
                return self.fail(qp, number, Status::RnrRetryExceeded);
            }
            pair.rnr_left -= 1;
        }
        pair.go_back(number);
        pair.rnr_wait = true;
        let timer_ns = pair.retry_policy.rnr_timer_ns.max(1);
        let at_ns = self.now_ns.saturating_add(timer_ns);
        self.events.push(at_ns, Event::Retry(qp));
    }

    pub(super) fn retry(&mut self, qp: QpId) {
        let Some(pair) = self.pair(qp) else { return };
        if pair.state == QpState::ReadyToSend {
            pair.rnr_wait = false;
            self.fetch(qp);
        }
    }

    /// Completes finished work requests, in posting order.
    pub(super) fn retire(&mut self, qp: QpId) {
        let now_ns = self.now_ns;
        let mut progress = false;
        loop {
            let Some(pair) = self.pair(qp) else { return };
            let Some(wqe) = pair.sends.pop_front_if(|wqe| wqe.done) else { break };
            progress = true;
            let number = pair.base;
            pair.base += 1;
            pair.next = pair.next.max(pair.base);
            let cq = pair.send_cq;
            self.messages.release(wqe.message);
            if wqe.signaled {
                self.nodes[usize::from(qp.node)].nic.complete(&self.config.costs, now_ns);
                let completion = Completion {
                    id: wqe.id,
                    qp: qp.number,
                    status: Status::Success,
                    opcode: wqe.opcode,
                    byte_len: wqe.len,
                    imm: None,
                    source: None,
                    buffer: None,
                    ended: Ended::Send(number),
                };
                self.complete(qp, cq, completion);
            }
        }
        if !progress {
            return;
        }
        let Some(pair) = self.pair(qp) else { return };
        if let Some((number, status)) = pair.refused
            && pair.base >= number
        {
            return self.fail(qp, number, status);
        }
        pair.rnr_left = pair.retry_policy.rnr_retry;
        let asked = pair.sends.front().filter(|wqe| wqe.asks).map_or(0, |wqe| wqe.len);
        let timeout_ns = pair.retry_policy.timeout_ns;
        let answer_ns = self.config.costs.link_ps(asked.into()) / 1000;
        if let Some(pair) = self.pair(qp) {
            pair.deadline_ns = now_ns.saturating_add(timeout_ns).saturating_add(answer_ns);
        }
    }

    /// Starts the timer that detects a silent peer.
    pub(super) fn start_timer(&mut self, qp: QpId) {
        let Some(pair) = self.pair(qp) else { return };
        if !std::mem::replace(&mut pair.timer_set, true) {
            let deadline_ns = pair.deadline_ns;
            self.events.push(deadline_ns, Event::Timer(qp));
        }
    }

    /// Handles the timer: the peer may have been silent for too long.
    pub(super) fn handle_timer(&mut self, qp: QpId) {
        let now_ns = self.now_ns;
        let Some(pair) = self.pair(qp) else { return };
        pair.timer_set = false;
        if !pair.waits() {
            return;
        }
        if now_ns < pair.deadline_ns {
            return self.start_timer(qp);
        }
        let base = pair.base;
        if pair.retries_left == 0 {
            return self.fail(qp, base, Status::RetryExceeded);
        }
        pair.retries_left -= 1;
        pair.go_back(base);
        pair.deadline_ns = now_ns.saturating_add(pair.retry_policy.timeout_ns);
        self.trace.mix(now_ns ^ u64::from(qp.number) << 8);
        self.note(qp, || format!("got no answer to message {base}; sends it again"));
        self.repeat_connect(qp);
        self.start_timer(qp);
        self.fetch(qp);
    }
}
