//! The primary: it appends commands, writes them into the rings of all backups, commits, applies, and answers.

use std::time::Duration;

use super::clients::{Logged, Read, Unlogged};
use super::link::{Link, LinkRole};
use super::state::State;
use super::{
    Ack, BackupStatus, GroupError, Join, Joined, Progress, Refusal, Reply, RoundError, Token,
};
use crate::level::{Level, Reached};
use crate::membership::{MAX_MEMBERS, ReplicaId};
use crate::planted::{Bug, is_planted};
use crate::record::{Lsn, Record};
use crate::ring;
use crate::store::{Part, Query, Request, Store, TooLong};

#[derive(Debug)]
pub(super) struct Primary {
    links: Vec<Link>,
    /// Reads are answered when everything that a former primary may have acknowledged is applied.
    read_floor: Lsn,
    reads: u64,
}

impl Primary {
    pub(super) fn new(mut links: Vec<Link>, state: &mut State) -> Primary {
        for link in &mut links {
            count_unsent(link, state);
        }
        // Reads that waited for another epoch's backups wait for these.
        for (number, read) in (1..).zip(&mut state.clients.reads) {
            read.number = number;
        }
        let reads = state.clients.reads.len() as u64;
        Primary { links, read_floor: state.log.end(), reads }
    }

    pub(super) fn backups(&self) -> Vec<BackupStatus> {
        self.links.iter().map(Link::status).collect()
    }

    pub(super) fn is_busy(&self, state: &State) -> bool {
        state.clients.len() > 0 || state.commit < state.log.end()
    }

    pub(super) fn forgive(&mut self, now: Duration) {
        self.links.iter_mut().for_each(|link| link.forgive(now));
    }

    fn required(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.is_required())
    }

    /// How many replicas have all committed records, and how many of them sync.
    fn replicas(&self, state: &State) -> (u32, u32) {
        let syncing = self.required().filter(|link| link.syncs).count() as u32;
        (1 + self.required().count() as u32, u32::from(state.options.syncs) + syncing)
    }

    pub(super) fn submit(
        &mut self,
        now: Duration,
        state: &mut State,
        token: Token,
        request: Request,
        level: Level,
    ) {
        if let Err(error) = self.admit(state, &request, level) {
            return state.reply(token, Reply::Command(Err(error)));
        }
        state.clients.unlogged.push_back(Unlogged { token, request, level });
        self.proceed(now, state);
    }

    fn admit(&self, state: &State, request: &Request, level: Level) -> Result<(), GroupError> {
        request.command.check().map_err(GroupError::TooLong)?;
        let length = request.encode().len() as u64;
        let max = self.required().map(Link::max_payload).min().unwrap_or(length);
        if length > max {
            return Err(GroupError::TooLong(TooLong { what: Part::Value, length, max }));
        }
        let (copies, synced) = self.replicas(state);
        if level.copies() > copies || level.synced() > synced {
            return Err(GroupError::NotEnoughReplicas { level, copies, synced });
        }
        if state.clients.len() >= state.options.max_waiting {
            return Err(GroupError::Overloaded);
        }
        Ok(())
    }

    pub(super) fn read(&mut self, now: Duration, state: &mut State, token: Token, query: Query) {
        if state.clients.len() >= state.options.max_waiting {
            return state.reply(token, Reply::View(Err(GroupError::Overloaded)));
        }
        self.reads += 1;
        state.clients.reads.push_back(Read { token, query, number: self.reads });
        self.proceed(now, state);
    }

    /// Appends commands for which there is room in all rings, until there is none.
    fn append(&mut self, state: &mut State) {
        let mut records = Vec::new();
        while let Some(unlogged) = state.clients.unlogged.front() {
            let payload = unlogged.request.encode();
            let len = payload.len();
            if !state.has_room_for_sync() || !self.required().all(|link| link.has_room(len)) {
                break;
            }
            self.links.iter_mut().for_each(|link| link.expect(len));
            let lsn = Lsn(state.log.end().0 + records.len() as u64 + 1);
            records.push(Record { lsn, origin: state.epoch, payload });
            let Some(Unlogged { token, level, .. }) = state.clients.unlogged.pop_front() else {
                break;
            };
            if level == Level::Received {
                let (epoch, reached) = (state.epoch, Reached::RECEIVED);
                let ack = Ack { lsn, epoch, reached, outcome: None };
                state.reply(token, Reply::Command(Ok(ack)));
            } else {
                state.clients.logged.push_back(Logged { token, lsn, level, outcome: None });
            }
        }
        state.append(records);
    }

    /// Appends what there is room for, begins rounds, commits what has landed at all, and answers.
    fn proceed(&mut self, now: Duration, state: &mut State) {
        self.append(state);
        self.commit(state);
        self.answer(state);
        let waits_for_sync = state.clients.logged.iter().any(|logged| logged.outcome.is_some());
        let waits_for_room = !state.clients.unlogged.is_empty();
        for link in &mut self.links {
            link.begin_round(now, state, self.reads, waits_for_sync || waits_for_room);
        }
        self.forget(state);
    }

    fn commit(&mut self, state: &mut State) {
        let mut written: Vec<_> = self.required().map(|link| link.written).collect();
        written.sort_unstable();
        let missing = usize::from(is_planted(Bug::AcknowledgedBeforeLast));
        let commit = written.get(missing).copied().unwrap_or(state.log.end());
        state.commit_to(commit.min(state.log.end()));
        let mut outcomes = Vec::new();
        state.apply(|lsn, outcome| outcomes.push((lsn, outcome)));
        let mut logged = state.clients.logged.iter_mut().peekable();
        for (lsn, outcome) in outcomes {
            while logged.next_if(|logged| logged.lsn < lsn).is_some() {}
            if let Some(logged) = logged.next_if(|logged| logged.lsn == lsn) {
                logged.outcome = Some(outcome);
            }
        }
    }

    /// What is known of a committed record.
    fn reached(&self, state: &State, lsn: Lsn) -> Reached {
        let copies = 1 + self.required().filter(|link| link.written >= lsn).count() as u32;
        let own = state.options.syncs && state.synced >= lsn;
        let others = self.required().filter(|link| link.synced().is_some_and(|it| it >= lsn));
        Reached::committed(copies, u32::from(own) + others.count() as u32)
    }

    /// Answers those whose level is reached, or is not possible any more.
    pub(super) fn answer(&mut self, state: &mut State) {
        let (copies, synced) = self.replicas(state);
        let mut logged = std::mem::take(&mut state.clients.logged);
        logged.retain_mut(|it| {
            let Some(outcome) = &mut it.outcome else { return true };
            let reached = self.reached(state, it.lsn);
            let result = if reached.covers(it.level) {
                let (lsn, epoch, outcome) = (it.lsn, state.epoch, Some(outcome.clone()));
                Ok(Ack { lsn, epoch, reached, outcome })
            } else if it.level.copies() > copies || it.level.synced() > synced {
                Err(GroupError::Weaker { level: it.level, reached })
            } else {
                return true;
            };
            state.reply(it.token, Reply::Command(result));
            false
        });
        state.clients.logged = logged;
        let confirmed = self.required().map(|link| link.confirmed).min().unwrap_or(u64::MAX);
        while let Some(read) = state.clients.reads.front()
            && (read.number <= confirmed || is_planted(Bug::UnconfirmedRead))
            && state.store.applied() >= self.read_floor
        {
            let view = state.store.view(&read.query);
            let token = read.token;
            state.clients.reads.pop_front();
            state.reply(token, Reply::View(Ok(view)));
        }
    }

    /// Forgets records that are applied here and sent to all.
    fn forget(&mut self, state: &mut State) {
        let oldest = self.links.iter().map(|link| link.next()).min();
        let last = oldest.map_or(state.log.end(), |next| Lsn(next.0 - 1));
        state.forget(last);
    }

    pub(super) fn on_round(
        &mut self,
        now: Duration,
        state: &mut State,
        to: ReplicaId,
        result: Result<Progress, RoundError>,
    ) {
        let Some(link) = self.links.iter_mut().find(|link| link.member.id == to) else { return };
        match result {
            Ok(progress) => link.end_round(now, progress),
            Err(RoundError::Fenced) if link.role == LinkRole::Member => {
                // A later epoch has begun, of which this replica is no member: a primary excludes those that it cannot reach.
                state.is_over = true;
                return;
            }
            Err(RoundError::Fenced | RoundError::Gone) => link.lose(),
        }
        self.proceed(now, state);
    }

    pub(super) fn turn(&mut self, now: Duration, state: &mut State) {
        self.proceed(now, state);
        self.promote(now, state);
        self.suspect(now, state);
    }

    /// Excludes backups that are silent.
    fn suspect(&mut self, now: Duration, state: &mut State) {
        let detect = state.options.detect;
        let max_lag = state.options.max_lag;
        let end = state.log.end();
        self.links.retain(|link| {
            let is_lost = link.is_silent(now, 8 * detect) || end.0 - link.written.0 > max_lag;
            // One that is required may already be a member of the next epoch.
            link.is_required() || !is_lost
        });
        let silent = |link: &&Link| {
            let is_stuck = link.round_since().is_some_and(|at| now.saturating_sub(at) > detect);
            link.is_silent(now, detect) || is_stuck
        };
        // Without one that was promoted the next epoch has the members of this one.
        let gone: Vec<_> = self.required().filter(silent).map(|link| link.member.id).collect();
        if !gone.is_empty() {
            state.propose_without(now, &gone);
        }
    }

    /// A replica that joins and has caught up is first required for commits, and then proposed as a member.
    fn promote(&mut self, now: Duration, state: &mut State) {
        let commit = state.commit;
        for link in &mut self.links {
            let has_caught_up = link.progress.beat > 0 && link.written >= commit;
            if link.role == LinkRole::Learner && has_caught_up {
                link.role = LinkRole::Promoted;
            }
        }
        let ready = |link: &&Link| {
            link.role == LinkRole::Promoted && !link.is_silent(now, state.options.detect)
        };
        if let Some(link) = self.links.iter().find(ready) {
            let mut next = state.configuration.clone();
            next.epoch = next.epoch.next();
            next.members.push(link.member.clone());
            state.propose(now, next);
        }
    }

    pub(super) fn join(
        &mut self,
        now: Duration,
        state: &mut State,
        join: Join,
    ) -> Result<Joined, Refusal> {
        if !ring::is_possible(join.ring_bytes) {
            return Err(Refusal::Invalid);
        }
        // One that tries again is another replica.
        self.links.retain(|link| link.is_required() || link.member.address != join.member.address);
        let others = self.links.iter().filter(|link| link.role != LinkRole::Member).count();
        if others > 0 || self.links.len() + 2 > MAX_MEMBERS {
            return Err(Refusal::Busy);
        }
        let mut store: Store = state.store.clone();
        if is_planted(Bug::CatchUpSkips) && state.log.get(store.applied().next()).is_some() {
            store.skip(store.applied().next());
        }
        let mut link = Link::learner(now, state.epoch, join, store.applied());
        count_unsent(&mut link, state);
        self.links.push(link);
        Ok(Joined { epoch: state.epoch, snapshot: store.snapshot() })
    }
}

/// Counts the bytes of records in the log that a backup is still to get.
fn count_unsent(link: &mut Link, state: &State) {
    let mut lsn = link.next();
    while let Some(record) = state.log.get(lsn) {
        link.expect(record.payload.len());
        lsn = lsn.next();
    }
}
