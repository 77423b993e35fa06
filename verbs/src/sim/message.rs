//! Messages: a work request on its way through the NICs and the wire, from posting until its last use.

use std::ops::{Index, IndexMut};

use super::event::QpId;
use super::memory::{Found, LocalAddress};
use super::pieces::Pieces;
use super::receives::Receive;
use super::slots::prefetch;
use super::windows::Bound;
use crate::{QpType, RemoteSlice};

/// Payloads longer than this release their memory when their message is done.
const KEPT_PAYLOAD_BYTES: usize = 16 << 10;

/// The operation of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Send,
    Datagram {
        qkey: u32,
    },
    Write(RemoteSlice),
    Read(RemoteSlice),
    CompareAndSwap {
        remote: RemoteSlice,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        remote: RemoteSlice,
        add: u64,
    },
    /// Makes persistent memory durable.
    Flush(RemoteSlice),
    /// Binds a memory window of this NIC. It has no message.
    Bind(Bound),
    /// Invalidates a key of this NIC. It has no message.
    Invalidate(u32),
    /// The bytes that a READ or an atomic requested; empty for a flush.
    Response,
    /// An initiator of dynamic connections asks a target with this key for one.
    Connect {
        key: u64,
    },
    /// It leaves a responder.
    Disconnect,
}

impl Kind {
    /// Whether the NIC executes it by itself.
    pub(super) fn is_local(&self) -> bool {
        matches!(self, Kind::Bind(_) | Kind::Invalidate(_))
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Kind::Send => "SEND",
            Kind::Datagram { .. } => "datagram",
            Kind::Write(_) => "WRITE",
            Kind::Read(_) => "READ",
            Kind::CompareAndSwap { .. } => "compare-and-swap",
            Kind::FetchAdd { .. } => "fetch-and-add",
            Kind::Flush(_) => "FLUSH",
            Kind::Bind(_) => "binding",
            Kind::Invalidate(_) => "invalidation",
            Kind::Response => "response",
            Kind::Connect { .. } => "connect",
            Kind::Disconnect => "disconnect",
        }
    }
}

/// A message. A retransmission is the same message.
#[derive(Debug)]
pub(super) struct Message {
    /// The number of references: from the work request, and from each event.
    holders: u32,
    pub(super) class: QpType,
    pub(super) kind: Kind,
    pub(super) from: QpId,
    pub(super) to: QpId,
    pub(super) psn: u32,
    /// How many numbers before `psn` are of work requests that stayed in the NIC.
    pub(super) skipped: u32,
    pub(super) imm: Option<u32>,
    pub(super) payload: Vec<u8>,
    /// Where the payload is before it is fetched, and its length.
    pub(super) source: Option<(LocalAddress, usize)>,
    /// It has lost its last packets, and is never acknowledged.
    pub(super) is_cut: bool,
    /// A WRITE that is landing, or the answer to a READ that is being read.
    pub(super) landing: Option<Box<Landing>>,
}

/// A WRITE that lands piece by piece, or a READ that is read so.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) at: Found,
    pub(super) pieces: Pieces,
    /// The pieces that have met memory, a bit for each.
    pub(super) done: u128,
    pub(super) receive: Option<Receive>,
    pub(super) srq: Option<u32>,
}

impl Landing {
    pub(super) fn new(at: Found, pieces: Pieces) -> Landing {
        Landing { at, pieces, done: 0, receive: None, srq: None }
    }
}

impl Message {
    /// Bytes on the wire without headers.
    pub(super) fn wire_len(&self) -> u64 {
        match self.kind {
            Kind::Read(_) => 16,
            Kind::Flush(_) => 20,
            Kind::CompareAndSwap { .. } | Kind::FetchAdd { .. } => 28,
            _ => self.source.map_or(self.payload.len(), |(_, len)| len) as u64,
        }
    }
}

/// All messages by index. An index is reused, with the memory of its payload.
#[derive(Debug, Default)]
pub(super) struct Messages {
    all: Vec<Message>,
    free: Vec<u32>,
}

impl Messages {
    /// Inserts a message with one reference.
    pub(super) fn insert(&mut self, class: QpType, kind: Kind, from: QpId, to: QpId) -> u32 {
        if let Some(index) = self.free.pop() {
            let message = &mut self.all[index as usize];
            let payload = std::mem::take(&mut message.payload);
            *message = Message { payload, ..Message::new(class, kind, from, to) };
            return index;
        }
        self.all.push(Message::new(class, kind, from, to));
        self.all.len() as u32 - 1
    }

    /// Prefetches a message that will be needed soon.
    #[inline]
    pub(super) fn fetch_ahead(&self, index: u32) {
        if let Some(message) = self.all.get(index as usize) {
            prefetch(message);
            message.payload.first().inspect(|byte| prefetch(*byte));
        }
    }

    #[inline]
    pub(super) fn hold(&mut self, index: u32) {
        self.all[index as usize].holders += 1;
    }

    #[inline]
    pub(super) fn release(&mut self, index: u32) {
        let message = &mut self.all[index as usize];
        message.holders -= 1;
        if message.holders == 0 {
            message.payload.clear();
            if message.payload.capacity() > KEPT_PAYLOAD_BYTES {
                message.payload = Vec::new();
            }
            message.landing = None;
            self.free.push(index);
        }
    }

    /// The number of messages in use.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

impl Message {
    fn new(class: QpType, kind: Kind, from: QpId, to: QpId) -> Message {
        Message {
            holders: 1,
            class,
            kind,
            from,
            to,
            psn: 0,
            skipped: 0,
            imm: None,
            payload: Vec::new(),
            source: None,
            is_cut: false,
            landing: None,
        }
    }
}

impl Index<u32> for Messages {
    type Output = Message;
    #[inline]
    fn index(&self, index: u32) -> &Message {
        &self.all[index as usize]
    }
}

impl IndexMut<u32> for Messages {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Message {
        &mut self.all[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_kept_while_it_is_referenced_and_then_its_index_is_reused() {
        let (mut messages, qp) = (Messages::default(), QpId { number: 1, node: 0 });
        let first = messages.insert(QpType::Rc, Kind::Send, qp, qp);
        messages[first].payload.extend_from_slice(b"payload");
        messages.hold(first);
        messages.release(first);
        assert_eq!((messages.in_use(), &messages[first].payload[..]), (1, &b"payload"[..]));
        messages.release(first);
        assert_eq!(messages.in_use(), 0);
        let second = messages.insert(QpType::Rc, Kind::Send, qp, qp);
        assert_eq!((second, messages[second].payload.len()), (first, 0));
    }
}
