//! The inbox of a receiver, which is asked for it while datagrams are held.

use std::sync::{Arc, Mutex, Weak};

use crate::shm::cell::CELL_PAYLOAD_BYTES;
use crate::shm::outbox::Outbox;
use crate::shm::pair::Pair;
use crate::shm::peer::{ANSWER_TIMEOUT, Peer, lock};
use crate::shm::questions::Ask;
use crate::shm::queue_pair::attach;

/// Datagrams queued for one receiver until it answers; more are dropped.
const MAX_HELD: usize = 64;

/// A requested inbox.
#[derive(Debug)]
pub(super) struct Attachment(Mutex<State>);

#[derive(Debug)]
enum State {
    /// Not answered yet; holds the datagrams sent meanwhile.
    Asked(Vec<Held>),
    /// The inbox, which already contains the datagrams that were held.
    Found(Box<Outbox>),
    /// The peer has no such queue pair.
    Refused,
    /// The sender no longer wants the inbox.
    Unwanted,
}

#[derive(Debug)]
struct Held {
    bytes: Box<[u8]>,
    imm: Option<u32>,
    qkey: u32,
}

impl Attachment {
    /// Requests the inbox of that queue pair.
    pub(super) fn ask(pair: &Arc<Pair>, peer: &Arc<Peer>, qp: u32) -> Arc<Attachment> {
        let attachment = Arc::new(Attachment(Mutex::new(State::Asked(Vec::new()))));
        let question = Question { pair: Arc::downgrade(pair), qp, attachment: attachment.clone() };
        peer.questions().push(Box::new(question), peer);
        attachment
    }

    /// Holds a datagram until the answer arrives. If it has arrived, returns the inbox instead, once. Drops the
    /// datagram if the request was refused or too many are held.
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

    /// Whether the receiver does not exist, or no longer exists.
    pub(super) fn is_over(&self) -> bool {
        match &*lock(&self.0) {
            State::Found(outbox) => outbox.is_over(),
            state => matches!(state, State::Refused),
        }
    }

    /// Abandons the request. Returns whether it had been answered.
    pub(super) fn give_up(&self) -> bool {
        matches!(std::mem::replace(&mut *lock(&self.0), State::Unwanted), State::Found(_))
    }

    /// Handles the answer: sends the held datagrams. Returns whether the inbox is still wanted.
    fn handle_answer(&self, found: Option<Outbox>) -> bool {
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

/// Puts a datagram into an inbox, if there is room and a receive. Does not wake the peer.
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

#[derive(Debug)]
struct Question {
    pair: Weak<Pair>,
    qp: u32,
    attachment: Arc<Attachment>,
}

impl Ask for Question {
    fn ask(self: Box<Self>, peer: &Arc<Peer>) {
        let Question { pair, qp, attachment } = *self;
        let Some(pair) = pair.upgrade() else { return };
        // The secret of an endpoint protects connections; a queue key protects datagrams.
        let found = attach(&pair, peer, qp, 0, ANSWER_TIMEOUT).ok();
        let is_there = found.is_some();
        if !attachment.handle_answer(found) && is_there {
            peer.notify_closed(pair.number, qp);
        }
    }

    fn give_up(self: Box<Self>) {
        self.attachment.handle_answer(None);
    }
}
