//! Whole messages: values one after the other, with nothing before, between or after them.

use std::marker::PhantomData;

use ::bytes::Bytes;

use super::{Decode, DecodeError, Encode, EncodeError, Malformed, Reader, Writer};

/// The content of one message: a value in its form, or a tuple of such values.
pub trait Payload {
    /// How many bytes [`write`](Self::write) will write.
    fn size(&self) -> Result<usize, EncodeError>;

    /// Writes the values.
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;

    /// How many bytes the first `parts` values take.
    fn size_of_first(&self, parts: usize) -> Result<usize, EncodeError>;

    /// What [`write`](Self::write) would write, if the values have it in one piece: it can be sent from there.
    #[inline]
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }

    /// The bytes that [`write`](Self::write) would write, if they are in memory that can be shared.
    #[inline]
    fn shared(&self) -> Option<Bytes> {
        None
    }
}

/// A value to encode in form `F`.
#[derive(Debug)]
pub struct As<'v, F, T: ?Sized>(&'v T, PhantomData<fn() -> F>);

impl<'v, F: Encode<T>, T: ?Sized> As<'v, F, T> {
    /// This value, in form `F`.
    #[inline]
    pub fn new(value: &'v T) -> Self {
        Self(value, PhantomData)
    }
}

/// A value to encode in form `F`; for generated code.
///
/// It returns an opaque type: if a type of the user's cannot be encoded, the compiler reports one error here, and not
/// another for each call that the payload is passed to.
#[inline]
pub fn part<'v, F: Encode<T> + 'v, T: ?Sized>(value: &'v T) -> impl Payload + use<'v, F, T> {
    As::<F, T>::new(value)
}

impl<F: Encode<T>, T: ?Sized> Payload for As<'_, F, T> {
    #[inline]
    fn size(&self) -> Result<usize, EncodeError> {
        F::size(self.0)
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        F::write(self.0, writer)
    }

    fn size_of_first(&self, parts: usize) -> Result<usize, EncodeError> {
        if parts == 0 { Ok(0) } else { self.size() }
    }

    #[inline]
    fn as_bytes(&self) -> Option<&[u8]> {
        F::as_bytes(self.0)
    }

    #[inline]
    fn shared(&self) -> Option<Bytes> {
        F::shared(self.0)
    }
}

impl<P: Payload + ?Sized> Payload for &P {
    #[inline]
    fn size(&self) -> Result<usize, EncodeError> {
        (**self).size()
    }

    #[inline]
    fn write(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        (**self).write(writer)
    }

    fn size_of_first(&self, parts: usize) -> Result<usize, EncodeError> {
        (**self).size_of_first(parts)
    }

    #[inline]
    fn as_bytes(&self) -> Option<&[u8]> {
        (**self).as_bytes()
    }

    #[inline]
    fn shared(&self) -> Option<Bytes> {
        (**self).shared()
    }
}

macro_rules! tuple {
    ($($part:ident $index:tt),* $(; only $only:tt)?) => {
        impl<$($part: Payload),*> Payload for ($($part,)*) {
            #[inline]
            fn size(&self) -> Result<usize, EncodeError> {
                Ok(0 $(+ self.$index.size()?)*)
            }

            #[inline]
            fn write(&self, _writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                $(self.$index.write(_writer)?;)*
                Ok(())
            }

            fn size_of_first(&self, _parts: usize) -> Result<usize, EncodeError> {
                Ok(0 $(+ if $index < _parts { self.$index.size()? } else { 0 })*)
            }

            $(
                #[inline]
                fn as_bytes(&self) -> Option<&[u8]> {
                    self.$only.as_bytes()
                }

                #[inline]
                fn shared(&self) -> Option<Bytes> {
                    self.$only.shared()
                }
            )?
        }
    };
}

tuple!();
tuple!(P0 0; only 0);
tuple!(P0 0, P1 1);
tuple!(P0 0, P1 1, P2 2);
tuple!(P0 0, P1 1, P2 2, P3 3);
tuple!(P0 0, P1 1, P2 2, P3 3, P4 4);
tuple!(P0 0, P1 1, P2 2, P3 3, P4 4, P5 5);
tuple!(P0 0, P1 1, P2 2, P3 3, P4 4, P5 5, P6 6);
tuple!(P0 0, P1 1, P2 2, P3 3, P4 4, P5 5, P6 6, P7 7);

/// How many bytes [`encode`] needs for this payload.
#[inline]
pub fn encoded_len<P: Payload + ?Sized>(payload: &P) -> Result<usize, EncodeError> {
    payload.size()
}

/// Writes the payload into `reserved`, which is exactly as long as [`encoded_len`] said.
#[inline]
pub fn encode<P: Payload + ?Sized>(payload: &P, reserved: &mut [u8]) -> Result<(), EncodeError> {
    let mut writer = Writer::new(reserved);
    payload.write(&mut writer)?;
    writer.finish()
}

/// The payload, in memory of its own.
pub fn encoded<P: Payload + ?Sized>(payload: &P) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = vec![0; encoded_len(payload)?];
    encode(payload, &mut bytes)?;
    Ok(bytes)
}

/// Reads one value in form `F`, which must take the whole message.
#[inline]
pub fn decode<'m, F: Decode<'m, T>, T>(mut message: Reader<'m>) -> Result<T, DecodeError> {
    match whole::<F, T>(&mut message) {
        Ok(value) => Ok(value),
        Err(_) => Err(message.into_error()),
    }
}

/// Reads one value in form `F`, which must take the rest of the message.
#[inline(always)]
pub fn whole<'m, F: Decode<'m, T>, T>(message: &mut Reader<'m>) -> Result<T, Malformed> {
    let value = F::read(message)?;
    message.finish()?;
    Ok(value)
}
