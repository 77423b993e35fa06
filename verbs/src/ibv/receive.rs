//! Posted receives, until their completions are polled.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;
use rustix::io::Errno;

use super::attachment::Key;
use super::queue_pair::QpShared;
use super::status;
use super::sys::{Zeroed, ibv_post_recv, ibv_post_srq_recv, ibv_qp, ibv_recv_wr, ibv_sge, ibv_srq};
use crate::{Buffer, PostError};

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) buffer: Option<Buffer>,
}

/// Receives without buffers that are posted in one call.
const RUN: usize = 16;

/// The poster of receives: the owner of a queue pair, or of a shared receive queue.
#[derive(Debug)]
pub(super) enum Owner {
    Pair(Arc<QpShared>),
    Shared,
}

/// Stores posted receives while the device holds them.
#[derive(Debug)]
pub(super) struct ReceiveSlots {
    pub(super) key: Key,
    pub(super) pd: u32,
    pub(super) owner: Owner,
    slots: Box<[Slot]>,
    /// Free slots.
    free: ArrayQueue<u32>,
}

#[derive(Debug)]
struct Slot {
    /// Set by the owner after filling the slot, cleared by the thread that empties it.
    full: AtomicBool,
    receive: UnsafeCell<MaybeUninit<Receive>>,
}

// SAFETY: a slot is filled by the one thread that popped its number from `free`, and emptied by the one
// that cleared `full`, which orders the two. Only then does its number return to `free`.
unsafe impl Sync for Slot {}

impl ReceiveSlots {
    pub(super) fn new(count: usize, pd: u32, owner: Owner) -> ReceiveSlots {
        let free = ArrayQueue::new(count);
        let slots = (0..count as u32)
            .map(|index| {
                let _ = free.push(index);
                Slot {
                    full: AtomicBool::new(false),
                    receive: UnsafeCell::new(MaybeUninit::uninit()),
                }
            })
            .collect();
        ReceiveSlots { key: Key::fresh(), pd, owner, slots, free }
    }

    /// Stores a receive and returns its index.
    #[inline]
    fn put(&self, receive: Receive) -> Result<u32, PostError> {
        let place = self.free.pop().ok_or(PostError::QueueFull)?;
        let slot = &self.slots[place as usize];
        // SAFETY: the number came out of `free`, so this thread alone has the slot.
        unsafe { (*slot.receive.get()).write(receive) };
        slot.full.store(true, Ordering::Release);
        Ok(place)
    }

    /// Takes the receive at an index; `None` if there is none.
    #[inline]
    pub(super) fn take(&self, place: u32) -> Option<Receive> {
        let slot = self.slots.get(place as usize)?;
        if !slot.full.swap(false, Ordering::AcqRel) {
            return None;
        }
        // SAFETY: it was full, and this thread cleared that flag.
        let receive = unsafe { (*slot.receive.get()).assume_init_read() };
        let _ = self.free.push(place);
        Some(receive)
    }

    /// Drops all receives. The device must not hold any.
    pub(super) fn clear(&self) {
        for place in 0..self.slots.len() as u32 {
            drop(self.take(place));
        }
    }

    /// How many more receives may be posted.
    fn room(&self) -> usize {
        self.free.len()
    }
}

impl Drop for ReceiveSlots {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The queue that receives are posted to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Pair(*mut ibv_qp),
    Shared(*mut ibv_srq),
}

impl Target {
    /// Passes a chain of receives to the device.
    ///
    /// # Safety
    /// The target lives; the chain's elements name memory that stays until their completions.
    #[inline]
    unsafe fn post(self, first: *mut ibv_recv_wr) -> Result<(), (Errno, *mut ibv_recv_wr)> {
        let mut refused = null_mut();
        // SAFETY: passed on from the caller.
        let code = unsafe {
            match self {
                Target::Pair(qp) => ibv_post_recv(qp, first, &mut refused),
                Target::Shared(srq) => ibv_post_srq_recv(srq, first, &mut refused),
            }
        };
        if code == 0 { Ok(()) } else { Err((status::returned(code), refused)) }
    }

    /// Posts one receive.
    pub(super) fn post_one(
        self,
        slots: &ReceiveSlots,
        id: u64,
        buffer: Option<Buffer>,
    ) -> Result<(), PostError> {
        let mut sge = ibv_sge::zeroed();
        let mut request = ibv_recv_wr::zeroed();
        if let Some(buffer) = &buffer {
            if buffer.pd() != slots.pd {
                return Err(PostError::Foreign);
            }
            let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
            sge.addr = buffer.start().expose_provenance() as u64;
            (sge.length, sge.lkey) = (len, buffer.lkey());
            if len > 0 {
                (request.sg_list, request.num_sge) = (&mut sge, 1);
            }
        }
        let place = slots.put(Receive { id, buffer })?;
        request.wr_id = slots.key.wr_id(place);
        // SAFETY: the target belongs to the caller. The buffer stays in its slot until the completion is
        // polled, or the target destroyed.
        unsafe { self.post(&mut request) }.map_err(|(errno, _)| {
            drop(slots.take(place));
            status::posting(errno)
        })
    }

    /// Posts receives without buffers, one per id. It posts all of them unless the device refuses some.
    pub(super) fn post_run(self, slots: &ReceiveSlots, ids: Range<u64>) -> Result<(), PostError> {
        let count = ids.end.saturating_sub(ids.start);
        if count > slots.room() as u64 {
            return Err(PostError::QueueFull);
        }
        let mut next = ids.start;
        while next < ids.end {
            let mut chain: [ibv_recv_wr; RUN] = std::array::from_fn(|_| ibv_recv_wr::zeroed());
            let len = ((ids.end - next) as usize).min(RUN);
            let start = chain.as_mut_ptr();
            for index in 0..len {
                let place = slots.put(Receive { id: next + index as u64, buffer: None })?;
                // SAFETY: `index < len <= RUN`; the array is ours, and reached by this pointer only.
                unsafe {
                    let request = start.add(index);
                    (*request).wr_id = slots.key.wr_id(place);
                    (*request).next =
                        if index + 1 < len { start.add(index + 1) } else { null_mut() };
                }
            }
            // SAFETY: the target belongs to the caller; the chain refers to no memory.
            if let Err((errno, mut refused)) = unsafe { self.post(start) } {
                while !refused.is_null() {
                    // SAFETY: points into the chain, from the one that was refused to the last.
                    unsafe {
                        drop(slots.take(Key::of((*refused).wr_id).1));
                        refused = (*refused).next;
                    }
                }
                return Err(status::posting(errno));
            }
            next += len as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(count: usize) -> ReceiveSlots {
        ReceiveSlots::new(count, 1, Owner::Shared)
    }

    #[test]
    fn a_receive_is_taken_once_and_frees_its_slot() {
        let slots = slots(2);
        let first = slots.put(Receive { id: 7, buffer: None }).unwrap();
        let second = slots.put(Receive { id: 8, buffer: None }).unwrap();
        assert_eq!(slots.put(Receive { id: 9, buffer: None }), Err(PostError::QueueFull));
        assert_eq!(slots.take(second).map(|receive| receive.id), Some(8), "in any order");
        assert!(slots.take(second).is_none());
        assert!(slots.take(77).is_none());
        assert_eq!(slots.room(), 1);
        assert_eq!(slots.take(first).map(|receive| receive.id), Some(7));
    }
}
