use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::ops::Bound;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_bytes::ByteBuf;

use super::{Field, Kind, Node, Shape, Signature, Variant};
use crate::codec::{As, Serde, encode, encoded_len};

/// Reads a value of this shape from the front of the bytes, as far as it reaches.
fn skip<'b>(node: &Node, bytes: &'b [u8]) -> &'b [u8] {
    let fields = |fields: &[Field], bytes| fields.iter().fold(bytes, |rest, f| skip(f.node, rest));
    match node.kind() {
        Kind::Primitive("bool" | "u8" | "i8") => &bytes[1..],
        Kind::Primitive("f32") => &bytes[4..],
        Kind::Primitive("f64") => &bytes[8..],
        Kind::Primitive("str" | "char") => {
            let (len, rest) = number(bytes);
            &rest[len..]
        }
        Kind::Primitive(_) => number(bytes).1,
        Kind::Sequence(element) => {
            let (len, rest) = number(bytes);
            (0..len).fold(rest, |rest, _| skip(element, rest))
        }
        Kind::Option(value) => match bytes[0] {
            0 => &bytes[1..],
            _ => skip(value, &bytes[1..]),
        },
        Kind::Array(element, len) => (0..*len).fold(bytes, |rest, _| skip(element, rest)),
        Kind::Tuple(parts) => parts.iter().fold(bytes, |rest, part| skip(part, rest)),
        Kind::Struct(_, parts) => fields(parts, bytes),
        Kind::Enum(_, variants) => {
            let (variant, rest) = number(bytes);
            fields(variants[variant].fields, rest)
        }
        Kind::Growing(_) => {
            let (len, rest) = number(bytes);
            &rest[len..]
        }
        other => panic!("not the shape of a value: {other:?}"),
    }
}

/// A number of seven bits in each byte.
fn number(bytes: &[u8]) -> (usize, &[u8]) {
    let len = 1 + bytes.iter().take_while(|byte| **byte >= 0x80).count();
    let number = bytes[..len].iter().rev().fold(0, |n: usize, b| n << 7 | usize::from(b & 0x7f));
    (number, &bytes[len..])
}

fn encoded<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let payload = As::<Serde, T>::new(value);
    let mut bytes = vec![0; encoded_len(&payload).unwrap()];
    encode(&payload, &mut bytes).unwrap();
    bytes
}

/// The shape of the value's type reads exactly the bytes that serde writes for it.
#[track_caller]
fn check<T: Serialize + Shape + Debug + ?Sized>(value: &T) {
    let bytes = encoded(value);
    let rest = skip(T::SHAPE, &bytes);
    assert!(rest.is_empty(), "{value:?}: {} is not the shape of {bytes:?}", T::SHAPE);
}

#[test]
fn shapes_of_standard_types_say_how_serde_encodes_them() {
    check(&true);
    check(&(1_u8, 300_u16, 70_000_u32, u64::MAX, u32::MAX as usize));
    check(&(-1_i8, -300_i16, i32::MIN, i64::MIN, -1_isize));
    check(&(1.5_f32, 2.5_f64, 'é'));
    check("text");
    check(&(String::from("text"), PathBuf::from("/a/b")));
    check(&vec![1_u32, 200, 70_000]);
    check(&[Some(1_u64), None]);
    check(&(1..300_u32, 1..=300_u32, Bound::Included(7_u8), Bound::<u8>::Unbounded));
    check(&BTreeMap::from([(1_u32, "one"), (300, "more")]));
    check(&HashMap::from([("a".to_owned(), vec![1_u8])]));
    check(&(BTreeSet::from([1_u8]), VecDeque::from([1_u16])));
    check(&(Box::new(1_u8), Cow::Borrowed("cow"), Cell::new(3_u8), NonZero::new(7_u32)));
    check(&[Ok::<u8, String>(1), Err("no".to_owned())]);
    check(&(Duration::from_millis(1_500), SystemTime::now()));
    for address in ["192.168.0.1", "fe80::1"] {
        let ip: IpAddr = address.parse().unwrap();
        check(&(ip, SocketAddr::new(ip, 8080)));
    }
    check(&(bytes::Bytes::from_static(b"abc"), ByteBuf::from(b"def"), c"ghi"));
    check(&((), std::marker::PhantomData::<String>));
    check(&(1_u8, 2_u8, 3_u8, 4_u8, 5_u8, 6_u8, 7_u8, 8_u8, 9_u8, 10_u8, 11_u8, 12_u8));
}

fn hash<T: Shape + ?Sized>() -> u64 {
    T::SHAPE.hash()
}

#[test]
fn types_that_are_encoded_in_the_same_way_have_the_same_shape() {
    assert_eq!(hash::<&str>(), hash::<String>());
    assert_eq!(hash::<&[u8]>(), hash::<bytes::Bytes>());
    assert_eq!(hash::<Vec<u8>>(), hash::<ByteBuf>());
    assert_eq!(hash::<&[u32]>(), hash::<Vec<u32>>());
    assert_eq!(hash::<Box<Option<u8>>>(), hash::<Option<Cow<'_, u8>>>());
    assert_eq!(hash::<usize>(), hash::<u64>());
    assert_eq!(hash::<HashMap<u8, u16>>(), hash::<Vec<(u8, u16)>>());
}

#[test]
fn types_that_are_encoded_differently_have_different_shapes() {
    let mut hashes = vec![
        hash::<()>(),
        hash::<bool>(),
        hash::<u8>(),
        hash::<i8>(),
        hash::<u16>(),
        hash::<u32>(),
        hash::<i32>(),
        hash::<f32>(),
        hash::<f64>(),
        hash::<char>(),
        hash::<str>(),
        hash::<(u8,)>(),
        hash::<(u8, u16)>(),
        hash::<(u16, u8)>(),
        hash::<((u8, u16),)>(),
        hash::<[u8; 3]>(),
        hash::<[u8; 4]>(),
        hash::<[u8]>(),
        hash::<Vec<u16>>(),
        hash::<Vec<Vec<u8>>>(),
        hash::<Option<u8>>(),
        hash::<Option<Option<u8>>>(),
        hash::<Result<u8, u16>>(),
        hash::<Result<u16, u8>>(),
        hash::<Duration>(),
        hash::<SystemTime>(),
        hash::<IpAddr>(),
        hash::<SocketAddr>(),
        Node::whole().hash(),
        Node::opaque("u8").hash(),
        Node::enclosing("u8").hash(),
    ];
    let all = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), all);
}

/// A change of one of these numbers breaks every client that was built before it.
#[test]
fn hashes_stay_the_same_from_release_to_release() {
    let one = const { &[Field::new("a", u8::SHAPE)] };
    let two = const { &[Field::new("a", u8::SHAPE), Field::new("b", u8::SHAPE)] };
    let hashes = [
        hash::<u32>(),
        hash::<HashMap<String, Vec<Option<[f64; 3]>>>>(),
        hash::<Result<(u8, Duration), IpAddr>>(),
        VARIANTS.hash(),
        Node::opaque("uuid 1").hash(),
        Node::whole().hash(),
        Node::enclosing("Tree").hash(),
        Node::growing(&VARIANTS).hash(),
        Signature::new(&[], u8::SHAPE, None).hash(),
        Signature::new(one, u8::SHAPE, Some(<()>::SHAPE)).hash(),
        Signature::new(two, u8::SHAPE, None).hash(),
    ];
    let pinned = [
        8242420691754438348,
        292026569108873723,
        7824073272348646717,
        14001366300049550952,
        2895681385497602196,
        2794507480551145873,
        15216704305340232811,
        6176700558851901218,
        10747235024136072825,
        14079688740432470891,
        16089575951012046072,
    ];
    assert_eq!(hashes, pinned);
}

#[test]
fn what_a_growing_type_gets_later_does_not_count() {
    const B: Field = Field::new("b", u8::SHAPE);
    let node = |fields: &'static [Field]| -> &'static Node {
        Box::leak(Box::new(Node::structure("Options", &[], fields)))
    };
    let first = node(const { &[Field::new("a", u8::SHAPE)] });
    let second = node(const { &[Field::new("a", u8::SHAPE), B.since(2)] });
    let other = node(const { &[Field::new("a", u8::SHAPE), B] });
    assert_eq!(first.hash(), second.hash());
    assert_ne!(first.hash(), other.hash());
    assert_ne!(Node::growing(first).hash(), first.hash());
    assert_eq!(Node::growing(first).hash(), Node::growing(second).hash());
    let variants = |variants: &'static [Variant]| Node::enumeration("Event", &[], variants).hash();
    let opened = const { &[Variant::new("Opened", &[])] };
    let moved = const { &[Variant::new("Opened", &[]), Variant::new("Moved", &[]).since(2)] };
    assert_eq!(variants(opened), variants(moved));
}

static VARIANTS: Node = Node::enumeration(
    "Event",
    &[],
    const {
        &[
            Variant::new("Opened", &[]),
            Variant::new("Moved", const { &[Field::new("x", i32::SHAPE)] }),
        ]
    },
);

#[test]
fn shapes_are_written_as_types_are() {
    assert_eq!(
        <HashMap<String, Vec<Option<[f64; 3]>>>>::SHAPE.to_string(),
        "[(str, [Option<[f64; 3]>])]"
    );
    assert_eq!(<(&[u8], (u8,), ())>::SHAPE.to_string(), "(bytes, (u8,), ())");
    assert_eq!(<Result<Duration, IpAddr>>::SHAPE.to_string(), "Result<Duration, IpAddr>");
    assert_eq!(VARIANTS.to_string(), "Event");
    assert_eq!(Node::opaque("uuid 1").to_string(), "opaque \"uuid 1\"");
}

#[test]
fn the_name_of_an_argument_counts_if_there_are_others() {
    let lone = |name| Signature::new(leak([Field::new(name, u64::SHAPE)]), <()>::SHAPE, None);
    assert_eq!(lone("key").hash(), lone("name").hash());
    let two = |first, second| {
        let fields = leak([Field::new(first, u64::SHAPE), Field::new(second, u64::SHAPE)]);
        Signature::new(fields, <()>::SHAPE, None).hash()
    };
    assert_ne!(two("account", "amount"), two("amount", "account"));
    assert_eq!(two("account", "amount"), two("account", "amount"));
}

fn leak<const N: usize>(fields: [Field; N]) -> &'static [Field] {
    Box::leak(Box::new(fields))
}
