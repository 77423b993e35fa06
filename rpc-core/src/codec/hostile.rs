//! Messages that nest too deep, or claim more elements than they have bytes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use ::serde::Deserialize;
use ::serde::de::{self, SeqAccess, Visitor};

use super::{Decode, DecodeError, Fixed, Raw, Reader, Seq, Serde, Writer, decode, growing};

/// Decodes as `T` the bytes of `level`, so many times, with a zero at the end.
fn nested<T: for<'m> Deserialize<'m>>(level: &[u8], levels: usize) -> Result<(), DecodeError> {
    let message = [level.repeat(levels), vec![0]].concat();
    decode::<Serde, T>(Reader::borrowed(&message)).map(drop)
}

/// Each type nests through one kind of serde's data model, so that each kind has to count its own levels.
fn refuses_a_deep_nest<T: for<'m> Deserialize<'m>>(level: &[u8]) {
    assert_eq!(nested::<T>(level, 100), Ok(()));
    assert_eq!(nested::<T>(level, 200), Err(DecodeError::TooDeep { limit: 128 }));
}

/// As [`refuses_a_deep_nest`], for kinds that end only with an option in them: two levels each time.
fn refuses_half_as_deep_a_nest<T: for<'m> Deserialize<'m>>(level: &[u8]) {
    assert_eq!(nested::<T>(level, 50), Ok(()));
    assert_eq!(nested::<T>(level, 100), Err(DecodeError::TooDeep { limit: 128 }));
}

#[test]
fn a_deep_nest_of_options_is_refused() {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Maybe(#[expect(dead_code, reason = "only decoded")] Option<Box<Maybe>>);
    refuses_a_deep_nest::<Maybe>(&[1]);
}

#[test]
fn a_deep_nest_of_sequences_is_refused() {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Tree(#[expect(dead_code, reason = "only decoded")] Vec<Tree>);
    refuses_a_deep_nest::<Tree>(&[1]);
}

#[test]
fn a_deep_nest_of_maps_is_refused() {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Directory(#[expect(dead_code, reason = "only decoded")] BTreeMap<u8, Directory>);
    refuses_a_deep_nest::<Directory>(&[1, b'k']);
}

#[test]
fn a_deep_nest_of_enums_is_refused() {
    #[derive(Deserialize)]
    enum List {
        End,
        More(#[expect(dead_code, reason = "only decoded")] Box<List>),
    }
    refuses_a_deep_nest::<List>(&[1]);
}

#[test]
fn a_deep_nest_of_newtypes_is_refused() {
    #[derive(Deserialize)]
    struct Wrapper(#[expect(dead_code, reason = "only decoded")] Option<Box<Wrapper>>);
    refuses_half_as_deep_a_nest::<Wrapper>(&[1]);
}

#[test]
fn a_deep_nest_of_tuples_and_structs_is_refused() {
    #[derive(Deserialize)]
    #[serde(transparent)]
    struct Pairs(#[expect(dead_code, reason = "only decoded")] Option<Box<(u8, Pairs)>>);
    refuses_half_as_deep_a_nest::<Pairs>(&[1, 7]);

    #[derive(Deserialize)]
    #[expect(dead_code, reason = "only decoded")]
    struct Node {
        next: Option<Box<Node>>,
    }
    refuses_half_as_deep_a_nest::<Node>(&[1]);
}

/// A list whose parts may grow: each has its length in front, and the next one in it.
struct Growing(#[expect(dead_code, reason = "only decoded")] Option<Box<Growing>>);

impl<'de> growing::GrowFrom<'de> for Growing {
    const NAME: &'static str = "$farcall::Growing 1";

    fn deserialize_body<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Body {
            next: Option<Box<Growing>>,
        }
        Ok(Growing(Body::deserialize(deserializer)?.next))
    }
}

impl<'de> Deserialize<'de> for Growing {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        growing::deserialize(deserializer)
    }
}

/// So many values that may grow, each in the one before.
fn grown(levels: usize) -> Vec<u8> {
    (0..levels).fold(vec![1, 0], |inner, _| {
        let mut length = [0; 10];
        let mut writer = Writer::new(&mut length);
        writer.put_length(inner.len() + 1).unwrap();
        let used = 10 - writer.remaining();
        [&length[..used], &[1], &inner].concat()
    })
}

#[test]
fn a_deep_nest_of_growing_values_is_refused() {
    let read = |levels| decode::<Serde, Growing>(Reader::borrowed(&grown(levels))).map(drop);
    assert_eq!(read(60), Ok(()));
    assert_eq!(read(70), Err(DecodeError::TooDeep { limit: 128 }));
    assert_eq!(read(5_000), Err(DecodeError::TooDeep { limit: 128 }));
}

#[test]
fn the_length_of_a_growing_value_is_within_the_value_around_it() {
    let read = |bytes: &[u8]| decode::<Serde, Growing>(Reader::borrowed(bytes)).map(drop);
    assert_eq!(read(&[3, 1, 1, 0]), Ok(()));
    assert_eq!(read(&[3, 1, 2, 0, 0]), Err(DecodeError::Truncated { missing: 1 }));
    let huge = [3, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    assert!(matches!(read(&huge), Err(DecodeError::Truncated { .. })));
    assert_eq!(read(&[2, 0, 9, 0]), Err(DecodeError::Trailing { left: 1 }));
    assert_eq!(read(&[2, 0, 9]), Ok(()), "what is not known is skipped");
}

/// Sequences that claim more elements without bytes than there may be in one message.
fn too_many<F: for<'m> Decode<'m, T>, T>(message: &[u8]) {
    let read = decode::<F, T>(Reader::borrowed(message)).map(drop);
    assert_eq!(read, Err(DecodeError::Format("too many elements that take no bytes")));
}

#[test]
fn elements_without_bytes_are_limited_over_a_whole_message() {
    let billion = [0x80, 0x94, 0xeb, 0xdc, 0x03];
    too_many::<Serde, Vec<()>>(&billion);
    too_many::<Seq<Fixed>, Vec<[u8; 0]>>(&billion);
    too_many::<Seq<(Fixed, Serde)>, Vec<([u8; 0], ())>>(&billion);

    // Each of three sequences has 60,000: in one value of serde's, in the form of byte strings, and in values of serde's
    // that are parts of such a form.
    let sequence = [0xe0, 0xd4, 0x03];
    let three = [&[3][..], &sequence.repeat(3)].concat();
    too_many::<Serde, Vec<Vec<()>>>(&three);
    too_many::<Seq<Seq<Fixed>>, Vec<Vec<[u8; 0]>>>(&three);
    let named = [&[3][..], &[&[0][..], &sequence].concat().repeat(3)].concat();
    too_many::<Seq<(Raw, Serde)>, Vec<(Vec<u8>, Vec<()>)>>(&named);

    let one = decode::<Seq<Fixed>, Vec<[u8; 0]>>(Reader::borrowed(&sequence));
    assert_eq!(one.map(|elements| elements.len()), Ok(60_000));
}

thread_local! {
    /// The sum of all lengths that [`Hinted`] was told to expect.
    static EXPECTED: Cell<usize> = const { Cell::new(0) };
}

/// A tree that adds up how many elements it would reserve memory for.
struct Hinted;

impl<'de> Deserialize<'de> for Hinted {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Hinted, D::Error> {
        deserializer.deserialize_seq(HintedVisitor)
    }
}

struct HintedVisitor;

impl<'de> Visitor<'de> for HintedVisitor {
    type Value = Hinted;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Hinted, A::Error> {
        EXPECTED.set(EXPECTED.get() + elements.size_hint().unwrap_or(0));
        while elements.next_element::<Hinted>()?.is_some() {}
        Ok(Hinted)
    }
}

#[test]
fn nested_lengths_reserve_memory_for_no_more_elements_than_the_message_has_bytes() {
    // A hundred sequences, each within the one before, and each said to be longer than the message.
    let claims = [0xff, 0x7f].repeat(100);
    let refused = decode::<Serde, Hinted>(Reader::borrowed(&claims)).map(|_| ());
    assert!(matches!(refused, Err(DecodeError::Truncated { .. })), "{refused:?}");
    let expected = EXPECTED.take();
    assert!(expected <= claims.len(), "room for {expected} elements in {} bytes", claims.len());

    // Where no length is a lie, all memory is reserved at once: 3 elements, the first of which has 4.
    let honest = [3, 4, 0, 0, 0, 0, 0, 0];
    assert!(decode::<Serde, Hinted>(Reader::borrowed(&honest)).is_ok());
    assert_eq!(EXPECTED.take(), 7);
}
