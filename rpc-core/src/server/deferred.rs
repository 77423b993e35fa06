//! Answers that found no memory: they wait in memory of their own, within bounds, and leave in a later turn.
//!
//! Answers wait if their client does not fetch the earlier ones, or if many clients fetch at a time. How many bytes may wait,
//! for one client and for all, follows from the transport's memory. A client that comes near its limit is refused further
//! calls before they run. If an answer would still exceed a limit, its call ends without it.

use super::paths::ReplyPaths;
use super::turn::Turn;
use crate::error::ReserveError;
use crate::transport::{CallToken, Replies};
use crate::wire::{HEADER_BYTES, Status};
use std::collections::{BTreeMap, VecDeque};

/// The part of a transport's limit that may wait for one client, so that with its share of the memory, which is half, and the
/// answer that a handler has just made, it takes less than twice the memory.
const CLIENT_PART: (u64, u64) = (3, 4);

/// How many times a transport's limit may wait for all clients. Answers to clients that do fetch also wait if there are many.
const ALL_CLIENTS: u64 = 4;

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
    replies: VecDeque<DeferredReply>,
    /// Clients for whom answers wait.
    clients: BTreeMap<Client, Waiting>,
    /// How many of them are full.
    full: usize,
}

impl DeferredReplies {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
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
        let newest = self.replies.iter_mut().rev().find(|reply| {
            reply.bytes.len() > HEADER_BYTES && Client::of(reply.transport, &reply.call) == client
        });
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
        let new = Waiting { bytes: 0, longest: 0, limit };
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
        self.replies.push_back(reply);
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
    /// Tries again to send what found no memory. Returns how many answers left.
    #[cold]
    pub(super) fn send_deferred(&mut self, paths: &mut ReplyPaths<'_>) -> u32 {
        let mut sent = 0;
        let mut deferred = core::mem::take(&mut self.deferred);
        for _ in 0..deferred.replies.len() {
            let Some(reply) = deferred.replies.pop_front() else { break };
            let DeferredReply { transport, call, bytes, counted } = reply;
            let client = Client::of(transport, &call);
            let ended = match post_whole(paths.enter(transport, self), call, &bytes) {
                Ok(()) => {
                    sent += 1;
                    counted
                }
                Err((call, ReserveError::Backpressure(_))) => {
                    let reply = DeferredReply { transport, call, bytes, counted };
                    deferred.replies.push_back(reply);
                    continue;
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
