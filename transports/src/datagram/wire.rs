//! The bytes on the wire: the header of a datagram, and of each message in it.
//!
//! Parsing trusts nothing that a peer wrote: it returns `Option` and never panics. It works on receive buffers, which no
//! peer can write.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// In front of every datagram.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    /// The layout of what follows.
    version: U32,
    /// The receiver's number for the session.
    session: U32,
    /// The secret of the session in this direction.
    epoch: U64,
}

const VERSION: u32 = 0xfa55_0001;

/// Bytes in front of every datagram.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();

impl Header {
    pub(crate) fn new(session: u32, epoch: u64) -> Header {
        Header { version: VERSION.into(), session: session.into(), epoch: epoch.into() }
    }

    /// Session, epoch, and the messages.
    #[inline]
    pub(crate) fn split(datagram: &[u8]) -> Option<(u32, u64, Messages<'_>)> {
        let (header, rest) = Header::ref_from_prefix(datagram).ok()?;
        let known = header.version.get() == VERSION;
        known.then(|| (header.session.get(), header.epoch.get(), Messages { rest }))
    }
}

/// What a message is. One that comes from the wrong end is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, TryFromBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Client: a small request.
    Request = 1,
    /// Client: a large request of this many bytes ([`U64`]) is to be sent in parts.
    Announce = 2,
    /// Either: a part of a large message, after its number ([`U32`]).
    Part = 3,
    /// Client: asks how this request stands. With a [`Range`]: asks for these parts of its response.
    Ask = 4,
    /// Client: the response to this request is not needed any more.
    Cancel = 5,
    /// Client: the large response has been fetched.
    Release = 6,
    /// Either: nothing follows. The slot is zero.
    Goodbye = 7,
    /// Server: a small response.
    Response = 8,
    /// Server: the response has this many bytes ([`U64`]); the client asks for its parts.
    Lent = 9,
    /// Server: which parts of the request have arrived ([`Range`]).
    Progress = 10,
    /// Server: the announced request waits for memory.
    Wait = 11,
    /// Server: a handler has the request.
    Running = 12,
    /// Server: the cancelled request ended before a handler saw it.
    Dropped = 13,
    /// Server: the large response is freed, as the client said.
    Released = 14,
    /// Server: the announced request is over the limit ([`OverLimit`]).
    OverLimit = 15,
    /// Client: a small request that may run more than once: the server keeps nothing of it.
    Idempotent = 16,
    /// Server: the request was answered so long ago that the response is not kept any more.
    Forgotten = 17,
    /// Client: asks which epoch its datagrams must carry, with as many bytes as the answer has. Server: this one ([`U64`]).
    Challenge = 18,
}

impl Kind {
    #[inline]
    fn from_wire(byte: u8) -> Option<Kind> {
        Kind::try_read_from_bytes(&[byte]).ok()
    }
}

/// In front of every message.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MessageHeader {
    kind: u8,
    /// From the client: which copy of the message this is. From the server: which copy it answers, and whether it is
    /// [late](crate::repair::window::LATE).
    mark: u8,
    slot: U16,
    generation: U32,
    /// Bytes that follow.
    len: U16,
}

/// Bytes in front of every message.
pub(crate) const MESSAGE_BYTES: usize = size_of::<MessageHeader>();

/// Bytes in front of the part in a [`Kind::Part`].
pub(crate) const PART_BYTES: usize = size_of::<U32>();

/// Bytes of a [`Kind::Challenge`].
pub(crate) const CHALLENGE_BYTES: usize = size_of::<U64>();

/// Longer datagrams could hold messages whose length does not fit its 16 bits.
pub(crate) const MAX_MTU: usize = 1 << 15;

/// Which message it is: the slot, which use of the slot, and which copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    pub(crate) mark: u8,
}

impl Id {
    /// Of a goodbye, which belongs to no slot.
    pub(crate) const NONE: Id = Id { slot: 0, generation: 0, mark: 0 };

    /// Of a message that says nothing but that its datagram has arrived: no window has this slot.
    pub(crate) const OUTSIDE: Id = Id { slot: u16::MAX as u32, generation: 0, mark: 0 };
}

impl MessageHeader {
    #[inline]
    pub(crate) fn new(kind: Kind, id: Id, len: usize) -> MessageHeader {
        debug_assert!(id.slot < 1 << 16 && len < 1 << 16);
        MessageHeader {
            kind: kind as u8,
            mark: id.mark,
            slot: (id.slot as u16).into(),
            generation: id.generation.into(),
            len: (len as u16).into(),
        }
    }

    /// Changes the length in the header at the front of these bytes.
    #[inline]
    pub(crate) fn set_len(bytes: &mut [u8], len: usize) {
        debug_assert!(len < 1 << 16);
        if let Ok((header, _)) = MessageHeader::mut_from_prefix(bytes) {
            header.len = (len as u16).into();
        }
    }
}

/// One message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: Kind,
    pub(crate) id: Id,
    pub(crate) body: &'a [u8],
}

/// The messages of a datagram, up to the first that makes no sense.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    #[inline]
    fn next(&mut self) -> Option<Message<'a>> {
        let (header, rest) = MessageHeader::ref_from_prefix(self.rest).ok()?;
        let (body, rest) = rest.split_at_checked(header.len.get().into())?;
        self.rest = rest;
        let (slot, generation) = (header.slot.get().into(), header.generation.get());
        let id = Id { slot, generation, mark: header.mark };
        Some(Message { kind: Kind::from_wire(header.kind)?, id, body })
    }
}

impl Message<'_> {
    /// The epoch that the client's datagrams must carry.
    pub(crate) fn challenge(&self) -> Option<u64> {
        self.len()
    }

    /// The length of a message that is announced or lent.
    pub(crate) fn len(&self) -> Option<u64> {
        U64::read_from_bytes(self.body).ok().map(U64::get)
    }

    /// The parts that are asked for, or have arrived.
    pub(crate) fn range(&self) -> Option<Range> {
        Range::read_from_bytes(self.body).ok()
    }

    /// Number and bytes of a part.
    pub(crate) fn part(&self) -> Option<(u32, &[u8])> {
        let (number, bytes) = U32::ref_from_prefix(self.body).ok()?;
        Some((number.get(), bytes))
    }

    /// Both lengths of a refusal.
    pub(crate) fn over_limit(&self) -> Option<OverLimit> {
        OverLimit::read_from_bytes(self.body).ok()
    }
}

/// Some of the 64 parts from `base` on. In a [`Kind::Progress`] all before `base` have arrived, and those in the mask; a
/// [`Kind::Ask`] asks for those in the mask.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Range {
    pub(crate) base: U32,
    pub(crate) mask: U64,
}

impl Range {
    pub(crate) fn new(base: u32, mask: u64) -> Range {
        Range { base: base.into(), mask: mask.into() }
    }
}

/// Body of [`Kind::OverLimit`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct OverLimit {
    /// Bytes of the request.
    pub(crate) len: U64,
    /// The most that the server takes.
    pub(crate) max: U64,
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_cut_short_ends_the_datagram() {
        let mut bytes = Header::new(7, 8).as_bytes().to_vec();
        for body in [&b"whole"[..], b"torn"] {
            let header = MessageHeader::new(Kind::Request, Id::NONE, body.len());
            bytes.extend_from_slice(&[header.as_bytes(), body].concat());
        }
        let (_, _, messages) = Header::split(&bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(messages.map(|message| message.body).collect::<Vec<_>>(), [b"whole"]);
    }
}
