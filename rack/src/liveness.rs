//! What two ends notice of each other apart from their queue pairs: the counterpart of the liveness socket of an `rdma://`
//! connection.
//!
//! An end that closes tells the other one. An end whose node is dead, or cut off, cannot: the other notices when its
//! probes have gone unanswered for a while. Probes that are answered are no events here, so that a rack on which nothing
//! happens is idle; only a fault starts the time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use farcall_verbs::sim::{Next, Node, NodeId, Turn};

use farcall_transports::bootstrap::OnPeerGone;

use super::network::{LEG_NS, RETRY_NS};

/// Probes that an idle end sends during its silence, as `rdma://` connections do.
const PROBES: u64 = 5;

/// A node from one start to the next.
#[derive(Clone, Debug)]
pub(super) struct NodeLife {
    pub(super) node: Node,
    restarts: u32,
}

impl NodeLife {
    /// The node as it runs now.
    pub(super) fn new(node: Node) -> NodeLife {
        let restarts = node.restarts();
        NodeLife { node, restarts }
    }

    /// Its number, and which start.
    pub(super) fn key(&self) -> (NodeId, u32) {
        (self.node.id(), self.restarts)
    }

    /// It still runs, and was not restarted.
    pub(super) fn is_running(&self) -> bool {
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
    life: NodeLife,
    /// After this time without an answer the other end is declared dead.
    silence_ns: u64,
    /// While the ends do not reach each other: when this one declares the other dead.
    gone_at_ns: Option<u64>,
    /// What to do when the other end is gone. None: this end is gone itself, or knows.
    on_peer_gone: Option<OnPeerGone>,
}

struct Pair {
    ends: [End; 2],
}

/// What an end that probes finds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The other end is there.
    Alive,
    /// The node was restarted, knows of no connection, and says so.
    Unknown,
    Silence,
}

impl Pair {
    fn end(&mut self, side: Side) -> &mut End {
        &mut self.ends[side as usize]
    }

    fn answer(&self) -> Answer {
        let [client, server] = &self.ends;
        let (there, here) = (&client.life, &server.life);
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

    /// When one of them declares the other dead.
    fn next_ns(&self) -> Option<u64> {
        let waiting = self.ends.iter().filter(|end| end.on_peer_gone.is_some());
        waiting.filter_map(|end| end.gone_at_ns).min()
    }
}

/// The connected ends of a rack.
#[derive(Default)]
pub(super) struct Liveness {
    pairs: BTreeMap<u64, Pair>,
    made: u64,
    /// Ends that are to be told that the other one has closed: when, of which pair, which end.
    farewells: BTreeSet<(u64, u64, Side)>,
    /// Faults of the rack when the pairs were last looked at.
    faults_seen: u64,
    caretaker: Option<Waker>,
}

/// One end of a pair. Dropping it tells the other end, as far as that can be told.
pub(super) struct LivenessEnd {
    liveness: Arc<Mutex<Liveness>>,
    number: u64,
    side: Side,
}

fn lock(liveness: &Mutex<Liveness>) -> MutexGuard<'_, Liveness> {
    liveness.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Liveness {
    /// Lets two ends, the client's and the server's, notice when the other is gone. Either may be gone already.
    pub(super) fn watch(
        liveness: &Arc<Mutex<Liveness>>,
        ends: [(NodeLife, Duration); 2],
        on_peer_gone: [OnPeerGone; 2],
    ) -> [LivenessEnd; 2] {
        let mut all = lock(liveness);
        let number = all.made;
        all.made += 1;
        let mut on_peer_gone = on_peer_gone.into_iter();
        let ends = ends.map(|(life, silence)| End {
            life,
            silence_ns: silence.as_nanos() as u64,
            gone_at_ns: None,
            on_peer_gone: on_peer_gone.next(),
        });
        let mut pair = Pair { ends };
        let now_ns = pair.end(Side::Client).life.node.now_ns();
        pair.look(now_ns);
        if pair.next_ns().is_some() {
            all.caretaker.iter().for_each(Waker::wake_by_ref);
        }
        all.pairs.insert(number, pair);
        [Side::Client, Side::Server].map(|side| LivenessEnd {
            liveness: Arc::clone(liveness),
            number,
            side,
        })
    }

    /// Wakes the actor that [looks after](look_after) them when there is something to do.
    pub(super) fn set_caretaker(liveness: &Mutex<Liveness>, caretaker: Waker) {
        lock(liveness).caretaker = Some(caretaker);
    }

    /// Looks at all pairs after a fault.
    fn look(&mut self, now_ns: u64) {
        self.pairs.values_mut().for_each(|pair| pair.look(now_ns));
    }

    /// What is to be called now, and when the next is.
    fn due(&mut self, now_ns: u64, broken: &mut Vec<OnPeerGone>) -> Option<u64> {
        while let Some(&(at_ns, number, side)) = self.farewells.first()
            && at_ns <= now_ns
        {
            self.farewells.pop_first();
            let Some(pair) = self.pairs.get_mut(&number) else { continue };
            if pair.answer() != Answer::Alive {
                // Lost on the way, and sent again.
                self.farewells.insert((now_ns + RETRY_NS, number, side));
                continue;
            }
            broken.extend(pair.end(side).on_peer_gone.take());
            self.pairs.remove(&number);
        }
        self.pairs.retain(|_, pair| {
            for end in &mut pair.ends {
                if end.gone_at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                    broken.extend(end.on_peer_gone.take());
                }
            }
            pair.ends.iter().any(|end| end.on_peer_gone.is_some())
        });
        let farewell = self.farewells.first().map(|&(at_ns, _, _)| at_ns);
        self.pairs.values().filter_map(Pair::next_ns).chain(farewell).min()
    }
}

/// One turn of the actor that looks after the pairs, on a node without faults.
pub(super) fn look_after(liveness: &Mutex<Liveness>, node: &Node, now_ns: u64) -> Turn {
    let mut broken = Vec::new();
    let next = {
        let mut liveness = lock(liveness);
        let faults = node.faults();
        if std::mem::replace(&mut liveness.faults_seen, faults) != faults {
            liveness.look(now_ns);
        }
        liveness.due(now_ns, &mut broken)
    };
    // Not under the lock: it may drop ends.
    broken.into_iter().for_each(|on_peer_gone| on_peer_gone());
    Turn::then(next.map_or(Next::OnEvent, Next::At))
}

impl Drop for LivenessEnd {
    fn drop(&mut self) {
        let LivenessEnd { number, side, .. } = *self;
        let (gone, caretaker) = {
            let mut liveness = lock(&self.liveness);
            let Some(pair) = liveness.pairs.get_mut(&number) else { return };
            let end = pair.end(side);
            let gone = end.on_peer_gone.take();
            // A node without power says nothing.
            if !end.life.is_running() {
                return;
            }
            let at_ns = end.life.node.now_ns() + LEG_NS;
            liveness.farewells.insert((at_ns, number, side.other()));
            (gone, liveness.caretaker.clone())
        };
        drop(gone);
        if let Some(caretaker) = caretaker {
            caretaker.wake();
        }
    }
}
