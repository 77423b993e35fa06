//! One operation of a batch, and the memory that it uses.

use std::collections::VecDeque;

use bytes::Bytes;
use farcall_verbs::{Buffer, RemoteSlice, WorkRequest};

use super::local_memory::Memory;
use super::{Remote, Rights};
use crate::buffers::OfPool;

/// One operation of a batch.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) at: Remote,
    pub(super) work: Work,
    pub(super) target: RemoteSlice,
    /// What is read into, or written from. The queue pair has its bytes while the operation is under way.
    pub(super) memory: StepMemory,
}

#[derive(Debug)]
pub(super) enum StepMemory {
    None,
    Here(Memory),
    Posted(Option<OfPool>),
}

/// What a step does, and where the bytes of a write are.
#[derive(Debug)]
pub(super) enum Work {
    Read,
    /// Into a buffer of the program, which it gets back.
    ReadInto,
    Write(Bytes),
    /// The bytes are at this place of the batch's own memory.
    WriteKept(u32),
    /// The bytes are those of a buffer of the program, which it gets back.
    WriteFrom,
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    FetchAdd {
        add: u64,
    },
    Flush,
}

impl Step {
    /// The right that it needs.
    #[inline]
    pub(super) fn needs(&self) -> Rights {
        match self.work {
            Work::Read | Work::ReadInto => Rights::READ,
            Work::Write(_) | Work::WriteKept(_) | Work::WriteFrom | Work::Flush => Rights::WRITE,
            Work::CompareAndSwap { .. } | Work::FetchAdd { .. } => Rights::ATOMIC,
        }
    }

    /// Whether it makes bytes durable.
    #[inline]
    pub(super) fn is_flush(&self) -> bool {
        matches!(self.work, Work::Flush)
    }

    /// Its work request, which has its memory, or, of a short write, the bytes. A flush has neither.
    #[inline]
    pub(super) fn request<'a>(&'a mut self, kept: &'a [u8]) -> WorkRequest<'a> {
        let (len, target) = (self.at.len as usize, self.target);
        let memory = std::mem::replace(&mut self.memory, StepMemory::None);
        let StepMemory::Here(Memory { mut bytes, of_pool }) = memory else {
            if let Work::Flush = self.work {
                return WorkRequest::flush(target);
            }
            let inline: &[u8] = match &self.work {
                Work::Write(bytes) => bytes,
                Work::WriteKept(begin) => &kept[*begin as usize..][..len],
                _ => &[],
            };
            return WorkRequest::write(inline, target).unsignaled();
        };
        self.memory = StepMemory::Posted(of_pool);
        match self.work {
            Work::Read | Work::ReadInto => WorkRequest::read(bytes, target),
            Work::WriteKept(begin) => {
                bytes.copy_from_slice(&kept[begin as usize..][..len]);
                WorkRequest::write(bytes, target).unsignaled()
            }
            Work::Write(_) | Work::WriteFrom => WorkRequest::write(bytes, target).unsignaled(),
            Work::CompareAndSwap { expected, new } => {
                WorkRequest::compare_and_swap(bytes, target, expected, new)
            }
            Work::FetchAdd { add } => WorkRequest::fetch_add(bytes, target, add),
            Work::Flush => WorkRequest::flush(target),
        }
    }

    /// Gets its memory back from the queue pair, which has returned that of all operations before.
    #[inline]
    pub(super) fn take_back(&mut self, filled: &mut VecDeque<Buffer>) {
        if let StepMemory::Posted(of_pool) = &mut self.memory
            && let Some(bytes) = filled.pop_front()
        {
            self.memory = StepMemory::Here(Memory { bytes, of_pool: of_pool.take() });
        }
    }
}
