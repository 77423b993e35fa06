//! Operations of clients that wait at the primary.

use std::collections::VecDeque;

use super::{Action, GroupError, Reply, Token};
use crate::level::Level;
use crate::membership::Member;
use crate::record::Lsn;
use crate::store::{Outcome, Query, Request};

/// A command in the log.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) token: Token,
    pub(super) lsn: Lsn,
    pub(super) level: Level,
    /// As soon as it was applied.
    pub(super) outcome: Option<Outcome>,
}

/// A command for which there is no room in the rings.
#[derive(Debug)]
pub(super) struct Unlogged {
    pub(super) token: Token,
    pub(super) request: Request,
    pub(super) level: Level,
}

/// A read that waits for a round at all backups.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) token: Token,
    pub(super) query: Query,
    /// Rounds that begin from now on confirm so many reads.
    pub(super) number: u64,
}

#[derive(Debug, Default)]
pub(super) struct Clients {
    /// In the order of their lsn.
    pub(super) logged: VecDeque<Logged>,
    pub(super) unlogged: VecDeque<Unlogged>,
    /// In the order of their numbers.
    pub(super) reads: VecDeque<Read>,
}

impl Clients {
    pub(super) fn len(&self) -> usize {
        self.logged.len() + self.unlogged.len() + self.reads.len()
    }

    /// Answers all: those in the log may be committed by another primary.
    pub(super) fn give_up(&mut self, primary: Option<Member>, actions: &mut Vec<Action>) {
        let not_primary = || GroupError::NotPrimary(primary.clone());
        for logged in self.logged.drain(..) {
            actions.push(Action::Reply(logged.token, Reply::Command(Err(GroupError::Unknown))));
        }
        for unlogged in self.unlogged.drain(..) {
            actions.push(Action::Reply(unlogged.token, Reply::Command(Err(not_primary()))));
        }
        for read in self.reads.drain(..) {
            actions.push(Action::Reply(read.token, Reply::View(Err(not_primary()))));
        }
    }
}
