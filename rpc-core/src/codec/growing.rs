//! Types that may grow: structs that get new fields, and enums that get new variants, while old ends are in use.
//!
//! Such a value has its length in front. A reader that knows more fields than the writer finds the end of the value and
//! takes their defaults; one that knows fewer skips the rest. An enum's reader skips a variant that it does not know. Such
//! types say so to serde's formats by the name of a newtype around them: this codec adds the length, and other formats
//! ignore it.
//!
//! The fields of a struct's first version are in every value, and are read even at the value's end: the last ones may take
//! no bytes. The newtype's name therefore ends with their number. A field of a later version that takes no bytes cannot be
//! told from a missing one if nothing follows it: it has its default.

use std::fmt;
use std::marker::PhantomData;

use ::serde::de::{DeserializeSeed, EnumAccess, SeqAccess, VariantAccess, Visitor};
use ::serde::{Deserializer, Serialize, Serializer};

use super::DecodeError;
use super::deserializer::{self, Elements};

/// The name of the newtype around an enum, and around a struct whose first version had no fields. Around other structs, a
/// space and the number of the first version's fields follow.
pub const NAME: &str = "$farcall::Growing";

/// The number of a variant that its sender did not know either.
pub const UNKNOWN: u32 = u32::MAX;

/// A type that may grow. `#[derive(farcall::Grow)]` implements it.
pub trait Grow {
    /// The name of the newtype: [`NAME`], and the number of fields that a struct's first version had.
    const NAME: &'static str;

    /// Serializes the value without its length.
    fn serialize_body<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

/// A type that may grow, read from input that lives for `'de`. `#[derive(farcall::Grow)]` implements it.
pub trait GrowFrom<'de>: Sized {
    /// The name of the newtype, the same as [`Grow::NAME`].
    const NAME: &'static str;

    /// Deserializes a value, whose end is the end of the input.
    fn deserialize_body<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Serializes a value that may grow.
pub fn serialize<T: Grow, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    struct Body<'v, T>(&'v T);
    impl<T: Grow> Serialize for Body<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.serialize_body(serializer)
        }
    }
    serializer.serialize_newtype_struct(T::NAME, &Body(value))
}

/// Deserializes a value that may grow.
pub fn deserialize<'de, T: GrowFrom<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Whole<T>(PhantomData<T>);
    impl<'de, T: GrowFrom<'de>> Visitor<'de> for Whole<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a value that may grow")
        }

        fn visit_newtype_struct<D: Deserializer<'de>>(self, body: D) -> Result<T, D::Error> {
            T::deserialize_body(body)
        }
    }
    deserializer.deserialize_newtype_struct(T::NAME, Whole(PhantomData))
}

/// Whether a newtype of this name is around a value that may grow.
#[inline]
pub(super) fn is_growing(name: &str) -> bool {
    name.starts_with(NAME)
}

/// How many fields the first version of the type had, by the name of the newtype around it.
fn first_fields(name: &str) -> usize {
    let number = name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix(' '));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Reads a value whose length has been read: the rest of the reader is the value.
pub(super) struct Body<'d, 'r, 'm> {
    deserializer: &'d mut deserializer::Deserializer<'r, 'm>,
    first_fields: usize,
}

impl<'d, 'r, 'm> Body<'d, 'r, 'm> {
    /// Of the type that is in a newtype of this name.
    pub(super) fn new(
        deserializer: &'d mut deserializer::Deserializer<'r, 'm>,
        name: &'static str,
    ) -> Self {
        Self { deserializer, first_fields: first_fields(name) }
    }
}

impl<'de> Deserializer<'de> for Body<'_, '_, 'de> {
    type Error = DecodeError;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let Self { deserializer, first_fields } = self;
        deserializer.nested(|inner| {
            visitor.visit_seq(Fields { elements: inner.elements(fields.len()), first_fields })
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserializer.nested(|inner| visitor.visit_enum(Payload(deserializer::Variant(inner))))
    }

    /// Only structs and enums grow.
    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::SELF_DESCRIBING)
    }

    ::serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map identifier ignored_any
    }
}

/// The fields of a struct: those of its first version, and then others, which end where its writer knew no more.
struct Fields<'d, 'r, 'm> {
    elements: Elements<'d, 'r, 'm>,
    /// How many fields of the first version are not read yet.
    first_fields: usize,
}

impl<'m> SeqAccess<'m> for Fields<'_, '_, 'm> {
    type Error = DecodeError;

    fn next_element_seed<S: DeserializeSeed<'m>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DecodeError> {
        match self.first_fields.checked_sub(1) {
            Some(left) => self.first_fields = left,
            None if self.elements.is_at_end() => return Ok(None),
            None => {}
        }
        self.elements.next_element_seed(seed)
    }
}

/// A variant and what it holds.
struct Payload<'d, 'r, 'm>(deserializer::Variant<'d, 'r, 'm>);

impl<'m> EnumAccess<'m> for Payload<'_, '_, 'm> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'m>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self), DecodeError> {
        let (variant, access) = self.0.variant_seed(seed)?;
        Ok((variant, Payload(access)))
    }
}

impl<'m> VariantAccess<'m> for Payload<'_, '_, 'm> {
    type Error = DecodeError;

    /// Without anything in it, or unknown: what is left is skipped.
    fn unit_variant(self) -> Result<(), DecodeError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'m>>(
        self,
        seed: S,
    ) -> Result<S::Value, DecodeError> {
        let Payload(deserializer::Variant(inner)) = self;
        let value = deserializer::Variant(&mut *inner).newtype_variant_seed(seed)?;
        inner.check_end()?;
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'m>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let Payload(deserializer::Variant(inner)) = self;
        let value = deserializer::Variant(&mut *inner).tuple_variant(len, visitor)?;
        inner.check_end()?;
        Ok(value)
    }

    fn struct_variant<V: Visitor<'m>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.tuple_variant(fields.len(), visitor)
    }
}
