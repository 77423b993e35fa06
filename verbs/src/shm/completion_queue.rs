//! Completion queues: the poller's state, and the state that others share with the poller.
//!
//! A common poll loads the attention word, and the next cell of each queue pair. Everything else (new queue
//! pairs, send completions, errors, waiting work, sleeping) sets a bit of the attention word.
//!
//! Of many queue pairs and senders, those that have been quiet are [dormant](super::dormant), so that a poll takes time for those in use.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use super::context::Context;
use super::control::Control;
use super::datagram::{DatagramReceiver, Path};
use super::discarded::Remains;
use super::dormant::{Dormant, MOST_AWAKE, POLLS_PER_SWEEP};
use super::events::Channel;
use super::pair::Pair;
use super::peer::lock;
use super::receive::Receiver;
use crate::memory::growing_queue::GrowingQueue;
use crate::{CompletionOpcode, CqError, QpNumber, Status, VerbsError, WorkCompletion};

/// Bits of the attention word.
pub(super) mod attention {
    /// Queue pairs or senders were added or removed.
    pub(crate) const CHANGES: u32 = 1;
    /// Send completions are available.
    pub(crate) const SENDS: u32 = 2;
    /// A queue pair is in error, and its receives must be flushed.
    pub(crate) const ERRORS: u32 = 4;
    /// A queue pair has waiting work that polling retries.
    pub(crate) const WAITING: u32 = 8;
    /// The poller has armed events; the next poll disarms them.
    pub(crate) const ARMED: u32 = 16;
    /// More completions may be outstanding than fit, so every poll counts them.
    pub(crate) const CROWDED: u32 = 32;
    /// More completions were outstanding than fit.
    pub(crate) const OVERRUN: u32 = 64;
    /// Completions do not carry their messages.
    pub(crate) const HIDING: u32 = 128;
    /// Some that are dormant have something.
    pub(crate) const CALLED: u32 = 256;
    /// Bits that stay set until their condition ends.
    pub(crate) const LASTING: u32 = CROWDED | OVERRUN | HIDING;
}

/// A finished send work request.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendDone {
    pub(super) pair: u64,
    pub(super) qp: u32,
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) opcode: CompletionOpcode,
    pub(super) status: Status,
    pub(super) byte_len: u32,
}

/// A change to the set of queue pairs that the poller serves.
pub(super) enum Change {
    /// This queue pair may send completions here.
    Sender(Arc<Pair>),
    /// A connected queue pair receives here.
    Receiver(Box<Receiver>),
    /// A datagram queue pair receives here.
    Datagrams(Box<DatagramReceiver>),
    /// A datagram queue pair has a new sender.
    Path(u64, Arc<Path>),
    /// A queue pair was dropped.
    Gone(u64),
}

/// The state that others share with the poller.
pub(crate) struct CqShared {
    attention: CachePadded<AtomicU32>,
    armed: AtomicBool,
    closed: AtomicBool,
    capacity: usize,
    /// The number of completions that the attached queue pairs may have outstanding.
    demand: AtomicUsize,
    sends: GrowingQueue<SendDone>,
    changes: Mutex<Vec<Change>>,
    /// The ids of queue pairs and senders that have something, if they are dormant.
    called: Mutex<Vec<u64>>,
    channel: Option<Arc<Channel>>,
    /// Called instead of the channel.
    waker: OnceLock<Waker>,
}

impl CqShared {
    pub(super) fn channel(&self) -> Option<&Arc<Channel>> {
        self.channel.as_ref()
    }

    /// Sets bits of the attention word, and wakes the poller if it sleeps.
    #[inline]
    pub(super) fn notice(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            match (self.waker.get(), &self.channel) {
                (Some(waker), _) => waker.wake_by_ref(),
                (None, Some(channel)) => channel.wake(),
                (None, None) => {}
            }
        }
    }

    /// Has the poller look at this queue pair, even if it is dormant. A peer of this process does so at most once for each time that its inbox
    /// was armed; one of another process may call again and again, and the list does not grow by that.
    #[cold]
    pub(super) fn call_on(&self, pair: u64) {
        let mut called = lock(&self.called);
        if !self.closed.load(Ordering::SeqCst) {
            if called.last() != Some(&pair) {
                called.push(pair);
            }
            drop(called);
            self.notice(attention::CALLED);
        }
    }

    /// The same for the poller itself, which looks at once.
    pub(super) fn note_call(&self, pair: u64) {
        lock(&self.called).push(pair);
    }

    #[inline]
    pub(super) fn push(&self, done: SendDone) {
        let bits = match self.sends.push(done) {
            Ok(()) => attention::SENDS,
            Err(_) => attention::OVERRUN,
        };
        self.notice(bits);
    }

    /// Queues a change for the poller. Does nothing if the queue is no longer polled.
    pub(super) fn change(&self, change: Change) {
        let mut changes = lock(&self.changes);
        if !self.closed.load(Ordering::SeqCst) {
            changes.push(change);
            drop(changes);
            self.notice(attention::CHANGES);
        }
    }

    /// Adds `more` to the number of completions that may be outstanding.
    pub(super) fn expect(&self, more: usize) {
        if self.demand.fetch_add(more, Ordering::SeqCst) + more > self.capacity {
            self.notice(attention::CROWDED);
        }
    }

    pub(super) fn expect_no_more(&self, less: usize) {
        self.demand.fetch_sub(less, Ordering::SeqCst);
    }
}

impl std::fmt::Debug for CqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqShared").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

/// A handle with which queue pairs are created on a completion queue.
#[derive(Clone, Debug)]
pub(crate) struct CqHandle {
    shared: Arc<CqShared>,
    context: Arc<Context>,
}

impl CqHandle {
    /// The queue.
    ///
    /// # Errors
    /// If it belongs to another device.
    pub(super) fn of(&self, context: &Arc<Context>) -> Result<Arc<CqShared>, VerbsError> {
        if Arc::ptr_eq(&self.context, context) {
            Ok(Arc::clone(&self.shared))
        } else {
            Err(VerbsError::Foreign("completion queue"))
        }
    }
}

/// Queue pairs that call before the poller looks, with room from the beginning: they may be few and seldom.
const FEW: usize = 4;

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
        let attention = if hides_payloads { attention::HIDING } else { 0 };
        let shared = Arc::new(CqShared {
            attention: CachePadded::new(AtomicU32::new(attention)),
            armed: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            capacity,
            demand: AtomicUsize::new(0),
            sends: GrowingQueue::new(capacity),
            changes: Mutex::default(),
            called: Mutex::new(Vec::with_capacity(FEW)),
            channel,
            waker: OnceLock::new(),
        });
        CompletionQueue {
            shared,
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

    #[inline]
    fn count_to_sweep(&mut self) {
        self.polls_to_sweep -= 1;
        if self.polls_to_sweep == 0 {
            self.sweep();
        }
    }

    /// Lets those sleep that have been quiet since the last time.
    #[cold]
    fn sweep(&mut self) {
        self.polls_to_sweep = POLLS_PER_SWEEP;
        for receiver in &mut self.receivers {
            receiver.note_activity();
            if receiver.is_quiet() {
                receiver.arm(true);
            }
        }
        self.datagrams.iter_mut().for_each(DatagramReceiver::arm_quiet);
        // Between arming the inboxes and looking at them, as in `arm`.
        fence(Ordering::SeqCst);
        self.put_to_sleep(|receiver| {
            let stays = receiver.is_quiet() && receiver.has_arrival();
            if stays {
                receiver.arm(false);
            }
            receiver.is_quiet() && !stays
        });
        for datagrams in &mut self.datagrams {
            self.dormant.add_senders(datagrams.pair.id, datagrams.take_quiet());
        }
    }

    /// Those of which `sleeps` says so become dormant. Their inboxes are armed, and have been looked at after that.
    fn put_to_sleep(&mut self, sleeps: impl Fn(&Receiver) -> bool) {
        self.dormant.add(self.receivers.extract_if(.., |receiver| sleeps(receiver)));
    }

    /// Looks at the dormant ones again that have called.
    #[cold]
    fn wake_called(&mut self) {
        self.dormant.wake(&self.shared.called, &mut self.receivers, &mut self.datagrams);
    }

    /// Looks which dormant ones were called for from other processes.
    #[cold]
    fn look_for_calls(&mut self) {
        let Some(channel) = &self.shared.channel else { return };
        if channel.pass_on_calls(Some(&self.shared)) {
            self.wake_called();
        }
    }

    fn try_waiting(&mut self) {
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
                    receiver.arm(self.armed);
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
                        datagrams.arm(self.armed);
                    }
                }
                Change::Gone(id) => discarded.extend(self.let_go(id)),
            }
        }
        self.discard(discarded);
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

    pub(crate) fn arm(&mut self) {
        if self.shared.channel.is_none() {
            return;
        }
        self.armed = true;
        self.shared.armed.store(true, Ordering::SeqCst);
        self.arm_inboxes(true);
        // Arm the inboxes before looking at them: a peer that publishes a cell after the look sees that it has to
        // ring (`Outbox::ring_doorbell`).
        fence(Ordering::SeqCst);
        let before = self.shared.attention.fetch_or(attention::ARMED, Ordering::SeqCst);
        let arrived = self.receivers.iter().any(Receiver::has_arrival)
            || self.datagrams.iter().any(DatagramReceiver::has_arrival)
            || !self.staged.is_empty();
        let busy = attention::CHANGES
            | attention::SENDS
            | attention::ERRORS
            | attention::OVERRUN
            | attention::CALLED;
        if arrived || before & busy != 0 {
            return self.shared.wake();
        }
        if self.receivers.len() > MOST_AWAKE {
            self.put_to_sleep(Receiver::is_called_for);
        }
        for datagrams in self.datagrams.iter_mut().filter(|all| all.len() > MOST_AWAKE) {
            self.dormant.add_senders(datagrams.pair.id, datagrams.take_called_for());
        }
    }

    /// Events call this waker. Returns whether all do: other processes only know the channel.
    pub(crate) fn wake_with(&mut self, waker: &Waker) -> bool {
        self.shared.waker.get_or_init(|| waker.clone()).will_wake(waker)
            && self.datagrams.is_empty()
            && self.receivers.iter().all(Receiver::is_called_for)
    }

    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.shared.armed.store(false, Ordering::SeqCst);
            self.shared.attention.fetch_and(!attention::ARMED, Ordering::SeqCst);
            self.arm_inboxes(false);
        }
    }

    fn arm_inboxes(&self, armed: bool) {
        for receiver in &self.receivers {
            receiver.arm(armed);
        }
        for datagrams in &self.datagrams {
            datagrams.arm(armed);
        }
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
