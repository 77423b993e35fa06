//! Serialization through serde, in postcard's format.
//!
//! It is not postcard's own, because values that may grow have their length in front; see [`growing`](super::growing). And it
//! refuses values that are nested deeper than their reader allows: a value of a handler's that is nested 50,000 deep would
//! overflow the stack of the server's thread.

use std::fmt::{self, Display};

use ::serde::{Serialize, ser};

use super::error::shortened;
use super::growing;
use super::writer::{Writer, length_size};
use super::{EncodeError, MAX_DEPTH};

/// Where the bytes of a value go.
pub(super) trait Output {
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError>;
    fn put_byte(&mut self, byte: u8) -> Result<(), EncodeError>;
    /// Puts a value with its length in front, which is within so many others.
    fn put_sized<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
        depth: u32,
    ) -> Result<(), EncodeError>;
}

/// Counts the bytes.
#[derive(Default)]
pub(super) struct Size(pub(super) usize);

impl Output for Size {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.0 += bytes.len();
        Ok(())
    }

    #[inline]
    fn put_byte(&mut self, _: u8) -> Result<(), EncodeError> {
        self.0 += 1;
        Ok(())
    }

    fn put_sized<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
        depth: u32,
    ) -> Result<(), EncodeError> {
        let size = size_within(value, depth)?;
        self.0 += length_size(size) + size;
        Ok(())
    }
}

impl Output for Writer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        Writer::put(self, bytes)
    }

    #[inline]
    fn put_byte(&mut self, byte: u8) -> Result<(), EncodeError> {
        Writer::put_byte(self, byte)
    }

    /// The values within a value are counted once for each level above them that has its length in front.
    fn put_sized<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
        depth: u32,
    ) -> Result<(), EncodeError> {
        let size = size_within(value, depth)?;
        self.put_length(size)?;
        let before = self.remaining();
        value.serialize(Serializer { out: &mut *self, depth })?;
        let found = before - self.remaining();
        // The next value would be read from the wrong place.
        if found == size { Ok(()) } else { Err(EncodeError::Unstable { promised: size, found }) }
    }
}

/// How many bytes a value takes.
#[inline]
pub(super) fn size<T: Serialize + ?Sized>(value: &T) -> Result<usize, EncodeError> {
    size_within(value, 0)
}

#[inline]
fn size_within<T: Serialize + ?Sized>(value: &T, depth: u32) -> Result<usize, EncodeError> {
    let mut size = Size::default();
    value.serialize(Serializer { out: &mut size, depth })?;
    Ok(size.0)
}

/// Writes a value through serde, or the parts of one.
pub(super) struct Serializer<'o, O> {
    out: &'o mut O,
    /// How many values the value is in, as the deserializer counts them. It is a copy for each value, so the compiler knows
    /// it for types that do not nest in themselves.
    depth: u32,
}

/// A number, seven bits in each byte, the lowest first, the high bit set in all but the last.
macro_rules! base_128 {
    ($put:ident $type:ty) => {
        fn $put(&mut self, number: $type) -> Result<(), EncodeError> {
            let mut bytes = [0; <$type>::BITS.div_ceil(7) as usize];
            let (mut left, mut used) = (number, 0);
            while left >= 0x80 {
                bytes[used] = left as u8 | 0x80;
                left >>= 7;
                used += 1;
            }
            bytes[used] = left as u8;
            self.out.put(&bytes[..=used])
        }
    };
}

impl<'o, O: Output> Serializer<'o, O> {
    /// Writes a value that is in no other.
    #[inline]
    pub(super) fn new(out: &'o mut O) -> Self {
        Serializer { out, depth: 0 }
    }

    /// Writes the values in this one.
    #[inline]
    fn nested(self) -> Result<Self, EncodeError> {
        if self.depth == MAX_DEPTH {
            return Err(EncodeError::TooDeep { limit: MAX_DEPTH });
        }
        Ok(Serializer { out: self.out, depth: self.depth + 1 })
    }

    /// Writes one of several values.
    #[inline]
    fn part(&mut self) -> Serializer<'_, O> {
        Serializer { out: &mut *self.out, depth: self.depth }
    }

    #[inline]
    fn length(&mut self, length: usize) -> Result<(), EncodeError> {
        self.unsigned(length as u64)
    }

    #[inline]
    fn unsigned(&mut self, number: u64) -> Result<(), EncodeError> {
        if number < 0x80 {
            return self.out.put_byte(number as u8);
        }
        self.long(number)
    }

    #[inline]
    fn signed(&mut self, number: i64) -> Result<(), EncodeError> {
        self.unsigned((number << 1 ^ number >> 63) as u64)
    }

    base_128!(long u64);
    base_128!(wide u128);

    #[inline]
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.length(bytes.len())?;
        self.out.put(bytes)
    }
}

macro_rules! numbers {
    ($($serialize:ident $type:ty => $write:ident as $wider:ty),* $(,)?) => {$(
        #[inline]
        fn $serialize(mut self, number: $type) -> Result<(), EncodeError> {
            self.$write(<$wider>::from(number))
        }
    )*};
}

impl<O: Output> ser::Serializer for Serializer<'_, O> {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    numbers! {
        serialize_u16 u16 => unsigned as u64,
        serialize_u32 u32 => unsigned as u64,
        serialize_u64 u64 => unsigned as u64,
        serialize_u128 u128 => wide as u128,
        serialize_i16 i16 => signed as i64,
        serialize_i32 i32 => signed as i64,
        serialize_i64 i64 => signed as i64,
    }

    fn serialize_i128(mut self, number: i128) -> Result<(), EncodeError> {
        self.wide((number << 1 ^ number >> 127) as u128)
    }

    #[inline]
    fn serialize_bool(self, value: bool) -> Result<(), EncodeError> {
        self.out.put_byte(u8::from(value))
    }

    #[inline]
    fn serialize_u8(self, number: u8) -> Result<(), EncodeError> {
        self.out.put_byte(number)
    }

    #[inline]
    fn serialize_i8(self, number: i8) -> Result<(), EncodeError> {
        self.out.put_byte(number as u8)
    }

    #[inline]
    fn serialize_f32(self, number: f32) -> Result<(), EncodeError> {
        self.out.put(&number.to_le_bytes())
    }

    #[inline]
    fn serialize_f64(self, number: f64) -> Result<(), EncodeError> {
        self.out.put(&number.to_le_bytes())
    }

    fn serialize_char(mut self, char: char) -> Result<(), EncodeError> {
        self.bytes(char.encode_utf8(&mut [0; 4]).as_bytes())
    }

    #[inline]
    fn serialize_str(mut self, text: &str) -> Result<(), EncodeError> {
        self.bytes(text.as_bytes())
    }

    #[inline]
    fn serialize_bytes(mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.bytes(bytes)
    }

    #[inline]
    fn serialize_none(self) -> Result<(), EncodeError> {
        self.out.put_byte(0)
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        self.out.put_byte(1)?;
        value.serialize(self.nested()?)
    }

    #[inline]
    fn serialize_unit(self) -> Result<(), EncodeError> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), EncodeError> {
        Ok(())
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
    ) -> Result<(), EncodeError> {
        self.nested()?.unsigned(u64::from(index))
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        if growing::is_growing(name) {
            self.out.put_sized(value, self.depth)
        } else {
            value.serialize(self.nested()?)
        }
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        let mut inner = self.nested()?;
        inner.unsigned(u64::from(index))?;
        value.serialize(inner)
    }

    #[inline]
    fn serialize_seq(mut self, len: Option<usize>) -> Result<Self, EncodeError> {
        self.length(len.ok_or(EncodeError::Unsupported)?)?;
        self.nested()
    }

    #[inline]
    fn serialize_tuple(self, _: usize) -> Result<Self, EncodeError> {
        self.nested()
    }

    #[inline]
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, EncodeError> {
        self.nested()
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, EncodeError> {
        let mut inner = self.nested()?;
        inner.unsigned(u64::from(index))?;
        Ok(inner)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self, EncodeError> {
        self.serialize_seq(len)
    }

    #[inline]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, EncodeError> {
        self.nested()
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, EncodeError> {
        let mut inner = self.nested()?;
        inner.unsigned(u64::from(index))?;
        Ok(inner)
    }

    /// Formats the value twice, for its length and for its text, instead of allocating.
    fn collect_str<T: Display + ?Sized>(mut self, value: &T) -> Result<(), EncodeError> {
        let mut size = Size::default();
        Text::write(&mut size, value)?;
        self.length(size.0)?;
        Text::write(self.out, value)
    }
}

/// The text of a value, as it is formatted.
struct Text<'o, O> {
    out: &'o mut O,
    error: Option<EncodeError>,
}

impl<O: Output> Text<'_, O> {
    fn write<T: Display + ?Sized>(out: &mut O, value: &T) -> Result<(), EncodeError> {
        let mut text = Text { out, error: None };
        fmt::write(&mut text, format_args!("{value}")).map_err(|_| {
            let refused = || EncodeError::Refused("its `Display` failed".into());
            text.error.take().unwrap_or_else(refused)
        })
    }
}

impl<O: Output> fmt::Write for Text<'_, O> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.out.put(text.as_bytes()).map_err(|why| {
            self.error = Some(why);
            fmt::Error
        })
    }
}

/// Sequences, tuples and structs: their parts one after the other.
macro_rules! compound {
    ($($trait:ident $part:ident($($name:ty)?)),* $(,)?) => {$(
        impl<O: Output> ser::$trait for Serializer<'_, O> {
            type Ok = ();
            type Error = EncodeError;

            #[inline]
            fn $part<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), EncodeError> {
                value.serialize(self.part())
            }

            #[inline]
            fn end(self) -> Result<(), EncodeError> {
                Ok(())
            }
        }
    )*};
}

compound! {
    SerializeSeq serialize_element(),
    SerializeTuple serialize_element(),
    SerializeTupleStruct serialize_field(),
    SerializeTupleVariant serialize_field(),
    SerializeStruct serialize_field(&'static str),
    SerializeStructVariant serialize_field(&'static str),
}

impl<O: Output> ser::SerializeMap for Serializer<'_, O> {
    type Ok = ();
    type Error = EncodeError;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        key.serialize(self.part())
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        value.serialize(self.part())
    }

    #[inline]
    fn end(self) -> Result<(), EncodeError> {
        Ok(())
    }
}

impl ser::Error for EncodeError {
    fn custom<T: Display>(message: T) -> Self {
        EncodeError::Refused(shortened(&message))
    }
}
