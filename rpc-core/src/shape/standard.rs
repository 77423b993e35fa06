//! The shapes of the standard library's types, as serde encodes them, and of byte strings.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque};
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::ops::{Bound, Range, RangeFrom, RangeInclusive, RangeTo};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime};

use super::{Field, Node, Shape, Variant};

macro_rules! primitive {
    ($($name:literal: $($type:ty),+;)+) => {$($(
        impl Shape for $type {
            const SHAPE: &'static Node = &Node::primitive($name);
        }
    )+)+};
}

primitive! {
    "bool": bool;
    "u8": u8;
    "u16": u16;
    "u32": u32;
    "u64": u64, usize;
    "u128": u128;
    "i8": i8;
    "i16": i16;
    "i32": i32;
    "i64": i64, isize;
    "i128": i128;
    "f32": f32;
    "f64": f64;
    "char": char;
    "str": str, String, Path, PathBuf;
}

/// Types that are encoded as another one.
macro_rules! same {
    ($(impl[$($generics:tt)*] $type:ty = $other:ty;)+) => {$(
        impl<$($generics)*> Shape for $type {
            const SHAPE: &'static Node = <$other as Shape>::SHAPE;
        }
    )+};
}

same! {
    impl[T: Shape + ?Sized] &T = T;
    impl[T: Shape + ?Sized] &mut T = T;
    impl[T: Shape + ?Sized] Box<T> = T;
    impl[T: Shape + ?Sized] Rc<T> = T;
    impl[T: Shape + ?Sized] Arc<T> = T;
    impl[T: Shape + ToOwned + ?Sized] Cow<'_, T> = T;
    impl[T: Shape + ?Sized] Mutex<T> = T;
    impl[T: Shape + ?Sized] RwLock<T> = T;
    impl[T: Shape] Cell<T> = T;
    impl[T: Shape + ?Sized] RefCell<T> = T;
    impl[T: Shape] Wrapping<T> = T;
    impl[T: Shape] Saturating<T> = T;
    impl[T: Shape] Reverse<T> = T;
    impl[T: Shape] Vec<T> = [T];
    impl[T: Shape] VecDeque<T> = [T];
    impl[T: Shape] LinkedList<T> = [T];
    impl[T: Shape] BinaryHeap<T> = [T];
    impl[T: Shape] BTreeSet<T> = [T];
    impl[T: Shape, S] HashSet<T, S> = [T];
    impl[K: Shape, V: Shape] BTreeMap<K, V> = [(K, V)];
    impl[K: Shape, V: Shape, S] HashMap<K, V, S> = [(K, V)];
    impl[T: ?Sized] PhantomData<T> = ();
    impl[] bytes::Bytes = [u8];
    impl[] bytes::BytesMut = [u8];
    impl[] serde_bytes::Bytes = [u8];
    impl[] serde_bytes::ByteBuf = [u8];
    impl[] CStr = [u8];
    impl[] CString = [u8];
    impl[] Ipv4Addr = [u8; 4];
    impl[] Ipv6Addr = [u8; 16];
    impl[] SocketAddrV4 = (Ipv4Addr, u16);
    impl[] SocketAddrV6 = (Ipv6Addr, u16);
}

macro_rules! non_zero {
    ($($type:ty),+) => {$(
        impl Shape for NonZero<$type> {
            const SHAPE: &'static Node = <$type as Shape>::SHAPE;
        }
    )+};
}

non_zero!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl<T: Shape> Shape for [T] {
    const SHAPE: &'static Node = &Node::sequence(T::SHAPE);
}

impl<T: Shape, const N: usize> Shape for [T; N] {
    const SHAPE: &'static Node = &Node::array(T::SHAPE, N);
}

impl<T: Shape> Shape for Option<T> {
    const SHAPE: &'static Node = &Node::option(T::SHAPE);
}

macro_rules! tuple {
    ($($part:ident)*) => {
        impl<$($part: Shape),*> Shape for ($($part,)*) {
            const SHAPE: &'static Node = &Node::tuple(const { &[$($part::SHAPE),*] });
        }
    };
}

tuple!();
tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);
tuple!(A B C D E);
tuple!(A B C D E F);
tuple!(A B C D E F G);
tuple!(A B C D E F G H);
tuple!(A B C D E F G H I);
tuple!(A B C D E F G H I J);
tuple!(A B C D E F G H I J K);
tuple!(A B C D E F G H I J K L);

macro_rules! structure {
    ($(impl[$($generics:tt)*] $type:ty = $name:literal [$($argument:ty)*] { $($field:literal: $part:ty),+ };)+) => {$(
        impl<$($generics)*> Shape for $type {
            const SHAPE: &'static Node = &Node::structure(
                $name,
                const { &[$(<$argument as Shape>::SHAPE),*] },
                const { &[$(Field::new($field, <$part as Shape>::SHAPE)),+] },
            );
        }
    )+};
}

structure! {
    impl[] Duration = "Duration" [] { "secs": u64, "nanos": u32 };
    impl[] SystemTime = "SystemTime" [] { "secs_since_epoch": u64, "nanos_since_epoch": u32 };
    impl[T: Shape] Range<T> = "Range" [T] { "start": T, "end": T };
    impl[T: Shape] RangeInclusive<T> = "RangeInclusive" [T] { "start": T, "end": T };
    impl[T: Shape] RangeFrom<T> = "RangeFrom" [T] { "start": T };
    impl[T: Shape] RangeTo<T> = "RangeTo" [T] { "end": T };
}

macro_rules! enumeration {
    ($(impl[$($generics:tt)*] $type:ty = $name:literal [$($argument:ty)*] { $($variant:literal ($($part:ty)?)),+ };)+) => {$(
        impl<$($generics)*> Shape for $type {
            const SHAPE: &'static Node = &Node::enumeration(
                $name,
                const { &[$(<$argument as Shape>::SHAPE),*] },
                const {
                    &[$(Variant::new($variant, const { &[$(Field::new("", <$part as Shape>::SHAPE))?] })),+]
                },
            );
        }
    )+};
}

enumeration! {
    impl[T: Shape, E: Shape] Result<T, E> = "Result" [T E] { "Ok"(T), "Err"(E) };
    impl[T: Shape] Bound<T> = "Bound" [T] { "Unbounded"(), "Included"(T), "Excluded"(T) };
    impl[] IpAddr = "IpAddr" [] { "V4"(Ipv4Addr), "V6"(Ipv6Addr) };
    impl[] SocketAddr = "SocketAddr" [] { "V4"(SocketAddrV4), "V6"(SocketAddrV6) };
}
