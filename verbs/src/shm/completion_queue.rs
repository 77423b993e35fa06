//! Completion queues: the poller's state, and the state that others share with the poller.
//!
//! A common poll loads the attention word, and the next cell of each queue pair. Everything else (new queue
//! pairs, send completions, errors, waiting work, sleeping) sets a bit of the attention word.
//!
//! Of many queue pairs and senders, those that have been quiet are [dormant](super::dormant), so that a poll takes time for those in use.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::context::Context;
use super::control::Control;
use super::datagram::DatagramReceiver;
use super::discarded::Remains;
use super::dormant::{Dormant, MOST_AWAKE, POLLS_PER_SWEEP};
use super::events::Channel;
use super::pair::Pair;
use super::peer::lock;
use super::receive::Receiver;
use crate::{CompletionOpcode, CqError, QpNumber, WorkCompletion};

mod quiet;
mod shared;

use shared::FEW;
pub(super) use shared::{Change, SendDone, attention};
pub(crate) use shared::{CqHandle, CqShared};

/// The poller's state.
pub(crate) struct CompletionQueue {
    shared: Arc<CqShared>,
    /// Those that each poll looks at.
    receivers: Vec<Receiver>,
    dormant: Box<Dormant>,
    /// Polls until the next search for quiet ones.
    polls_to_sweep: u32,
    datagrams: Vec<DatagramReceiver>,
    /// Queue pairs whose completions arrive here, by id; used to retire their work.
    pairs: HashMap<u64, Arc<Pair>, foldhash::fast::RandomState>,
    /// The index at which the next poll starts, so that a busy queue pair does not starve the others.
    next: usize,
    scanned: u32,
    armed: bool,
    /// The next poll takes send completions first.
    sends_first: bool,
    /// Completions counted while crowded, and not polled yet.
    staged: VecDeque<WorkCompletion>,
    /// For each send completion in `staged`: its queue pair and its work request number.
    unretired: VecDeque<(u64, u64)>,
    /// Frees what dropped queue pairs leave behind; set when the first has left something.
    discards_to: Option<Arc<Control>>,
}

impl CompletionQueue {
    pub(crate) fn new(
        capacity: usize,
        channel: Option<Arc<Channel>>,
        hides_payloads: bool,
    ) -> CompletionQueue {
        CompletionQueue {
            shared: CqShared::new(capacity, channel, hides_payloads),
            receivers: Vec::new(),
            dormant: Box::new(Dormant::with_room(FEW)),
            polls_to_sweep: POLLS_PER_SWEEP,
            datagrams: Vec::new(),
            pairs: HashMap::default(),
            next: 0,
            scanned: 0,
            armed: false,
            sends_first: false,
            staged: VecDeque::new(),
            unretired: VecDeque::new(),
            discards_to: None,
        }
    }

    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Those that have called by now.
    #[cfg(test)]
    pub(super) fn take_called(&mut self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.shared.called))
    }

    /// More completions may be outstanding than fit.
    #[cfg(test)]
    pub(super) fn is_crowded(&self) -> bool {
        self.shared.attention.load(Ordering::SeqCst) & attention::CROWDED != 0
    }

    /// Its handle, for use with `context`.
    pub(crate) fn handle(&self, context: &Arc<Context>) -> CqHandle {
        CqHandle { shared: Arc::clone(&self.shared), context: Arc::clone(context) }
    }

    #[inline]
    pub(crate) fn poll(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        if self.shared.attention.load(Ordering::Acquire) != 0 {
            return self.poll_attentively(out);
        }
        let count = self.receive(out);
        if self.dormant.has_remote() {
            if self.dormant.pass_on_watched(&self.shared) {
                self.wake_called();
            }
            if self.dormant.must_look(count > 0) {
                self.look_for_calls();
            }
        }
        Ok(count)
    }

    #[inline]
    pub(crate) fn scanned(&self) -> u32 {
        self.scanned
    }

    /// Completes arrivals at connected and datagram queue pairs.
    #[inline]
    fn receive(&mut self, out: &mut [WorkCompletion]) -> usize {
        match (self.receivers.as_mut_slice(), self.datagrams.as_mut_slice()) {
            ([receiver], []) => {
                let count = receiver.receive(out);
                self.scanned = count as u32 + 1;
                count
            }
            ([], [datagrams]) => {
                let count = datagrams.receive(out);
                let senders = datagrams.len();
                self.scanned = (count + senders) as u32;
                if senders > MOST_AWAKE {
                    self.count_to_sweep();
                }
                count
            }
            _ => self.receive_in_turn(out),
        }
    }

    fn receive_in_turn(&mut self, out: &mut [WorkCompletion]) -> usize {
        let is_many = |datagrams: &DatagramReceiver| datagrams.len() > MOST_AWAKE;
        if self.receivers.len() > MOST_AWAKE || self.datagrams.iter().any(is_many) {
            self.count_to_sweep();
        }
        let connected = self.receivers.len();
        let all = connected + self.datagrams.len();
        let (mut count, mut scanned) = (0, 0);
        for step in 0..all {
            let index = (self.next + step) % all;
            let room = &mut out[count..];
            let (found, looked_at) = match self.receivers.get_mut(index) {
                Some(receiver) => (receiver.receive(room), 1),
                None => {
                    let datagrams = &mut self.datagrams[index - connected];
                    (datagrams.receive(room), datagrams.len())
                }
            };
            count += found;
            scanned += found + looked_at;
            if count == out.len() {
                self.next = index + 1;
                break;
            }
        }
        self.scanned = scanned as u32;
        count
    }

    #[cold]
    fn poll_attentively(&mut self, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let bits = self.shared.attention.fetch_and(attention::LASTING, Ordering::SeqCst);
        if bits & attention::CHANGES != 0 {
            self.apply_changes();
        }
        if bits & attention::OVERRUN != 0 {
            return Err(self.overrun());
        }
        if bits & attention::WAITING != 0 {
            self.try_waiting();
        }
        if bits & attention::CALLED != 0 {
            self.wake_called();
        }
        if self.dormant.has_remote() {
            self.look_for_calls();
        }
        let count = if bits & attention::CROWDED != 0 {
            self.poll_crowded(bits, out)?
        } else {
            self.collect(bits, out)
        };
        if bits & attention::ARMED != 0 {
            if count > 0 {
                self.disarm();
            } else {
                self.shared.attention.fetch_or(attention::ARMED, Ordering::SeqCst);
            }
        }
        if bits & attention::HIDING != 0 {
            out[..count].iter_mut().for_each(|completion| completion.payload_len = u8::MAX);
        }
        Ok(count)
    }

    /// Collects everything that has completed: sends, arrivals and flushed receives. Sends and arrivals
    /// alternate when there is room for only one, so neither starves.
    fn collect(&mut self, bits: u32, out: &mut [WorkCompletion]) -> usize {
        self.sends_first = !self.sends_first;
        let sends = if self.sends_first { out.len().div_ceil(2) } else { out.len() / 2 };
        let stage = bits & attention::CROWDED != 0;
        let mut count = self.take_sends(&mut out[..sends], stage);
        count += self.receive(&mut out[count..]);
        count += self.take_sends(&mut out[count..], stage);
        if bits & attention::ERRORS != 0 {
            count += self.flush(&mut out[count..]);
        }
        count
    }

    /// Takes send completions. With `stage`, they retire their work requests later, when they are polled.
    fn take_sends(&mut self, out: &mut [WorkCompletion], stage: bool) -> usize {
        let mut count = 0;
        while count < out.len()
            && let Some(done) = self.shared.sends.pop()
        {
            // The queue pair has been dropped.
            let Some(pair) = self.pairs.get(&done.pair) else { continue };
            if stage {
                self.unretired.push_back((done.pair, done.number));
            } else {
                pair.retired.store(done.number + 1, Ordering::Release);
            }
            let completion = &mut out[count];
            completion.id = done.id;
            completion.qp = QpNumber(done.qp);
            completion.status = done.status;
            completion.opcode = done.opcode;
            completion.byte_len = done.byte_len;
            completion.imm = None;
            completion.source = None;
            completion.buffer = None;
            completion.payload_len = u8::MAX;
            count += 1;
        }
        if !self.shared.sends.is_empty() {
            self.shared.attention.fetch_or(attention::SENDS, Ordering::SeqCst);
        }
        count
    }

    /// Flushes the receives of queue pairs in error, after earlier arrivals have been polled.
    fn flush(&mut self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        if !out.is_empty() {
            for receiver in &mut self.receivers {
                count += receiver.flush(&mut out[count..]);
            }
            for datagrams in &mut self.datagrams {
                count += datagrams.tidy(&mut out[count..]);
            }
        }
        if count == out.len() {
            self.shared.attention.fetch_or(attention::ERRORS, Ordering::SeqCst);
        }
        count
    }

    pub(super) fn try_waiting(&mut self) {
        let mut waiting = false;
        for pair in self.pairs.values() {
            waiting |= pair.progress();
        }
        if waiting {
            self.shared.attention.fetch_or(attention::WAITING, Ordering::SeqCst);
        }
    }

    fn apply_changes(&mut self) {
        let changes = std::mem::take(&mut *lock(&self.shared.changes));
        let mut discarded = Vec::new();
        for change in changes {
            match change {
                Change::Sender(pair) => {
                    self.pairs.insert(pair.id, pair);
                }
                Change::Receiver(receiver) => {
                    self.pairs.insert(receiver.pair.id, Arc::clone(&receiver.pair));
                    self.receivers.push(*receiver);
                }
                Change::Datagrams(datagrams) => {
                    self.pairs.insert(datagrams.pair.id, Arc::clone(&datagrams.pair));
                    self.datagrams.push(*datagrams);
                }
                Change::Path(id, path) => {
                    let of_pair = |datagrams: &&mut DatagramReceiver| datagrams.pair.id == id;
                    if let Some(datagrams) = self.datagrams.iter_mut().find(of_pair) {
                        datagrams.add(path);
                    }
                }
                Change::Gone(id) => discarded.extend(self.let_go(id)),
            }
        }
        self.discard(discarded);
        self.arm_newcomers();
        // A message or an error may have arrived before the queue pair was added.
        self.shared.attention.fetch_or(attention::ERRORS, Ordering::SeqCst);
    }

    /// Forgets a queue pair, and gives what is to be freed of it.
    fn let_go(&mut self, id: u64) -> Option<Remains> {
        let before = self.datagrams.len();
        self.datagrams.retain(|datagrams| datagrams.pair.id != id);
        if self.datagrams.len() < before {
            self.dormant.remove_senders_to(id);
        }
        let mut receiver = None;
        let at = self.receivers.iter().position(|receiver| receiver.pair.id == id);
        let left = at.map(|at| self.receivers.swap_remove(at));
        if let Some(mut left) = left.or_else(|| self.dormant.remove(id)) {
            left.settle();
            receiver = Some(Box::new(left));
        }
        let pair = self.pairs.remove(&id);
        (receiver.is_some() || pair.is_some()).then_some(Remains::QueuePair(receiver, pair))
    }

    /// Has these freed on the control thread: the poller has other queue pairs to serve.
    fn discard(&mut self, remains: Vec<Remains>) {
        let pair = |remains: &Remains| match remains {
            Remains::QueuePair(_, pair) => pair.clone(),
            _ => None,
        };
        let Some(pair) = remains.iter().find_map(pair) else { return };
        let control = self.discards_to.get_or_insert_with(|| Arc::clone(&pair.context.control));
        drop(pair);
        control.discard(remains);
    }

    /// Polls while more work requests are outstanding than the queue has room for. It counts completions as
    /// they arrive, as hardware does, but no later than when they are polled.
    fn poll_crowded(&mut self, bits: u32, out: &mut [WorkCompletion]) -> Result<usize, CqError> {
        let capacity = self.shared.capacity;
        let mut staged = std::mem::take(&mut self.staged);
        let mut batch: [WorkCompletion; 16] = std::array::from_fn(|_| WorkCompletion::default());
        loop {
            let count = self.collect(bits, &mut batch);
            staged.extend(batch.iter_mut().take(count).map(std::mem::take));
            if staged.len() > capacity {
                return Err(self.overrun());
            }
            if count == 0 {
                break;
            }
        }
        let count = staged.len().min(out.len());
        for (out, completion) in out.iter_mut().zip(staged.drain(..count)) {
            *out = completion;
            let is_receive =
                matches!(out.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWriteWithImm);
            if !is_receive
                && let Some((pair, number)) = self.unretired.pop_front()
                && let Some(pair) = self.pairs.get(&pair)
            {
                pair.retired.store(number + 1, Ordering::Release);
            }
        }
        self.staged = staged;
        Ok(count)
    }

    /// Reports lost completions. All attached queue pairs fail, because they cannot tell which were lost.
    fn overrun(&mut self) -> CqError {
        self.shared.attention.fetch_or(attention::OVERRUN, Ordering::SeqCst);
        self.staged.clear();
        self.unretired.clear();
        for pair in self.pairs.values() {
            pair.fail();
        }
        CqError::Overrun
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // The changes refer to queue pairs, which refer to the shared part: break that cycle here.
        let changes = std::mem::take(&mut *lock(&self.shared.changes));
        drop(changes);
        // Nothing of queue pairs that were dropped before is left when it is gone.
        if let Some(control) = &self.discards_to {
            control.discarded.free_now();
        }
    }
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("capacity", &self.shared.capacity)
            .field("queue_pairs", &self.pairs.len())
            .finish_non_exhaustive()
    }
}
