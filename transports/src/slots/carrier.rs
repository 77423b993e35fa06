//! How messages travel: the part in which backends differ.

use std::fmt;
use std::ops::Range;

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Message, RequestSink};
use farcall_verbs::{Buffer, RemoteSlice, WorkCompletion, WorkRequest};

use super::requests::Clients;
use super::wire::Op;
use crate::kit::scratch::Scratch;
use crate::kit::sender::Sender;
use crate::rendezvous::server::Misbehaved;

/// How the messages of one end of a connection travel.
pub(crate) trait Carrier: fmt::Debug + Send + 'static {
    /// Bytes that it writes behind each message.
    const TRAILER_BYTES: usize = 0;

    /// A message that is [placed](Carrier::place) does not overtake what waits to be posted.
    const PLACES_IN_ORDER: bool = false;

    /// All clients of a server thread share its receives: operations are [counted](super::operations) as requests are.
    const SHARES_RECEIVES: bool = false;

    /// Then the receives of the server that the client has beside one for each slot, at least one.
    fn spare_receives(&self) -> u32 {
        0
    }

    /// The client that a completion names. Its queue pair shows whether that is true.
    #[inline]
    fn client_of(completion: &WorkCompletion) -> u32 {
        // The ids of our own work requests say it, whatever a peer says.
        (completion.id >> 32) as u32
    }

    /// Leaves the message of a slot where the peer fetches it. `false`: it has to be posted.
    #[inline(always)]
    fn place(&mut self, _slot: u32, _message: &[u8]) -> bool {
        false
    }

    /// The peer has to be told something before the next operation: see [`post_notice`](Carrier::post_notice).
    #[inline(always)]
    fn has_notice(&self) -> bool {
        false
    }

    /// Tells the peer of what was placed, and of other things that only carriers know of. There is room for a work request.
    /// `client` is this connection's number.
    fn post_notice(&mut self, _sender: &mut Sender, _client: u32) {}

    /// Takes back what was placed of this slot, if that can still be done.
    fn withdraw(&mut self, _slot: u32) -> bool {
        false
    }

    /// The message of a slot is posted next. There is room for a work request.
    #[inline(always)]
    fn prepare(&mut self, _sender: &mut Sender, _message: &mut [u8]) {}

    /// Posts the message of a slot inline, from two places, if that can be done. `false`: nothing was posted.
    #[inline(always)]
    fn try_post_parts(
        &mut self,
        _sender: &mut Sender,
        _slot: u32,
        _front: &[u8],
        _rest: &[u8],
        _imm: u32,
    ) -> bool {
        false
    }

    /// Posts the message of a slot inline, with room for the trailer; if it is empty, the immediate alone. `false`: the queue
    /// pair is broken.
    fn post_inline(
        &mut self,
        sender: &mut Sender,
        slot: u32,
        message: &mut [u8],
        imm: u32,
        must_signal: bool,
    ) -> bool;

    /// The work request that carries the message of a slot in this buffer, with room for the trailer.
    fn request(&mut self, slot: u32, message: Buffer, imm: u32) -> WorkRequest<'static>;

    /// The message that a completion announces, as private bytes. `None` if it announces none that the slot could hold.
    fn read<'a>(
        &mut self,
        completion: &'a WorkCompletion,
        slot: u32,
        scratch: &'a mut Scratch,
    ) -> Option<Message<'a>>;

    /// A message has arrived. `false`: the queue pair is broken.
    fn consume_receive(&mut self, sender: &mut Sender) -> bool;

    /// At the client: the message has been handled. `false`: the queue pair is broken.
    #[inline]
    fn recycle(&mut self, _sender: &mut Sender, _completion: &mut WorkCompletion) -> bool {
        true
    }
}

/// At the client: how responses are fetched, if they are. What is here by default does it for a carrier that sends all.
pub(crate) trait ClientCarrier: Carrier {
    /// Some responses are fetched.
    const FETCHES: bool = false;

    /// A request has arrived at the server.
    fn sent(&mut self) {}

    /// A poll begins, while so many calls have no response.
    fn look(&mut self, _outstanding: usize, _now: Instant) {}

    /// Notices what was to be READ and has not come, so that [`next_fetch`](ClientCarrier::next_fetch) mends it. Gives when to look again.
    fn look_for_lost(&mut self) -> PollAt {
        PollAt::OnEvent
    }

    /// What to READ now, at most `most` bytes.
    fn next_fetch(&mut self, _most: usize) -> Option<Fetch> {
        None
    }

    /// There is something to READ at once.
    fn must_fetch(&self) -> bool {
        false
    }

    /// The next message among the bytes of a READ, from `at` on, which it advances. `None`: there are no more.
    ///
    /// # Errors
    /// What the server did wrong.
    fn next_message(
        &mut self,
        _bytes: &mut [u8],
        _at: &mut usize,
    ) -> Result<Option<Found>, Misbehaved> {
        Ok(None)
    }

    /// All messages of a READ have been taken; so many they were, and so many calls still have no response. `false`: it has brought
    /// nothing.
    fn fetched(&mut self, _what: Fetched, _messages: usize, _outstanding: usize) -> bool {
        true
    }

    /// The number of the first READ that finds all that the server has left by now, if it may have left something. From now on
    /// there is such a READ, as long as calls are outstanding.
    fn next_read(&mut self) -> Option<ReadNumber> {
        None
    }

    /// The last READ that has found that nothing is left.
    fn last_empty_read(&self) -> Option<ReadNumber> {
        None
    }

    /// The server says how messages travel from now on. `false`: it must not say that.
    fn handle_mode(&mut self, _argument: u32) -> bool {
        false
    }

    /// The server has said goodbye. `true`: what it has left is fetched first, as long as it [fetches](ClientCarrier::fetches).
    fn server_leaves(&mut self) -> bool {
        false
    }

    /// Responses may be left that are not fetched yet.
    fn fetches(&self) -> bool {
        false
    }

    /// What to tell the server, the argument of [`Op::Mode`](super::wire::Op::Mode).
    fn take_request_of_mode(&mut self) -> Option<u32> {
        None
    }
}

/// Probes of one READ at most: READs of [nothing](Fetched::Nothing). If those are lost, too, the queue pair repeats it by itself, after
/// its timeout.
pub(crate) const MOST_PROBES: usize = 3;

/// READs of the responses that are ready, counted by the client.
pub(crate) type ReadNumber = u64;

/// A READ of responses.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) remote: RemoteSlice,
    pub(crate) what: Fetched,
}

/// What a READ of responses brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// The responses that are ready.
    Ready,
    /// The response of this slot, which was too long for those.
    Long { slot: u32 },
    /// Nothing: it is only to have what was posted before it repeated, if that was lost.
    Nothing,
}

/// A response among those that were ready.
#[derive(Debug)]
pub(crate) enum Found {
    /// These bytes of what was read.
    Message { slot: u32, bytes: Range<usize> },
    /// It has to be read from elsewhere: it is a later [`next_fetch`](ClientCarrier::next_fetch).
    Elsewhere,
}

/// At the server: how requests are found that no completion announces. What is here by default does it for a carrier whose
/// completions announce all.
pub(crate) trait ServerCarrier: Carrier {
    /// Requests come without completions.
    const LOOKS: bool = false;

    /// What is posted for a slot never overtakes its message: no message is [placed](Carrier::place).
    const SENDS_IN_ORDER: bool = true;

    /// The thread wants to know which clients have left, and which [announced](Turn::Handled) something. It decides when requests
    /// are taken.
    const IS_SCHEDULED: bool = false;

    /// The next request, if it has arrived, and so have the operations that were sent before.
    fn waiting(&self) -> Option<Waiting> {
        None
    }

    /// The immediate of a request has arrived.
    fn handle_announcement(&mut self) {}

    /// An operation has arrived that is no part of a message, after all requests that are [waiting](ServerCarrier::waiting).
    ///
    /// # Errors
    /// What the client did wrong.
    fn handle_operation(&mut self, _arrived: ArrivedOp<'_>) -> Result<Turn, Misbehaved> {
        Ok(Turn::Now)
    }

    /// The next operation that was put off, if it is its turn.
    #[inline(always)]
    fn take_deferred(&mut self) -> Option<(Op, u32)> {
        None
    }

    /// Requests have been READ out of the client's memory.
    fn handle_fetched(&mut self, _requests: Buffer) {}

    /// A buffer of requests that were all taken.
    #[inline(always)]
    fn take_empty(&mut self) -> Option<Buffer> {
        None
    }

    /// The message of the next request, as private bytes. `None` if it is longer than a slot.
    fn take<'a>(&mut self, _request: Waiting, _scratch: &'a mut Scratch) -> Option<Message<'a>> {
        None
    }

    /// From now on the arrival of a request makes an event, where the device can tell.
    fn arm(&self) {}

    /// The client has left: see [`Member::detach`](crate::kit::roster::Member::detach).
    fn detach(&mut self) {}

    /// What the client says of how it wants its responses. If it must be told that they are sent from now on, gives the
    /// argument of that.
    ///
    /// # Errors
    /// The client must not say that.
    fn handle_mode(&mut self, _argument: u32) -> Result<Option<u32>, Misbehaved> {
        Err("an operation that this backend does not have")
    }

    /// Sends all responses from now on, until the end. If the client must be told, gives the argument of that.
    fn stop_placing(&mut self) -> Option<u32> {
        None
    }

    /// Responses wait that the client may not have fetched.
    fn has_placed(&self) -> bool {
        false
    }
}

/// A request that has arrived without a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) slot: u32,
    pub(crate) len: u32,
}

/// An operation that has arrived.
#[derive(Debug)]
pub(crate) struct ArrivedOp<'a> {
    pub(crate) op: Op,
    /// The slot, or the argument.
    pub(crate) argument: u32,
    pub(crate) completion: &'a WorkCompletion,
}

/// When an operation is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Now,
    /// After requests that have not arrived yet: it is a later [`take_deferred`](ServerCarrier::take_deferred).
    Later,
    /// The carrier has done it.
    Handled,
}

/// What the connections of one server thread share.
pub(crate) trait Shared<C: ServerCarrier>: fmt::Debug + Send {
    /// Clients have come: there must be receives for what they send.
    fn replenish(&mut self) {}

    /// The message of a client has been handled.
    fn recycle(&mut self, _completion: &mut WorkCompletion) {}

    /// Takes the requests that have arrived without completions.
    #[inline]
    fn look(
        &mut self,
        clients: &mut Clients<C>,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        clients.look_at_all(scratch, now, sink)
    }

    /// Gets ready to sleep: a request makes an event, where the device can tell. `false`: there is one already.
    fn arm(&mut self, clients: &mut Clients<C>) -> bool {
        clients.arm_carriers()
    }
}
