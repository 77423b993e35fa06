//! Any type with serde's traits.

use ::serde::{Deserialize, Serialize};
use postcard::ser_flavors::{Flavor, Size};

use super::deserializer::Deserializer;
use super::{Decode, Encode, EncodeError, Malformed, Reader, Writer};

/// The form of types that contain no byte string: their `Serialize` and `Deserialize` decide.
#[derive(Clone, Copy, Debug)]
pub enum Serde {}

impl<T: Serialize + ?Sized> Encode<T> for Serde {
    #[inline]
    fn size(value: &T) -> Result<usize, EncodeError> {
        postcard::serialize_with_flavor(value, Size::default()).map_err(unwritable)
    }

    #[inline]
    fn write(value: &T, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match postcard::serialize_with_flavor(value, Into(writer)) {
            Ok(()) => Ok(()),
            Err(postcard::Error::SerializeBufferFull) => Err(writer.beyond()),
            Err(why) => Err(unwritable(why)),
        }
    }
}

impl<'m, T: Deserialize<'m>> Decode<'m, T> for Serde {
    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<T, Malformed> {
        match T::deserialize(&mut Deserializer::new(reader)) {
            Ok(value) => Ok(value),
            Err(why) => Err(reader.fail(why)),
        }
    }
}

/// postcard's output, straight into the message.
struct Into<'w, 's>(&'w mut Writer<'s>);

impl Flavor for Into<'_, '_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.put_byte(byte).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.put(bytes).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cold]
fn unwritable(why: postcard::Error) -> EncodeError {
    match why {
        postcard::Error::WontImplement
        | postcard::Error::NotYetImplemented
        | postcard::Error::SerializeSeqLengthUnknown => EncodeError::Unsupported,
        _ => EncodeError::Refused,
    }
}
