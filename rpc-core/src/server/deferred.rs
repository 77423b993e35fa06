//! Answers that found no memory: they wait in memory of their own, within bounds, and leave in a later turn.
//!
//! Answers wait if their client does not fetch the earlier ones, or if many clients fetch at a time. How many bytes may wait,
//! for one client and for all, follows from the transport's memory. A client that comes near its limit is refused further
//! calls before they run. If an answer would still exceed a limit, its call ends without it.
//!
//! A turn tries one of them if nothing says that there is memory, however many wait: most memory is freed with an event that makes a
//! turn. If it finds room, one of each client is tried in turn, until none finds room any more; and so they are from time to time.

use super::clients::{ClientKey, Clients};
use super::paths::ReplyPaths;
use super::turn::Turn;
use crate::error::ReserveError;
use crate::time::Instant;
use crate::transport::{CallToken, Replies};
use crate::wire::{HEADER_BYTES, Status};
use std::collections::VecDeque;

/// The part of a transport's limit that may wait for one client, so that with its share of the memory, which is half, and the
/// answer that a handler has just made, it takes less than twice the memory.
const CLIENT_PART: (u64, u64) = (3, 4);

/// How many times a transport's limit may wait for all clients. Answers to clients that do fetch also wait if there are many.
const ALL_CLIENTS: u64 = 4;

/// Clients whose answers one turn tries, at most; the next ones follow in a later turn.
const CLIENTS_PER_TURN: usize = 32;

/// How often answers are tried that nothing says there is memory for: those of more than one client, and by a thread without other work.
pub(super) const RETRY_NS: u64 = 100_000;

/// A complete answer that found no memory and leaves in a later turn.
pub(super) struct DeferredReply {
    pub(super) transport: u32,
    pub(super) call: CallToken,
    pub(super) bytes: Vec<u8>,
    /// The call's row, and how it ended; `None` if the thread that ran it has counted it.
    pub(super) counted: Option<(u32, Status)>,
}

/// What waits for one client.
pub(super) struct Waiting {
    /// In the order in which they leave.
    replies: VecDeque<DeferredReply>,
    bytes: u64,
    /// The longest answer that had to wait.
    longest: u64,
    /// The most bytes that may wait.
    limit: u64,
}

impl Waiting {
    /// One more answer of that length may find no room.
    fn is_full(&self) -> bool {
        self.bytes + self.longest > self.limit
    }
}

/// Which answers of one thread wait for memory. [`Clients`] have the answers.
#[derive(Default)]
pub(super) struct DeferredReplies {
    /// The clients for whom answers wait, in the order in which they are tried.
    line: VecDeque<u32>,
    /// How many of them are full.
    full: usize,
    /// The bytes that wait, by the number of the transport that they came from.
    bytes: Vec<u64>,
    /// When more than one client is tried again.
    all_again: Instant,
}

impl DeferredReplies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn bytes_of(&mut self, transport: u32) -> &mut u64 {
        let transport = transport as usize;
        if self.bytes.len() <= transport {
            self.bytes.resize(transport + 1, 0);
        }
        &mut self.bytes[transport]
    }

    /// Whether an answer of `len` bytes may wait, by the [`limit`](Replies::waiting_limit) of its transport. To make room,
    /// answers of the client that has most bytes waiting are dropped, as long as that is another client.
    fn admit(&mut self, clients: &mut Clients, client: ClientKey, len: usize, limit: u64) -> bool {
        let bytes = |clients: &Clients, index| {
            clients.at(index).waiting.as_ref().map_or(0, |waiting| waiting.bytes)
        };
        let before = clients.find(client).map_or(0, |index| bytes(clients, index));
        let after = before + len as u64;
        if after > of_one_client(limit) {
            return false;
        }
        while *self.bytes_of(client.transport) + len as u64 > limit.saturating_mul(ALL_CLIENTS) {
            let of_transport = |waiting: &Waiting| {
                waiting.replies.iter().any(|reply| reply.transport == client.transport)
            };
            let others = self.line.iter().copied();
            let others = others
                .filter(|index| clients.at(*index).waiting.as_deref().is_some_and(of_transport));
            match others.map(|index| (bytes(clients, index), index)).max() {
                Some((most, other))
                    if most > after && self.drop_newest(clients, other, client.transport) => {}
                _ => return false,
            }
        }
        true
    }

    /// Drops the answer that a client was given last over this transport; its call ends without it. `false` if there is none.
    fn drop_newest(&mut self, clients: &mut Clients, client: u32, transport: u32) -> bool {
        let Some(waiting) = &mut clients.at_mut(client).waiting else { return false };
        let is_meant = |reply: &&mut DeferredReply| {
            reply.transport == transport && reply.bytes.len() > HEADER_BYTES
        };
        let Some(reply) = waiting.replies.iter_mut().rev().find(is_meant) else { return false };
        let freed = reply.bytes.len() - HEADER_BYTES;
        reply.bytes = Status::ResponseDropped.alone().to_vec();
        if let Some((_, status)) = &mut reply.counted {
            *status = Status::ResponseDropped;
        }
        self.subtract(clients, client, (transport, freed));
        true
    }

    /// Keeps an answer that was [admitted](Self::admit), or has no body.
    fn push(&mut self, clients: &mut Clients, reply: DeferredReply, limit: u64) {
        let client = clients.enter(ClientKey::of(reply.transport, &reply.call));
        let len = reply.bytes.len() as u64;
        *self.bytes_of(reply.transport) += len;
        let waiting = clients.at_mut(client).waiting.get_or_insert_with(|| {
            self.line.push_back(client);
            let limit = of_one_client(limit);
            Box::new(Waiting { replies: VecDeque::new(), bytes: 0, longest: 0, limit })
        });
        let was_full = waiting.is_full();
        waiting.bytes += len;
        waiting.longest = waiting.longest.max(len);
        if waiting.is_full() && !was_full {
            self.full += 1;
            tracing::debug!(
                client = reply.call.client(),
                bytes = waiting.bytes,
                "a client does not fetch its responses; its calls are refused until it does"
            );
        }
        waiting.replies.push_back(reply);
    }

    /// So many bytes of a client wait no more, which came from this transport.
    fn subtract(&mut self, clients: &mut Clients, client: u32, (transport, bytes): (u32, usize)) {
        let bytes = bytes as u64;
        *self.bytes_of(transport) -= bytes;
        let connection = clients.at_mut(client);
        let Some(waiting) = &mut connection.waiting else { return };
        let was_full = waiting.is_full();
        waiting.bytes -= bytes;
        self.full -= usize::from(was_full && !waiting.is_full());
        if waiting.bytes == 0 {
            connection.waiting = None;
            clients.free_if_unused(client);
        }
    }
}

/// The most bytes that may wait for one client.
fn of_one_client(limit: u64) -> u64 {
    let (part, of) = CLIENT_PART;
    limit / of * part
}

impl Turn {
    /// The client of this call has so many answers waiting that it is to make no further calls.
    #[inline]
    pub(super) fn is_client_full(&self, call: &CallToken) -> bool {
        self.deferred.full > 0 && self.is_this_client_full(call)
    }

    #[cold]
    fn is_this_client_full(&self, call: &CallToken) -> bool {
        let connection = self.clients.get(ClientKey::of(self.transport, call));
        connection.and_then(|it| it.waiting.as_ref()).is_some_and(|waiting| waiting.is_full())
    }

    /// Whether an answer of `len` bytes to this call may wait, by the [`limit`](Replies::waiting_limit) of its transport.
    pub(super) fn may_defer(&mut self, call: &CallToken, len: usize, limit: u64) -> bool {
        let client = ClientKey::of(self.transport, call);
        self.deferred.admit(&mut self.clients, client, len, limit)
    }

    /// Keeps an answer that [may wait](Self::may_defer), or has no body.
    pub(super) fn defer(&mut self, reply: DeferredReply, limit: u64) {
        self.deferred.push(&mut self.clients, reply, limit);
    }

    /// Tries again to send what found no memory, one answer of each client in turn. Returns how many left.
    #[cold]
    pub(super) fn send_deferred(&mut self, paths: &mut ReplyPaths<'_>) -> u32 {
        let mut tries_all = self.now >= self.deferred.all_again;
        if tries_all {
            self.deferred.all_again = self.now.saturating_add_nanos(RETRY_NS);
        }
        let (mut sent, mut refused) = (0, 0);
        while refused < self.deferred.line.len().min(CLIENTS_PER_TURN) {
            let Some(client) = self.deferred.line.pop_front() else { break };
            let first = |waiting: &mut Box<Waiting>| waiting.replies.pop_front();
            let Some(reply) = self.clients.at_mut(client).waiting.as_mut().and_then(first) else {
                continue;
            };
            let DeferredReply { transport, call, bytes, counted } = reply;
            let ended = match post_whole(paths.enter(transport, self), call, &bytes) {
                Ok(()) => {
                    (sent, refused, tries_all) = (sent + 1, 0, true);
                    counted
                }
                Err((call, ReserveError::Backpressure(_))) => {
                    let reply = DeferredReply { transport, call, bytes, counted };
                    if let Some(waiting) = &mut self.clients.at_mut(client).waiting {
                        waiting.replies.push_front(reply);
                    }
                    self.deferred.line.push_back(client);
                    refused += 1;
                    if tries_all {
                        continue;
                    }
                    break;
                }
                Err((_, ReserveError::TooLarge { .. } | ReserveError::Closed)) => {
                    counted.map(|(row, _)| (row, Status::Cancelled))
                }
            };
            let waiting = self.clients.at(client).waiting.as_ref();
            if waiting.is_some_and(|waiting| !waiting.replies.is_empty()) {
                self.deferred.line.push_back(client);
            }
            self.deferred.subtract(&mut self.clients, client, (transport, bytes.len()));
            if let Some((row, status)) = ended {
                self.counters.ended(row, status);
            }
        }
        sent
    }
}

/// Posts an answer that was made elsewhere. If it finds no room, gives the call back with the reason.
pub(super) fn post_whole(
    replies: &mut dyn Replies,
    call: CallToken,
    answer: &[u8],
) -> Result<(), (CallToken, ReserveError)> {
    match replies.reserve(&call, answer.len()) {
        Ok(room) => {
            room.copy_from_slice(answer);
            replies.post(call, answer.len());
            Ok(())
        }
        Err(error) => Err((call, error)),
    }
}
