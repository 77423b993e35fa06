//! The bytes on the wire: the header of a slot, the immediate, and the bodies of control messages.
//!
//! Everything here was written by a peer until it is checked: parsing returns `Option`, never
//! panics, and works on private copies only.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header in front of every message in a slot.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();

/// In front of every message: which use of the slot it belongs to, and what it is.
///
/// With the eight bytes that the core puts in front of arguments, a 32-byte argument makes a
/// message of 48 bytes, the most that a completion of the shm device carries by itself.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    /// Counts the uses of the slot. A reply repeats its request's.
    pub(crate) generation: U32,
    /// A [`Kind`].
    pub(crate) kind: u8,
    reserved: u8,
    /// What a carrier notes on the message.
    note: U16,
}

/// What a message in a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A whole request or a whole response follows.
    Inline = 1,
    /// Client: a request of this many bytes wants to land ([`Announce`](crate::rendezvous::wire::Announce)).
    Announce = 2,
    /// Server: the announced request may be written here ([`Grant`](crate::rendezvous::wire::Grant)).
    Grant = 3,
    /// Server: the response waits here to be read ([`Lent`](crate::rendezvous::wire::Lent)).
    Lent = 4,
    /// Server: the announced request is over the limit ([`OverLimit`](crate::rendezvous::wire::OverLimit)).
    OverLimit = 5,
    /// Client: a request, of which most waits here to be read ([`Here`](crate::rendezvous::wire::Here)).
    RequestHere = 6,
    /// Server: the response, of which most waits here to be read ([`Here`](crate::rendezvous::wire::Here)).
    ResponseHere = 7,
}

impl Kind {
    fn from_wire(byte: u8) -> Option<Kind> {
        use Kind::{Announce, Grant, Inline, Lent, OverLimit, RequestHere, ResponseHere};
        let kinds = [Inline, Announce, Grant, Lent, OverLimit, RequestHere, ResponseHere];
        kinds.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Writes the header to the front of a message.
#[inline]
pub(crate) fn put_header(message: &mut [u8], generation: u32, kind: Kind) {
    // One store, because the device will load these bytes as one word at once.
    let word = u64::from(generation) | u64::from(kind as u8) << 32;
    message[..HEADER_BYTES].copy_from_slice(&word.to_le_bytes());
}

/// Writes a carrier's note on a message, after its header.
pub(crate) fn put_note(message: &mut [u8], note: u16) {
    message[HEADER_BYTES - 2..HEADER_BYTES].copy_from_slice(&note.to_le_bytes());
}

/// The carrier's note on a message; 0 if it has no header.
pub(crate) fn note_of(message: &[u8]) -> u16 {
    Header::ref_from_prefix(message).map_or(0, |(header, _)| header.note.get())
}

/// Splits a message into generation, kind and body.
#[inline]
pub(crate) fn split(message: &[u8]) -> Option<(u32, Kind, &[u8])> {
    let (header, body) = Header::ref_from_prefix(message).ok()?;
    Some((header.generation.get(), Kind::from_wire(header.kind)?, body))
}

// Any slot holds every control message.
const _: () = {
    use crate::rendezvous::wire::{Announce, Grant, Here, Lent, OverLimit};
    let least = crate::contract::MIN_SLOT_BYTES as usize - HEADER_BYTES;
    assert!(size_of::<Grant>() <= least && size_of::<Lent>() <= least);
    assert!(size_of::<Here>() <= least);
    assert!(size_of::<OverLimit>() <= least && size_of::<Announce>() <= least);
};

/// What an immediate means. All but `Message` and a client's `Chunk` carry no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    /// A message is in the slot.
    Message = 0,
    /// Client: one more chunk of the slot's request has landed.
    /// Server: one more chunk of the landing ring is free again, or one more part of the lent response is there.
    Chunk = 1,
    /// Client: nobody waits for the slot's reply any more.
    Cancel = 2,
    /// Client: the lent response has been read; the server may reuse its memory.
    Release = 3,
    /// Either: nothing follows. The slot is zero.
    Goodbye = 4,
    /// Server: the cancelled request was dropped before a handler saw it. Not a message: it may
    /// follow a grant that the client has not read out of the slot yet.
    Dropped = 5,
    /// How responses travel, for backends that have several ways. Instead of the slot it has an argument, whose meaning the
    /// backend knows.
    Mode = 6,
    /// Server: so many operations of the client have been read, and their receives are there again, where clients share them.
    /// Instead of the slot it has their number.
    Credit = 7,
}

const SLOT_BITS: u32 = 10;
const CLIENT_BITS: u32 = 19;

/// Most clients that one server thread tells apart.
pub(crate) const MAX_CLIENTS: u32 = 1 << CLIENT_BITS;

/// Most calls outstanding on one connection: the immediate has ten bits for the slot.
pub(crate) const MAX_WINDOW: u32 = 1 << SLOT_BITS;

/// The immediate names itself (Octopus s3.3): operation, client and slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Immediate {
    pub(crate) op: Op,
    pub(crate) client: u32,
    pub(crate) slot: u32,
}

impl Immediate {
    #[inline]
    pub(crate) fn to_wire(self) -> u32 {
        debug_assert!(self.client < MAX_CLIENTS && self.slot < 1 << SLOT_BITS);
        (self.op as u32) << (SLOT_BITS + CLIENT_BITS) | self.client << SLOT_BITS | self.slot
    }

    /// The slot of a message of this client, if the immediate names one.
    #[inline]
    pub(crate) fn message_of(client: u32, wire: u32) -> Option<u32> {
        // The operation of a message is zero.
        (wire >> SLOT_BITS == client).then_some(wire & ((1 << SLOT_BITS) - 1))
    }

    #[inline]
    pub(crate) fn from_wire(wire: u32) -> Immediate {
        let op = match wire >> (SLOT_BITS + CLIENT_BITS) {
            0 => Op::Message,
            1 => Op::Chunk,
            2 => Op::Cancel,
            3 => Op::Release,
            4 => Op::Goodbye,
            5 => Op::Dropped,
            6 => Op::Mode,
            // Three bits: there is no other.
            _ => Op::Credit,
        };
        Immediate { op, client: client_in(wire), slot: wire & ((1 << SLOT_BITS) - 1) }
    }
}

/// The client that any 32 bits name.
#[inline]
pub(crate) fn client_in(wire: u32) -> u32 {
    wire >> SLOT_BITS & (MAX_CLIENTS - 1)
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_32_byte_argument_makes_48_bytes() {
        assert_eq!(HEADER_BYTES + 8 + 32, 48);
    }

    #[test]
    fn a_header_is_read_back() {
        let mut message = *b"........body";
        put_header(&mut message, 0xfedc_ba98, Kind::Lent);
        assert_eq!(split(&message), Some((0xfedc_ba98, Kind::Lent, &b"body"[..])));
        assert_eq!(split(&message[..7]), None);
    }

    proptest! {
        #[test]
        fn any_immediate_is_itself(wire: u32) {
            let immediate = Immediate::from_wire(wire);
            prop_assert_eq!(immediate.to_wire(), wire);
            let slot = (immediate.op == Op::Message).then_some(immediate.slot);
            prop_assert_eq!(Immediate::message_of(immediate.client, wire), slot);
        }

        #[test]
        fn any_bytes_are_a_message_or_nothing(bytes: Vec<u8>) {
            if let Some((_, kind, body)) = split(&bytes) {
                prop_assert_eq!(bytes[4], kind as u8);
                prop_assert_eq!(body.len() + HEADER_BYTES, bytes.len());
            }
        }
    }
}
