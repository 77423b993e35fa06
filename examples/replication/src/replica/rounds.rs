//! Rounds of one-sided operations on what backups lend.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use farcall::memory::{BatchCall, BatchError, MemoryError, Outcome, RemoteMemory};

use super::peer::Lent;
use crate::membership::ReplicaId;
use crate::node::{Progress, RoundError};
use crate::record::Epoch;
use crate::ring::Write;

/// The words that are read.
const WORDS: std::ops::Range<u64> = 0..32;

/// A backup's memory, as the primary uses it.
pub(super) struct Link {
    pub(super) memory: RemoteMemory,
    pub(super) lent: Lent,
}

/// The rounds that are under way.
pub(super) struct Rounds {
    links: HashMap<ReplicaId, (Epoch, Link)>,
    under_way: Vec<(ReplicaId, Epoch, BatchCall)>,
    timeout: Duration,
    waker: Waker,
}

/// Wakes the thread that polls the rounds.
struct Unparker(Thread);

impl Wake for Unparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The end of a round.
pub(super) type Ended = (ReplicaId, Epoch, Result<Progress, RoundError>);

impl Rounds {
    /// For the thread that calls this. A round may take so long.
    pub(super) fn new(timeout: Duration) -> Rounds {
        let waker = Waker::from(Arc::new(Unparker(std::thread::current())));
        Rounds { links: HashMap::new(), under_way: Vec::new(), timeout, waker }
    }

    /// A backup has lent memory for this epoch.
    pub(super) fn connect(&mut self, to: ReplicaId, epoch: Epoch, link: Link) {
        self.links.retain(|_, (of, _)| *of >= epoch);
        // An answer that is late is of an older epoch.
        if self.links.get(&to).is_none_or(|(of, _)| *of <= epoch) {
            self.links.insert(to, (epoch, link));
        }
    }

    /// Nothing is lent to this replica any more.
    pub(super) fn clear(&mut self) {
        self.links.clear();
        self.under_way.clear();
    }

    /// Begins a round. Gives its end if it cannot begin.
    pub(super) fn begin(
        &mut self,
        to: ReplicaId,
        epoch: Epoch,
        writes: Vec<Write>,
    ) -> Option<Ended> {
        let link = self.links.get(&to).filter(|(of, _)| *of == epoch);
        let batch = link.and_then(|(_, link)| batch(link, writes).ok());
        let Some(batch) = batch else { return Some((to, epoch, Err(RoundError::Gone))) };
        self.under_way.push((to, epoch, batch.timeout(self.timeout)));
        None
    }

    /// Takes what has ended.
    pub(super) fn poll(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        let mut context = Context::from_waker(&self.waker);
        self.under_way.retain_mut(|(to, epoch, batch)| match Pin::new(batch).poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(result) => {
                ended.push((*to, *epoch, result_of(result)));
                false
            }
        });
        ended
    }
}

fn batch(link: &Link, writes: Vec<Write>) -> Result<BatchCall, MemoryError> {
    let mut batch = link.memory.batch();
    for Write { offset, bytes } in writes {
        let begin = offset as u64;
        let at = link.lent.ring.slice(begin..begin + bytes.len() as u64)?;
        batch = batch.write(&at, bytes);
    }
    Ok(batch.read(&link.lent.progress.slice(WORDS)?).post())
}

fn result_of(result: Result<Vec<Outcome>, BatchError>) -> Result<Progress, RoundError> {
    match result {
        Ok(outcomes) => {
            let read = outcomes.last().and_then(|read| Progress::from_bytes(read.bytes()));
            read.ok_or(RoundError::Gone)
        }
        Err(BatchError { error: MemoryError::Revoked, .. }) => Err(RoundError::Fenced),
        Err(_) => Err(RoundError::Gone),
    }
}
