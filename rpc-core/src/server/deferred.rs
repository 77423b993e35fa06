//! Answers that found no memory: they wait in memory of their own, within bounds, and leave in a later turn.
//!
//! Answers wait if their client does not fetch the earlier ones, or if many clients fetch at a time. How many bytes may wait,
//! for one client and for all, follows from the transport's memory. A client that comes near its limit is refused further
//! calls before they run. If an answer would still exceed a limit, its call ends without it.
//!
//! A turn tries one of them if nothing says that there is memory, however many wait: most memory is freed with an event that makes a
//! turn. If it finds room, one of each client is tried in turn, until none finds room any more; and so they are from time to time.

use super::paths::ReplyPaths;
use super::turn::Turn;
use crate::error::ReserveError;
use crate::time::Instant;
use crate::transport::{CallToken, Replies};
use crate::wire::{HEADER_BYTES, Status};
use core::ops::Bound::{Excluded, Unbounded};
use std::collections::{BTreeMap, VecDeque};

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

/// A connection. In a `BTreeMap`, so that the order of clients is the same in each run of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Client {
    transport: u32,
    number: u32,
    generation: u32,
}

impl Client {
    fn of(transport: u32, call: &CallToken) -> Client {
        Client { transport, number: call.client(), generation: call.client_generation() }
    }
}

/// What waits for one client.
struct Waiting {
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

/// The answers of one thread that wait for memory.
#[derive(Default)]
pub(super) struct DeferredReplies {
    /// Clients for whom answers wait.
    clients: BTreeMap<Client, Waiting>,
    /// How many of them are full.
    full: usize,
    /// The client that was tried last.
    last: Option<Client>,
    /// When more than one client is tried again.
    all_again: Instant,
}

impl DeferredReplies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The first answer of the client whose turn it is. It is still counted as waiting.
    fn take_next(&mut self) -> Option<(Client, DeferredReply)> {
        let behind = |last| self.clients.range((Excluded(last), Unbounded)).next();
        let next = self.last.and_then(behind).or_else(|| self.clients.first_key_value());
        let client = *next?.0;
        self.last = Some(client);
        let reply = self.clients.get_mut(&client)?.replies.pop_front()?;
        Some((client, reply))
    }

    /// It found no room.
    fn put_back(&mut self, client: Client, reply: DeferredReply) {
        if let Some(waiting) = self.clients.get_mut(&client) {
            waiting.replies.push_front(reply);
        }
    }

    /// The client of this call has so many answers waiting that it is to make no further calls.
    #[inline]
    pub(super) fn is_full(&self, transport: u32, call: &CallToken) -> bool {
        self.full > 0 && self.is_client_full(transport, call)
    }

    #[cold]
    fn is_client_full(&self, transport: u32, call: &CallToken) -> bool {
        self.clients.get(&Client::of(transport, call)).is_some_and(Waiting::is_full)
    }

    /// Whether an answer of `len` bytes may wait, by the [`limit`](Replies::waiting_limit) of its transport. To make room,
    /// answers of the client that has most bytes waiting are dropped, as long as that is another client.
    pub(super) fn admit(
        &mut self,
        transport: u32,
        call: &CallToken,
        len: usize,
        limit: u64,
    ) -> bool {
        let client = Client::of(transport, call);
        let before = self.clients.get(&client).map_or(0, |waiting| waiting.bytes);
        let after = before + len as u64;
        if after > of_one_client(limit) {
            return false;
        }
        loop {
            let clients = self.clients.iter().filter(|(it, _)| it.transport == transport);
            let waiting = clients.map(|(client, waiting)| (waiting.bytes, *client));
            let total: u64 = waiting.clone().map(|(bytes, _)| bytes).sum();
            if total + len as u64 <= limit.saturating_mul(ALL_CLIENTS) {
                return true;
            }
            match waiting.max() {
                Some((most, other)) if most > after && self.drop_newest(other) => {}
                _ => return false,
            }
        }
    }

    /// Drops the answer that a client was given last; its call ends without it. `false` if there is none.
    fn drop_newest(&mut self, client: Client) -> bool {
        let Some(waiting) = self.clients.get_mut(&client) else { return false };
        let has_body = |reply: &&mut DeferredReply| reply.bytes.len() > HEADER_BYTES;
        let newest = waiting.replies.iter_mut().rev().find(has_body);
        let Some(reply) = newest else { return false };
        let freed = reply.bytes.len() - HEADER_BYTES;
        reply.bytes = Status::ResponseDropped.alone().to_vec();
        if let Some((_, status)) = &mut reply.counted {
            *status = Status::ResponseDropped;
        }
        self.subtract(client, freed);
        true
    }

    /// Keeps an answer that was [admitted](DeferredReplies::admit), or has no body.
    pub(super) fn push(&mut self, reply: DeferredReply, limit: u64) {
        let client = Client::of(reply.transport, &reply.call);
        let len = reply.bytes.len() as u64;
        let limit = of_one_client(limit);
        let new = Waiting { replies: VecDeque::new(), bytes: 0, longest: 0, limit };
        let waiting = self.clients.entry(client).or_insert(new);
        let was_full = waiting.is_full();
        waiting.bytes += len;
        waiting.longest = waiting.longest.max(len);
        if waiting.is_full() && !was_full {
            self.full += 1;
            tracing::debug!(
                client = client.number,
                bytes = waiting.bytes,
                "a client does not fetch its responses; its calls are refused until it does"
            );
        }
        waiting.replies.push_back(reply);
    }

    /// So many bytes of a client wait no more.
    fn subtract(&mut self, client: Client, bytes: usize) {
        let Some(waiting) = self.clients.get_mut(&client) else { return };
        let was_full = waiting.is_full();
        waiting.bytes -= bytes as u64;
        self.full -= usize::from(was_full && !waiting.is_full());
        if waiting.bytes == 0 {
            self.clients.remove(&client);
        }
    }
}

/// The most bytes that may wait for one client.
fn of_one_client(limit: u64) -> u64 {
    let (part, of) = CLIENT_PART;
    limit / of * part
}

impl Turn {
    /// Tries again to send what found no memory, one answer of each client in turn. Returns how many left.
    #[cold]
    pub(super) fn send_deferred(&mut self, paths: &mut ReplyPaths<'_>) -> u32 {
        let mut deferred = core::mem::take(&mut self.deferred);
        let mut tries_all = self.now >= deferred.all_again;
        if tries_all {
            deferred.all_again = self.now.saturating_add_nanos(RETRY_NS);
        }
        let (mut sent, mut refused) = (0, 0);
        while refused < deferred.clients.len().min(CLIENTS_PER_TURN) {
            let Some((client, reply)) = deferred.take_next() else { break };
            let DeferredReply { transport, call, bytes, counted } = reply;
            let ended = match post_whole(paths.enter(transport, self), call, &bytes) {
                Ok(()) => {
                    (sent, refused, tries_all) = (sent + 1, 0, true);
                    counted
                }
                Err((call, ReserveError::Backpressure(_))) => {
                    deferred.put_back(client, DeferredReply { transport, call, bytes, counted });
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
            deferred.subtract(client, bytes.len());
            if let Some((row, status)) = ended {
                self.counters.ended(row, status);
            }
        }
        self.deferred = deferred;
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
