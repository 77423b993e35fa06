//! The shapes that `#[derive(Shape)]` and `#[farcall::service]` make.

use std::collections::HashMap;

use farcall::{Bytes, ServiceClient, Shape};
use serde::{Deserialize, Serialize};

fn shape<T: Shape + ?Sized>() -> u64 {
    T::SHAPE.hash()
}

/// The shapes of the methods of a service, in their order.
fn methods<C: ServiceClient>() -> Vec<u64> {
    C::DESCRIPTION.methods.iter().map(|method| method.shape).collect()
}

macro_rules! types {
    ($($name:ident { $($item:item)+ })+) => {$(
        #[allow(dead_code, unused_imports)]
        mod $name {
            use super::*;
            $(
                #[derive(Serialize, Deserialize, Shape)]
                $item
            )+
        }
    )+};
}

types! {
    before {
        pub(crate) struct Payment { from: u64, to: u64 }
        pub(crate) enum Order { Buy(u32), Sell { amount: u32 }, Cancel }
    }
    swapped {
        pub(crate) struct Payment { to: u64, from: u64 }
        pub(crate) enum Order { Sell { amount: u32 }, Buy(u32), Cancel }
    }
    renamed {
        pub(crate) struct Transfer { from: u64, to: u64 }
        pub(crate) enum Command { Buy(u32), Sell { amount: u32 }, Cancel }
    }
    kept {
        pub(crate) struct Payment { #[serde(rename = "from")] payer: u64, #[serde(alias = "x")] to: u64 }
        pub(crate) enum Order {
            #[serde(rename = "Buy")] Bid(u32),
            Sell { #[serde(rename = "amount")] count: u32 },
            Cancel,
        }
    }
    changed {
        pub(crate) struct Wider { from: u64, to: u32 }
        pub(crate) struct Longer { from: u64, to: u64, at: u64 }
        pub(crate) struct OtherName { from: u64, into: u64 }
        pub(crate) enum Payload { Buy(u64), Sell { amount: u32 }, Cancel }
        pub(crate) enum More { Buy(u32), Sell { amount: u32 }, Cancel, Wait }
        pub(crate) enum VariantName { Buy(u32), Sell { amount: u32 }, Stop }
        pub(crate) enum FieldName { Buy(u32), Sell { size: u32 }, Cancel }
    }
}

/// Found in use: a client that paid 5 to account 1000 was answered "paid 1000 to account 5".
#[test]
fn swapped_fields_are_another_shape_at_any_depth() {
    assert_ne!(shape::<before::Payment>(), shape::<swapped::Payment>());
    assert_ne!(shape::<Vec<Option<before::Payment>>>(), shape::<Vec<Option<swapped::Payment>>>());
    assert_ne!(shape::<before::Order>(), shape::<swapped::Order>());
}

#[test]
fn the_name_of_a_type_does_not_count() {
    assert_eq!(shape::<before::Payment>(), shape::<renamed::Transfer>());
    assert_eq!(shape::<before::Order>(), shape::<renamed::Command>());
}

#[test]
fn serdes_rename_keeps_the_shape_of_a_renamed_field_or_variant() {
    assert_eq!(shape::<before::Payment>(), shape::<kept::Payment>());
    assert_eq!(shape::<before::Order>(), shape::<kept::Order>());
}

#[test]
fn every_other_change_is_another_shape() {
    let mut shapes = vec![
        shape::<before::Payment>(),
        shape::<changed::Wider>(),
        shape::<changed::Longer>(),
        shape::<changed::OtherName>(),
        shape::<before::Order>(),
        shape::<changed::Payload>(),
        shape::<changed::More>(),
        shape::<changed::VariantName>(),
        shape::<changed::FieldName>(),
    ];
    let all = shapes.len();
    shapes.sort_unstable();
    shapes.dedup();
    assert_eq!(shapes.len(), all);
}

types! {
    forms {
        pub(crate) struct Unit;
        pub(crate) struct Meters(u32);
        pub(crate) struct Pair(u32, String);
        #[serde(transparent)]
        pub(crate) struct Transparent { value: u32 }
        pub(crate) struct Skipping(u32, #[serde(skip)] u8);
        #[serde(from = "u32", into = "u32")]
        #[derive(Clone)]
        pub(crate) struct Converted { pub(super) value: u32 }
        pub(crate) struct Borrowed<'a> {
            name: &'a str,
            #[serde(with = "serde_bytes")]
            bytes: &'a [u8],
        }
        pub(crate) struct Owned { name: String, bytes: Vec<u8> }
        pub(crate) struct Page<T, const N: usize> where T: Clone { entries: Vec<(String, T)>, next: Option<T> }
        pub(crate) struct NumberPage { entries: Vec<(String, u64)>, next: Option<u64> }
    }
}

impl From<u32> for forms::Converted {
    fn from(value: u32) -> Self {
        Self { value }
    }
}

impl From<forms::Converted> for u32 {
    fn from(converted: forms::Converted) -> u32 {
        converted.value
    }
}

#[test]
fn a_type_that_is_encoded_as_its_field_has_the_fields_shape() {
    assert_eq!(shape::<forms::Unit>(), shape::<()>());
    assert_eq!(shape::<forms::Meters>(), shape::<u32>());
    assert_eq!(shape::<forms::Pair>(), shape::<(u32, String)>());
    assert_eq!(shape::<forms::Transparent>(), shape::<u32>());
    assert_eq!(shape::<forms::Skipping>(), shape::<u32>());
    assert_eq!(shape::<forms::Converted>(), shape::<u32>());
    assert_eq!(shape::<forms::Borrowed<'_>>(), shape::<forms::Owned>());
    assert_eq!(shape::<forms::Page<u64, 3>>(), shape::<forms::NumberPage>());
    assert_ne!(shape::<forms::Page<u32, 3>>(), shape::<forms::NumberPage>());
    assert_eq!(<forms::Page<u64, 3>>::SHAPE.to_string(), "Page<u64>");
}

types! {
    trees {
        pub(crate) struct Tree { value: u32, children: Vec<Tree> }
        pub(crate) struct Other { value: u64, children: Vec<Self> }
        pub(crate) enum List<T> { End, More(T, Box<List<T>>) }
        pub(crate) struct Chain { next: Option<Box<Chain>>, #[rpc(opaque = "Partner 1")] partner: Option<Box<Partner>> }
        pub(crate) struct Partner { chain: Chain }
    }
}

#[test]
fn a_type_may_contain_itself() {
    assert_ne!(shape::<trees::Tree>(), shape::<trees::Other>());
    assert_ne!(shape::<trees::List<u32>>(), shape::<trees::List<u64>>());
    assert_ne!(shape::<trees::Partner>(), shape::<trees::Chain>());
}

/// A type of another crate, which has no shape.
mod foreign {
    #[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
    pub(crate) struct Uuid(pub(crate) [u8; 16]);
}

use foreign::Uuid;

types! {
    opaque {
        pub(crate) struct ByField { #[rpc(opaque = "uuid::Uuid 1")] id: Uuid }
        #[rpc(opaque(Uuid = "uuid::Uuid 1"))]
        pub(crate) struct ByType { id: Uuid }
        #[rpc(opaque(Uuid = "uuid::Uuid 2"))]
        pub(crate) struct OtherName { id: Uuid }
        #[rpc(opaque(Uuid = "uuid::Uuid 1"))]
        pub(crate) struct Within { ids: HashMap<u32, Vec<Uuid>> }
        #[rpc(opaque = "my::Id 1")]
        pub(crate) struct Id { value: Uuid }
        pub(crate) struct Custom { #[serde(with = "text")] #[rpc(opaque = "number as text")] number: u32 }
    }
}

mod text {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(number: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub(crate) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<u32, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[test]
fn the_encoding_of_a_type_of_another_crate_is_known_by_its_name() {
    assert_eq!(shape::<opaque::ByField>(), shape::<opaque::ByType>());
    assert_ne!(shape::<opaque::ByField>(), shape::<opaque::OtherName>());
    assert_eq!(opaque::Id::SHAPE.to_string(), "opaque \"my::Id 1\"");
    assert_ne!(shape::<opaque::Within>(), shape::<opaque::Custom>());
}

macro_rules! services {
    ($($name:ident { $($method:item)+ })+) => {$(
        #[allow(dead_code, unused_imports)]
        mod $name {
            use super::*;
            #[farcall::service(name = "Bank", opaque(Uuid = "uuid::Uuid 1"))]
            pub(crate) trait Bank { $($method)+ }
        }
    )+};
}

services! {
    bank {
        fn pay(&self, account: u64, amount: u64) -> Result<(), String>;
        fn transfer(&self, payment: before::Payment) -> u64;
        fn find(&self, key: &[u8]) -> Option<Uuid>;
    }
    // The same, spelled differently.
    respelled {
        async fn find(&self, name: Bytes) -> Option<Uuid>;
        fn transfer(&self, what: &renamed::Transfer) -> usize;
        fn pay(&self, #[rpc(name = "account")] to: u64, amount: u64) -> Result<(), Box<str>>;
    }
    misread {
        fn pay(&self, amount: u64, account: u64) -> Result<(), String>;
        fn transfer(&self, payment: swapped::Payment) -> u64;
        fn find(&self, key: &[u8]) -> Option<Uuid>;
    }
    results {
        fn pay(&self, account: u64, amount: u64) -> Result<(), u8>;
        fn transfer(&self, payment: before::Payment) -> Result<u64, ()>;
        fn find(&self, #[rpc(opaque = "key 1")] key: &[u8]) -> Option<Uuid>;
    }
}

#[test]
fn a_service_that_encodes_the_same_has_the_same_fingerprint() {
    let (old, new) = (bank::BankClient::DESCRIPTION, respelled::BankClient::DESCRIPTION);
    assert_eq!(old.fingerprint, new.fingerprint);
    let mut shapes = methods::<respelled::BankClient>();
    shapes.reverse();
    assert_eq!(methods::<bank::BankClient>(), shapes);
}

#[test]
fn a_changed_method_leaves_the_shapes_of_the_others() {
    let old = methods::<bank::BankClient>();
    let misread = methods::<misread::BankClient>();
    assert_ne!(old[0], misread[0], "swapped arguments");
    assert_ne!(old[1], misread[1], "swapped fields of an argument");
    assert_eq!(old[2], misread[2]);
    let results = methods::<results::BankClient>();
    assert!((0..3).all(|method| old[method] != results[method]));
    let fingerprints = [
        bank::BankClient::DESCRIPTION.fingerprint,
        misread::BankClient::DESCRIPTION.fingerprint,
        results::BankClient::DESCRIPTION.fingerprint,
    ];
    assert!(fingerprints[0] != fingerprints[1] && fingerprints[1] != fingerprints[2]);
}

services! {
    whole {
        fn alone(&self, bytes: &[u8]) -> Vec<u8>;
        fn hidden(&self, bytes: Hidden) -> Hidden;
        fn within(&self, bytes: Option<Bytes>) -> (Vec<u8>, u8);
        fn hidden_within(&self, bytes: Option<Hidden>) -> (Hidden, u8);
    }
}

type Hidden = Vec<u8>;

/// A byte string alone is the whole message; if its type has another name, its length is in front.
#[test]
fn a_byte_string_alone_has_a_shape_of_its_own() {
    let shapes = methods::<whole::BankClient>();
    assert_ne!(shapes[0], shapes[1]);
    assert_eq!(shapes[2], shapes[3]);
}

services! {
    once { fn get(&self); }
    often { #[rpc(idempotent)] fn get(&self); }
}

#[test]
fn whether_a_method_is_idempotent_counts_in_the_fingerprint_and_not_in_the_shape() {
    assert_eq!(methods::<once::BankClient>(), methods::<often::BankClient>());
    let (once, often) = (once::BankClient::DESCRIPTION, often::BankClient::DESCRIPTION);
    assert_ne!(once.fingerprint, often.fingerprint);
}

/// A change of one of these numbers breaks every client that was built before it.
#[test]
fn derived_shapes_stay_the_same_from_release_to_release() {
    let shapes = [
        shape::<before::Payment>(),
        shape::<before::Order>(),
        shape::<trees::Tree>(),
        shape::<trees::List<u32>>(),
        shape::<opaque::Within>(),
        bank::BankClient::DESCRIPTION.fingerprint,
        whole::BankClient::DESCRIPTION.fingerprint,
    ];
    let pinned = [
        9750951002598499476,
        4446563223630278417,
        10963776138083903118,
        1321558797945014052,
        8068782323356206609,
        582219902376979964,
        10422779955051721581,
    ];
    assert_eq!(shapes, pinned);
}

services! {
    locked {
        fn pay(&self, payment: before::Payment, tags: Vec<Option<before::Order>>) -> Result<(), String>;
        #[rpc(idempotent)]
        fn find(&self, key: &[u8]) -> Option<Uuid>;
        fn tree(&self) -> trees::Tree;
        fn page(&self, page: forms::Page<u64, 1>, other: swapped::Payment) -> (u8, [f32; 2]);
    }
}

const LOCK: &str = include_str!("support/bank.lock");

#[test]
fn a_lock_file_shows_methods_with_their_types() {
    assert_eq!(farcall::lock::text::<locked::BankClient>(), LOCK);
    let lock = farcall::lock::Lock::parse(LOCK).unwrap();
    assert_eq!(farcall::lock::Compatibility::of(&lock, &lock).changes(), []);
}

#[test]
fn a_service_that_differs_from_its_lock_file_fails_with_what_the_change_breaks() {
    let failure = |path: &'static str| {
        let checked = std::panic::catch_unwind(|| {
            farcall::lock::assert_unchanged::<bank::BankClient>(path);
        });
        *checked.unwrap_err().downcast::<String>().unwrap()
    };
    let changed = failure("tests/support/bank.lock");
    assert!(changed.contains("tree is removed"), "{changed}");
    assert!(changed.contains("transfer is added (new clients fail at old servers)"), "{changed}");
    assert!(changed.contains("FARCALL_UPDATE_LOCK=1"), "{changed}");
    let missing = failure("tests/support/no_such.lock");
    assert!(missing.contains("FARCALL_UPDATE_LOCK=1"), "{missing}");
}
