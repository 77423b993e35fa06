//! Byte strings, copied whole.

use std::borrow::Cow;

use ::bytes::Bytes;
use serde_bytes::ByteBuf;

use super::writer::length_size;
use super::{Decode, DecodeError, Encode, EncodeError, Malformed, Piece, Reader, Writer};

/// A byte string with its length in front.
#[derive(Clone, Copy, Debug)]
pub enum Raw {}

/// A byte string that is the whole of a message: its length is the message's.
#[derive(Clone, Copy, Debug)]
pub enum Whole {}

/// An array of bytes, whose length is in its type.
#[derive(Clone, Copy, Debug)]
pub enum Fixed {}

/// A type that is a string of bytes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is spelled like a byte string, but is another type",
    label = "taken for `bytes::Bytes`, `serde_bytes::ByteBuf` or `Vec<u8>` because of its name",
    note = "give your own type another name, or write its path"
)]
pub trait ByteString {
    /// The bytes.
    fn as_byte_string(&self) -> &[u8];

    /// The bytes, if their memory can be shared.
    #[inline]
    fn shared(&self) -> Option<Bytes> {
        None
    }
}

/// A type that can be made from a part of a message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from the bytes of a message",
    note = "use `bytes::Bytes`, `Vec<u8>`, or `&[u8]` in a plain `fn`"
)]
pub trait FromPiece<'m>: Sized {
    /// Makes the value, borrowing or sharing the message's memory where the type can.
    fn from_piece(piece: Piece<'m>) -> Self;
}

impl ByteString for [u8] {
    #[inline]
    fn as_byte_string(&self) -> &[u8] {
        self
    }
}

impl<T: ByteString + ?Sized> ByteString for &T {
    #[inline]
    fn as_byte_string(&self) -> &[u8] {
        (**self).as_byte_string()
    }

    #[inline]
    fn shared(&self) -> Option<Bytes> {
        (**self).shared()
    }
}

impl ByteString for Bytes {
    #[inline]
    fn as_byte_string(&self) -> &[u8] {
        self
    }

    #[inline]
    fn shared(&self) -> Option<Bytes> {
        Some(self.clone())
    }
}

macro_rules! byte_string {
    ($($type:ty),*) => {$(
        impl ByteString for $type {
            #[inline]
            fn as_byte_string(&self) -> &[u8] {
                self
            }
        }
    )*};
}

byte_string!(Vec<u8>, ByteBuf, serde_bytes::Bytes, Box<[u8]>, Cow<'_, [u8]>);

impl<'m> FromPiece<'m> for &'m [u8] {
    #[inline]
    fn from_piece(piece: Piece<'m>) -> Self {
        piece.as_slice()
    }
}

impl<'m> FromPiece<'m> for &'m serde_bytes::Bytes {
    #[inline]
    fn from_piece(piece: Piece<'m>) -> Self {
        serde_bytes::Bytes::new(piece.as_slice())
    }
}

impl<'m> FromPiece<'m> for Cow<'m, [u8]> {
    #[inline]
    fn from_piece(piece: Piece<'m>) -> Self {
        Cow::Borrowed(piece.as_slice())
    }
}

impl FromPiece<'_> for Bytes {
    #[inline]
    fn from_piece(piece: Piece<'_>) -> Self {
        piece.into_bytes()
    }
}

impl FromPiece<'_> for Vec<u8> {
    #[inline]
    fn from_piece(piece: Piece<'_>) -> Self {
        piece.as_slice().to_vec()
    }
}

impl FromPiece<'_> for ByteBuf {
    #[inline]
    fn from_piece(piece: Piece<'_>) -> Self {
        ByteBuf::from(piece.as_slice())
    }
}

impl FromPiece<'_> for Box<[u8]> {
    #[inline]
    fn from_piece(piece: Piece<'_>) -> Self {
        piece.as_slice().into()
    }
}

impl<T: ByteString + ?Sized> Encode<T> for Raw {
    #[inline]
    fn size(value: &T) -> Result<usize, EncodeError> {
        let len = value.as_byte_string().len();
        Ok(length_size(len) + len)
    }

    #[inline]
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        let bytes = value.as_byte_string();
        writer.put_length(bytes.len())?;
        writer.put(bytes)
    }
}

impl<'m, T: FromPiece<'m>> Decode<'m, T> for Raw {
    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed> {
        let len = reader.take_length()?;
        Ok(T::from_piece(reader.take(len)?))
    }
}

impl<T: ByteString + ?Sized> Encode<T> for Whole {
    #[inline]
    fn size(value: &T) -> Result<usize, EncodeError> {
        Ok(value.as_byte_string().len())
    }

    #[inline]
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.put(value.as_byte_string())
    }

    #[inline]
    fn as_bytes(value: &T) -> Option<&[u8]> {
        Some(value.as_byte_string())
    }

    #[inline]
    fn shared(value: &T) -> Option<Bytes> {
        value.shared()
    }
}

impl<'m, T: FromPiece<'m>> Decode<'m, T> for Whole {
    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed> {
        Ok(T::from_piece(reader.take_rest()))
    }
}

impl<const N: usize> Encode<[u8; N]> for Fixed {
    #[inline]
    fn size(_: &[u8; N]) -> Result<usize, EncodeError> {
        Ok(N)
    }

    #[inline]
    fn write(value: &[u8; N], writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.put(value)
    }
}

impl<const N: usize> Encode<&[u8; N]> for Fixed {
    #[inline]
    fn size(value: &&[u8; N]) -> Result<usize, EncodeError> {
        <Fixed as Encode<[u8; N]>>::size(value)
    }

    #[inline]
    fn write(value: &&[u8; N], writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.put(*value)
    }
}

impl<'m, const N: usize> Decode<'m, &'m [u8; N]> for Fixed {
    const MAY_BE_EMPTY: bool = N == 0;

    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<&'m [u8; N], Malformed> {
        let bytes = reader.take(N)?.as_slice();
        match bytes.try_into() {
            Ok(array) => Ok(array),
            Err(_) => {
                Err(reader.fail(DecodeError::ArrayLength { expected: N, found: bytes.len() }))
            }
        }
    }
}

impl<'m, const N: usize> Decode<'m, [u8; N]> for Fixed {
    const MAY_BE_EMPTY: bool = N == 0;

    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<[u8; N], Malformed> {
        match <Fixed as Decode<'m, &'m [u8; N]>>::read(reader) {
            Ok(array) => Ok(*array),
            Err(malformed) => Err(malformed),
        }
    }
}
