//! Requests to a peer on a separate thread, one after the other, so that a stopped or slow peer does not delay who uses others.

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
    /// A thread is sending the requests.
    asking: bool,
}

impl Questions {
    /// Has the peer asked when it has answered what was pushed before.
    pub(super) fn push(&self, question: Box<dyn Ask>, peer: &Arc<Peer>) {
        let mut line = lock(&self.0);
        line.waiting.push_back(question);
        if line.asking {
            return;
        }
        let peer = Arc::clone(peer);
        let ask = move || while peer.questions().ask_next(&peer) {};
        match thread::Builder::new().name("farcall-ask".into()).spawn(ask) {
            Ok(_) => line.asking = true,
            Err(error) => {
                tracing::warn!(%error, "no thread to ask a peer's shm device");
                let waiting = std::mem::take(&mut line.waiting);
                drop(line);
                waiting.into_iter().for_each(Ask::give_up);
            }
        }
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
