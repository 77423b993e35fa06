//! A backup, or a replica that joins: it takes records out of its ring, and notices when the primary is silent.

use std::time::Duration;

use super::state::State;
use super::{Lender, Progress};
use crate::record::{Epoch, Lsn};
use crate::ring::{self, RingReader};

/// A turn takes at most so many records, so that it ends.
const MAX_TAKEN: usize = 1024;

#[derive(Debug)]
pub(super) struct Backup {
    /// `None`: it has lent none in this epoch.
    ring: Option<RingReader>,
    /// It is no member yet.
    is_learner: bool,
    /// It takes nothing out of the ring before it has the snapshot.
    needs_snapshot: bool,
    beat: u64,
    heartbeat: u64,
    heard_at: Duration,
}

impl Backup {
    /// It waits to be asked to enter, or to join.
    pub(super) fn without_ring(now: Duration) -> Backup {
        Backup {
            ring: None,
            is_learner: false,
            needs_snapshot: false,
            beat: 0,
            heartbeat: 0,
            heard_at: now,
        }
    }

    pub(super) fn member(now: Duration, epoch: Epoch, ring_bytes: usize) -> Backup {
        Backup { ring: Some(RingReader::new(epoch, ring_bytes)), ..Backup::without_ring(now) }
    }

    pub(super) fn learner(now: Duration, epoch: Epoch, ring_bytes: usize) -> Backup {
        Backup { is_learner: true, needs_snapshot: true, ..Backup::member(now, epoch, ring_bytes) }
    }

    pub(super) fn is_learner(&self) -> bool {
        self.is_learner
    }

    pub(super) fn has_snapshot(&mut self, now: Duration) {
        self.needs_snapshot = false;
        self.heard_at = now;
    }

    pub(super) fn forgive(&mut self, now: Duration) {
        self.heard_at = now;
    }

    /// A later configuration has this replica as a backup: its primary will ask it to enter.
    pub(super) fn expect_enter(&mut self, now: Duration) {
        self.is_learner = false;
        self.heard_at = now;
    }

    pub(super) fn turn(&mut self, now: Duration, state: &mut State, lender: &mut dyn Lender) {
        if let Some(reader) = &mut self.ring
            && !self.needs_snapshot
        {
            let heartbeat = ring::heartbeat(lender);
            if heartbeat != self.heartbeat {
                (self.heartbeat, self.heard_at) = (heartbeat, now);
            }
            let commit = ring::commit_index(lender).unwrap_or_default();
            if state.has_room_for_sync() {
                take(reader, state, lender, MAX_TAKEN);
            }
            state.commit_to(commit.min(state.log.end()));
            state.apply(|_, _| ());
            state.forget(state.store.applied());
            self.beat += 1;
            lender.publish(&Progress {
                beat: self.beat,
                taken: reader.taken(),
                received: state.log.end(),
                synced: if state.options.syncs { state.synced } else { Lsn(0) },
            });
        }
        self.suspect(now, state);
    }

    /// Proposes another primary if the present one is silent. The members take turns, so that they rarely propose at the same time.
    fn suspect(&mut self, now: Duration, state: &mut State) {
        let configuration = &state.configuration;
        let silent = now.saturating_sub(self.heard_at);
        if self.is_learner {
            if !self.needs_snapshot && silent > 8 * state.options.detect {
                state.is_over = true;
            }
            return;
        }
        if configuration.member(state.me.id).is_none() {
            return;
        }
        let others = configuration.members.iter().filter(|it| it.id != configuration.primary);
        let rank = others.take_while(|member| member.id != state.me.id).count() as u32;
        if silent > state.options.detect * (1 + rank) {
            let primary = configuration.primary;
            state.propose_without(now, &[primary]);
        }
    }

    /// Takes all whole records out of the ring, into which nobody writes any more.
    pub(super) fn take_all(&mut self, state: &mut State, lender: &dyn Lender) {
        if let Some(mut ring) = self.ring.take()
            && !self.needs_snapshot
        {
            take(&mut ring, state, lender, usize::MAX);
        }
    }
}

fn take(ring: &mut RingReader, state: &mut State, lender: &dyn Lender, most: usize) {
    let mut records = Vec::new();
    let mut next = state.log.end().next();
    while records.len() < most
        && let Some(record) = ring.take(lender, next)
    {
        next = record.lsn.next();
        records.push(record);
    }
    state.append(records);
}
