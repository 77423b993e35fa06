//! Any type with serde's traits.

use ::serde::{Deserialize, Serialize};

use super::deserializer::Deserializer;
use super::serializer::{self, Serializer};
use super::{Decode, Encode, EncodeError, Malformed, Reader, Writer};

/// The form of types that contain no byte string: their `Serialize` and `Deserialize` decide.
#[derive(Clone, Copy, Debug)]
pub enum Serde {}

impl<T: Serialize + ?Sized> Encode<T> for Serde {
    #[inline]
    fn size(value: &T) -> Result<usize, EncodeError> {
        serializer::size(value)
    }

    #[inline]
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        value.serialize(Serializer::new(writer))
    }
}

impl<'m, T: Deserialize<'m>> Decode<'m, T> for Serde {
    const MAY_BE_EMPTY: bool = true;

    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed> {
        match T::deserialize(&mut Deserializer::new(reader)) {
            Ok(value) => Ok(value),
            Err(why) => Err(reader.fail(why)),
        }
    }
}
