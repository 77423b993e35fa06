//! The operations of a client of a server whose receives all clients share. Each has its receive, as each request has.
//!
//! What a client sends and the server has not read takes receives of the server. A client has so many for itself: one for each slot
//! of its window, and some [spare](super::carrier::Carrier::spare_receives) ones. It counts what it has sent: requests that are not
//! answered, and operations (cancellations, releases, chunks) that are not known to be read. The server gives the receives of operations back with an
//! [`Op::Credit`] for each [`batch`] of them. So fewer than `spare` are read and not given back, and an operation that waits goes
//! when those have been read that went before.
//!
//! A cancellation without a receive waits, and is not sent at all if its call ends before. A release has the receive of its slot. A
//! chunk waits as it does for room in the send queue, and leaves a slot to other requests. A client with many operations under way
//! has fewer slots for requests.

use super::carrier::{ClientCarrier, ServerCarrier};
use super::connection::Connection;
use super::window::{Phase, Window};
use super::wire::Op;

/// Credits that are on their way to a client, at most, if it has a spare receive for each four slots or more: it has sent
/// `window + spare` operations at most.
pub(crate) const MOST_CREDITS: usize = 10;

/// Operations for which the server gives the receives back at a time.
pub(crate) const fn batch(spare: u32) -> u32 {
    spare.div_ceil(2)
}

/// A client's operations that take receives of the server.
#[derive(Debug)]
pub(super) struct Operations {
    spare: u32,
    /// Those that the server is not known to have read.
    unread: u32,
    /// Free slots whose receives these use.
    held: Vec<u32>,
    /// Cancellations wait for a receive.
    are_waiting: bool,
}

impl Operations {
    pub(super) fn new(spare: u32) -> Operations {
        Operations { spare, unread: 0, held: Vec::new(), are_waiting: false }
    }
}

impl<C: ClientCarrier> Window<C> {
    /// How many operations may be sent and not be read.
    fn most_unread(&self) -> u32 {
        let Operations { spare, held, .. } = &self.operations;
        spare + (self.free.len() + held.len()) as u32
    }

    /// There is a receive for one more chunk, and then still one for a request if a slot is free.
    #[inline]
    pub(super) fn has_receive_for_chunk(&self) -> bool {
        let Operations { spare, unread, .. } = self.operations;
        !C::SHARES_RECEIVES || unread < spare || unread + 1 < self.most_unread()
    }

    /// An operation for which there is a receive is sent.
    pub(super) fn count_operation(&mut self) {
        if !C::SHARES_RECEIVES {
            return;
        }
        let Operations { spare, unread, held, .. } = &mut self.operations;
        *unread += 1;
        if *unread > *spare + held.len() as u32 {
            held.extend(self.free.take(0));
        }
        debug_assert!(
            *unread as usize <= *spare as usize + self.free.len() + held.len()
                && *unread <= *spare + held.len() as u32,
            "more is sent than there are receives for: {:?}",
            self.operations
        );
    }

    /// The server has read so many operations. `false`: it cannot have.
    #[cold]
    pub(super) fn handle_credit(&mut self, count: u32) -> bool {
        let Operations { spare, unread, held, are_waiting } = &mut self.operations;
        let Some(left) = unread.checked_sub(count).filter(|_| C::SHARES_RECEIVES && count > 0)
        else {
            return false;
        };
        *unread = left;
        while held.len() as u32 > left.saturating_sub(*spare) {
            held.pop().into_iter().for_each(|slot| self.free.put(slot));
        }
        if std::mem::take(are_waiting) {
            self.send_waiting_cancellations();
        }
        true
    }

    /// Tells the server that nobody waits for the reply of this slot, at once or when there is a receive for it.
    #[cold]
    pub(super) fn cancel(&mut self, index: u32) {
        let waits = C::SHARES_RECEIVES && self.operations.unread >= self.most_unread();
        self.slots[index as usize].cancellation_waits = waits;
        self.operations.are_waiting |= waits;
        if !waits {
            self.link.post_op(Op::Cancel, index);
            self.count_operation();
        }
    }

    fn send_waiting_cancellations(&mut self) {
        for index in 0..self.slots.len() {
            let slot = self.slots[index];
            // Of a response that is read, the server knows already.
            let is_due = slot.phase != Phase::Free && slot.phase != Phase::Fetching;
            if slot.abandoned && slot.cancellation_waits && is_due {
                self.cancel(index as u32);
            }
        }
    }

    /// Tells the server that the response of this slot has been read. The slot is free again.
    #[cold]
    pub(super) fn release(&mut self, index: u32) {
        self.link.post_op(Op::Release, index);
        self.end(index);
        self.count_operation();
    }
}

impl<C: ServerCarrier> Connection<C> {
    /// An operation of the client has been read. `true`: the client is told so.
    #[cold]
    pub(super) fn credit_operation(&mut self) -> bool {
        let batch = batch(self.link.carrier.spare_receives());
        self.operations += 1;
        if self.operations < batch {
            return false;
        }
        self.operations = 0;
        self.link.post_op(Op::Credit, batch);
        true
    }
}
