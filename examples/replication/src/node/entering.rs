//! The beginning of an epoch, at its primary: all members are asked to enter.

use std::time::Duration;

use super::link::Link;
use super::primary::Primary;
use super::state::State;
use super::{Action, Enter, Entered};
use crate::membership::{Member, ReplicaId};
use crate::record::Epoch;
use crate::ring;

#[derive(Debug)]
pub(super) struct Entering {
    epoch: Epoch,
    since: Duration,
    members: Vec<(Member, Answer)>,
}

#[derive(Debug)]
enum Answer {
    NotYet,
    Failed,
    Entered(Entered),
}

impl Entering {
    /// Asks all other members.
    pub(super) fn begin(now: Duration, state: &mut State) -> Entering {
        let request = Enter {
            epoch: state.epoch,
            primary: state.me.id,
            commit: state.commit,
            origins: state.log.origins(),
        };
        let others = state.configuration.members.iter().filter(|member| member.id != state.me.id);
        let others: Vec<_> = others.cloned().collect();
        for to in &others {
            let (to, request) = (to.clone(), request.clone());
            state.actions.push(Action::Enter { to, request });
        }
        let members = others.into_iter().map(|member| (member, Answer::NotYet)).collect();
        Entering { epoch: state.epoch, since: now, members }
    }

    pub(super) fn forgive(&mut self, now: Duration) {
        self.since = now;
    }

    pub(super) fn on_entered(&mut self, epoch: Epoch, from: ReplicaId, entered: Option<Entered>) {
        let member = self.members.iter_mut().find(|(member, _)| member.id == from);
        if epoch == self.epoch
            && let Some((_, answer)) = member
        {
            *answer = entered.map_or(Answer::Failed, Answer::Entered);
        }
    }

    /// Excludes members that do not answer.
    pub(super) fn turn(&mut self, now: Duration, state: &mut State) {
        let is_late = now.saturating_sub(self.since) > 2 * state.options.detect;
        let gone = self.members.iter().filter(|(_, answer)| match answer {
            Answer::NotYet => is_late,
            Answer::Failed => true,
            Answer::Entered(_) => false,
        });
        let gone: Vec<_> = gone.map(|(member, _)| member.id).collect();
        if !gone.is_empty() {
            state.propose_without(now, &gone);
        }
    }

    /// The primary, as soon as all members have entered.
    pub(super) fn finish(&mut self, now: Duration, state: &mut State) -> Option<Primary> {
        let mut links = Vec::new();
        for (member, answer) in &mut self.members {
            let Answer::Entered(entered) = answer else { return None };
            // The next record for it must be here.
            if !ring::is_possible(entered.ring_bytes)
                || entered.end > state.log.end()
                || entered.end.next() < state.log.first()
            {
                *answer = Answer::Failed;
                return None;
            }
            links.push(Link::member(now, member.clone(), state.epoch, entered));
        }
        Some(Primary::new(links, state))
    }
}
