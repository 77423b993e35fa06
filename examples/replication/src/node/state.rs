//! What a replica has in any role.

use std::time::Duration;

use super::clients::Clients;
use super::{Action, NodeOptions, Reply, SyncWork, Token};
use crate::log::Tail;
use crate::membership::{Configuration, Member};
use crate::planted::{Bug, is_planted};
use crate::record::{Epoch, Lsn, Record};
use crate::store::{Outcome, Request, Store};

/// So many records may wait for the disk. A replica takes no more until some of them are synced.
const MAX_UNSYNCED: u64 = 8192;

#[derive(Debug)]
pub(super) struct State {
    pub(super) me: Member,
    pub(super) options: NodeOptions,
    /// The epoch that was entered.
    pub(super) epoch: Epoch,
    /// The newest that is known.
    pub(super) configuration: Configuration,
    pub(super) log: Tail,
    pub(super) store: Store,
    pub(super) commit: Lsn,
    pub(super) synced: Lsn,
    /// Of records to be synced: larger after records were cut.
    generation: u64,
    pub(super) clients: Clients,
    /// A proposal is under way since.
    pub(super) proposed_at: Option<Duration>,
    /// It was fenced.
    pub(super) is_over: bool,
    pub(super) actions: Vec<Action>,
}

impl State {
    pub(super) fn new(me: Member, options: NodeOptions, store: Store) -> State {
        let applied = store.applied();
        State {
            me,
            options,
            epoch: Epoch(0),
            configuration: Configuration::default(),
            log: Tail::after(applied),
            store,
            commit: applied,
            // The store of a founder came from its disk, or is empty.
            synced: applied,
            generation: 0,
            clients: Clients::default(),
            proposed_at: None,
            is_over: false,
            actions: Vec::new(),
        }
    }

    /// Begins with the state of a snapshot, which is not synced.
    pub(super) fn start_from(&mut self, store: Store) {
        let applied = store.applied();
        self.log = Tail::after(applied);
        (self.commit, self.synced) = (applied, applied);
        self.store = store;
    }

    /// The primary of the newest configuration, if it is another replica.
    pub(super) fn other_primary(&self) -> Option<Member> {
        let primary = self.configuration.member(self.configuration.primary)?;
        (primary.id != self.me.id).then(|| primary.clone())
    }

    pub(super) fn reply(&mut self, token: Token, reply: Reply) {
        self.actions.push(Action::Reply(token, reply));
    }

    /// Appends records, and has them synced.
    pub(super) fn append(&mut self, records: Vec<Record>) {
        let Some(last) = records.last().map(|record| record.lsn) else { return };
        for record in &records {
            self.log.push(record.clone());
        }
        if is_planted(Bug::SyncedBeforeDisk) {
            self.synced = last;
        }
        self.sync(None, records, last);
    }

    /// Notes on the disk that the epoch was entered, with the log as it is.
    pub(super) fn sync_epoch(&mut self) {
        self.sync(Some(self.epoch), Vec::new(), self.log.end());
    }

    fn sync(&mut self, enters: Option<Epoch>, records: Vec<Record>, last: Lsn) {
        if self.options.syncs {
            let generation = self.generation;
            self.actions.push(Action::Sync(SyncWork { generation, enters, records, last }));
        }
    }

    /// Whether the disk keeps up: so much may wait for it.
    pub(super) fn has_room_for_sync(&self) -> bool {
        !self.options.syncs || self.log.end().0 - self.synced.0 < MAX_UNSYNCED
    }

    /// Cuts records after this one, which were not committed: the epoch that is entered is synced next.
    pub(super) fn truncate(&mut self, last: Lsn) {
        let last = last.max(self.commit);
        if last < self.log.end() {
            self.log.truncate(last);
            self.synced = self.synced.min(last);
            self.generation += 1;
        }
    }

    pub(super) fn on_synced(&mut self, generation: u64, last: Lsn) {
        if generation == self.generation {
            self.synced = self.synced.max(last);
        }
    }

    pub(super) fn commit_to(&mut self, commit: Lsn) {
        self.commit = self.commit.max(commit);
    }

    /// Applies what is committed.
    pub(super) fn apply(&mut self, mut applied: impl FnMut(Lsn, Outcome)) {
        while self.store.applied() < self.commit {
            let lsn = self.store.applied().next();
            let Some(record) = self.log.get(lsn) else { return };
            match Request::decode(&record.payload) {
                Some(request) => applied(lsn, self.store.apply(lsn, &request)),
                // The primary refuses what it cannot read; nobody else writes.
                None => self.store.skip(lsn),
            }
        }
    }

    /// Forgets records that are applied, up to this one.
    pub(super) fn forget(&mut self, last: Lsn) {
        self.log.forget(last.min(self.store.applied()));
    }

    pub(super) fn propose(&mut self, now: Duration, next: Configuration) {
        let is_late = |at: Duration| now.saturating_sub(at) > 4 * self.options.detect;
        if self.proposed_at.is_none_or(is_late) {
            self.proposed_at = Some(now);
            self.actions.push(Action::Propose(next));
        }
    }

    /// Proposes the members without those, with this replica as the primary.
    pub(super) fn propose_without(&mut self, now: Duration, gone: &[crate::membership::ReplicaId]) {
        let mut next = self.configuration.clone();
        next.epoch = next.epoch.next();
        next.primary = self.me.id;
        next.members.retain(|member| !gone.contains(&member.id));
        self.propose(now, next);
    }

    /// This replica is not the primary any more.
    pub(super) fn give_up_clients(&mut self) {
        let primary = self.other_primary();
        self.clients.give_up(primary, &mut self.actions);
    }
}
