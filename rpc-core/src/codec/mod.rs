//! How arguments and results become bytes, and how bytes that a peer sent become values again.
//!
//! A value is encoded straight into memory that was reserved for it: [`encoded_len`] says how many bytes it takes, the
//! caller reserves exactly these, [`encode`] fills them. Replies and the calls of a poll-mode connection are encoded into
//! the transport's own memory; the calls of a channel go through a buffer of the call's, unless a caller's [`Bytes`](::bytes::Bytes) is the whole message.
//!
//! The format is [postcard's](https://postcard.jamesmunns.com/wire-format), so it carries any type that implements serde's
//! traits. serde handles byte strings one byte at a time, which costs a microsecond for 4 KiB. The service attribute
//! therefore chooses a *form* for each argument and result: [`Serde`] for most types, and forms that copy whole byte
//! strings for the types that contain one ([`Raw`], [`Fixed`], and [`Opt`], [`Seq`] and tuples around them). They write the
//! same bytes as serde. One form has a format of its own: a byte string that is a method's only argument, or its whole
//! result, is the message itself ([`Whole`]).
//!
//! Values of types that may [grow](growing) have their length in front, which postcard's format does not have.
//!
//! The bytes of a peer are checked as they are read: a length beyond the message, bytes left over, a value that is nested too
//! deep, and values that take far more memory than the message are each a [`DecodeError`]. A value that is nested too deep is
//! not written either: an [`EncodeError`].

mod budget;
mod bytes;
mod compound;
mod deserializer;
mod error;
pub mod growing;
mod payload;
mod reader;
mod serde;
mod serializer;
mod writer;

#[cfg(test)]
mod deep_values;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use self::bytes::{ByteString, Fixed, FromPiece, Raw, Whole};
pub use self::compound::{Opt, Seq};
pub use self::error::{DecodeError, EncodeError};
pub use self::payload::{As, Payload, decode, encode, encoded, encoded_len, part, whole};
pub use self::reader::{Malformed, Piece, Reader};
pub use self::serde::Serde;
pub use self::writer::Writer;

/// How deep values can nest: the limit of `serde_json`. Each value that has others in it is a level: options, sequences, maps,
/// tuples, structs, newtypes and enums.
const MAX_DEPTH: u32 = 128;

/// A form in which values of type `T` can be written.
pub trait Encode<T: ?Sized> {
    /// How many bytes [`write`](Self::write) will write for this value.
    fn size(value: &T) -> Result<usize, EncodeError>;

    /// Writes the value.
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError>;

    /// What [`write`](Self::write) would write, if the value has it in one piece.
    #[inline]
    fn as_bytes(_value: &T) -> Option<&[u8]> {
        None
    }

    /// The bytes that [`write`](Self::write) would write, if they are in memory that can be shared.
    #[inline]
    fn shared(_value: &T) -> Option<::bytes::Bytes> {
        None
    }
}

/// A form in which values of type `T` can be read from a message that lives for `'m`, from which they may borrow.
pub trait Decode<'m, T> {
    /// Whether a value may take no bytes, so that a sequence of such values may have more of them than bytes.
    const MAY_BE_EMPTY: bool = false;

    /// Reads one value from the front of the rest of the message.
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed>;
}
