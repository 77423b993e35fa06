//! Fuzz targets of the codec: what peers send, and what this end writes.

use std::collections::BTreeMap;

use ::bytes::Bytes;
use ::serde::{Deserialize, Deserializer, Serialize, Serializer};
use bolero::{TypeGenerator, check, produce};
use serde_bytes::ByteBuf;

use super::*;

/// A value with one of everything that serde's data model has, but for floats: some are not equal to themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TypeGenerator)]
struct Record {
    integers: (u8, i8, u16, i16, u32, i32, u64, i64, u128, i128),
    flag: bool,
    letter: char,
    text: String,
    nothing: (),
    unit: Unit,
    wrapped: Wrapped,
    tree: Option<Box<Tree>>,
    table: BTreeMap<String, Option<i16>>,
    array: [u16; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TypeGenerator)]
struct Unit;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, TypeGenerator)]
struct Wrapped(Vec<i64>);

/// A type that nests in itself through each kind of container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TypeGenerator)]
enum Tree {
    Leaf,
    Boxed(Box<Tree>),
    Pair(Box<Tree>, u32),
    Named { name: String, inner: Option<Box<Tree>> },
    Branches(#[generator(produce::<Vec<_>>().with().len(0..4_usize))] Vec<Tree>),
    Table(#[generator(produce::<BTreeMap<_, _>>().with().len(0..4_usize))] BTreeMap<u16, Tree>),
}

/// A struct and an enum that may grow, with everything that later versions added.
#[derive(Clone, Debug, PartialEq, TypeGenerator)]
struct Options {
    limit: u32,
    text: String,
    within: Option<Box<Options>>,
    events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, TypeGenerator)]
enum Event {
    Opened(u64),
    Closed { options: Vec<u8>, last: bool },
    Unknown,
}

/// [`Options`] and [`Event`] for serde's derives, as `#[derive(farcall::Grow)]` makes them.
mod body {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "super::Options")]
    pub(super) struct Options {
        limit: u32,
        #[serde(default)]
        text: String,
        #[serde(default)]
        within: Option<Box<super::Options>>,
        #[serde(default)]
        events: Vec<super::Event>,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "super::Event")]
    pub(super) enum Event {
        Opened(u64),
        Closed {
            options: Vec<u8>,
            last: bool,
        },
        #[serde(other)]
        Unknown,
    }
}

macro_rules! growing {
    ($($type:ident $name:literal)*) => {$(
        impl growing::Grow for $type {
            const NAME: &'static str = $name;

            fn serialize_body<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                body::$type::serialize(self, serializer)
            }
        }

        impl<'de> growing::GrowFrom<'de> for $type {
            const NAME: &'static str = $name;

            fn deserialize_body<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                body::$type::deserialize(deserializer)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                growing::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                growing::deserialize(deserializer)
            }
        }
    )*};
}

growing!(Options "$farcall::Growing 1" Event "$farcall::Growing");

/// Decodes `message` as a type that may grow; a value that comes out, with the defaults of what was missing, is written and
/// read back.
fn grows_to_a_value_or_an_error<T>(message: &[u8])
where
    T: Serialize + for<'m> Deserialize<'m> + PartialEq + std::fmt::Debug,
{
    let Ok(value) = decode::<Serde, T>(Reader::borrowed(message)) else { return };
    let again = written::<Serde, T>(&value);
    assert_eq!(decode::<Serde, T>(Reader::borrowed(&again)), Ok(value));
}

fn written<F: Encode<T>, T>(value: &T) -> Vec<u8> {
    let payload = As::<F, T>::new(value);
    let mut bytes = vec![0xaa; encoded_len(&payload).expect("a value that can be encoded")];
    encode(&payload, &mut bytes).expect("as many bytes as announced");
    bytes
}

/// Decodes `message`; a value that comes out is encoded in no more bytes, which decode to the same value.
fn decodes_to_a_value_or_an_error<F, T>(message: &[u8])
where
    F: Encode<T> + for<'m> Decode<'m, T>,
    T: PartialEq + std::fmt::Debug,
{
    let Ok(value) = decode::<F, T>(Reader::borrowed(message)) else { return };
    let again = written::<F, T>(&value);
    assert!(again.len() <= message.len(), "{} bytes from {}", again.len(), message.len());
    assert_eq!(decode::<F, T>(Reader::borrowed(&again)), Ok(value));
}

/// Decodes `message` as each of the types that the targets cover.
fn decodes_as_every_type(message: &[u8]) {
    decodes_to_a_value_or_an_error::<Serde, Record>(message);
    decodes_to_a_value_or_an_error::<Serde, Tree>(message);
    decodes_to_a_value_or_an_error::<Serde, Vec<Option<Unit>>>(message);
    decodes_to_a_value_or_an_error::<Serde, BTreeMap<u32, BTreeMap<String, u8>>>(message);
    decodes_to_a_value_or_an_error::<Seq<Opt<(Raw, Serde)>>, Vec<Option<(Bytes, String)>>>(message);
    decodes_to_a_value_or_an_error::<Seq<Fixed>, Vec<[u8; 3]>>(message);
    decodes_to_a_value_or_an_error::<Seq<Fixed>, Vec<[u8; 0]>>(message);
    decodes_to_a_value_or_an_error::<Raw, ByteBuf>(message);
    decodes_to_a_value_or_an_error::<Whole, Vec<u8>>(message);
    grows_to_a_value_or_an_error::<Options>(message);
    grows_to_a_value_or_an_error::<Vec<Event>>(message);
}

/// Any bytes decode to a value that can be written again, or to an error.
#[test]
fn any_bytes_are_a_value_or_an_error() {
    check!().with_max_len(512).for_each(decodes_as_every_type);
}

/// A message of small numbers (discriminants, lengths, flags), which gets deep into the types, is a value or an error.
#[test]
fn any_small_numbers_are_a_value_or_an_error() {
    check!().with_max_len(512).for_each(|input: &[u8]| {
        let message: Vec<u8> = input.iter().map(|byte| byte % 7).collect();
        decodes_as_every_type(&message);
    });
}

/// Every value is written as postcard writes it, and read back, by serde's form and by the forms of byte strings.
#[test]
fn any_value_is_read_back() {
    check!().with_type::<(Record, Options, Option<Vec<u8>>)>().for_each(
        |(record, options, bytes)| {
            let message = written::<Serde, _>(options);
            assert_eq!(decode::<Serde, Options>(Reader::borrowed(&message)).as_ref(), Ok(options));
            let message = written::<Serde, _>(record);
            assert_eq!(postcard::to_allocvec(record).as_ref(), Ok(&message));
            assert_eq!(decode::<Serde, Record>(Reader::borrowed(&message)).as_ref(), Ok(record));
            let message = written::<Opt<Raw>, _>(bytes);
            assert_eq!(message, written::<Serde, _>(bytes));
            assert_eq!(decode::<Opt<Raw>, _>(Reader::borrowed(&message)).as_ref(), Ok(bytes));
        },
    );
}

/// A value's message with one byte changed, and cut, is a value or an error.
#[test]
fn a_message_with_a_changed_byte_is_a_value_or_an_error() {
    check!().with_type::<(Record, Tree, Options, usize, u8, usize)>().for_each(
        |(record, tree, options, at, byte, cut)| {
            let grown = written::<Serde, _>(options);
            let messages = [written::<Serde, _>(record), written::<Serde, _>(tree), grown];
            for mut message in messages {
                let (at, cut) = (at % message.len(), cut % message.len());
                decodes_as_every_type(&message[..cut]);
                message[at] = *byte;
                decodes_as_every_type(&message);
            }
        },
    );
}

#[test]
fn the_corpus_has_values_of_every_type() {
    let tree = Tree::Branches(vec![
        Tree::Leaf,
        Tree::Boxed(Box::new(Tree::Pair(Box::new(Tree::Leaf), 7))),
        Tree::Named { name: "a".into(), inner: Some(Box::new(Tree::Leaf)) },
        Tree::Table([(1, Tree::Leaf)].into()),
    ]);
    let record = Record {
        text: "text".into(),
        wrapped: Wrapped(vec![-1, 1 << 40]),
        tree: Some(Box::new(tree.clone())),
        table: [("a".to_owned(), Some(3)), ("b".to_owned(), None)].into(),
        ..Record::default()
    };
    let events = vec![Event::Opened(7), Event::Closed { options: vec![1, 2], last: true }];
    let within = Options { limit: 1, text: String::new(), within: None, events: Vec::new() };
    let options = Options { limit: 9, text: "a".into(), within: Some(Box::new(within)), events };
    let (records, trees) = (written::<Serde, _>(&record), written::<Serde, _>(&tree));
    let grown = written::<Serde, _>(&options);
    assert_eq!(decode::<Serde, Record>(Reader::borrowed(&records)), Ok(record));
    assert_eq!(decode::<Serde, Tree>(Reader::borrowed(&trees)), Ok(tree));
    assert_eq!(decode::<Serde, Options>(Reader::borrowed(&grown)), Ok(options));
    let values = [("record", records), ("tree", trees), ("options", grown)];
    let target = "codec::fuzz::any_bytes_are_a_value_or_an_error";
    crate::support::corpus::is_kept(
        "src/codec",
        target,
        values.map(|(name, bytes)| (name.to_owned(), bytes)),
    );
}
