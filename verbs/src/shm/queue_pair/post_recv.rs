//! Posting receives.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::{QueuePair, Receives};
use crate::shm::completion_queue::attention;
use crate::shm::pair::Pair;
use crate::shm::receive::{Posted, Receive};
use crate::{Buffer, PostError, QpState};

impl QueuePair {
    pub(crate) fn post_recv(&mut self, id: u64, buffer: Option<Buffer>) -> Result<(), PostError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.pd() != self.pair.pd) {
            return Err(PostError::Foreign);
        }
        match &mut self.receives {
            Receives::Srq => return Err(PostError::HasSrq),
            Receives::Datagrams(posted) => {
                if receive_room(&self.pair, self.posted_receives, self.max_recv_wr) == 0 {
                    return Err(PostError::QueueFull);
                }
                posted.push(Receive { id, buffer }).map_err(|_| PostError::QueueFull)?;
                self.announce_receives(1);
            }
            Receives::Own(posted) => {
                if receive_room(&self.pair, self.posted_receives, self.max_recv_wr) == 0 {
                    return Err(PostError::QueueFull);
                }
                let len = buffer.as_ref().map_or(0, |buffer| buffer.len());
                self.lengths_used |= len > 0;
                if let Some(inbox) = self.pair.inbox().filter(|_| self.lengths_used) {
                    let len = u32::try_from(len).unwrap_or(u32::MAX);
                    inbox.receive_length(self.posted_receives).store(len, Ordering::Relaxed);
                }
                posted
                    .push(Posted::One(Receive { id, buffer }))
                    .map_err(|_| PostError::QueueFull)?;
                self.announce_receives(1);
            }
        }
        self.flush_if_in_error();
        Ok(())
    }

    #[inline]
    pub(crate) fn post_recvs(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        let count = ids.end.saturating_sub(ids.start);
        if count == 0 {
            return Ok(());
        }
        let Receives::Own(posted) = &mut self.receives else {
            return self.post_recvs_one_by_one(ids);
        };
        if u64::from(receive_room(&self.pair, self.posted_receives, self.max_recv_wr)) < count {
            return Err(PostError::QueueFull);
        }
        let count = count as u32;
        if self.lengths_used
            && let Some(inbox) = self.pair.inbox()
        {
            for ahead in 0..count {
                let position = self.posted_receives.wrapping_add(ahead);
                inbox.receive_length(position).store(0, Ordering::Relaxed);
            }
        }
        posted.push(Posted::Run { id: ids.start, count }).map_err(|_| PostError::QueueFull)?;
        self.announce_receives(count);
        if self.pair.gate.load(Ordering::Acquire) != 0 {
            self.flush_if_in_error();
        }
        Ok(())
    }

    #[cold]
    fn post_recvs_one_by_one(&mut self, ids: Range<u64>) -> Result<(), PostError> {
        let room = receive_room(&self.pair, self.posted_receives, self.max_recv_wr);
        match &self.receives {
            Receives::Datagrams(_) if u64::from(room) < ids.end - ids.start => {
                Err(PostError::QueueFull)
            }
            _ => ids.into_iter().try_for_each(|id| self.post_recv(id, None)),
        }
    }

    /// Allows the peer to use `count` more receives.
    #[inline]
    fn announce_receives(&mut self, count: u32) {
        self.posted_receives = self.posted_receives.wrapping_add(count);
        let posted = match (self.pair.inbox(), &self.pair.credit) {
            (Some(inbox), _) => &inbox.lines().credit.posted,
            (None, Some(page)) => page.posted(),
            (None, None) => return,
        };
        posted.store(self.posted_receives, Ordering::Release);
    }

    /// The poller flushes what is posted in the error state, so it has to be notified.
    fn flush_if_in_error(&self) {
        if self.pair.state() == QpState::Error {
            self.pair.recv_cq.notice(attention::ERRORS);
        }
    }
}

/// How many more receives may be posted.
#[inline]
fn receive_room(pair: &Pair, posted: u32, max: u32) -> u32 {
    max.saturating_sub(posted.wrapping_sub(pair.consumed.load(Ordering::Acquire)))
}
