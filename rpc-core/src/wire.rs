//! Core's header in front of each message: 8 bytes, so that a 32-byte call with a transport's header stays small.

use crate::compatibility::MethodMismatch;
use crate::error::{Backpressure, GoneReason, RpcError, Waited};
use crate::service::Answer;
use crate::transport::{Message, with_advice};
use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the header of requests and of responses.
pub(crate) const HEADER_BYTES: usize = crate::transport::MESSAGE_HEADER_BYTES;

/// Values of at least this length that are in one piece are given to the transport as they are, and the header apart. A copy of
/// shorter ones costs less than the second part.
pub(crate) const PARTS_FROM_BYTES: usize = 512;

/// Values of at least this length are given to the transport with their memory, if that can be shared, to be kept if they do not go
/// in a slot. A copy of shorter ones costs little more than two changes of a reference count.
pub(crate) const SHARED_FROM_BYTES: usize = 32 << 10;

/// In front of the arguments: the method's id, then the timeout in microseconds. It is one word, written and read whole.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub(crate) struct RequestHeader(U64);

impl RequestHeader {
    #[inline]
    pub(crate) fn new(method: u32, timeout_us: u32) -> Self {
        RequestHeader(U64::new(u64::from(timeout_us) << 32 | u64::from(method)))
    }

    /// Writes the header into the first bytes of a slot that was reserved with room for it.
    #[inline]
    pub(crate) fn write(self, slot: &mut [u8]) {
        slot[..HEADER_BYTES].copy_from_slice(self.as_bytes());
    }

    /// Its bytes, for a message in parts.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// The header of an arrived message; `None` if that is too short.
    #[inline]
    pub(crate) fn read(message: &[u8]) -> Option<Self> {
        Self::read_from_prefix(message).ok().map(|(header, _)| header)
    }

    #[inline]
    pub(crate) fn method(self) -> u32 {
        self.0.get() as u32
    }

    /// The caller's timeout in microseconds, counted from when the call was sent; 0: no deadline.
    #[inline]
    pub(crate) fn timeout_us(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

/// A timeout as the header carries it: rounded up, at most 71 minutes, never 0 (which means none).
#[inline]
pub(crate) fn timeout_us(timeout_ns: u64) -> u32 {
    u32::try_from(timeout_ns.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

/// How the server ended a call. The numbers are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Value = 0,
    ServiceError = 1,
    NoSuchMethod = 2,
    /// Body: what could not be decoded, in UTF-8.
    Malformed = 3,
    HandlerPanicked = 4,
    /// The deadline had passed before the handler started.
    Late = 5,
    /// The deadline passed while the handler ran.
    Expired = 6,
    Cancelled = 7,
    /// Body: length and limit, two u64.
    TooLarge = 8,
    /// Body: none, or [`OVER_QUOTA`].
    Overloaded = 9,
    ShuttingDown = 10,
    /// The result could not be encoded. Body: why, in UTF-8.
    Unencodable = 11,
    /// The server was gone. Never sent: clients use it in their counters.
    Gone = 12,
    /// The handler has run, and there was no memory for its result.
    ResponseDropped = 13,
}

impl Status {
    pub(crate) const COUNT: usize = 14;

    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Status; Status::COUNT] = [
        Status::Value,
        Status::ServiceError,
        Status::NoSuchMethod,
        Status::Malformed,
        Status::HandlerPanicked,
        Status::Late,
        Status::Expired,
        Status::Cancelled,
        Status::TooLarge,
        Status::Overloaded,
        Status::ShuttingDown,
        Status::Unencodable,
        Status::Gone,
        Status::ResponseDropped,
    ];

    /// The name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Status::Value => "ok",
            Status::ServiceError => "service_error",
            Status::NoSuchMethod => "no_such_method",
            Status::Malformed => "malformed",
            Status::HandlerPanicked => "handler_panicked",
            Status::Late => "deadline_before_start",
            Status::Expired => "deadline_while_running",
            Status::Cancelled => "cancelled",
            Status::TooLarge => "too_large",
            Status::Overloaded => "overloaded",
            Status::ShuttingDown => "shutting_down",
            Status::Unencodable => "unencodable",
            Status::Gone => "peer_gone",
            Status::ResponseDropped => "response_dropped",
        }
    }

    /// Writes the response header into the first bytes of a reply that was reserved with room for it.
    #[inline]
    pub(crate) fn write(self, reply: &mut [u8]) {
        self.write_with(0, reply);
    }

    /// Writes the response header, with what the server advises, into the first bytes of a reply that was reserved with room for it.
    #[inline]
    pub(crate) fn write_with(self, advice: u8, reply: &mut [u8]) {
        reply[..HEADER_BYTES].copy_from_slice(&with_advice(self as u8, advice).to_le_bytes());
    }

    /// A whole response without a body, and without advice.
    #[inline]
    pub(crate) fn alone(self) -> [u8; HEADER_BYTES] {
        (self as u64).to_le_bytes()
    }
}

/// The body of [`Status::Overloaded`] if the client is over its quota. Clients of farcall 0.1.0 ignore it.
pub(crate) const OVER_QUOTA: [u8; 1] = [1];

/// The body of [`Status::TooLarge`].
pub(crate) fn too_large_body(len: u64, max: u64) -> [u8; 16] {
    let mut body = [0; 16];
    body[..8].copy_from_slice(&len.to_le_bytes());
    body[8..].copy_from_slice(&max.to_le_bytes());
    body
}

/// Whether the server did not run the call because it shuts down.
#[inline]
pub(crate) fn is_refusal(response: &[u8]) -> bool {
    response.first() == Some(&(Status::ShuttingDown as u8))
}

/// Reads a response's header and removes it.
#[inline(always)]
pub(crate) fn open_response(message: Message<'_>) -> Answer<'_> {
    let status = message.first().copied();
    match (status, message.skip(HEADER_BYTES)) {
        (Some(0), Some(body)) => Answer::Value(body),
        (Some(1), Some(body)) => Answer::Service(body),
        (Some(status), Some(body)) => Answer::Failed(failure(status, &body)),
        _ => Answer::Failed(misbehaved("a response shorter than its header")),
    }
}

#[cold]
fn failure(status: u8, body: &[u8]) -> RpcError {
    let word = |at: usize| {
        let word = body.get(at..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| u64::from_le_bytes(*word))
    };
    match Status::ALL.get(usize::from(status)) {
        // The client has checked what the server declares: a server that answers this has declared what it does not have.
        Some(Status::NoSuchMethod) => RpcError::NoSuchMethod {
            method: format!("the method {:#010x}", word(0) as u32).into(),
            why: MethodMismatch::Absent,
        },
        // The handler needs all its arguments.
        Some(Status::Malformed) => RpcError::Malformed {
            may_have_run: false,
            what: format!("arguments: {}", String::from_utf8_lossy(body)).into(),
        },
        Some(Status::Unencodable) => RpcError::Malformed {
            may_have_run: true,
            what: format!("result: {}", String::from_utf8_lossy(body)).into(),
        },
        Some(Status::HandlerPanicked) => RpcError::HandlerPanicked,
        Some(Status::Late) => {
            RpcError::DeadlineExceeded { may_have_run: false, waited: Waited::InServerQueue }
        }
        Some(Status::Expired) => {
            RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForHandler }
        }
        Some(Status::Cancelled) => RpcError::Cancelled,
        // The server says it of its response only: a request over the limit does not reach it.
        Some(Status::TooLarge) => RpcError::too_large(true, word(0), word(8)),
        Some(Status::Overloaded) => RpcError::Overloaded(match body.first() {
            Some(first) if *first == OVER_QUOTA[0] => Backpressure::Quota,
            _ => Backpressure::Server,
        }),
        Some(Status::ResponseDropped) => RpcError::ResponseDropped,
        Some(Status::ShuttingDown) => RpcError::not_sent(GoneReason::ShuttingDown),
        Some(Status::Value | Status::ServiceError | Status::Gone) | None => {
            misbehaved("a response with an unknown status")
        }
    }
}

/// There is a response, so that the call may have run.
#[cold]
fn misbehaved(what: &'static str) -> RpcError {
    RpcError::PeerMisbehaved { may_have_run: true, what }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_header_survives_the_wire() {
        let mut slot = [0xff_u8; 9];
        RequestHeader::new(0xdead_beef, 1_000).write(&mut slot);
        let header = RequestHeader::read(&slot).expect("long enough");
        assert_eq!((header.method(), header.timeout_us(), slot[8]), (0xdead_beef, 1_000, 0xff));
        assert!(RequestHeader::read(&slot[..7]).is_none());
    }

    #[test]
    fn timeouts_round_up_and_never_become_none() {
        assert_eq!(timeout_us(0), 1);
        assert_eq!(timeout_us(1_001), 2);
        assert_eq!(timeout_us(u64::MAX), u32::MAX);
    }

    #[test]
    fn every_status_is_at_its_number() {
        for (number, status) in Status::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, number);
        }
    }

    #[test]
    fn garbage_in_a_response_is_an_error_of_its_own() {
        for bytes in [&[][..], &[0; 7], &[200, 0, 0, 0, 0, 0, 0, 0]] {
            let answer = open_response(Message::Borrowed(bytes));
            assert!(
                matches!(answer, Answer::Failed(RpcError::PeerMisbehaved { .. })),
                "{answer:?}"
            );
        }
        let short = open_response(Message::Borrowed(&[8, 0, 0, 0, 0, 0, 0, 0, 1]));
        assert!(matches!(
            short,
            Answer::Failed(RpcError::TooLarge { may_have_run: true, len: 0, max: 0 })
        ));
    }
}
