//! Values that are nested deep: what is written is read, and what would not be read is not written.

use std::collections::BTreeMap;

use ::serde::{Deserialize, Serialize};
use proptest::collection::vec;
use proptest::prelude::proptest;

use super::{As, DecodeError, EncodeError, Reader, Serde, decode, encoded, encoded_len};

const DECODE: DecodeError = DecodeError::TooDeep { limit: 128 };
const ENCODE: EncodeError = EncodeError::TooDeep { limit: 128 };

/// A value that nests in itself through each kind of serde's data model.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Nest {
    Leaf,
    Option(Option<Box<Nest>>),
    Sequence(Vec<Nest>),
    Map(BTreeMap<u8, Nest>),
    Newtype(Box<Wrapper>),
    Tuple(Box<(u8, Nest)>),
    Structure(Box<Node>),
    TupleStructure(Box<Pair>),
    TupleVariant(Box<Nest>, u8),
    StructVariant { inner: Box<Nest>, number: u8 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Wrapper(Nest);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Node {
    inner: Nest,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Pair(Nest, u8);

fn nest(kinds: impl IntoIterator<Item = u8>) -> Nest {
    kinds.into_iter().fold(Nest::Leaf, |inner, kind| match kind {
        0 => Nest::Option(Some(Box::new(inner))),
        1 => Nest::Sequence(vec![inner]),
        2 => Nest::Map(BTreeMap::from([(1, inner)])),
        3 => Nest::Newtype(Box::new(Wrapper(inner))),
        4 => Nest::Tuple(Box::new((1, inner))),
        5 => Nest::Structure(Box::new(Node { inner })),
        6 => Nest::TupleStructure(Box::new(Pair(inner, 1))),
        7 => Nest::TupleVariant(Box::new(inner), 1),
        _ => Nest::StructVariant { inner: Box::new(inner), number: 1 },
    })
}

/// postcard writes at any depth, and else the same bytes.
#[track_caller]
fn is_written_if_it_is_read(value: &Nest) {
    let message = postcard::to_allocvec(value).unwrap();
    let read = decode::<Serde, Nest>(Reader::borrowed(&message));
    let written = encoded(&As::<Serde, Nest>::new(value));
    match written {
        Ok(written) => {
            assert_eq!(written, message);
            assert_eq!(read.as_ref(), Ok(value));
        }
        Err(error) => {
            assert_eq!(error, ENCODE);
            assert_eq!(read, Err(DECODE));
        }
    }
}

proptest! {
    #[test]
    fn a_value_is_written_if_it_is_read(kinds in vec(0..9_u8, 40..140)) {
        is_written_if_it_is_read(&nest(kinds));
    }
}

#[test]
fn each_kind_of_value_is_written_up_to_the_depth_that_is_read() {
    for kind in 0..9 {
        for levels in 50..140 {
            is_written_if_it_is_read(&nest(std::iter::repeat_n(kind, levels)));
        }
        let deep = nest(std::iter::repeat_n(kind, 140));
        assert_eq!(encoded_len(&As::<Serde, Nest>::new(&deep)), Err(ENCODE), "kind {kind}");
    }
}

/// A value whose levels are options, or newtypes that are not transparent: each is a level without an enum around it.
#[test]
fn values_without_enums_are_written_up_to_the_depth_that_is_read() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Chain(Option<Box<Chain>>);

    for levels in 50..140 {
        let chain = (0..levels).fold(Chain(None), |inner, _| Chain(Some(Box::new(inner))));
        let message = postcard::to_allocvec(&chain).unwrap();
        let read = decode::<Serde, Chain>(Reader::borrowed(&message));
        let written = encoded(&As::<Serde, Chain>::new(&chain));
        assert_eq!(read.is_ok(), levels < 64, "{levels}");
        assert_eq!(written.is_ok(), levels < 64, "{levels}");
    }
}

#[test]
fn a_value_that_would_overflow_the_stack_is_refused() {
    let deep = nest((0..1_000_000).map(|level| (level % 9) as u8));
    assert_eq!(encoded(&As::<Serde, Nest>::new(&deep)), Err(ENCODE));
    // Dropping it would overflow the stack, which is the type's own affair.
    std::mem::forget(deep);
}
