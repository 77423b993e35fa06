//! What the primary knows of one backup.

use std::time::Duration;

use super::state::State;
use super::{Action, BackupStatus, Entered, Join, Progress};
use crate::membership::Member;
use crate::record::{Epoch, HEADER_BYTES, Lsn, size_of};
use crate::ring::{self, RingWriter, Write, Writes};

/// A round has at most so many WRITEs of records.
const MAX_WRITES: usize = 16;

/// The commit index travels with the next round, or after so long: a round for it alone would delay the next record.
const TELL_DELAY: Duration = Duration::from_millis(1);

/// How often the primary looks whether a backup has synced, or has made room.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// What a backup is for commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkRole {
    /// It is a member of the epoch: no commit without it.
    Member,
    /// It joins, and has not caught up.
    Learner,
    /// It joins and has caught up: no commit without it, so that it can become a member.
    Promoted,
}

/// A round that is under way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    since: Duration,
    /// The last record in it.
    sent: Lsn,
    /// Reads that it confirms.
    reads: u64,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) member: Member,
    pub(super) role: LinkRole,
    pub(super) syncs: bool,
    writer: RingWriter,
    /// The last record that is in a round.
    sent: Lsn,
    /// The last record that has landed.
    pub(super) written: Lsn,
    /// Of records that have no place in the ring yet.
    unplaced_bytes: u64,
    flight: Option<Flight>,
    last_round: Option<Duration>,
    rounds: u64,
    told_commit: Lsn,
    pub(super) progress: Progress,
    heard_at: Duration,
    /// Reads that it has confirmed.
    pub(super) confirmed: u64,
    is_gone: bool,
}

impl Link {
    pub(super) fn member(now: Duration, member: Member, epoch: Epoch, it: &Entered) -> Link {
        Link::new(now, member, epoch, LinkRole::Member, it)
    }

    pub(super) fn learner(now: Duration, epoch: Epoch, join: Join, snapshot: Lsn) -> Link {
        let Join { member, ring_bytes, syncs } = join;
        let it = Entered { end: snapshot, ring_bytes, syncs };
        Link::new(now, member, epoch, LinkRole::Learner, &it)
    }

    fn new(now: Duration, member: Member, epoch: Epoch, role: LinkRole, it: &Entered) -> Link {
        let ring_bytes = usize::try_from(it.ring_bytes).unwrap_or(0);
        Link {
            member,
            role,
            syncs: it.syncs,
            writer: RingWriter::new(epoch, ring_bytes),
            sent: it.end,
            written: it.end,
            unplaced_bytes: 0,
            flight: None,
            last_round: None,
            rounds: 0,
            told_commit: Lsn(0),
            progress: Progress::default(),
            heard_at: now,
            confirmed: 0,
            is_gone: false,
        }
    }

    /// Whether commits wait for it.
    pub(super) fn is_required(&self) -> bool {
        self.role != LinkRole::Learner
    }

    /// Counts a record that was appended to the log, or was there when the link was made.
    pub(super) fn expect(&mut self, payload: usize) {
        self.unplaced_bytes += size_of(payload) as u64;
    }

    /// Whether a record of this size can be written for certain.
    pub(super) fn has_room(&self, payload: usize) -> bool {
        self.writer.has_room(self.unplaced_bytes + size_of(payload) as u64)
    }

    /// The longest payload that fits into its ring.
    pub(super) fn max_payload(&self) -> u64 {
        self.writer.max_record_bytes().saturating_sub(HEADER_BYTES as u64)
    }

    /// The record after the last one that was sent.
    pub(super) fn next(&self) -> Lsn {
        self.sent.next()
    }

    pub(super) fn forgive(&mut self, now: Duration) {
        self.heard_at = now;
    }

    /// Whether it has been silent for too long.
    pub(super) fn is_silent(&self, now: Duration, detect: Duration) -> bool {
        self.is_gone || now.saturating_sub(self.heard_at) > detect
    }

    /// Begins a round, if none is under way and there is a reason for one.
    pub(super) fn begin_round(&mut self, now: Duration, state: &mut State, reads: u64, poll: bool) {
        if self.flight.is_some() {
            return;
        }
        if self.is_gone {
            return self.probe(now, state);
        }
        let mut writes = Writes::default();
        let before = self.sent;
        while writes.len() < MAX_WRITES
            && let Some(record) = state.log.get(self.next())
            && self.writer.push(record, &mut writes)
        {
            self.unplaced_bytes =
                self.unplaced_bytes.saturating_sub(size_of(record.payload.len()) as u64);
            self.sent = record.lsn;
        }
        let since_last = self.last_round.map_or(Duration::MAX, |last| now.saturating_sub(last));
        let has_reason = self.sent > before
            || self.told_commit < state.commit && since_last >= TELL_DELAY
            || self.confirmed < reads
            || poll && since_last >= POLL_INTERVAL
            || since_last >= state.options.heartbeat;
        if !has_reason {
            return;
        }
        self.rounds += 1;
        self.told_commit = state.commit;
        self.last_round = Some(now);
        self.flight = Some(Flight { since: now, sent: self.sent, reads });
        let mut writes = writes.take();
        writes.push(Write { offset: 0, bytes: ring::words(self.rounds, state.commit) });
        state.actions.push(Action::Round { to: self.member.id, epoch: state.epoch, writes });
    }

    /// Asks whether the memory is still lent. If a round was late because this replica was stopped, the answer is that it is not. Nothing is
    /// written any more: what was written before may still land.
    fn probe(&mut self, now: Duration, state: &mut State) {
        let is_due = |last: Duration| now.saturating_sub(last) >= state.options.detect;
        if self.role == LinkRole::Member && self.last_round.is_none_or(is_due) {
            self.last_round = Some(now);
            self.flight = Some(Flight { since: now, sent: self.written, reads: self.confirmed });
            let (to, epoch, writes) = (self.member.id, state.epoch, Vec::new());
            state.actions.push(Action::Round { to, epoch, writes });
        }
    }

    /// A round has failed, and nothing is known of what it wrote. The backup is to be excluded.
    pub(super) fn lose(&mut self) {
        (self.flight, self.is_gone) = (None, true);
    }

    /// A round has ended well.
    pub(super) fn end_round(&mut self, now: Duration, progress: Progress) {
        let Some(flight) = self.flight.take() else { return };
        if self.is_gone {
            return;
        }
        self.written = flight.sent;
        self.confirmed = flight.reads;
        self.writer.set_taken(progress.taken);
        if progress.beat != self.progress.beat {
            self.heard_at = now;
        }
        // A backup can have taken and synced only what was written.
        let received = progress.received.min(self.written);
        let synced = progress.synced.min(received);
        self.progress = Progress { received, synced, ..progress };
    }

    /// Since when a round is under way.
    pub(super) fn round_since(&self) -> Option<Duration> {
        self.flight.map(|flight| flight.since)
    }

    /// What it has synced up to.
    pub(super) fn synced(&self) -> Option<Lsn> {
        self.syncs.then_some(self.progress.synced)
    }

    pub(super) fn status(&self) -> BackupStatus {
        BackupStatus {
            id: self.member.id,
            is_member: self.role == LinkRole::Member,
            written: self.written,
            received: self.progress.received,
            synced: self.synced(),
        }
    }
}
