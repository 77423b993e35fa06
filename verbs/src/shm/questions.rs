//! Requests to a peer on a separate thread, one after the other, so that a stopped or slow peer does not delay who uses others. The
//! thread runs while there are requests.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::thread;

use super::peer::{Peer, lock};

/// A request, and what to do with its answer.
pub(super) trait Ask: fmt::Debug + Send {
    /// Asks, which may take until the peer counts as dead, and handles the answer.
    fn ask(self: Box<Self>, peer: &Arc<Peer>);

    /// Handles that nobody can be asked: there is no thread for it.
    fn give_up(self: Box<Self>);
}

/// Pending requests to one peer.
#[derive(Debug, Default)]
pub(super) struct Questions(Mutex<Backlog>);

#[derive(Debug, Default)]
struct Backlog {
    waiting: VecDeque<Box<dyn Ask>>,
    /// A thread is sending the requests, or is about to be started.
    asking: bool,
}

/// Peers that wait for the control thread to start their threads: who has a question posts work requests, and must not take the time.
#[derive(Debug, Default)]
pub(super) struct Unstarted(Mutex<Starting>);

#[derive(Debug, Default)]
struct Starting {
    peers: Vec<Arc<Peer>>,
    /// The control thread has ended.
    is_closed: bool,
}

impl Questions {
    /// Has the peer asked when it has answered what was pushed before.
    pub(super) fn push(&self, question: Box<dyn Ask>, peer: &Arc<Peer>) {
        let mut line = lock(&self.0);
        line.waiting.push_back(question);
        if !std::mem::replace(&mut line.asking, true) {
            drop(line);
            peer.control().start_asking(peer);
        }
    }

    /// Starts the thread that asks the peer.
    fn start(peer: Arc<Peer>) {
        let asked = Arc::clone(&peer);
        let ask = move || while asked.questions().ask_next(&asked) {};
        if let Err(error) = thread::Builder::new().name("farcall-ask".into()).spawn(ask) {
            tracing::warn!(%error, "no thread to ask a peer's shm device");
            peer.questions().give_up();
        }
    }

    fn give_up(&self) {
        let mut line = lock(&self.0);
        line.asking = false;
        let waiting = std::mem::take(&mut line.waiting);
        drop(line);
        waiting.into_iter().for_each(Ask::give_up);
    }

    /// Sends the oldest request. `false`: there is none.
    fn ask_next(&self, peer: &Arc<Peer>) -> bool {
        let mut line = lock(&self.0);
        let Some(question) = line.waiting.pop_front() else {
            line.asking = false;
            return false;
        };
        drop(line);
        question.ask(peer);
        true
    }
}

impl Unstarted {
    /// Keeps the peer for the control thread. `false`: that has ended, and nobody is asked.
    pub(super) fn add(&self, peer: &Arc<Peer>) -> bool {
        let mut starting = lock(&self.0);
        let is_closed = starting.is_closed;
        if !is_closed {
            starting.peers.push(Arc::clone(peer));
        }
        drop(starting);
        if is_closed {
            peer.questions().give_up();
        }
        !is_closed
    }

    /// Starts the threads of the peers that wait, on the control thread.
    pub(super) fn start(&self) {
        let peers = std::mem::take(&mut lock(&self.0).peers);
        peers.into_iter().for_each(Questions::start);
    }

    /// Asks nobody from now on: the control thread ends.
    pub(super) fn close(&self) {
        let mut starting = lock(&self.0);
        starting.is_closed = true;
        let peers = std::mem::take(&mut starting.peers);
        drop(starting);
        peers.iter().for_each(|peer| peer.questions().give_up());
    }
}
