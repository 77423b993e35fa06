//! The owner's end of transfers: what is lent for them, and what is done when they are over.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use farcall_core::codec;
use farcall_core::time::Instant;
use farcall_transports::remote_memory::{Memory, Region, Remote, Rights, Until};
use serde::Serialize;

use super::{BulkError, Download, Upload};
use crate::{CallContext, Identity};

/// Most transfers of one owner that are under way.
pub const MAX_TRANSFERS: usize = 1024;

/// Most parts of one transfer.
pub const MAX_PARTS: usize = 256;

/// The transfers of a server. Clones are the same.
///
/// A handler [offers](Self::offer) data or [accepts](Self::accept) some. The server serves it as a [`BulkServer`](super::BulkServer), next to
/// the [`MemoryServer`](crate::memory::MemoryServer) of the same memory.
#[derive(Clone, Debug)]
pub struct Bulk {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Memory,
    transfers: Mutex<Transfers>,
}

/// By the first part.
#[derive(Default)]
struct Transfers {
    under_way: HashMap<Remote, Pending>,
    finished: u64,
    expired: u64,
}

/// How many transfers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkSnapshot {
    /// Transfers that are under way. Those whose lease is over count until another begins or ends.
    pub under_way: usize,
    /// Transfers that clients have ended so far.
    pub finished: u64,
    /// Transfers whose lease was over before.
    pub expired: u64,
}

/// A transfer under way.
struct Pending {
    lends: Vec<Remote>,
    /// Kept, so that the memory is not freed while a client moves data.
    _regions: Vec<Region>,
    until: Instant,
    /// Whom it is lent to, if that is known.
    caller: Option<Identity>,
    then: Then,
}

/// What is done when the data are there: gives a value, encoded.
pub(super) type Then = Box<dyn FnOnce() -> Result<Bytes, BulkError> + Send>;

impl Bulk {
    /// Without transfers. All of them move data in regions of this memory.
    pub fn new(memory: &Memory) -> Bulk {
        let (memory, transfers) = (memory.clone(), Mutex::default());
        Bulk { inner: Arc::new(Inner { memory, transfers }) }
    }

    /// In a handler: lets the caller read these parts of regions, and know this value. They are lent until it has read them, at most for the
    /// lease. Until then the bytes should not change.
    ///
    /// # Errors
    /// [`BulkError`]: a part does not lie in its region, or there are too many transfers.
    pub fn offer<'r, T>(
        &self,
        value: T,
        parts: impl IntoIterator<Item = (&'r Region, Range<u64>)>,
        lease: Duration,
    ) -> Result<Download<T>, BulkError> {
        let parts: Vec<_> = parts.into_iter().collect();
        let parts = self.begin(&parts, Rights::READ, lease, Box::new(|| Ok(Bytes::new())))?;
        Ok(Download { parts, value })
    }

    /// In a handler: lets the caller write these parts of regions. They are lent until it says that it has, at most for the lease. Then `then`
    /// makes the value of the call, on a thread of the server: nothing lands in them any more.
    ///
    /// # Errors
    /// [`BulkError`]: parts overlap, one does not lie in its region, or there are too many transfers.
    pub fn accept<'r, T: Serialize>(
        &self,
        parts: impl IntoIterator<Item = (&'r Region, Range<u64>)>,
        lease: Duration,
        then: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Upload<T>, BulkError> {
        let parts: Vec<_> = parts.into_iter().collect();
        refuse_overlaps(&parts)?;
        let then = move || encode(&then());
        let parts = self.begin(&parts, Rights::WRITE, lease, Box::new(then))?;
        Ok(Upload { parts, value: PhantomData })
    }

    /// How many transfers there are.
    pub fn snapshot(&self) -> BulkSnapshot {
        let Transfers { under_way, finished, expired } = &*self.transfers();
        BulkSnapshot { under_way: under_way.len(), finished: *finished, expired: *expired }
    }

    fn transfers(&self) -> MutexGuard<'_, Transfers> {
        // The table is valid whatever a panic has cut short.
        self.inner.transfers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(
        &self,
        parts: &[(&Region, Range<u64>)],
        rights: Rights,
        lease: Duration,
        then: Then,
    ) -> Result<Vec<Remote>, BulkError> {
        let has_empty = parts.iter().any(|(_, range)| range.is_empty());
        if has_empty || !(1..=MAX_PARTS).contains(&parts.len()) {
            return Err(BulkError::Parts { parts: parts.len() as u64 });
        }
        let call = CallContext::current().ok_or(BulkError::NoCall)?;
        let mut transfers = self.transfers();
        transfers.expire(call.now());
        if transfers.under_way.len() >= MAX_TRANSFERS {
            return Err(BulkError::Full);
        }
        let (caller, until) = (call.identity(), call.now() + lease);
        let mut lends = Vec::with_capacity(parts.len());
        for (region, range) in parts {
            let lent = match &caller {
                None => region.lend(range.clone(), rights, Until::at(until)),
                Some(who) => region.lend_to(who.clone(), range.clone(), rights, Until::at(until)),
            };
            match lent {
                Ok(lend) => lends.push(lend),
                Err(why) => {
                    for lend in &lends {
                        self.inner.memory.revoke(lend);
                    }
                    return Err(why.into());
                }
            }
        }
        let regions = parts.iter().map(|(region, _)| (*region).clone()).collect();
        let pending = Pending { lends: lends.clone(), _regions: regions, until, caller, then };
        transfers.under_way.insert(lends[0], pending);
        Ok(lends)
    }

    /// Ends what is lent for the transfer with this first part: nothing lands any more. Gives what was to be done then.
    pub(super) fn end_lends(
        &self,
        transfer: &Remote,
        call: &CallContext,
    ) -> Result<Then, BulkError> {
        let mut transfers = self.transfers();
        transfers.expire(call.now());
        let is_callers = |it: &Pending| it.caller.is_none() || it.caller == call.identity();
        if !transfers.under_way.get(transfer).is_some_and(is_callers) {
            return Err(BulkError::Over);
        }
        let Some(pending) = transfers.under_way.remove(transfer) else {
            return Err(BulkError::Over);
        };
        transfers.finished += 1;
        drop(transfers);
        for lend in &pending.lends {
            self.inner.memory.revoke(lend);
        }
        Ok(pending.then)
    }
}

impl Transfers {
    /// Forgets those whose lease is over. Their lends have ended by themselves.
    fn expire(&mut self, now: Instant) {
        let before = self.under_way.len();
        self.under_way.retain(|_, pending| pending.until > now);
        self.expired += (before - self.under_way.len()) as u64;
    }
}

fn refuse_overlaps(parts: &[(&Region, Range<u64>)]) -> Result<(), BulkError> {
    for (second, (region, range)) in parts.iter().enumerate() {
        let overlaps = |(other, of_other): &(&Region, Range<u64>)| {
            other.is_same(region) && of_other.start < range.end && range.start < of_other.end
        };
        if let Some(first) = parts[..second].iter().position(overlaps) {
            return Err(BulkError::Overlap { first: first as u32, second: second as u32 });
        }
    }
    Ok(())
}

fn encode<T: Serialize>(value: &T) -> Result<Bytes, BulkError> {
    let encoded = codec::encoded(&codec::part::<codec::Serde, _>(value));
    encoded.map(Bytes::from).map_err(|why| BulkError::Value(why.to_string()))
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk").finish_non_exhaustive()
    }
}
