//! Waiting for a level, blocking or as a future.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Shared;
use super::state::Ticket;
use crate::error::Error;
use crate::level::{Ack, Level};
use crate::lsn::Lsn;

/// A record that was appended: [`wait`](Self::wait) blocks until it is at the level that was asked for; awaiting it does the same on any
/// executor.
///
/// Dropping it takes nothing back: the record is in the log, and reaches the level with the next batch that is written.
#[must_use = "the record is not acknowledged before its waiter is waited for"]
pub struct Waiter {
    shared: Arc<Shared>,
    lsn: Lsn,
    end: Lsn,
    batch: u64,
    level: Level,
    ticket: Option<Ticket>,
}

impl Waiter {
    pub(super) fn new(shared: &Arc<Shared>, lsn: Lsn, end: Lsn, batch: u64, level: Level) -> Self {
        Self { shared: shared.clone(), lsn, end, batch, level, ticket: None }
    }

    /// Where the record is.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// The level that the record is at now.
    #[must_use]
    pub fn level_now(&self) -> Level {
        self.shared.lock().level_of(self.end)
    }

    /// Waits until the record is at the level that was asked for. If no other caller is writing, this one writes and syncs, for all.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write or sync failed: the record may be lost, or it may be there when the log is opened again.
    /// [`Error::Closed`] if the log was dropped.
    pub fn wait(self) -> Result<Ack, Error> {
        let level = self.shared.wait_for(self.end, self.batch, self.level)?;
        Ok(Ack { lsn: self.lsn, level })
    }
}

impl Future for Waiter {
    type Output = Result<Ack, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut state = this.shared.lock();
        let level = state.level_of(this.end);
        if level >= this.level {
            return Poll::Ready(Ok(Ack { lsn: this.lsn, level }));
        }
        state.check()?;
        let wanted = (this.end, this.level);
        this.ticket = Some(state.register(this.ticket, wanted, context.waker()));
        this.shared.start_committer(&mut state)?;
        Poll::Pending
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.lock().deregister(ticket);
        }
    }
}
