//! Datagrams that are sent once more, or later than they were posted: copies of ours, which the sender does not
//! see come back.

use std::collections::VecDeque;

use crate::memory::region::Region;
use crate::work_request::{Destination, Work};
use crate::{AddressHandle, Buffer, BufferPool, Local, PrivateRegion, QpNumber, WorkRequest};

/// Copies of one queue pair that may wait or be under way; more faults than that do not happen.
pub(super) const MAX_COPIES: usize = 16;

/// A datagram of ours.
pub(super) struct Copy {
    buffer: Buffer,
    imm: Option<u32>,
    handle: AddressHandle,
    qp: QpNumber,
    qkey: u32,
}

impl Copy {
    /// A copy of a datagram in a buffer of ours; `None` of anything else.
    pub(super) fn of(request: &WorkRequest<'_>, mut buffer: Buffer) -> Option<Copy> {
        let Work::Send { local, imm, to: Some(Destination { handle, qp, qkey }) } = &request.work
        else {
            return None;
        };
        buffer.set_len(local.len());
        match local {
            Local::Buffer(bytes) => buffer.copy_from_slice(bytes),
            Local::Inline(bytes) => buffer.copy_from_slice(bytes),
            Local::Shared(slice) => slice.copy_out(&mut buffer),
        }
        Some(Copy { buffer, imm: *imm, handle: (*handle).clone(), qp: *qp, qkey: *qkey })
    }

    /// Hands it over as a work request.
    pub(super) fn send<T>(self, post: impl FnOnce(WorkRequest<'_>) -> T) -> T {
        let Copy { buffer, imm, handle, qp, qkey } = self;
        let to = Some(Destination { handle: &handle, qp, qkey });
        let work = Work::Send { local: Local::Buffer(buffer), imm, to };
        post(WorkRequest { work, signaled: None, failure_id: 0 })
    }
}

/// Buffers for copies, made when the first is wanted.
pub(super) struct Copies {
    max: usize,
    mtu: usize,
    pool: Option<BufferPool>,
}

impl Copies {
    pub(super) fn new(max: usize, mtu: usize) -> Copies {
        Copies { max, mtu, pool: None }
    }

    /// A buffer, unless too many are out or there is no memory.
    pub(super) fn take(
        &mut self,
        allocate: impl FnOnce(usize) -> Option<Region>,
    ) -> Option<Buffer> {
        if self.max == 0 {
            return None;
        }
        if self.pool.is_none() {
            let region = allocate(self.max * self.mtu)?;
            self.pool = Some(PrivateRegion::new(region).into_pool(self.mtu));
        }
        self.pool.as_ref()?.take()
    }
}

/// Copies that wait until others have overtaken them.
#[derive(Default)]
pub(super) struct Delayed(VecDeque<(Option<u32>, Copy)>);

impl Delayed {
    /// It waits for so many later work requests; with none given, until it is released.
    pub(super) fn push(&mut self, requests: Option<u32>, copy: Copy) {
        self.0.push_back((requests, copy));
    }

    /// One more work request was posted. Gives those that have waited long enough.
    pub(super) fn count_down(&mut self) -> Vec<Copy> {
        for (left, _) in &mut self.0 {
            if let Some(left) = left {
                *left = left.saturating_sub(1);
            }
        }
        self.take_where(|left| left == Some(0))
    }

    pub(super) fn release(&mut self) -> Vec<Copy> {
        self.take_where(|_| true)
    }

    fn take_where(&mut self, due: impl Fn(Option<u32>) -> bool) -> Vec<Copy> {
        if !self.0.iter().any(|(left, _)| due(*left)) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.0);
        let (taken, kept): (VecDeque<_>, _) = all.into_iter().partition(|(left, _)| due(*left));
        self.0 = kept;
        taken.into_iter().map(|(_, copy)| copy).collect()
    }
}
