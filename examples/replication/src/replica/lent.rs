//! The memory that a replica lends to the primary of its epoch.

use farcall::memory::{Memory, MemoryError, Region, Remote, Rights, Until};

use super::peer::Lent;
use crate::node::{Lender, PROGRESS_BYTES, Progress};
use crate::ring::{RECORDS_OFFSET, RingMemory};

/// A ring and progress words of one epoch, or none. Each epoch has regions of its own: if a former primary was stopped in the midst of an
/// access, it may still write into the old ones when it goes on.
pub(super) struct LentMemory {
    memory: Memory,
    ring_bytes: usize,
    current: Option<Current>,
}

struct Current {
    ring: Region,
    progress: Region,
    lent: Lent,
}

impl LentMemory {
    pub(super) fn new(memory: Memory, ring_bytes: usize) -> LentMemory {
        LentMemory { memory, ring_bytes, current: None }
    }

    /// What is lent now.
    pub(super) fn lent(&self) -> Option<Lent> {
        self.current.as_ref().map(|current| current.lent)
    }

    fn make(&self) -> anyhow::Result<Current> {
        let ring = self.memory.region(RECORDS_OFFSET + self.ring_bytes)?;
        let progress = self.memory.region(PROGRESS_BYTES)?;
        let lend = |region: &Region, rights| -> Result<Remote, MemoryError> {
            region.lend(.., rights, Until::REVOKED)
        };
        let lent =
            Lent { ring: lend(&ring, Rights::WRITE)?, progress: lend(&progress, Rights::READ)? };
        Ok(Current { ring, progress, lent })
    }
}

impl RingMemory for LentMemory {
    fn read(&self, offset: usize, into: &mut [u8]) {
        match &self.current {
            Some(current) => current.ring.read(offset, into),
            None => into.fill(0),
        }
    }

    fn load(&self, offset: usize) -> u64 {
        self.current.as_ref().map_or(0, |current| current.ring.load_u64(offset))
    }
}

impl Lender for LentMemory {
    fn fence(&mut self) {
        if let Some(current) = &self.current {
            current.ring.revoke();
            current.progress.revoke();
        }
    }

    fn lend(&mut self) {
        // Without memory there is nothing to enter an epoch with: the caller refuses.
        self.current =
            self.make().inspect_err(|why| tracing::error!("no memory to lend: {why:#}")).ok();
    }

    fn publish(&mut self, progress: &Progress) {
        if let Some(current) = &self.current {
            for (at, word) in progress.words().into_iter().enumerate() {
                current.progress.store_release_u64(8 * at, word);
            }
        }
    }
}
