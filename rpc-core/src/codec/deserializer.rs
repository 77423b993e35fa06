//! Deserialization of postcard's format through serde, with bounds that postcard's own reader does not have.
//!
//! A peer can send a value nested a million deep in a few megabytes, or a sequence of 2^60 elements that take no bytes
//! each. The first would overflow the thread's stack, which ends the process; the second would never end.

use std::fmt::Display;

use ::serde::de::value::U32Deserializer;
use ::serde::de::{self, DeserializeSeed, IntoDeserializer, Visitor};

use super::budget::{self, FIRST_ENTRIES};
use super::error::shortened;
use super::{DecodeError, MAX_DEPTH, Reader, growing};

/// Reads values through serde.
pub(super) struct Deserializer<'r, 'm> {
    reader: &'r mut Reader<'m>,
    depth: u32,
    /// For how many more elements memory may be reserved before they are read. Elements take at least a byte each, so
    /// all sequences of an honest message have together no more than it has bytes. Without this, each level of a
    /// nested value could reserve memory for the rest of the message.
    reservable: usize,
    /// Bytes of the element that is being read that are not given to a value in it. The element is in the budget already.
    counted: usize,
}

impl<'r, 'm> Deserializer<'r, 'm> {
    #[inline]
    pub(super) fn new(reader: &'r mut Reader<'m>) -> Self {
        let reservable = reader.remaining();
        Self { reader, depth: 0, reservable, counted: 0 }
    }

    /// Reads a value with values in it.
    #[inline]
    pub(super) fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.depth == MAX_DEPTH {
            return Err(DecodeError::TooDeep { limit: MAX_DEPTH });
        }
        self.count::<T>()?;
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    /// Counts a value of this type, unless it can be a part of what is counted: whether it is in a box is not known.
    #[inline]
    fn count<T>(&mut self) -> Result<(), DecodeError> {
        if const { budget::is_small::<T>() } {
            return Ok(());
        }
        match self.counted.checked_sub(size_of::<T>()) {
            Some(left) => self.counted = left,
            None => self.reader.budget.take::<T>(1)?,
        }
        Ok(())
    }

    /// The fields of a struct or tuple.
    #[inline]
    pub(super) fn elements<'d>(&'d mut self, left: usize) -> Elements<'d, 'r, 'm> {
        Elements { deserializer: self, left }
    }

    /// Reads a value that has its length in front, and skips what of it is not read.
    fn sized<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        let len = self.reader.try_take_length()?;
        let behind = self.reader.try_limit(len)?;
        let value = read(self)?;
        self.reader.unlimit(behind);
        Ok(value)
    }

    /// Nothing is left of a value that has its length in front.
    pub(super) fn check_end(&self) -> Result<(), DecodeError> {
        match self.reader.remaining() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { left }),
        }
    }

    /// As many elements as the peer says that there are, which is not believed.
    #[inline]
    fn claimed_elements<'d>(&'d mut self, left: usize) -> ClaimedElements<'d, 'r, 'm> {
        let reserved = left.min(self.reservable).min(self.reader.remaining());
        self.reservable -= reserved;
        let (counted, counted_values) = (0, 0);
        ClaimedElements { elements: self.elements(left), reserved, counted, counted_values }
    }

    /// An unsigned number of this many bits.
    #[inline]
    fn unsigned(&mut self, bits: u32) -> Result<u64, DecodeError> {
        let first = self.reader.try_take_byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        Ok(self.long(u128::from(first & 0x7f), bits)? as u64)
    }

    #[inline]
    fn signed(&mut self, bits: u32) -> Result<i64, DecodeError> {
        let folded = self.unsigned(bits)?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    fn wide(&mut self) -> Result<u128, DecodeError> {
        let first = self.reader.try_take_byte()?;
        if first < 0x80 {
            return Ok(u128::from(first));
        }
        self.long(u128::from(first & 0x7f), u128::BITS)
    }

    fn long(&mut self, low: u128, bits: u32) -> Result<u128, DecodeError> {
        let mut number = low;
        let mut shift = 7;
        loop {
            let byte = self.reader.try_take_byte()?;
            let part = u128::from(byte & 0x7f);
            if shift >= bits || part >> (bits - shift).min(7) != 0 {
                return Err(DecodeError::Format("a number does not fit its type"));
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
            shift += 7;
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.reader.try_take(N)?.as_slice();
        bytes.try_into().map_err(|_| DecodeError::ArrayLength { expected: N, found: bytes.len() })
    }

    #[inline]
    fn bytes(&mut self) -> Result<&'m [u8], DecodeError> {
        let len = self.reader.try_take_length()?;
        Ok(self.reader.try_take(len)?.as_slice())
    }

    #[inline]
    fn text(&mut self) -> Result<&'m str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::Format("a string is not UTF-8"))
    }
}

macro_rules! number {
    ($($deserialize:ident $visit:ident $read:ident $type:ty),*) => {$(
        #[inline]
        fn $deserialize<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            // Within the type's bits: `$read` has checked it.
            visitor.$visit(self.$read(<$type>::BITS)? as $type)
        }
    )*};
}

impl<'m> de::Deserializer<'m> for &mut Deserializer<'_, 'm> {
    type Error = DecodeError;

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    number!(
        deserialize_u16 visit_u16 unsigned u16,
        deserialize_u32 visit_u32 unsigned u32,
        deserialize_u64 visit_u64 unsigned u64,
        deserialize_i16 visit_i16 signed i16,
        deserialize_i32 visit_i32 signed i32,
        deserialize_i64 visit_i64 signed i64
    );

    #[inline]
    fn deserialize_u8<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_u8(self.reader.try_take_byte()?)
    }

    #[inline]
    fn deserialize_i8<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_i8(self.reader.try_take_byte()? as i8)
    }

    fn deserialize_u128<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_u128(self.wide()?)
    }

    fn deserialize_i128<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let folded = self.wide()?;
        visitor.visit_i128((folded >> 1) as i128 ^ -((folded & 1) as i128))
    }

    #[inline]
    fn deserialize_bool<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.reader.try_take_byte()? {
            0 => visitor.visit_bool(false),
            1 => visitor.visit_bool(true),
            _ => Err(DecodeError::Format("a bool is neither true nor false")),
        }
    }

    #[inline]
    fn deserialize_f32<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_f32(f32::from_le_bytes(self.array()?))
    }

    #[inline]
    fn deserialize_f64<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_f64(f64::from_le_bytes(self.array()?))
    }

    fn deserialize_char<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let mut chars = self.text()?.chars();
        match (chars.next(), chars.next()) {
            (Some(only), None) => visitor.visit_char(only),
            _ => Err(DecodeError::Format("a char is not one")),
        }
    }

    #[inline]
    fn deserialize_str<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_borrowed_str(self.text()?)
    }

    #[inline]
    fn deserialize_string<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_str(visitor)
    }

    #[inline]
    fn deserialize_bytes<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_borrowed_bytes(self.bytes()?)
    }

    #[inline]
    fn deserialize_byte_buf<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.deserialize_bytes(visitor)
    }

    #[inline]
    fn deserialize_option<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.reader.try_take_byte()? {
            0 => {
                self.count::<V::Value>()?;
                visitor.visit_none()
            }
            1 => self.nested(|inner| visitor.visit_some(inner)),
            _ => Err(DecodeError::Format("an option is neither none nor some")),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'m>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'m>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if growing::is_growing(name) {
            return self
                .sized(|inner| visitor.visit_newtype_struct(growing::Body::new(inner, name)));
        }
        self.nested(|inner| visitor.visit_newtype_struct(inner))
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let len = self.reader.try_take_length()?;
        self.nested(|inner| visitor.visit_seq(inner.claimed_elements(len)))
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'m>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.nested(|inner| visitor.visit_seq(inner.elements(len)))
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'m>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_tuple(len, visitor)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'m>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'m>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let len = self.reader.try_take_length()?;
        self.nested(|inner| visitor.visit_map(inner.claimed_elements(len)))
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'m>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.nested(|inner| visitor.visit_enum(Variant(inner)))
    }

    fn deserialize_identifier<V: Visitor<'m>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::SELF_DESCRIBING)
    }

    fn deserialize_any<V: Visitor<'m>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::SELF_DESCRIBING)
    }

    fn deserialize_ignored_any<V: Visitor<'m>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::SELF_DESCRIBING)
    }
}

/// The elements of a value that are not read yet.
pub(super) struct Elements<'d, 'r, 'm> {
    deserializer: &'d mut Deserializer<'r, 'm>,
    left: usize,
}

impl<'m> Elements<'_, '_, 'm> {
    /// Nothing is left to read.
    pub(super) fn is_at_end(&self) -> bool {
        self.deserializer.reader.remaining() == 0
    }

    #[inline]
    fn next<S: DeserializeSeed<'m>>(&mut self, seed: S) -> Result<Option<S::Value>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let before = self.deserializer.reader.remaining();
        let value = seed.deserialize(&mut *self.deserializer)?;
        if self.deserializer.reader.remaining() == before {
            self.deserializer.reader.budget.take_empty()?;
        }
        Ok(Some(value))
    }
}

impl<'m> de::SeqAccess<'m> for Elements<'_, '_, 'm> {
    type Error = DecodeError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'m>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        self.next(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The elements of a sequence, or the entries of a map, of which the message says how many there are.
struct ClaimedElements<'d, 'r, 'm> {
    elements: Elements<'d, 'r, 'm>,
    /// How many elements memory may be reserved for.
    reserved: usize,
    /// Elements, or keys, that are counted and not read yet.
    counted: usize,
    /// The same of a map's values.
    counted_values: usize,
}

impl ClaimedElements<'_, '_, '_> {
    #[inline]
    fn expected(&self) -> usize {
        self.elements.left.min(self.reserved)
    }

    /// Counts as many elements as there is memory reserved for, when the first of them is about to be read.
    #[inline]
    fn count<T>(
        &mut self,
        which: impl Fn(&mut Self) -> &mut usize,
        at_least: usize,
    ) -> Result<(), DecodeError> {
        if *which(self) == 0 {
            let ahead = self.expected().max(at_least);
            self.elements.deserializer.reader.budget.take::<T>(ahead)?;
            *which(self) = ahead;
        }
        *which(self) -= 1;
        self.elements.deserializer.counted = size_of::<T>();
        Ok(())
    }
}

impl<'m> de::SeqAccess<'m> for ClaimedElements<'_, '_, 'm> {
    type Error = DecodeError;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'m>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        if !const { budget::is_small::<S::Value>() } && self.elements.left > 0 {
            let is_reserved = self.expected() > 0;
            let first = if is_reserved { 1 } else { budget::first_elements::<S::Value>() };
            self.count::<S::Value>(|this| &mut this.counted, first)?;
        }
        self.elements.next(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.expected())
    }
}

impl<'m> de::MapAccess<'m> for ClaimedElements<'_, '_, 'm> {
    type Error = DecodeError;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'m>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        if self.elements.left > 0 {
            self.count::<S::Value>(|this| &mut this.counted, FIRST_ENTRIES)?;
        }
        self.elements.next(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'m>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, DecodeError> {
        self.count::<S::Value>(|this| &mut this.counted_values, FIRST_ENTRIES)?;
        seed.deserialize(&mut *self.elements.deserializer)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.expected())
    }
}

/// An enum's variant.
pub(super) struct Variant<'d, 'r, 'm>(pub(super) &'d mut Deserializer<'r, 'm>);

impl<'m> de::EnumAccess<'m> for Variant<'_, '_, 'm> {
    type Error = DecodeError;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'m>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self), DecodeError> {
        let index = self.0.unsigned(u32::BITS)? as u32;
        let index: U32Deserializer<DecodeError> = index.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'m> de::VariantAccess<'m> for Variant<'_, '_, 'm> {
    type Error = DecodeError;

    #[inline]
    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'m>>(
        self,
        seed: S,
    ) -> Result<S::Value, DecodeError> {
        seed.deserialize(self.0)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'m>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(self.0.elements(len))
    }

    #[inline]
    fn struct_variant<V: Visitor<'m>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(self.0.elements(fields.len()))
    }
}

impl de::Error for DecodeError {
    fn custom<T: Display>(message: T) -> Self {
        DecodeError::Refused(shortened(&message))
    }
}
