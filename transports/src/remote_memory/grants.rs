//! The table of lends: which memory is lent to whom, and until when. Pure: it touches no memory and reads no clock.

use core::ops::Range;
use std::collections::{BTreeSet, VecDeque};

use farcall_core::site::Caller;
use farcall_core::time::Instant;

use super::{Borrower, Counted, Denied, MemoryError, Remote, Rights, Who, planted};
use crate::planted::{Bug, is_planted};

/// Most lends of one owner at a time. Each takes some 100 bytes.
pub const MAX_LENDS: usize = 1 << 20;

/// How many lends that have ended are kept, so that old values are told why they fail.
const KEPT_ENDED: usize = 1024;

/// A lend, as the owner makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number of the region.
    pub region: u32,
    /// The bytes of the region.
    pub part: Range<u64>,
    /// What is permitted.
    pub rights: Rights,
    /// To whom.
    pub borrower: Borrower,
    /// When it ends.
    pub until: Instant,
}

/// What an operation may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The number of the region.
    pub region: u32,
    /// The first byte in it.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// Lends by their number. A number is used again, with another epoch and another key; the one that has been free longest first.
#[derive(Debug)]
pub struct Grants {
    life: u64,
    most: usize,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    lent: usize,
    /// Lends that end by themselves.
    leases: BTreeSet<(Instant, u32)>,
    /// Lends that end with a connection.
    of_connections: Vec<(Caller, u32)>,
    #[cfg(feature = "planted-bugs")]
    pub(super) late: planted::Late,
}

#[derive(Debug)]
struct Slot {
    epoch: u32,
    key: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Lent { grant: Grant, since: Instant },
    Ended(MemoryError),
}

impl Grants {
    /// No lends of an owner with this number, at most so many.
    pub fn new(life: u64, most: usize) -> Grants {
        let (slots, free, leases) = (Vec::new(), VecDeque::new(), BTreeSet::new());
        Grants {
            life,
            most: most.min(u32::MAX as usize),
            slots,
            free,
            lent: 0,
            leases,
            of_connections: Vec::new(),
            #[cfg(feature = "planted-bugs")]
            late: planted::Late::default(),
        }
    }

    /// The number of lends that have not ended.
    pub fn len(&self) -> usize {
        self.lent
    }

    /// Whether nothing is lent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lend that was made first of those that have not ended: when, and to whom. Looks at all of them.
    pub fn oldest(&self) -> Option<(Instant, &Borrower)> {
        let lent = self.slots.iter().filter_map(|slot| match &slot.state {
            State::Lent { grant, since } => Some((*since, &grant.borrower)),
            State::Ended(_) => None,
        });
        lent.min_by_key(|(since, _)| *since)
    }

    /// Lends what the grant says. `key` is random. [Expire](Self::expire) leases before: their numbers are used again.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub fn lend(&mut self, grant: Grant, key: u64, now: Instant) -> Result<Remote, MemoryError> {
        self.end_late();
        let lend = self.take_number().ok_or(MemoryError::Full { what: Counted::Lends })?;
        if grant.until != Instant::FAR_FUTURE {
            self.leases.insert((grant.until, lend));
        }
        if let Borrower::Connection(connection) = grant.borrower {
            self.of_connections.push((connection, lend));
        }
        let slot = &mut self.slots[lend as usize];
        let (offset, len) = (grant.part.start, grant.part.end - grant.part.start);
        self.lent += 1;
        // A slot whose epochs are used up is not free any more: see `end`.
        (slot.epoch, slot.key, slot.state) =
            (slot.epoch + 1, key, State::Lent { grant, since: now });
        Ok(Remote { life: self.life, lend, epoch: slot.epoch, key, offset, len })
    }

    /// A number that no lend has.
    fn take_number(&mut self) -> Option<u32> {
        let has_room = self.slots.len() < self.most;
        if self.free.len() > KEPT_ENDED || !has_room {
            return self.free.pop_front();
        }
        let state = State::Ended(MemoryError::Revoked);
        self.slots.push(Slot { epoch: 0, key: 0, state });
        Some((self.slots.len() - 1) as u32)
    }

    /// Whether this client may do what needs this right, now.
    ///
    /// # Errors
    /// [`FormerLife`](MemoryError::FormerLife), [`Revoked`](MemoryError::Revoked), [`Expired`](MemoryError::Expired),
    /// [`NotPermitted`](MemoryError::NotPermitted), [`OutOfRange`](MemoryError::OutOfRange). Of a lend that has ended long ago, it may say
    /// that it was revoked although its lease was over.
    pub fn check(
        &self,
        remote: &Remote,
        who: Who<'_>,
        needs: Rights,
        now: Instant,
    ) -> Result<Granted, MemoryError> {
        let grant = self.granted(remote, who, now)?;
        if !grant.rights.contains(needs) {
            return Err(MemoryError::NotPermitted(denied(needs)));
        }
        let Remote { offset, len, .. } = *remote;
        let is_inside = offset >= grant.part.start
            && offset <= grant.part.end
            && len <= grant.part.end - offset + planted::bytes_beyond();
        if !is_inside {
            let of = grant.part.end - grant.part.start;
            let offset = offset.wrapping_sub(grant.part.start);
            return Err(MemoryError::OutOfRange { offset, len, of });
        }
        Ok(Granted { region: grant.region, offset, len })
    }

    /// The lend that this client may use in some way, now.
    ///
    /// # Errors
    /// [`MemoryError`], for the reasons that [`check`](Self::check) has, apart from rights and range.
    pub fn granted(
        &self,
        remote: &Remote,
        who: Who<'_>,
        now: Instant,
    ) -> Result<&Grant, MemoryError> {
        let grant = self.find(remote)?;
        if now >= grant.until && !is_planted(Bug::LeaseOfReader) {
            return Err(MemoryError::Expired);
        }
        match grant.borrower.is(who) {
            true => Ok(grant),
            false => Err(MemoryError::NotPermitted(Denied::NoSuchLend)),
        }
    }

    /// The lend that a value names.
    fn find(&self, remote: &Remote) -> Result<&Grant, MemoryError> {
        if remote.life != self.life {
            return Err(MemoryError::FormerLife);
        }
        let unknown = MemoryError::NotPermitted(Denied::NoSuchLend);
        let slot = self.slots.get(remote.lend as usize).ok_or(unknown.clone())?;
        match &slot.state {
            State::Lent { grant, .. } if is_planted(Bug::UncheckedLend) => Ok(grant),
            _ if (1..slot.epoch).contains(&remote.epoch) => Err(MemoryError::Revoked),
            _ if (remote.epoch, remote.key) != (slot.epoch, slot.key) => Err(unknown),
            State::Ended(why) => Err(why.clone()),
            State::Lent { grant, .. } => Ok(grant),
        }
    }

    /// Ends the lend that a value names. Returns whether there was one.
    pub fn revoke(&mut self, remote: &Remote) -> bool {
        let is_lent = self.find(remote).is_ok();
        if is_lent && !self.is_late(remote.lend) {
            self.end(remote.lend, MemoryError::Revoked);
        }
        is_lent
    }

    /// Ends all lends of a region. Returns their numbers.
    pub fn revoke_region(&mut self, region: u32) -> Vec<u32> {
        let is_of = |slot: &Slot| matches!(&slot.state, State::Lent { grant, .. } if grant.region == region);
        let lends: Vec<u32> =
            (0..).zip(&self.slots).filter(|(_, slot)| is_of(slot)).map(|(lend, _)| lend).collect();
        for lend in &lends {
            self.end(*lend, MemoryError::Revoked);
        }
        lends
    }

    /// Ends the lends to connections that are gone. Returns their numbers.
    pub fn revoke_connections(&mut self, is_gone: impl Fn(&Caller) -> bool) -> Vec<u32> {
        let gone = self.of_connections.extract_if(.., |(connection, _)| is_gone(connection));
        let lends: Vec<u32> = gone.map(|(_, lend)| lend).collect();
        for lend in &lends {
            self.end(*lend, MemoryError::Revoked);
        }
        lends
    }

    /// Ends the lends whose leases are over. Returns their numbers.
    pub fn expire(&mut self, now: Instant) -> Vec<u32> {
        let mut ended = Vec::new();
        while let Some((until, lend)) = self.leases.first().copied()
            && until <= now
        {
            self.end(lend, MemoryError::Expired);
            ended.push(lend);
        }
        ended
    }

    /// When the next lease is over; the far future if there is none.
    pub fn next_expiry(&self) -> Instant {
        self.leases.first().map_or(Instant::FAR_FUTURE, |(until, _)| *until)
    }

    pub(super) fn end(&mut self, lend: u32, why: MemoryError) {
        let slot = &mut self.slots[lend as usize];
        if let State::Lent { grant, .. } = core::mem::replace(&mut slot.state, State::Ended(why)) {
            self.lent -= 1;
            self.leases.remove(&(grant.until, lend));
            if let Borrower::Connection(_) = grant.borrower {
                self.of_connections.retain(|(_, other)| *other != lend);
            }
            // An epoch is never used twice.
            if slot.epoch < u32::MAX {
                self.free.push_back(lend);
            }
        }
    }
}

fn denied(needs: Rights) -> Denied {
    if needs.contains(Rights::ATOMIC) {
        Denied::Atomic
    } else if needs.contains(Rights::WRITE) {
        Denied::Write
    } else {
        Denied::Read
    }
}

#[cfg(test)]
mod tests;
