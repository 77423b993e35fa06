//! Asking a receiver for the inbox that is ours there, beside the thread that sends: a peer that is stopped, or slow to
//! answer, holds up nobody else's datagrams.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use crate::shm::cell::CELL_PAYLOAD_BYTES;
use crate::shm::outbox::Outbox;
use crate::shm::pair::Pair;
use crate::shm::peer::{Peer, lock};
use crate::shm::queue_pair::attach;

/// How long a peer may take to answer. Whoever does not in time counts as dead, so that this is ample for one that
/// is busy, or stopped for a moment.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Datagrams kept for one receiver until it has answered; more are dropped.
const MAX_HELD: usize = 64;

/// An inbox that was asked for.
#[derive(Debug)]
pub(super) struct Attachment(Mutex<State>);

#[derive(Debug)]
enum State {
    /// Not answered yet; what was sent meanwhile.
    Asked(Vec<Held>),
    /// There it is; what was held is in it.
    Found(Box<Outbox>),
    /// Nobody is there.
    Refused,
    /// Nobody wants it any more.
    Unwanted,
}

#[derive(Debug)]
struct Held {
    bytes: Box<[u8]>,
    imm: Option<u32>,
    qkey: u32,
}

impl Attachment {
    /// Asks for the inbox of that queue pair.
    pub(super) fn ask(pair: &Arc<Pair>, peer: &Arc<Peer>, qp: u32) -> Arc<Attachment> {
        let attachment = Arc::new(Attachment(Mutex::new(State::Asked(Vec::new()))));
        let question = Question { pair: Arc::downgrade(pair), qp, attachment: attachment.clone() };
        peer.questions().push(question, peer);
        attachment
    }

    /// Keeps a datagram until the answer has come. If it has, gives that instead, once; what is refused, or finds no
    /// room, is dropped.
    pub(super) fn hold(&self, bytes: &[u8], imm: Option<u32>, qkey: u32) -> Option<Box<Outbox>> {
        let mut state = lock(&self.0);
        match &mut *state {
            State::Asked(held) if held.len() < MAX_HELD => {
                held.push(Held { bytes: bytes.into(), imm, qkey });
            }
            State::Found(_) => {
                if let State::Found(outbox) = std::mem::replace(&mut *state, State::Refused) {
                    return Some(outbox);
                }
            }
            State::Asked(_) | State::Refused | State::Unwanted => {}
        }
        None
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(*lock(&self.0), State::Refused)
    }

    /// Nobody is there, or no longer.
    pub(super) fn is_over(&self) -> bool {
        match &*lock(&self.0) {
            State::Found(outbox) => outbox.is_over(),
            state => matches!(state, State::Refused),
        }
    }

    /// Nobody will take the answer. Whether it had come.
    pub(super) fn give_up(&self) -> bool {
        matches!(std::mem::replace(&mut *lock(&self.0), State::Unwanted), State::Found(_))
    }

    /// The answer has come: what waited leaves. Whether somebody wants it.
    fn answered(&self, found: Option<Outbox>) -> bool {
        let mut state = lock(&self.0);
        let State::Asked(held) = std::mem::replace(&mut *state, State::Refused) else {
            *state = State::Unwanted;
            return false;
        };
        if let Some(mut outbox) = found {
            for Held { bytes, imm, qkey } in held {
                deliver(&mut outbox, &bytes, imm, qkey);
            }
            outbox.ring_doorbell();
            *state = State::Found(Box::new(outbox));
        }
        true
    }
}

/// Puts a datagram into an inbox, if it takes one. The peer is not told yet.
#[inline]
pub(super) fn deliver(outbox: &mut Outbox, bytes: &[u8], imm: Option<u32>, qkey: u32) -> bool {
    let cells = bytes.len().div_ceil(CELL_PAYLOAD_BYTES).max(1) as u32;
    let takes = outbox.is_ready()
        && outbox.has_receive()
        && outbox.has_room_for(cells)
        && outbox.take_receive();
    if takes {
        outbox.put_datagram(bytes, imm, qkey, cells);
    }
    takes
}

/// Questions to one peer, which it answers one after the other.
#[derive(Debug, Default)]
pub(in crate::shm) struct Questions(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Question>,
    /// A thread asks them.
    asking: bool,
}

#[derive(Debug)]
struct Question {
    pair: Weak<Pair>,
    qp: u32,
    attachment: Arc<Attachment>,
}

impl Questions {
    fn push(&self, question: Question, peer: &Arc<Peer>) {
        let mut line = lock(&self.0);
        line.waiting.push_back(question);
        if !line.asking {
            let peer = Arc::clone(peer);
            let ask = move || while peer.questions().ask_next(&peer) {};
            match thread::Builder::new().name("farcall-attach".into()).spawn(ask) {
                Ok(_) => line.asking = true,
                Err(error) => {
                    tracing::warn!(%error, "datagrams are dropped: no thread to find their receiver");
                    for question in line.waiting.drain(..) {
                        question.attachment.answered(None);
                    }
                }
            }
        }
    }

    /// Asks the oldest question. `false`: there is none.
    fn ask_next(&self, peer: &Arc<Peer>) -> bool {
        let mut line = lock(&self.0);
        let Some(Question { pair, qp, attachment }) = line.waiting.pop_front() else {
            line.asking = false;
            return false;
        };
        drop(line);
        let Some(pair) = pair.upgrade() else { return true };
        // The secret of an endpoint protects connections; a datagram is protected by its queue key.
        let found = attach(&pair, peer, qp, 0, ANSWER_TIMEOUT).ok();
        let is_there = found.is_some();
        if !attachment.answered(found) && is_there {
            peer.tell_closed(pair.number, qp);
        }
        true
    }
}
