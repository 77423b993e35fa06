//! What is where: in memory, with the operating system, on the disk. Pure: nothing here does I/O or waits.

use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Error;
use crate::level::Level;
use crate::lsn::{Geometry, Lsn};
use crate::record::{Draft, HEADER_BYTES, Kind, encode, size_of_record};
use crate::storage::File;

/// What a log has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records that were appended, those of the log itself included.
    pub records: u64,
    /// Bytes of them in the log.
    pub bytes: u64,
    /// Writes: one for each batch.
    pub writes: u64,
    /// Syncs of records.
    pub syncs: u64,
    /// Segments that were made.
    pub segments: u64,
}

/// The last checkpoint that is persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) lsn: Lsn,
    /// Where recovery begins.
    pub(super) restart: Lsn,
}

/// Where the next record goes.
pub(super) enum Place {
    Here,
    NoRoom,
    NextSegment,
}

pub(super) struct State {
    /// Records that no leader has taken yet.
    pending: Vec<u8>,
    pending_start: Lsn,
    pending_records: u64,
    /// The other buffer, while no leader has it.
    spare: Vec<u8>,
    /// The bound of `pending`.
    queue_bytes: usize,
    pub(super) end: Lsn,
    visible: Lsn,
    persistent: Lsn,
    wanted_visible: Lsn,
    wanted_persistent: Lsn,
    /// The number of the batch that `pending` will be.
    pub(super) batch: u64,
    /// A caller writes, or makes a segment.
    pub(super) leading: bool,
    /// For how many records the leader waits.
    pub(super) gathers: Option<u64>,
    pub(super) last_batch_records: u64,
    pub(super) last_sync: Duration,
    pub(super) failure: Option<Arc<Error>>,
    pub(super) closed: bool,
    pub(super) segment: Arc<dyn File>,
    pub(super) first_segment: u64,
    pub(super) spares: Vec<String>,
    pub(super) checkpoint: Option<Known>,
    wakers: Vec<Option<Wanted>>,
    free_wakers: Vec<usize>,
    next_ticket: u64,
    /// Those who wait for room, and whether they need another segment for it.
    room_wakers: Vec<Waker>,
    wants_segment: bool,
    /// How many segments could not be made, and why the last could not.
    pub(super) segment_failures: (u64, Option<Arc<Error>>),
    /// The wakers of those who are told next; kept for its memory.
    pub(super) ready: Vec<Waker>,
    pub(super) committer: Option<JoinHandle<()>>,
    pub(super) stats: Stats,
}

struct Wanted {
    id: u64,
    end: Lsn,
    level: Level,
    waker: Waker,
}

/// Where a waker is noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    slot: usize,
    id: u64,
}

/// What a leader writes.
pub(super) struct Batch {
    pub(super) segment: Arc<dyn File>,
    pub(super) bytes: Vec<u8>,
    pub(super) start: Lsn,
    /// Where the log ends after it: in the next segment if this batch ends the one that it is in.
    pub(super) end: Lsn,
    /// The log is persistent up to here while the batch is written.
    pub(super) synced: Lsn,
    pub(super) sync: bool,
    pub(super) number: u64,
    pub(super) records: u64,
}

impl State {
    /// A log that ends at `end` and is persistent up to there.
    pub(super) fn new(segment: Arc<dyn File>, end: Lsn, queue_bytes: usize) -> Self {
        // The mark of a segment's end always fits.
        let buffer = || Vec::with_capacity(queue_bytes + HEADER_BYTES);
        Self {
            pending: buffer(),
            pending_start: end,
            pending_records: 0,
            spare: buffer(),
            queue_bytes,
            end,
            visible: end,
            persistent: end,
            wanted_visible: end,
            wanted_persistent: end,
            batch: 0,
            leading: false,
            gathers: None,
            last_batch_records: 0,
            last_sync: Duration::ZERO,
            failure: None,
            closed: false,
            segment,
            first_segment: 0,
            spares: Vec::new(),
            checkpoint: None,
            wakers: Vec::new(),
            free_wakers: Vec::new(),
            next_ticket: 0,
            room_wakers: Vec::new(),
            wants_segment: false,
            segment_failures: (0, None),
            ready: Vec::new(),
            committer: None,
            stats: Stats::default(),
        }
    }

    /// Whether the log takes records.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.failure {
            Some(failure) => Err(Error::Poisoned(failure.clone())),
            None if self.closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    pub(super) fn place(&self, geometry: Geometry, size: u64) -> Place {
        if !geometry.fits(self.end, size) {
            Place::NextSegment
        } else if self.pending.len() as u64 + size > self.queue_bytes as u64 {
            Place::NoRoom
        } else {
            Place::Here
        }
    }

    /// Adds a record for which there is a place. Returns where it begins.
    pub(super) fn push(&mut self, epoch: u32, draft: Draft<'_>) -> Lsn {
        let lsn = self.end;
        encode(&mut self.pending, lsn, epoch, draft);
        self.end.0 += size_of_record(draft.payload.len());
        self.pending_records += 1;
        self.stats.records += 1;
        self.stats.bytes += self.end.0 - lsn.0;
        lsn
    }

    /// Ends the segment with a mark, and goes on in `next`. Returns the batch that completes the segment.
    pub(super) fn end_segment(
        &mut self,
        mark: &[u8; HEADER_BYTES],
        geometry: Geometry,
        next: Arc<dyn File>,
    ) -> Batch {
        self.pending.extend_from_slice(mark);
        self.end = geometry.start(geometry.segment(self.end) + 1);
        self.stats.segments += 1;
        let mut batch = self.take_batch();
        batch.sync = true;
        self.segment = next;
        batch
    }

    /// Somebody wants everything before `end` to be at a level.
    pub(super) fn want(&mut self, end: Lsn, level: Level) {
        match level {
            Level::Received => {}
            Level::Visible => self.wanted_visible = self.wanted_visible.max(end),
            Level::Persistent => self.wanted_persistent = self.wanted_persistent.max(end),
        }
    }

    /// Whether somebody wants what has not been reached.
    pub(super) fn has_work(&self) -> bool {
        self.failure.is_none()
            && !self.closed
            && (self.wanted_visible > self.visible || self.wanted_persistent > self.persistent)
    }

    /// Whether the records are there for which the leader waits.
    pub(super) fn is_gathered(&self) -> bool {
        self.gathers.is_some_and(|wanted| self.pending_records >= wanted)
    }

    pub(super) fn wants_sync(&self) -> bool {
        self.wanted_persistent > self.persistent
    }

    /// Takes what there is to write.
    pub(super) fn take_batch(&mut self) -> Batch {
        let bytes = std::mem::replace(&mut self.pending, std::mem::take(&mut self.spare));
        let batch = Batch {
            segment: self.segment.clone(),
            bytes,
            start: self.pending_start,
            end: self.end,
            synced: self.persistent,
            sync: self.wants_sync(),
            number: self.batch,
            records: self.pending_records,
        };
        self.pending_start = self.end;
        self.pending_records = 0;
        self.batch += 1;
        batch
    }

    /// Notes what became of a batch, and collects the wakers of those who are told.
    pub(super) fn finish(&mut self, mut batch: Batch, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => {
                self.visible = batch.end;
                if batch.sync {
                    self.persistent = batch.end;
                }
                self.last_batch_records = batch.records;
            }
            Err(failure) => self.failure = Some(Arc::new(failure)),
        }
        self.stats.writes += u64::from(!batch.bytes.is_empty());
        self.stats.syncs += u64::from(batch.sync);
        batch.bytes.clear();
        self.spare = batch.bytes;
        self.collect_ready();
    }

    fn collect_ready(&mut self) {
        for at in 0..self.wakers.len() {
            let is_over = self.wakers[at].as_ref().is_some_and(|wanted| {
                self.failure.is_some() || self.level_of(wanted.end) >= wanted.level
            });
            if is_over && let Some(wanted) = self.wakers[at].take() {
                self.ready.push(wanted.waker);
                self.free_wakers.push(at);
            }
        }
    }

    pub(super) fn take_all_wakers(&mut self) -> Vec<Waker> {
        self.free_wakers.clear();
        let waiters = self.wakers.drain(..).flatten().map(|wanted| wanted.waker);
        waiters.chain(self.room_wakers.drain(..)).collect()
    }

    /// Notes whom to wake when there may be room.
    pub(super) fn wait_for_room(&mut self, needs_segment: bool, waker: &Waker) {
        self.wants_segment |= needs_segment;
        if !self.room_wakers.iter().any(|other| other.will_wake(waker)) {
            self.room_wakers.push(waker.clone());
        }
    }

    /// Those who wait for room are told that there may be some. They say again if there is none.
    pub(super) fn collect_room_wakers(&mut self) {
        self.wants_segment = false;
        self.ready.append(&mut self.room_wakers);
    }

    pub(super) fn take_wants_segment(&mut self) -> bool {
        std::mem::take(&mut self.wants_segment)
    }

    pub(super) fn has_room_wakers(&self) -> bool {
        !self.room_wakers.is_empty()
    }

    /// The level of everything before a position.
    pub(super) fn level_of(&self, end: Lsn) -> Level {
        if end <= self.persistent {
            Level::Persistent
        } else if end <= self.visible {
            Level::Visible
        } else {
            Level::Received
        }
    }

    pub(super) fn reached_by(&self, level: Level) -> Lsn {
        match level {
            Level::Received => self.end,
            Level::Visible => self.visible,
            Level::Persistent => self.persistent,
        }
    }

    pub(super) fn has_wakers(&self) -> bool {
        self.free_wakers.len() < self.wakers.len()
    }

    /// Notes whom to wake.
    pub(super) fn register(
        &mut self,
        ticket: Option<Ticket>,
        (end, level): (Lsn, Level),
        waker: &Waker,
    ) -> Ticket {
        if let Some(ticket) = ticket
            && let Some(Some(wanted)) = self.wakers.get_mut(ticket.slot)
            && wanted.id == ticket.id
        {
            wanted.waker.clone_from(waker);
            return ticket;
        }
        let id = self.next_ticket;
        self.next_ticket += 1;
        let wanted = Some(Wanted { id, end, level, waker: waker.clone() });
        let slot = self.free_wakers.pop().unwrap_or(self.wakers.len());
        if slot == self.wakers.len() {
            self.wakers.push(wanted);
        } else {
            self.wakers[slot] = wanted;
        }
        Ticket { slot, id }
    }

    pub(super) fn deregister(&mut self, ticket: Ticket) {
        let slot = self.wakers.get_mut(ticket.slot);
        if let Some(slot) = slot.filter(|slot| slot.as_ref().is_some_and(|w| w.id == ticket.id)) {
            *slot = None;
            self.free_wakers.push(ticket.slot);
        }
    }

    /// The kind of the mark that ends a segment.
    pub(super) const END_MARK: Kind = Kind::Next;
}
