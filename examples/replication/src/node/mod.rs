//! The protocol of a replica: inputs in, [actions](Action) out. It has no threads, no I/O and no clock, so that it runs in tests, in virtual
//! time and in processes alike. Time is an argument: what has passed since any fixed moment.

mod backup;
mod clients;
mod entering;
mod link;
mod primary;
mod state;
mod types;

use std::time::Duration;

pub use self::types::{
    Ack, Action, BackupStatus, Enter, Entered, GroupError, Join, Joined, Lender, NodeOptions,
    PROGRESS_BYTES, Progress, Refusal, Reply, RoleName, RoundError, Status, SyncWork, Token,
};

use self::backup::Backup;
use self::entering::Entering;
use self::primary::Primary;
use self::state::State;
use crate::level::Level;
use crate::membership::{Configuration, Member, ReplicaId};
use crate::planted::{Bug, is_planted};
use crate::record::{Epoch, Lsn};
use crate::store::{Query, Request, Store};

/// What a replica is.
#[derive(Debug)]
enum Role {
    Backup(Backup),
    Entering(Entering),
    Primary(Box<Primary>),
    Removed,
}

/// A replica.
#[derive(Debug)]
pub struct Node {
    state: State,
    role: Role,
    last_turn: Duration,
}

impl Node {
    /// The first member of a group, with this state, which is that of a member of this epoch. It becomes the primary when the
    /// configuration with it alone is accepted, which it proposes.
    #[must_use]
    pub fn founder(
        me: Member,
        options: NodeOptions,
        store: Store,
        epoch: Epoch,
        now: Duration,
    ) -> Node {
        let mut state = State::new(me.clone(), options, store);
        // Later than all that is on the disks of the former group.
        let first = Configuration { epoch: epoch.next(), primary: me.id, members: vec![me] };
        state.propose(now, first);
        Node { state, role: Role::Backup(Backup::without_ring(now)), last_turn: now }
    }

    /// A replica that is about to join: [`Node::lend_to`] is next.
    #[must_use]
    pub fn learner(me: Member, options: NodeOptions, now: Duration) -> Node {
        let state = State::new(me, options, Store::default());
        Node { state, role: Role::Backup(Backup::without_ring(now)), last_turn: now }
    }

    /// Lends a ring to the primary of this configuration, for a replica that joins.
    pub fn lend_to(
        &mut self,
        now: Duration,
        configuration: &Configuration,
        lender: &mut dyn Lender,
    ) {
        lender.fence();
        lender.lend();
        self.state.configuration = configuration.clone();
        self.state.epoch = configuration.epoch;
        let ring = self.state.options.ring_bytes;
        self.role = Role::Backup(Backup::learner(now, configuration.epoch, ring));
    }

    /// The snapshot of a replica that joins has come; if the replica syncs, it was synced. Gives whether it can be used.
    pub fn on_snapshot(&mut self, now: Duration, snapshot: &[u8]) -> bool {
        let (Role::Backup(backup), Some(store)) = (&mut self.role, Store::from_snapshot(snapshot))
        else {
            return false;
        };
        self.state.start_from(store);
        backup.has_snapshot(now);
        true
    }

    /// What it asks for since the last time.
    #[must_use]
    pub fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.state.actions)
    }

    /// A turn: takes records out of the ring, begins rounds, notices who is silent. It is to be called often, and at least as often as
    /// heartbeats are made.
    pub fn turn(&mut self, now: Duration, lender: &mut dyn Lender) {
        // Who was stopped has heard nobody, which says nothing about the others.
        if now.saturating_sub(self.last_turn) > self.state.options.detect / 2 {
            self.forgive(now);
        }
        self.last_turn = now;
        match &mut self.role {
            Role::Backup(backup) => backup.turn(now, &mut self.state, lender),
            Role::Entering(entering) => entering.turn(now, &mut self.state),
            Role::Primary(primary) => primary.turn(now, &mut self.state),
            Role::Removed => {}
        }
        if self.state.is_over {
            self.remove();
        }
    }

    fn forgive(&mut self, now: Duration) {
        match &mut self.role {
            Role::Backup(backup) => backup.forgive(now),
            Role::Entering(entering) => entering.forgive(now),
            Role::Primary(primary) => primary.forgive(now),
            Role::Removed => {}
        }
    }

    /// Whether it is worth to look again soon: something is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => primary.is_busy(&self.state),
            Role::Entering(_) => true,
            Role::Backup(_) | Role::Removed => false,
        }
    }

    /// A client's command.
    pub fn submit(&mut self, now: Duration, token: Token, request: Request, level: Level) {
        match &mut self.role {
            Role::Primary(primary) => primary.submit(now, &mut self.state, token, request, level),
            _ => {
                let error = GroupError::NotPrimary(self.state.other_primary());
                self.state.reply(token, Reply::Command(Err(error)));
            }
        }
    }

    /// A client's read.
    pub fn read(&mut self, now: Duration, token: Token, query: Query) {
        match &mut self.role {
            Role::Primary(primary) => primary.read(now, &mut self.state, token, query),
            _ => {
                let error = GroupError::NotPrimary(self.state.other_primary());
                self.state.reply(token, Reply::View(Err(error)));
            }
        }
    }

    /// A primary asks this replica to enter an epoch. Before it answers, the former primary has lost its access, and what it had written is
    /// in the log.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn enter(
        &mut self,
        now: Duration,
        request: &Enter,
        lender: &mut dyn Lender,
    ) -> Result<Entered, Refusal> {
        if matches!(self.role, Role::Removed) {
            return Err(Refusal::Removed);
        }
        if request.epoch <= self.state.epoch && !is_planted(Bug::StaleEpochAccepted) {
            return Err(Refusal::Stale(self.state.epoch));
        }
        self.leave_epoch(lender);
        self.state.epoch = request.epoch;
        let same = self.state.log.match_with(&request.origins);
        self.state.truncate(same);
        self.state.sync_epoch();
        self.state.commit_to(request.commit.min(self.state.log.end()));
        self.state.apply(|_, _| ());
        lender.lend();
        let ring = self.state.options.ring_bytes;
        self.role = Role::Backup(Backup::member(now, request.epoch, ring));
        let (end, syncs) = (self.state.log.end(), self.state.options.syncs);
        Ok(Entered { end, ring_bytes: ring as u64, syncs })
    }

    /// Ends what this replica was in its epoch: nobody writes into its ring any more, and what has landed there is in the log.
    fn leave_epoch(&mut self, lender: &mut dyn Lender) {
        if !is_planted(Bug::NotFenced) {
            lender.fence();
        }
        if let Role::Backup(backup) = &mut self.role {
            backup.take_all(&mut self.state, lender);
        }
        self.state.give_up_clients();
    }

    /// The answer of a member that was asked to enter an epoch. `None`: it did not answer, or refused.
    pub fn on_entered(
        &mut self,
        now: Duration,
        from: ReplicaId,
        epoch: Epoch,
        entered: Option<Entered>,
    ) {
        let Role::Entering(entering) = &mut self.role else { return };
        entering.on_entered(epoch, from, entered);
        if let Some(primary) = entering.finish(now, &mut self.state) {
            self.role = Role::Primary(Box::new(primary));
        }
    }

    /// The end of a round.
    pub fn on_round(
        &mut self,
        now: Duration,
        to: ReplicaId,
        epoch: Epoch,
        result: Result<Progress, RoundError>,
    ) {
        if let Role::Primary(primary) = &mut self.role
            && self.state.epoch == epoch
        {
            primary.on_round(now, &mut self.state, to, result);
        }
        if self.state.is_over {
            self.remove();
        }
    }

    /// Another replica wants to join.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn join(&mut self, now: Duration, join: Join) -> Result<Joined, Refusal> {
        match &mut self.role {
            Role::Primary(primary) => primary.join(now, &mut self.state, join),
            _ => Err(Refusal::NotPrimary),
        }
    }

    /// Records up to this one are synced.
    pub fn on_synced(&mut self, generation: u64, last: Lsn) {
        self.state.on_synced(generation, last);
        if let Role::Primary(primary) = &mut self.role {
            primary.answer(&mut self.state);
        }
    }

    /// The end of a proposal, with the newest configuration. `None`: the membership service did not answer.
    pub fn on_proposed(
        &mut self,
        now: Duration,
        newest: Option<&Configuration>,
        lender: &mut dyn Lender,
    ) {
        self.state.proposed_at = None;
        if let Some(newest) = newest {
            self.on_configuration(now, newest, lender);
        }
    }

    /// The newest configuration, as the membership service says.
    pub fn on_configuration(
        &mut self,
        now: Duration,
        newest: &Configuration,
        lender: &mut dyn Lender,
    ) {
        if newest.epoch <= self.state.configuration.epoch || matches!(self.role, Role::Removed) {
            return;
        }
        self.state.configuration = newest.clone();
        if newest.member(self.state.me.id).is_none() {
            self.remove();
        } else if newest.primary == self.state.me.id {
            self.begin_epoch(now, lender);
        } else {
            match &mut self.role {
                Role::Backup(backup) => backup.expect_enter(now),
                // It is told to enter by the primary.
                _ => {
                    self.state.give_up_clients();
                    self.role = Role::Backup(Backup::without_ring(now));
                }
            }
        }
    }

    /// This replica is the primary of the newest configuration.
    fn begin_epoch(&mut self, now: Duration, lender: &mut dyn Lender) {
        if !is_planted(Bug::NotFenced) {
            lender.fence();
        }
        if let Role::Backup(backup) = &mut self.role {
            backup.take_all(&mut self.state, lender);
        }
        self.state.epoch = self.state.configuration.epoch;
        self.state.sync_epoch();
        let mut entering = Entering::begin(now, &mut self.state);
        self.role = match entering.finish(now, &mut self.state) {
            Some(primary) => Role::Primary(Box::new(primary)),
            None => Role::Entering(entering),
        };
    }

    fn remove(&mut self) {
        if !matches!(self.role, Role::Removed) {
            self.state.give_up_clients();
            self.role = Role::Removed;
            self.state.actions.push(Action::Removed);
        }
    }

    /// What it is.
    #[must_use]
    pub fn status(&self) -> Status {
        let (role, backups) = match &self.role {
            Role::Backup(backup) if backup.is_learner() => (RoleName::Learner, Vec::new()),
            Role::Backup(_) => (RoleName::Backup, Vec::new()),
            Role::Entering(_) => (RoleName::Entering, Vec::new()),
            Role::Primary(primary) => (RoleName::Primary, primary.backups()),
            Role::Removed => (RoleName::Removed, Vec::new()),
        };
        let state = &self.state;
        Status {
            id: state.me.id,
            role,
            epoch: state.epoch,
            configuration: state.configuration.clone(),
            end: state.log.end(),
            commit: state.commit,
            synced: state.options.syncs.then_some(state.synced),
            backups,
        }
    }

    /// What clients wait for, for those who look at a failure.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> String {
        format!("{:?}", self.state.clients)
    }

    /// The state after the last record that was applied here.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.state.store
    }
}
