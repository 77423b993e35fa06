//! Batches of operations that a client has on its lanes, from their post until their outcomes are taken.
//!
//! The records are used again, with all their memory: a client in its steady state allocates nothing for them.

use std::task::Waker;

use bytes::{Bytes, BytesMut};
use farcall_core::time::Instant;
use farcall_verbs::{Device, RemoteSlice};

use super::lane::LaneError;
use super::local_memory::{LocalMemory, MEDIUM_BYTES, Memory, SMALL_BYTES};
use super::step::{Step, StepMemory, Work};
use super::{Action, Operation, Outcome, Remote};
use crate::buffers::{Buffer, Buffers};

/// A batch of one client. It is never another's, as long as fewer than 2^32 batches use one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    index: u32,
    generation: u32,
}

impl BatchId {
    /// Its record: no two batches that are under way have the same.
    pub fn index(self) -> usize {
        self.index as usize
    }
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

/// Whose outcomes these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// They are copied out of the client's registered memory when the operations complete, to be [taken](Batches::take) as values.
    Values,
    /// They stay in registered memory until the batch is [released](Batches::release), to be looked at there.
    InPlace,
}

/// All batches of a client, and its registered memory.
#[derive(Debug, Default)]
pub struct Batches {
    records: Vec<Record>,
    free: Vec<u32>,
    memory: Option<LocalMemory>,
}

#[derive(Debug)]
pub(super) struct Record {
    generation: u32,
    taking: Taking,
    pub(super) steps: Vec<Step>,
    /// The indices of operations that begin when those before them have ended, ascending.
    fences: Vec<u32>,
    /// The bytes of short writes.
    kept: Vec<u8>,
    pub(super) deadline: Instant,
    /// How many operations were posted, and how many of these were done.
    pub(super) posted: usize,
    pub(super) done: usize,
    /// How many are posted and not completed.
    pub(super) under_way: usize,
    pub(super) is_queued: bool,
    outcomes: Vec<Outcome>,
    end: Option<LaneEnd>,
    is_released: bool,
    waker: Option<Waker>,
}

impl Batches {
    /// A batch without operations.
    pub fn begin(&mut self, taking: Taking, deadline: Instant) -> BatchId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.records.push(Record::new());
            (self.records.len() - 1) as u32
        });
        let record = &mut self.records[index as usize];
        (record.taking, record.deadline) = (taking, deadline);
        BatchId { index, generation: record.generation }
    }

    /// Adds an operation that was [checked](Operation::check).
    pub fn push(&mut self, id: BatchId, operation: Operation) {
        let Operation { at, action } = operation;
        let work = match action {
            Action::Read => Work::Read,
            Action::Write(bytes) => Work::Write(bytes),
            Action::CompareAndSwap { expected, new } => Work::CompareAndSwap { expected, new },
            Action::FetchAdd { add } => Work::FetchAdd { add },
            Action::Flush => Work::Flush,
        };
        self.record_mut(id).push(at, work, StepMemory::None);
    }

    /// Adds a write of these bytes, as many as the memory has.
    #[inline]
    pub fn push_write(&mut self, id: BatchId, at: &Remote, bytes: &[u8]) {
        if bytes.len() > SMALL_BYTES
            && let Some(mut memory) = self.memory.as_mut().and_then(|it| it.take(bytes.len()))
        {
            memory.bytes.copy_in(0, bytes);
            return self.record_mut(id).push(*at, Work::WriteFrom, StepMemory::Here(memory));
        }
        let record = self.record_mut(id);
        let begin = record.kept.len() as u32;
        record.kept.extend_from_slice(bytes);
        record.push(*at, Work::WriteKept(begin), StepMemory::None);
    }

    /// Adds a read into this buffer, whose length it gets.
    pub fn push_read_into(&mut self, id: BatchId, at: &Remote, buffer: Buffer) {
        let memory = StepMemory::Here(Memory::of(buffer));
        self.record_mut(id).push(*at, Work::ReadInto, memory);
    }

    /// Adds a write of the bytes of this buffer, as many as the memory has.
    pub fn push_write_from(&mut self, id: BatchId, at: &Remote, buffer: Buffer) {
        let memory = StepMemory::Here(Memory::of(buffer));
        self.record_mut(id).push(*at, Work::WriteFrom, memory);
    }

    /// What follows begins when what is before has ended.
    pub fn fence(&mut self, id: BatchId) {
        let record = self.record_mut(id);
        let at = record.steps.len() as u32;
        if at > 0 && record.fences.last() != Some(&at) {
            record.fences.push(at);
        }
    }

    /// How many operations the batch has.
    pub fn len_of(&self, id: BatchId) -> usize {
        self.record(id).steps.len()
    }

    /// How many of its operations have been done.
    pub fn done_of(&self, id: BatchId) -> usize {
        self.record(id).done
    }

    /// How it has ended, if it has. Otherwise `waker` is called when it does.
    #[inline]
    pub fn end_of(&mut self, id: BatchId, waker: Option<&Waker>) -> Option<LaneEnd> {
        let record = self.record_mut(id);
        if record.end.is_none()
            && let Some(waker) = waker
        {
            record.waker = Some(waker.clone());
        }
        record.end
    }

    /// The outcomes of the operations that have been done.
    pub fn take(&mut self, id: BatchId) -> Vec<Outcome> {
        std::mem::take(&mut self.record_mut(id).outcomes)
    }

    /// The last outcome, which is not taken yet.
    pub fn take_last(&mut self, id: BatchId) -> Option<Outcome> {
        self.record_mut(id).outcomes.pop()
    }

    /// The buffer of an operation that was given one. `None`: the queue pair has it, and gives it back to that operation alone.
    pub fn take_buffer(&mut self, id: BatchId, at: usize) -> Option<Buffer> {
        let step = self.record_mut(id).steps.get_mut(at)?;
        match std::mem::replace(&mut step.memory, StepMemory::None) {
            StepMemory::Here(memory) => memory.into_buffer(),
            other => {
                step.memory = other;
                None
            }
        }
    }

    /// The bytes that an operation has read; none of another. Of [`Taking::InPlace`].
    #[inline]
    pub fn bytes_of(&self, id: BatchId, at: usize) -> &[u8] {
        match self.done_step(id, at) {
            Some((Work::Read | Work::ReadInto, bytes)) => bytes,
            _ => &[],
        }
    }

    /// The word before an atomic operation. Of [`Taking::InPlace`].
    #[inline]
    pub fn word_of(&self, id: BatchId, at: usize) -> Option<u64> {
        match self.done_step(id, at)? {
            (Work::CompareAndSwap { .. } | Work::FetchAdd { .. }, bytes) => {
                bytes.first_chunk().map(|word| u64::from_ne_bytes(*word))
            }
            _ => None,
        }
    }

    /// What an operation that was done has come to, as a value. Of [`Taking::InPlace`].
    pub fn outcome_of(&self, id: BatchId, at: usize) -> Outcome {
        match self.done_step(id, at) {
            Some((Work::Read | Work::ReadInto, bytes)) => {
                Outcome::Read(Bytes::copy_from_slice(bytes))
            }
            Some((Work::Flush, _)) => Outcome::Flushed,
            _ => self.word_of(id, at).map_or(Outcome::Written, Outcome::Word),
        }
    }

    /// What an operation does that was done, and its memory.
    #[inline]
    fn done_step(&self, id: BatchId, at: usize) -> Option<(&Work, &[u8])> {
        let record = self.record(id);
        match record.steps.get(at)? {
            Step { work, memory: StepMemory::Here(memory), .. } if at < record.done => {
                Some((work, &memory.bytes))
            }
            _ => None,
        }
    }

    /// The operations from this index on, which have not been done. `None`: the bytes of a write are lost with the lane.
    pub fn operations_from(&self, id: BatchId, from: usize) -> Option<Vec<Operation>> {
        let record = self.record(id);
        record.steps.get(from..)?.iter().map(|step| record.operation(step)).collect()
    }

    /// What the operations from this index on may have changed.
    pub fn changes_from(&self, id: BatchId, from: usize) -> bool {
        let steps = &self.record(id).steps;
        steps.iter().skip(from).any(|step| !matches!(step.work, Work::Read | Work::ReadInto))
    }

    /// Its owner needs it no more. What was not posted is not done.
    pub fn release(&mut self, id: BatchId) {
        let Some(record) = self.records.get_mut(id.index()) else { return };
        if record.generation != id.generation {
            return;
        }
        (record.is_released, record.waker) = (true, None);
        self.free_if_unused(id.index);
    }

    /// The registered memory of this device.
    pub(super) fn memory_on(&mut self, device: &Device) -> Result<&mut LocalMemory, LaneError> {
        let is_other = |memory: &LocalMemory| !memory.is_on(device);
        if self.memory.as_ref().is_none_or(is_other) {
            self.memory = Some(LocalMemory::new(device)?);
        }
        self.memory.as_mut().ok_or(LaneError::Unsupported)
    }

    /// The pool of buffers that the program takes, on this device.
    ///
    /// # Errors
    /// The device refuses.
    pub fn buffers_on(&mut self, device: &Device) -> Result<&Buffers, LaneError> {
        self.memory_on(device).map(|memory| memory.buffers())
    }

    /// Whether a work request of this client's lanes can use the buffer.
    pub fn can_use(&self, buffer: &Buffer) -> bool {
        self.memory.as_ref().is_some_and(|memory| buffer.is_of(memory.buffers()))
    }

    #[inline]
    pub(super) fn record(&self, id: BatchId) -> &Record {
        &self.records[id.index as usize]
    }

    #[inline]
    pub(super) fn record_mut(&mut self, id: BatchId) -> &mut Record {
        &mut self.records[id.index as usize]
    }

    /// The record of this number, and the memory.
    #[inline]
    pub(super) fn parts(&mut self, index: u32) -> (&mut Record, Option<&mut LocalMemory>) {
        (&mut self.records[index as usize], self.memory.as_mut())
    }

    /// All records.
    pub(super) fn records_mut(&mut self) -> impl Iterator<Item = &mut Record> {
        self.records.iter_mut()
    }

    /// Frees a record that neither its owner nor a lane uses.
    #[inline]
    pub(super) fn free_if_unused(&mut self, index: u32) {
        let record = &mut self.records[index as usize];
        if !record.is_released || record.under_way > 0 || record.is_queued {
            return;
        }
        for step in record.steps.drain(..) {
            if let (StepMemory::Here(memory), Some(local)) = (step.memory, &mut self.memory) {
                local.give_back(memory);
            }
        }
        record.clear();
        self.free.push(index);
    }
}

impl Record {
    fn new() -> Record {
        Record {
            generation: 0,
            taking: Taking::Values,
            steps: Vec::new(),
            fences: Vec::new(),
            kept: Vec::new(),
            deadline: Instant::FAR_FUTURE,
            posted: 0,
            done: 0,
            under_way: 0,
            is_queued: false,
            outcomes: Vec::new(),
            end: None,
            is_released: false,
            waker: None,
        }
    }

    fn clear(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.fences.clear();
        self.kept.clear();
        self.outcomes.clear();
        (self.posted, self.done) = (0, 0);
        (self.end, self.is_released) = (None, false);
    }

    #[inline]
    fn push(&mut self, at: Remote, work: Work, memory: StepMemory) {
        let target = RemoteSlice::new(0, 0, 0);
        self.steps.push(Step { at, work, target, memory });
    }

    /// Its operations are to be done no more: it has ended, or its owner has given it up.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.is_released
    }

    /// The index after the last operation that may be posted now; no greater than `posted` if they wait for a fence.
    #[inline]
    pub(super) fn may_post_until(&self) -> usize {
        let len = self.steps.len();
        let fences = self.fences.iter().map(|at| *at as usize);
        let next = fences.filter(|at| *at > self.done).min();
        next.map_or(len, |at| at.min(len))
    }

    /// The operations, and the bytes of those that are kept here.
    #[inline]
    pub(super) fn steps_and_kept(&mut self) -> (&mut [Step], &[u8]) {
        (&mut self.steps, &self.kept)
    }

    /// The bytes of a write that is kept here.
    #[inline]
    fn kept(&self, begin: u32, len: u64) -> &[u8] {
        &self.kept[begin as usize..][..len as usize]
    }

    fn operation(&self, step: &Step) -> Option<Operation> {
        let action = match &step.work {
            Work::Read | Work::ReadInto => Action::Read,
            Work::Write(bytes) => Action::Write(bytes.clone()),
            Work::WriteKept(begin) => {
                Action::Write(Bytes::copy_from_slice(self.kept(*begin, step.at.len)))
            }
            Work::WriteFrom => match &step.memory {
                StepMemory::Here(memory) => Action::Write(Bytes::copy_from_slice(&memory.bytes)),
                _ => return None,
            },
            Work::CompareAndSwap { expected, new } => {
                Action::CompareAndSwap { expected: *expected, new: *new }
            }
            Work::FetchAdd { add } => Action::FetchAdd { add: *add },
            Work::Flush => Action::Flush,
        };
        Some(Operation { at: step.at, action })
    }

    /// The next operations have been done. `memory` is the client's, and gets back what they used. Returns what wakes the owner, if they were
    /// the last.
    #[inline]
    pub(super) fn note_done(
        &mut self,
        count: usize,
        memory: &mut Option<&mut LocalMemory>,
    ) -> Option<Waker> {
        let from = self.done;
        self.done += count;
        if self.taking == Taking::Values && !self.is_over() {
            self.make_outcomes(from, count, memory);
        }
        if self.done < self.steps.len() {
            return None;
        }
        self.end(LaneEnd::Done)
    }

    /// Copies the outcomes of these operations out of registered memory.
    fn make_outcomes(&mut self, from: usize, count: usize, local: &mut Option<&mut LocalMemory>) {
        // The bytes of all reads are one allocation.
        let short = |step: &Step| match step.work {
            Work::Read if step.at.len <= MEDIUM_BYTES as u64 => step.at.len as usize,
            _ => 0,
        };
        let steps = &mut self.steps[from..from + count];
        let mut all = match count {
            1 => BytesMut::new(),
            _ => BytesMut::with_capacity(steps.iter().map(short).sum()),
        };
        for step in steps {
            let outcome = match (&step.work, std::mem::replace(&mut step.memory, StepMemory::None))
            {
                (Work::ReadInto | Work::WriteFrom, memory) => {
                    step.memory = memory;
                    Outcome::Written
                }
                (Work::Flush, _) => Outcome::Flushed,
                (Work::Read, StepMemory::Here(memory)) if memory.of_pool.is_some() => {
                    Outcome::Read(memory.into_buffer().map(Buffer::freeze).unwrap_or_default())
                }
                (work, StepMemory::Here(memory)) => {
                    let outcome = match work {
                        Work::Read if count == 1 => {
                            Outcome::Read(Bytes::copy_from_slice(&memory.bytes))
                        }
                        Work::Read => {
                            all.extend_from_slice(&memory.bytes);
                            Outcome::Read(all.split().freeze())
                        }
                        Work::CompareAndSwap { .. } | Work::FetchAdd { .. } => {
                            let word = memory.bytes.first_chunk().copied().unwrap_or_default();
                            Outcome::Word(u64::from_ne_bytes(word))
                        }
                        _ => Outcome::Written,
                    };
                    if let Some(local) = local {
                        local.give_back(memory);
                    }
                    outcome
                }
                _ => Outcome::Written,
            };
            self.outcomes.push(outcome);
        }
    }

    /// It has ended. Gives what wakes its owner.
    #[inline]
    pub(super) fn end(&mut self, how: LaneEnd) -> Option<Waker> {
        self.end.get_or_insert(how);
        self.waker.take()
    }
}
