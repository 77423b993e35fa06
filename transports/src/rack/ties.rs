//! What two ends notice of each other beside their queue pairs: the counterpart of the TCP connection that an `rdma://`
//! connection is tied to.
//!
//! An end that closes tells the other one. One whose node is dead, or cut off, cannot: the other notices when its
//! questions have gone unanswered for a while. Questions that are answered are no events here, so that a rack on which
//! nothing happens is idle; only a fault makes somebody count the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use farcall_verbs::sim::{Next, Node, Turn};

use super::network::{LEG_NS, RETRY_NS};
use crate::bootstrap::tether::OnBreak;

/// An idle end asks the other one whether it is still there so often while its silence lasts, as `rdma://` connections do.
const PROBES: u64 = 5;

/// A node as it was started once.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) node: Node,
    restarts: u32,
}

impl Place {
    /// The node as it runs now.
    pub(super) fn new(node: Node) -> Place {
        let restarts = node.restarts();
        Place { node, restarts }
    }

    /// It still runs, and was not started anew.
    pub(super) fn runs(&self) -> bool {
        self.node.is_alive() && !self.was_restarted()
    }

    fn was_restarted(&self) -> bool {
        self.node.restarts() != self.restarts
    }
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

struct End {
    place: Place,
    /// After so long without an answer the other end is gone.
    silence_ns: u64,
    /// The ends do not hear from each other: when that means to this one that the other is gone.
    gone_at_ns: Option<u64>,
    /// What to do when the other end is gone. None: this end is gone itself, or knows.
    on_break: Option<OnBreak>,
}

struct Tie {
    ends: [End; 2],
}

/// What an end that asks finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The other end is there.
    Alive,
    /// Whoever is there was started anew, knows of no connection, and says so.
    Unknown,
    Silence,
}

impl Tie {
    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn answer(&self) -> Answer {
        let [client, server] = &self.ends;
        let (there, here) = (&client.place, &server.place);
        match there.node.reaches(&here.node) && here.node.reaches(&there.node) {
            false => Answer::Silence,
            true if there.was_restarted() || here.was_restarted() => Answer::Unknown,
            true => Answer::Alive,
        }
    }

    /// Something may have happened to the ends, or to the way between them.
    fn look(&mut self, now_ns: u64) {
        let answer = self.answer();
        for end in &mut self.ends {
            let patience_ns = match answer {
                Answer::Alive => {
                    end.gone_at_ns = None;
                    continue;
                }
                Answer::Unknown => end.silence_ns / PROBES,
                Answer::Silence => end.silence_ns,
            };
            let at_ns = now_ns.saturating_add(patience_ns);
            end.gone_at_ns = Some(end.gone_at_ns.map_or(at_ns, |already_ns| already_ns.min(at_ns)));
        }
    }

    /// When one of them takes the other for gone.
    fn next_ns(&self) -> Option<u64> {
        let waiting = self.ends.iter().filter(|end| end.on_break.is_some());
        waiting.filter_map(|end| end.gone_at_ns).min()
    }
}

/// All ties of a rack.
#[derive(Default)]
pub(super) struct Ties {
    ties: BTreeMap<u64, Tie>,
    made: u64,
    /// Ends that are to hear that the other one has closed: when, of which tie, which end.
    farewells: BTreeSet<(u64, u64, Side)>,
    /// Faults of the rack when the ties were last looked at.
    faults_seen: u64,
    keeper: Option<Waker>,
}

/// One end of a tie. Dropping it tells the other end, as far as that can be told.
pub(super) struct TieEnd {
    ties: Arc<Mutex<Ties>>,
    number: u64,
    side: Side,
}

fn lock(ties: &Mutex<Ties>) -> MutexGuard<'_, Ties> {
    ties.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ties {
    /// Ties two ends together: client's, then server's. Either may have gone while the other got ready.
    pub(super) fn tie(
        ties: &Arc<Mutex<Ties>>,
        ends: [(Place, Duration); 2],
        on_break: [OnBreak; 2],
    ) -> [TieEnd; 2] {
        let mut all = lock(ties);
        let number = all.made;
        all.made += 1;
        let mut on_break = on_break.into_iter();
        let ends = ends.map(|(place, silence)| End {
            place,
            silence_ns: silence.as_nanos() as u64,
            gone_at_ns: None,
            on_break: on_break.next(),
        });
        let mut tie = Tie { ends };
        let now_ns = tie.end(Side::Client).place.node.now_ns();
        tie.look(now_ns);
        if tie.next_ns().is_some() {
            all.keeper.iter().for_each(Waker::wake_by_ref);
        }
        all.ties.insert(number, tie);
        [Side::Client, Side::Server].map(|side| TieEnd { ties: Arc::clone(ties), number, side })
    }

    /// Gives whoever [keeps](keep) them a turn from now on when there is something to do.
    pub(super) fn set_keeper(ties: &Mutex<Ties>, keeper: Waker) {
        lock(ties).keeper = Some(keeper);
    }

    /// Looks at all ties after a fault.
    fn look(&mut self, now_ns: u64) {
        self.ties.values_mut().for_each(|tie| tie.look(now_ns));
    }

    /// What is to be called now, and when the next is.
    fn due(&mut self, now_ns: u64, broken: &mut Vec<OnBreak>) -> Option<u64> {
        while let Some(&(at_ns, number, side)) = self.farewells.first()
            && at_ns <= now_ns
        {
            self.farewells.pop_first();
            let Some(tie) = self.ties.get_mut(&number) else { continue };
            if tie.answer() != Answer::Alive {
                // Lost on the way, and sent again.
                self.farewells.insert((now_ns + RETRY_NS, number, side));
                continue;
            }
            broken.extend(tie.end(side).on_break.take());
            self.ties.remove(&number);
        }
        self.ties.retain(|_, tie| {
            for end in &mut tie.ends {
                if end.gone_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                    broken.extend(end.on_break.take());
                }
            }
            tie.ends.iter().any(|end| end.on_break.is_some())
        });
        let farewell = self.farewells.first().map(|&(at_ns, _, _)| at_ns);
        self.ties.values().filter_map(Tie::next_ns).chain(farewell).min()
    }
}

/// One turn of the actor that keeps the ties, on a node that nothing happens to.
pub(super) fn keep(ties: &Mutex<Ties>, node: &Node, now_ns: u64) -> Turn {
    let mut broken = Vec::new();
    let next = {
        let mut ties = lock(ties);
        let faults = node.faults();
        if std::mem::replace(&mut ties.faults_seen, faults) != faults {
            ties.look(now_ns);
        }
        ties.due(now_ns, &mut broken)
    };
    // Not under the lock: it may drop ends.
    broken.into_iter().for_each(|on_break| on_break());
    Turn::then(next.map_or(Next::OnEvent, Next::At))
}

impl Drop for TieEnd {
    fn drop(&mut self) {
        let TieEnd { number, side, .. } = *self;
        let (gone, keeper) = {
            let mut ties = lock(&self.ties);
            let Some(tie) = ties.ties.get_mut(&number) else { return };
            let end = tie.end(side);
            let gone = end.on_break.take();
            // A node without power says nothing.
            if !end.place.runs() {
                return;
            }
            let at_ns = end.place.node.now_ns() + LEG_NS;
            ties.farewells.insert((at_ns, number, side.other()));
            (gone, ties.keeper.clone())
        };
        drop(gone);
        if let Some(keeper) = keeper {
            keeper.wake();
        }
    }
}
