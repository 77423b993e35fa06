//! A server that follows another's time: asking, in virtual time.

use std::sync::{Arc, Weak};

use farcall_core::time::Instant;
use farcall_transports::bootstrap::{ASK_EVERY, ClockSample, Follower};
use farcall_transports::handshake::{NoTime, TimeQuestions, TimeTold};
use farcall_verbs::sim::{Actor, Next, Turn};

use super::address::RackAddress;
use super::clock;
use super::liveness::NodeLife;
use super::network::{LEG_NS, Listening, Network};

/// Asks for the time, on a core of its server's node, until its server stops.
pub(super) struct Following {
    pub(super) network: Arc<Network>,
    pub(super) server: Weak<Listening>,
    pub(super) of: RackAddress,
    pub(super) follower: Follower,
    step: Step,
}

enum Step {
    /// The next question leaves then.
    Wait { until_ns: u64 },
    /// The question comes to the other server then.
    Asked { at_ns: u64, asked: Instant },
    /// The answer comes then.
    Answered { at_ns: u64, asked: Instant, answer: Result<Vec<u8>, &'static str> },
}

impl Step {
    fn at_ns(&self) -> u64 {
        match *self {
            Step::Wait { until_ns } => until_ns,
            Step::Asked { at_ns, .. } | Step::Answered { at_ns, .. } => at_ns,
        }
    }
}

impl Following {
    pub(super) fn new(
        network: &Arc<Network>,
        server: &Arc<Listening>,
        (of, follower): (RackAddress, Follower),
    ) -> Following {
        let (network, server) = (Arc::clone(network), Arc::downgrade(server));
        Following { network, server, of, follower, step: Step::Wait { until_ns: 0 } }
    }

    /// What the other server says to a question that comes now. An error: there is no answer, and why.
    fn answer(&self, from: &NodeLife) -> Result<Vec<u8>, &'static str> {
        let there = self.network.any.neighbour(self.of.node());
        if !there.is_some_and(|there| from.node.reaches(&there) && there.reaches(&from.node)) {
            return Err("its node cannot be reached");
        }
        let listening = self.network.listening(&self.of).ok_or("nobody serves there")?;
        let question = TimeQuestions::default().question();
        let handshake = listening.handshake(&self.network);
        Ok(listening.answer(handshake, &question, (from, ASK_EVERY)).bytes)
    }

    fn take_answer(&mut self, asked: Instant, heard: Instant, answer: Result<Vec<u8>, &str>) {
        let told = match &answer {
            Err(why) => return self.follower.note_failure(why),
            Ok(answer) => TimeQuestions::default().receive(answer),
        };
        match told.and_then(|told| told.ok_or(NoTime::OtherFrame)) {
            Ok(TimeTold { received_nanos, answered_nanos, plan }) => {
                let sample = ClockSample { asked, received_nanos, answered_nanos, heard };
                self.follower.take_answers(&[sample], plan);
            }
            Err(error) => self.follower.note_failure(&error),
        }
    }
}

impl Actor for Following {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let Some(server) = self.server.upgrade() else { return Turn::then(Next::Never) };
        let clock = clock::now(&server.life.node, now_ns);
        if self.step.at_ns() <= now_ns {
            let step = std::mem::replace(&mut self.step, Step::Wait { until_ns: now_ns });
            self.step = match step {
                Step::Wait { .. } => Step::Asked { at_ns: now_ns + LEG_NS, asked: clock },
                Step::Asked { asked, .. } => {
                    let answer = self.answer(&server.life);
                    Step::Answered { at_ns: now_ns + LEG_NS, asked, answer }
                }
                Step::Answered { asked, answer, .. } => {
                    self.take_answer(asked, clock, answer);
                    Step::Wait { until_ns: now_ns + ASK_EVERY.as_nanos() as u64 }
                }
            };
        }
        Turn::then(Next::At(self.step.at_ns()))
    }
}
