//! The bytes on the stream: frames, each a header and a body.
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | length of the body |
//! | 4..8 | generation of the slot |
//! | 8..10 | slot |
//! | 10 | kind |
//! | 11 | zero |
//!
//! All numbers are little-endian.

#[cfg(test)]
mod fuzz;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::contract::Terms;

/// What both ends say in the handshake: the version of these frames.
pub(super) const SETUP: &[u8] = b"farcall tcp 1";

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 12;

/// Bytes of the body of one [`Kind::Part`]: what a small message may have to wait for, some 30 us of copying.
pub(super) const MAX_PART_BYTES: usize = 128 << 10;

/// Bytes of the body of a [`Kind::Begin`].
pub(super) const BEGIN_BYTES: usize = size_of::<U64>();

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A whole message.
    Whole = 1,
    /// A large message waits to be sent. Body: its length.
    Begin = 2,
    /// It may be sent. No body.
    Grant = 3,
    /// The next bytes of a granted message.
    Part = 4,
    /// From the client: the call was given up. No body.
    Cancel = 5,
    /// From the server: the cancelled call has ended without a response. No body.
    Dropped = 6,
    /// Nothing follows. No body.
    Goodbye = 7,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::Whole,
        Kind::Begin,
        Kind::Grant,
        Kind::Part,
        Kind::Cancel,
        Kind::Dropped,
        Kind::Goodbye,
    ];

    fn from_wire(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) slot: u32,
    pub(super) generation: u32,
    /// Bytes of the body.
    pub(super) len: usize,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WireHeader {
    len: U32,
    generation: U32,
    slot: U16,
    kind: u8,
    zero: u8,
}

/// What the frames of a connection must keep to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) window: u32,
    /// The longest [`Kind::Whole`], without its header.
    pub(super) max_whole: usize,
    /// The longest message, in bytes.
    pub(super) max_message: u64,
}

impl Rules {
    pub(super) fn new(terms: &Terms) -> Rules {
        let most = usize::try_from(terms.max_message).unwrap_or(usize::MAX);
        Rules {
            window: terms.window,
            max_whole: (terms.slot as usize - HEADER_BYTES).min(most),
            max_message: terms.max_message,
        }
    }

    /// Reads the header of a frame that the peer has sent.
    ///
    /// # Errors
    /// The rule that it breaks.
    #[inline]
    pub(super) fn read(&self, bytes: &[u8; HEADER_BYTES]) -> Result<Header, &'static str> {
        let Ok(wire) = WireHeader::ref_from_bytes(bytes) else { return Err("no header") };
        let Some(kind) = Kind::from_wire(wire.kind) else { return Err("a frame of no known kind") };
        let (slot, len) = (u32::from(wire.slot.get()), wire.len.get() as usize);
        if wire.zero != 0 {
            return Err("a frame whose last byte is not zero");
        }
        if slot >= self.window {
            return Err("a slot outside the window");
        }
        let fits = match kind {
            Kind::Whole => len <= self.max_whole,
            Kind::Begin => len == BEGIN_BYTES,
            Kind::Part => (1..=MAX_PART_BYTES).contains(&len),
            Kind::Grant | Kind::Cancel | Kind::Dropped | Kind::Goodbye => len == 0,
        };
        if !fits {
            return Err("a frame of a length that its kind cannot have");
        }
        Ok(Header { kind, slot, generation: wire.generation.get(), len })
    }

    /// The length that the body of a [`Kind::Begin`] says: of a message that is too long for [`Kind::Whole`], and not longer
    /// than agreed.
    ///
    /// # Errors
    /// It is another.
    pub(super) fn read_begin(&self, body: &[u8]) -> Result<u64, &'static str> {
        let Ok(len) = U64::read_from_bytes(body) else { return Err("no length") };
        let len = len.get();
        if len <= self.max_whole as u64 || len > self.max_message || usize::try_from(len).is_err() {
            return Err("a large message of a length that it cannot have");
        }
        Ok(len)
    }
}

impl Header {
    /// A header without a body.
    pub(super) fn bare(kind: Kind, slot: u32, generation: u32) -> Header {
        Header { kind, slot, generation, len: 0 }
    }

    #[inline]
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let wire = WireHeader {
            len: (self.len as u32).into(),
            generation: self.generation.into(),
            slot: (self.slot as u16).into(),
            kind: self.kind as u8,
            zero: 0,
        };
        zerocopy::transmute!(wire)
    }
}

/// The body of a [`Kind::Begin`].
pub(super) fn begin_body(len: usize) -> [u8; BEGIN_BYTES] {
    (len as u64).to_le_bytes()
}
