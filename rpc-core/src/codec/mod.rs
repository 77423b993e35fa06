//! How arguments and results become bytes, and how bytes that a peer sent become values again.
//!
//! A value is written straight into the registered memory that it leaves from: [`encoded_len`] says how many bytes it
//! takes, the transport reserves exactly these, [`encode`] fills them. Nothing is built in between.
//!
//! The format is [postcard's](https://postcard.jamesmunns.com/wire-format), so any type that implements serde's
//! traits can travel. serde sees byte strings one byte at a time, which costs a thousand nanoseconds for 4 KiB;
//! therefore the service attribute names, for each argument and result, a *form*: [`Serde`] for most types, and forms
//! that move whole byte strings for the types in which it sees one ([`Raw`], [`Fixed`], and [`Opt`], [`Seq`] and tuples around them). They
//! write the same bytes that serde would. One form has a format of its own: a byte string that is a method's only argument, or its whole result, is the
//! message itself ([`Whole`]).
//!
//! What a peer sent is checked as it is read: a length beyond the message, bytes left over, a value nested too deep,
//! are each a [`DecodeError`].

mod bytes;
mod compound;
mod deserializer;
mod error;
mod payload;
mod reader;
mod serde;
mod writer;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;

pub use self::bytes::{ByteString, Fixed, FromPiece, Raw, Whole};
pub use self::compound::{Opt, Seq};
pub use self::error::{DecodeError, EncodeError};
pub use self::payload::{As, Payload, decode, encode, encoded_len, part, whole};
pub use self::reader::{Malformed, Piece, Reader};
pub use self::serde::Serde;
pub use self::writer::Writer;

/// A form in which values of type `T` can be written.
pub trait Encode<T: ?Sized> {
    /// How many bytes [`write`](Self::write) will write for this value.
    fn size(value: &T) -> Result<usize, EncodeError>;

    /// Writes the value.
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// A form in which values of type `T` can be read from a message that lives for `'m`, from which they may borrow.
pub trait Decode<'m, T> {
    /// Reads one value from the front of what is left of the message.
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed>;
}
