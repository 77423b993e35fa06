//! The first use of a peer's region: its owner is asked for it while the work request waits.

use std::sync::{Arc, OnceLock};

use super::peer::Peer;
use super::questions::Ask;
use super::region::MappedRegion;

/// A request for a peer's region.
#[derive(Debug)]
pub(super) struct Lookup {
    rkey: u32,
    answer: Arc<OnceLock<Answer>>,
}

/// The region; `None` if there is none with that key.
type Answer = Option<Arc<MappedRegion>>;

#[derive(Debug)]
struct Question {
    rkey: u32,
    answer: Arc<OnceLock<Answer>>,
}

impl Lookup {
    /// Asks the peer for its region with this key.
    pub(super) fn ask(peer: &Arc<Peer>, rkey: u32) -> Lookup {
        let answer = Arc::default();
        let question = Box::new(Question { rkey, answer: Arc::clone(&answer) });
        match peer.is_own() {
            true => question.ask(peer),
            false => peer.questions().push(question, peer),
        }
        Lookup { rkey, answer }
    }

    /// Whether it is a request for that key.
    pub(super) fn is_for(&self, rkey: u32) -> bool {
        self.rkey == rkey
    }

    /// The answer, if it has come.
    pub(super) fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }
}

impl Ask for Question {
    fn ask(self: Box<Self>, peer: &Arc<Peer>) {
        // A peer that is gone gives no answer; its queue pairs are told of its death.
        if let Ok(region) = peer.ask_for_region(self.rkey) {
            // Nobody else answers this question.
            let _ = self.answer.set(region);
        }
    }

    fn give_up(self: Box<Self>) {
        // As in `ask`.
        let _ = self.answer.set(None);
    }
}
