//! Options, sequences and tuples of other forms, in the same format as serde.

use std::marker::PhantomData;

use super::writer::length_size;
use super::{Decode, DecodeError, Encode, EncodeError, Malformed, Reader, Writer, budget};

/// An `Option` of a value in form `F`.
#[derive(Clone, Copy, Debug)]
pub struct Opt<F>(PhantomData<F>);

/// A `Vec` or slice of values in form `F`.
#[derive(Clone, Copy, Debug)]
pub struct Seq<F>(PhantomData<F>);

impl<T, F: Encode<T>> Encode<Option<T>> for Opt<F> {
    #[inline]
    fn size(value: &Option<T>) -> Result<usize, EncodeError> {
        match value {
            None => Ok(1),
            Some(value) => Ok(1 + F::size(value)?),
        }
    }

    #[inline]
    fn write(value: &Option<T>, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        match value {
            None => writer.put_byte(0),
            Some(value) => {
                writer.put_byte(1)?;
                F::write(value, writer)
            }
        }
    }
}

impl<'m, T, F: Decode<'m, T>> Decode<'m, Option<T>> for Opt<F> {
    #[inline]
    fn read(reader: &mut Reader<'m>) -> Result<Option<T>, Malformed> {
        match reader.take_byte()? {
            0 => Ok(None),
            1 => Ok(Some(F::read(reader)?)),
            _ => Err(reader.fail(DecodeError::Format("an option is neither none nor some"))),
        }
    }
}

impl<T, F: Encode<T>> Encode<[T]> for Seq<F> {
    #[inline]
    fn size(value: &[T]) -> Result<usize, EncodeError> {
        let mut size = length_size(value.len());
        for element in value {
            size += F::size(element)?;
        }
        Ok(size)
    }

    #[inline]
    fn write(value: &[T], writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.put_length(value.len())?;
        value.iter().try_for_each(|element| F::write(element, writer))
    }
}

impl<T, F: Encode<T>> Encode<&[T]> for Seq<F> {
    #[inline]
    fn size(value: &&[T]) -> Result<usize, EncodeError> {
        <Self as Encode<[T]>>::size(value)
    }

    #[inline]
    fn write(value: &&[T], writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        <Self as Encode<[T]>>::write(value, writer)
    }
}

impl<T, F: Encode<T>> Encode<Vec<T>> for Seq<F> {
    #[inline]
    fn size(value: &Vec<T>) -> Result<usize, EncodeError> {
        <Self as Encode<[T]>>::size(value)
    }

    #[inline]
    fn write(value: &Vec<T>, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        <Self as Encode<[T]>>::write(value, writer)
    }
}

impl<'m, T, F: Decode<'m, T>> Decode<'m, Vec<T>> for Seq<F> {
    fn read(reader: &mut Reader<'m>) -> Result<Vec<T>, Malformed> {
        let len = reader.take_length()?;
        // Elements that take a byte or more: a length that the message cannot hold is refused before any work.
        // Memory is allocated only for elements that can be there.
        if !F::MAY_BE_EMPTY && len > reader.remaining() {
            return Err(reader.fail(DecodeError::Truncated { missing: len - reader.remaining() }));
        }
        if !const { budget::is_small::<T>() } {
            reader.budget.take::<T>(len).map_err(|why| reader.fail(why))?;
        }
        const FIRST_ALLOCATION_BYTES: usize = 64 * 1024;
        let first = len.min(reader.remaining()).min(FIRST_ALLOCATION_BYTES / size_of::<T>().max(1));
        let mut values = Vec::with_capacity(first);
        for _ in 0..len {
            let before = reader.remaining();
            values.push(F::read(reader)?);
            if F::MAY_BE_EMPTY && reader.remaining() == before {
                reader.budget.take_empty().map_err(|why| reader.fail(why))?;
            }
        }
        Ok(values)
    }
}

macro_rules! tuple {
    ($($form:ident $type:ident $index:tt),*) => {
        impl<$($type, $form: Encode<$type>),*> Encode<($($type,)*)> for ($($form,)*) {
            #[inline]
            fn size(value: &($($type,)*)) -> Result<usize, EncodeError> {
                Ok(0 $(+ $form::size(&value.$index)?)*)
            }

            #[inline]
            fn write(value: &($($type,)*), writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                $($form::write(&value.$index, writer)?;)*
                Ok(())
            }
        }

        impl<'m, $($type, $form: Decode<'m, $type>),*> Decode<'m, ($($type,)*)> for ($($form,)*) {
            const MAY_BE_EMPTY: bool = $($form::MAY_BE_EMPTY)&&*;

            #[inline]
            fn read(reader: &mut Reader<'m>) -> Result<($($type,)*), Malformed> {
                Ok(($($form::read(reader)?,)*))
            }
        }
    };
}

tuple!(F0 T0 0);
tuple!(F0 T0 0, F1 T1 1);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3, F4 T4 4);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3, F4 T4 4, F5 T5 5);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3, F4 T4 4, F5 T5 5, F6 T6 6);
tuple!(F0 T0 0, F1 T1 1, F2 T2 2, F3 T3 3, F4 T4 4, F5 T5 5, F6 T6 6, F7 T7 7);
