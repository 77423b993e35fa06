use std::borrow::Cow;

use ::bytes::Bytes;
use ::serde::{Deserialize, Serialize};
use proptest::prelude::*;
use serde_bytes::ByteBuf;

use super::*;

fn written<F: Encode<T>, T: ?Sized>(value: &T) -> Vec<u8> {
    let payload = As::<F, T>::new(value);
    let mut bytes = vec![0xAA; encoded_len(&payload).unwrap()];
    encode(&payload, &mut bytes).unwrap();
    bytes
}

fn read<'m, F: Decode<'m, T>, T>(message: &'m [u8]) -> Result<T, DecodeError> {
    decode::<F, T>(Reader::borrowed(message))
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Nothing,
    Point(i32, i64),
    Named { name: String, inner: Option<Box<Shape>> },
}

fn shapes() -> impl Strategy<Value = Shape> {
    let leaf = prop_oneof![
        Just(Shape::Nothing),
        any::<(i32, i64)>().prop_map(|(x, y)| Shape::Point(x, y)),
    ];
    leaf.prop_recursive(5, 20, 1, |inner| {
        (".*", proptest::option::of(inner))
            .prop_map(|(name, inner)| Shape::Named { name, inner: inner.map(Box::new) })
    })
}

fn byte_strings() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::collection::vec(any::<u8>(), 120..140),
        proptest::collection::vec(any::<u8>(), 1000..1100),
        proptest::collection::vec(any::<u8>(), 16_380..16_390),
    ]
}

proptest! {
    #[test]
    fn serde_types_come_back(shape in shapes()) {
        let bytes = written::<Serde, _>(&shape);
        prop_assert_eq!(read::<Serde, Shape>(&bytes), Ok(shape));
    }

    #[test]
    fn byte_strings_come_back_as_each_of_their_types(value in byte_strings()) {
        let bytes = written::<Raw, _>(&value);
        prop_assert_eq!(&bytes, &written::<Raw, _>(&Bytes::from(value.clone())));
        prop_assert_eq!(read::<Raw, &[u8]>(&bytes), Ok(&value[..]));
        prop_assert_eq!(read::<Raw, Bytes>(&bytes), Ok(Bytes::from(value.clone())));
        prop_assert_eq!(read::<Raw, ByteBuf>(&bytes), Ok(ByteBuf::from(value.clone())));
        prop_assert_eq!(read::<Raw, Cow<'_, [u8]>>(&bytes), Ok(Cow::Borrowed(&value[..])));
        prop_assert_eq!(read::<Raw, Box<[u8]>>(&bytes), Ok(value.clone().into_boxed_slice()));
        prop_assert_eq!(read::<Raw, Vec<u8>>(&bytes), Ok(value));
    }

    #[test]
    fn forms_write_what_serde_writes(
        key in byte_strings(),
        parts in proptest::collection::vec(byte_strings(), 0..5),
        pair in proptest::option::of((byte_strings(), any::<u64>())),
        array in any::<[u8; 16]>(),
    ) {
        prop_assert_eq!(written::<Raw, _>(&key), written::<Serde, _>(&key));
        prop_assert_eq!(written::<Seq<Raw>, _>(&parts), written::<Serde, _>(&parts));
        prop_assert_eq!(written::<Seq<Raw>, &[_]>(&&parts[..]), written::<Serde, _>(&parts));
        prop_assert_eq!(written::<Opt<(Raw, Serde)>, _>(&pair), written::<Serde, _>(&pair));
        prop_assert_eq!(written::<Fixed, _>(&array), written::<Serde, _>(&array));
        prop_assert_eq!(read::<Seq<Raw>, Vec<Vec<u8>>>(&written::<Serde, _>(&parts)), Ok(parts));
        prop_assert_eq!(read::<Opt<(Raw, Serde)>, Option<(Vec<u8>, u64)>>(&written::<Serde, _>(&pair)), Ok(pair));
        prop_assert_eq!(read::<Fixed, &[u8; 16]>(&array), Ok(&array));
    }

    #[test]
    fn several_arguments_share_a_message(key in byte_strings(), number in any::<i128>(), text in ".*", flag in any::<bool>()) {
        let payload = (
            As::<Raw, _>::new(&key),
            As::<Serde, _>::new(&number),
            As::<Serde, _>::new(&text),
            As::<Serde, _>::new(&flag),
        );
        let mut bytes = vec![0; encoded_len(&payload).unwrap()];
        encode(&payload, &mut bytes).unwrap();
        let mut reader = Reader::borrowed(&bytes);
        prop_assert_eq!(Raw::read(&mut reader), Ok(&key[..]));
        prop_assert_eq!(Serde::read(&mut reader), Ok(number));
        prop_assert_eq!(Serde::read(&mut reader), Ok(text.as_str()));
        prop_assert_eq!(Serde::read(&mut reader), Ok(flag));
        prop_assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn garbage_is_an_error_or_a_value_but_never_a_panic(garbage in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = read::<Serde, Shape>(&garbage);
        let _ = read::<Seq<Opt<(Raw, Serde)>>, Vec<Option<(Bytes, String)>>>(&garbage);
        let _ = read::<Seq<Fixed>, Vec<[u8; 3]>>(&garbage);
        let _ = read::<Serde, Vec<(u16, char, f64, Option<bool>)>>(&garbage);
    }

    #[test]
    fn a_message_cut_anywhere_is_refused(shape in shapes(), key in byte_strings(), cut in any::<prop::sample::Index>()) {
        let value = (key, shape);
        let bytes = written::<(Raw, Serde), _>(&value);
        let cut = cut.index(bytes.len());
        let result = read::<(Raw, Serde), (Vec<u8>, Shape)>(&bytes[..cut]);
        let is_truncated = matches!(result, Err(DecodeError::Truncated { .. }));
        prop_assert!(is_truncated, "{:?}", result);
    }

    #[test]
    fn lengths_take_as_many_bytes_as_was_said(shift in 0..usize::BITS, low in any::<u16>()) {
        let length = (1_usize << shift).wrapping_add(usize::from(low));
        let mut bytes = vec![0; writer::length_size(length)];
        let mut writer = Writer::new(&mut bytes);
        writer.put_length(length).unwrap();
        writer.finish().unwrap();
        let mut reader = Reader::borrowed(&bytes);
        prop_assert_eq!(reader.take_length(), Ok(length));
        prop_assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn a_lone_byte_string_is_the_message() {
    assert_eq!(written::<Whole, _>(&b"abc"[..]), b"abc");
    assert_eq!(read::<Whole, &[u8]>(b"abc"), Ok(&b"abc"[..]));
    assert_eq!(read::<Whole, Bytes>(b""), Ok(Bytes::new()));
}

#[test]
fn long_bytes_share_the_message_they_came_in() {
    let value = vec![7_u8; 100_000];
    let message = Bytes::from(written::<Opt<(Raw, Raw)>, _>(&Some((&b"key"[..], &value[..]))));
    let within = |bytes: &Bytes| message.as_ptr_range().contains(&bytes.as_ptr());
    let (key, shared) = decode::<Opt<(Raw, Raw)>, Option<(Bytes, Bytes)>>(Reader::owned(&message))
        .unwrap()
        .unwrap();
    assert_eq!((&key[..], &shared[..]), (&b"key"[..], &value[..]));
    assert!(within(&shared), "a large value is not copied");
    assert!(!within(&key), "a short key does not keep the message alive");

    let whole = decode::<Whole, Bytes>(Reader::owned(&message)).unwrap();
    assert_eq!(whole.as_ptr(), message.as_ptr());
}

#[test]
fn bytes_left_over_are_refused() {
    assert_eq!(read::<Serde, u8>(&[1, 2, 3]), Err(DecodeError::Trailing { left: 2 }));
    assert_eq!(read::<Raw, &[u8]>(&[1, 2, 3]), Err(DecodeError::Trailing { left: 1 }));
}

#[test]
fn lengths_beyond_the_message_are_refused_before_memory_is_taken() {
    let huge = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
    let is_truncated = |result| matches!(result, Err(DecodeError::Truncated { .. }));
    assert!(is_truncated(read::<Raw, Vec<u8>>(&huge).map(drop)));
    assert!(is_truncated(read::<Seq<Raw>, Vec<Bytes>>(&huge).map(drop)));
    assert_eq!(read::<Fixed, [u8; 3]>(&[1, 2, 3]), Ok([1, 2, 3]));
    let missing_two = read::<Seq<Fixed>, Vec<[u8; 1]>>(&[3, 7]);
    assert_eq!(missing_two, Err(DecodeError::Truncated { missing: 2 }));
    assert!(is_truncated(read::<Serde, Vec<u64>>(&huge).map(drop)));
    assert!(is_truncated(read::<Serde, String>(&huge).map(drop)));
}

#[test]
fn lengths_that_do_not_end_are_refused() {
    let endless = [0xFF; 11];
    assert!(matches!(read::<Raw, &[u8]>(&endless), Err(DecodeError::Format(_))));
    let beyond = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F];
    assert!(matches!(read::<Raw, &[u8]>(&beyond), Err(DecodeError::Format(_))));
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Everything {
    small: (u8, i8, bool, char),
    numbers: (u16, i16, u32, i32, u64, i64, u128, i128),
    floats: (f32, f64),
    text: String,
    bytes: ByteBuf,
    nothing: (),
    unit: Unit,
    newtype: Newtype,
    map: std::collections::BTreeMap<String, Option<i16>>,
    list: Vec<Newtype>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Newtype(u64);

proptest! {
    #[test]
    fn what_is_read_is_what_postcard_reads(
        small in any::<(u8, i8, bool, char)>(),
        numbers in any::<(u16, i16, u32, i32, u64, i64, u128, i128)>(),
        floats in (-1e30_f32..1e30, -1e300_f64..1e300),
        text in ".*",
        bytes in byte_strings(),
        map in proptest::collection::btree_map(".*", any::<Option<i16>>(), 0..4),
        list in proptest::collection::vec(any::<u64>().prop_map(Newtype), 0..4),
    ) {
        let bytes = ByteBuf::from(bytes);
        let newtype = Newtype(numbers.4);
        let value = Everything { small, numbers, floats, text, bytes, map, list, newtype, ..Everything::default() };
        let message = written::<Serde, _>(&value);
        prop_assert_eq!(postcard::from_bytes::<Everything>(&message), Ok(value.clone()));
        prop_assert_eq!(read::<Serde, Everything>(&message), Ok(value));
    }

    #[test]
    fn what_postcard_refuses_is_refused(garbage in proptest::collection::vec(any::<u8>(), 0..200)) {
        let theirs = postcard::take_from_bytes::<Everything>(&garbage).ok();
        let mut reader = Reader::borrowed(&garbage);
        let ours = Serde::read(&mut reader).ok();
        prop_assert_eq!(theirs.map(|(value, rest)| (value, rest.len())), ours.map(|value: Everything| (value, reader.remaining())));
    }

    #[test]
    fn numbers_are_read_as_postcard_reads_them(bytes in proptest::collection::vec(prop_oneof![Just(0x80_u8), Just(0xFF), any::<u8>()], 0..21)) {
        fn agree<'m, T: Deserialize<'m> + PartialEq + std::fmt::Debug>(bytes: &'m [u8]) {
            assert_eq!(read::<Serde, T>(bytes).ok(), postcard::take_from_bytes::<T>(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value));
        }
        for end in 0..=bytes.len() {
            let bytes = &bytes[..end];
            agree::<u16>(bytes);
            agree::<i16>(bytes);
            agree::<u32>(bytes);
            agree::<i32>(bytes);
            agree::<u64>(bytes);
            agree::<i64>(bytes);
            agree::<u128>(bytes);
            agree::<i128>(bytes);
            // Of several characters postcard reads the first and drops the others; here they are refused.
            let text = postcard::take_from_bytes::<&str>(bytes).ok().filter(|(_, rest)| rest.is_empty());
            let mut chars = text.map_or("", |(text, _)| text).chars();
            let only = chars.next().filter(|_| chars.as_str().is_empty());
            assert_eq!(read::<Serde, char>(bytes).ok(), only);
        }
    }
}

#[test]
fn several_characters_are_no_char() {
    assert_eq!(read::<Serde, char>(b"\x01a"), Ok('a'));
    let refused = Err(DecodeError::Format("a char is not one"));
    assert_eq!(read::<Serde, char>(b"\x02ab"), refused);
    assert_eq!(read::<Serde, char>(b"\x00"), refused);
}

#[test]
fn a_value_nested_too_deep_is_refused_before_the_stack_ends() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum List {
        End,
        More(Box<List>),
    }
    let nested = |depth: usize| {
        let mut message = vec![1; depth];
        message.push(0);
        message
    };
    assert!(read::<Serde, List>(&nested(100)).is_ok());
    assert_eq!(read::<Serde, List>(&nested(10_000_000)), Err(DecodeError::TooDeep { limit: 128 }));
}

/// Each of these types contains itself by one kind of value only, so that no other kind stops it.
mod nested_by {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(transparent)]
    pub(super) struct Option_(pub(super) Option<Box<Option_>>);

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(transparent)]
    pub(super) struct Sequence(pub(super) Vec<Sequence>);

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(transparent)]
    pub(super) struct Map(pub(super) std::collections::BTreeMap<u8, Map>);

    /// Has no end.
    #[derive(Debug, PartialEq, Deserialize)]
    pub(super) struct Newtype(pub(super) Box<Newtype>);

    /// Has no end.
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(transparent)]
    pub(super) struct Tuple(pub(super) (Box<Tuple>,));
}

#[test]
fn values_of_each_kind_are_refused_when_they_are_nested_too_deep() {
    use nested_by::{Map, Newtype, Option_, Sequence, Tuple};

    /// Values in values, each with one inside, and the innermost with none.
    fn nested(depth: usize, one: &[u8]) -> Vec<u8> {
        [one.repeat(depth), vec![0]].concat()
    }
    const TOO_DEEP: DecodeError = DecodeError::TooDeep { limit: 128 };
    assert!(read::<Serde, Option_>(&nested(100, &[1])).is_ok());
    assert_eq!(read::<Serde, Option_>(&nested(1000, &[1])), Err(TOO_DEEP));
    assert!(read::<Serde, Sequence>(&nested(100, &[1])).is_ok());
    assert_eq!(read::<Serde, Sequence>(&nested(1000, &[1])), Err(TOO_DEEP));
    assert!(read::<Serde, Map>(&nested(100, &[1, 7])).is_ok());
    assert_eq!(read::<Serde, Map>(&nested(1000, &[1, 7])), Err(TOO_DEEP));
    assert_eq!(read::<Serde, Newtype>(&[]), Err(TOO_DEEP));
    assert_eq!(read::<Serde, Tuple>(&[]), Err(TOO_DEEP));
}

#[test]
fn elements_that_take_no_bytes_cannot_keep_a_server_busy() {
    assert_eq!(read::<Serde, Vec<()>>(&[3]), Ok(vec![(); 3]));
    let endless = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F];
    assert!(matches!(read::<Serde, Vec<Unit>>(&endless), Err(DecodeError::Format(_))));
    assert!(matches!(read::<Serde, Vec<Vec<()>>>(&endless), Err(DecodeError::Truncated { .. })));
}

#[test]
fn a_refusal_of_the_type_is_told_but_not_at_any_length() {
    let long = written::<Serde, _>(&"x".repeat(10_000));
    struct Picky;
    impl<'de> Deserialize<'de> for Picky {
        fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            Err(::serde::de::Error::custom(format_args!("no such thing: {text}")))
        }
    }
    let Err(DecodeError::Refused(text)) = read::<Serde, Picky>(&long) else {
        panic!("it was accepted")
    };
    assert!(text.starts_with("no such thing: xx") && text.len() <= 200);
}

#[test]
fn a_type_that_is_not_deterministic_is_caught() {
    struct Growing(std::cell::Cell<usize>);
    impl Serialize for Growing {
        fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.set(self.0.get() + 1);
            serializer.serialize_bytes(&vec![0; self.0.get()])
        }
    }
    let growing = Growing(std::cell::Cell::new(0));
    let payload = As::<Serde, _>::new(&growing);
    let mut bytes = vec![0; encoded_len(&payload).unwrap()];
    assert!(matches!(encode(&payload, &mut bytes), Err(EncodeError::Unstable { promised: 2, .. })));
    let mut bytes = [0; 20];
    assert!(matches!(
        encode(&payload, &mut bytes),
        Err(EncodeError::Unstable { promised: 20, found: 4 })
    ));
}

#[test]
fn a_type_that_needs_a_self_describing_format_is_refused_when_written() {
    #[derive(Serialize)]
    struct Outer {
        #[serde(flatten)]
        inner: std::collections::BTreeMap<String, u8>,
    }
    let outer = Outer { inner: [("a".to_owned(), 1)].into() };
    assert_eq!(encoded_len(&As::<Serde, _>::new(&outer)), Err(EncodeError::Unsupported));
}

#[test]
fn what_fuzz_targets_leave_out_is_written_as_postcard_writes_it() {
    struct Text(u32);

    impl Serialize for Text {
        fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(&format_args!("{}-{}", self.0, "é".repeat(100)))
        }
    }

    #[track_caller]
    fn check<T: Serialize>(value: &T) {
        assert_eq!(Ok(written::<Serde, _>(value)), postcard::to_allocvec(value));
    }

    check(&(1.5_f32, f64::MIN, f64::NAN.to_bits(), 'é', "é", ()));
    check(&Text(7));
    check(&(u128::MAX, i128::MIN, i128::MAX, u64::MAX, i64::MIN, i16::MIN, i8::MIN));
    check(&[Some(Shape::Nothing), Some(Shape::Point(-1, 300)), None]);
}
