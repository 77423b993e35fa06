//! The client's half: reserve, post, poll.

use std::task::Waker;

use farcall_core::error::{Backpressure, FailureKind, ReserveError, TransportFailure};
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{
    Armed, Body, ClientTransport, Closing, Delivery, Limits, ReplySink, SlotId, Usage,
    post_copied_request,
};
use farcall_verbs::ProtectionDomain;
use zerocopy::IntoBytes;

use super::carrier::ClientCarrier;
use super::link::Link;
use super::window::{Phase, Window};
use super::wire::{HEADER_BYTES, Kind};
use crate::buffers::export::Exports;
use crate::contract::Terms;
use crate::kit::completions::{Completions, failure};
use crate::kit::scratch::Scratch;
use crate::rendezvous::client::Transfers;
use crate::rendezvous::wire::Announce;

/// A connection to one server thread.
#[derive(Debug)]
pub(crate) struct Client<C: ClientCarrier> {
    // Dropped in this order: queue pair, completion queue.
    window: Window<C>,
    completions: Completions,
    scratch: Scratch,
}

impl<C: ClientCarrier> Client<C> {
    pub(crate) fn new(
        completions: Completions,
        (link, pd): (Link<C>, ProtectionDomain),
        terms: &Terms,
        memory: u64,
    ) -> Client<C> {
        let transfers = Transfers::new(terms.window, &pd, memory);
        let window = Window::new(link, transfers, Exports::new(&pd), terms, pd.caps());
        Client { window, completions, scratch: Scratch::new(terms.slot as usize) }
    }

    /// Posts a request that does not go in a slot.
    #[cold]
    fn post_large_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        if let Body::Shared(body) = body
            && let Some(id) = self.window.offer_large(front, body)?
        {
            return Ok(id);
        }
        match body {
            Body::Shared(body) if self.window.transfers.can_share(front.len()) => {
                let id = self.window.share_large(front, body)?;
                self.post(id, delivery);
                Ok(id)
            }
            _ => post_copied_request(self, front, &body, delivery),
        }
    }
}

impl<C: ClientCarrier> ClientTransport for Client<C> {
    fn limits(&self) -> Limits {
        Limits { window: self.window.slots.len() as u32, max_message: self.window.max_message }
    }

    #[inline]
    fn reserve(&mut self, len: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        let window = &mut self.window;
        if window.over.is_some() {
            return Err(ReserveError::Closed);
        }
        if len > window.max_small {
            return window.reserve_large(len);
        }
        let index = window.take_free(len)?;
        let Window { link, slots, free, .. } = window;
        let Some(staged) = link.stage(index) else {
            free.put(index);
            return Err(Backpressure::Memory.into());
        };
        let id = slots[index as usize].reserve(index, (HEADER_BYTES + len) as u32);
        Ok((id, &mut staged[HEADER_BYTES..HEADER_BYTES + len]))
    }

    fn release(&mut self, slot: SlotId) {
        if self.window.is(slot, Phase::Reserved) {
            self.window.end(slot.index);
        }
    }

    #[inline]
    fn post(&mut self, id: SlotId, _delivery: Delivery) {
        let window = &mut self.window;
        let slot = match window.slots.get_mut(id.index as usize) {
            Some(slot) if (slot.generation, slot.phase) == (id.generation, Phase::Reserved) => slot,
            _ => panic!("posted slot {id:?} was not reserved"),
        };
        if slot.len > 0 {
            slot.phase = Phase::Posted;
            window.link.post(id.index, id.generation, Kind::Inline, slot.len as usize);
        } else {
            slot.phase = Phase::Announced;
            let len = window.transfers.request_len(id.index);
            let announce = Announce { len: len.into() };
            window.link.post_control(id.index, id.generation, Kind::Announce, announce.as_bytes());
        }
    }

    #[inline]
    fn post_parts(
        &mut self,
        front: &[u8],
        body: Body<'_>,
        delivery: Delivery,
    ) -> Result<SlotId, ReserveError> {
        let len = front.len() + body.len();
        if len > self.window.max_small {
            return self.post_large_parts(front, body, delivery);
        }
        let (id, _) = self.reserve(len)?;
        self.window.slots[id.index as usize].phase = Phase::Posted;
        self.window.link.post_parts(id.index, id.generation, front, &body);
        Ok(id)
    }

    #[inline]
    fn flush(&mut self) {
        self.window.link.ring();
    }

    fn abandon(&mut self, id: SlotId) {
        let window = &mut self.window;
        let Some(slot) = window.slots.get_mut(id.index as usize) else { return };
        let posted = !matches!(slot.phase, Phase::Free | Phase::Reserved);
        if slot.generation != id.generation || !posted || slot.abandoned {
            return;
        }
        slot.abandoned = true;
        match slot.phase {
            // It has not left: nothing to wait for.
            Phase::Posted | Phase::Announced if window.link.withdraw(id.index) => {
                window.end(id.index);
            }
            // The server has answered already.
            Phase::Fetching => {}
            // The server may be reading it.
            _ if window.transfers.is_offered(id.index) => window.cancel(id.index),
            _ => {
                window.transfers.forget(id.index);
                window.cancel(id.index);
            }
        }
    }

    fn usage(&self) -> Usage {
        let in_use = self.window.slots.iter().filter(|slot| slot.phase != Phase::Free);
        Usage::of(in_use.map(|slot| slot.abandoned))
    }

    #[inline]
    fn poll(&mut self, now: Instant, sink: &mut dyn ReplySink) -> Progress {
        if let Some(why) = self.window.over {
            self.window.close(why.kind, sink);
            return Progress::IDLE;
        }
        let mut completed = self.completions.poll();
        if C::FETCHES && matches!(&completed, Ok(none) if none.is_empty()) {
            // Some devices complete a READ while it is posted. What the server has sent comes first: if it is gone, a READ ends
            // the connection.
            self.window.fetch(now);
            completed = self.completions.poll();
        }
        let completed = match completed {
            Ok(completed) => completed,
            Err(error) => {
                self.window.close(failure(error), sink);
                return Progress::IDLE;
            }
        };
        let found = completed.len();
        if found == 0 {
            self.scratch.read_ahead();
        }
        for completion in completed {
            if let Err(broken) = self.window.complete(completion, &mut self.scratch, sink) {
                self.window.close(broken, sink);
                break;
            }
            self.window.link.recycle(completion);
        }
        let mut progress = Progress { worked: found as u32, ..Progress::IDLE };
        if C::FETCHES {
            match self.window.take_responses(sink) {
                // Who reads in vain waits: the server may need this core.
                Ok(in_vain) => progress.worked = progress.worked.saturating_sub(in_vain),
                Err(broken) => self.window.close(broken, sink),
            }
            self.window.fetch(now);
            if found == 0 {
                progress.next = self.window.look_for_lost();
            }
        }
        if !self.window.is_calm() {
            let (moved, next) = self.window.drive(now, sink);
            progress.worked += moved;
            progress.next = progress.next.earlier(next);
        }
        if self.completions.is_batch(found) || (C::FETCHES && self.window.must_fetch()) {
            progress.next = PollAt::Now;
        }
        progress.scanned = self.completions.scanned();
        progress
    }

    fn arm(&mut self, waker: Option<&Waker>) -> Armed {
        let Client { window, completions, .. } = self;
        completions.arm_with(waker, || window.has_work())
    }

    fn disarm(&mut self) {
        self.completions.disarm();
    }

    fn close(&mut self, why: Closing) {
        let window = &mut self.window;
        if window.over.is_some() {
            return;
        }
        let kind = match why {
            Closing::PeerGone => FailureKind::PeerGone,
            Closing::Goodbye => {
                window.link.post_goodbye();
                window.link.ring();
                FailureKind::Closed
            }
        };
        window.over = Some(TransportFailure::new(kind, true));
    }
}

impl<C: ClientCarrier> Drop for Client<C> {
    fn drop(&mut self) {
        self.close(Closing::Goodbye);
    }
}
