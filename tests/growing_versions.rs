//! Values of types that grow, written by each version and read by each other one. In every place of a struct is a field that
//! takes no bytes: such a field at a value's end is not a missing one.

use std::fmt::Debug;

use farcall::{Grow, Server};
use farcall_core::codec::{As, DecodeError, Reader, Serde, decode, encoded};
use proptest::collection::vec;
use proptest::prelude::{any, proptest};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, farcall::Shape)]
struct Unit;

/// A struct that may grow, and takes a byte: its length.
#[derive(Clone, Debug, Default, PartialEq, Grow)]
struct Empty {}

/// A struct that may grow, and in its first version had only what takes no bytes.
mod bare {
    use std::marker::PhantomData;

    use super::{Grow, Unit};

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(super) struct V1 {
        pub(super) unit: Unit,
        pub(super) none: [u16; 0],
    }

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(super) struct V2 {
        pub(super) unit: Unit,
        pub(super) none: [u16; 0],
        #[rpc(since = 2)]
        pub(super) phantom: PhantomData<u8>,
        #[rpc(since = 3, default = 7)]
        pub(super) number: u32,
    }
}

/// A page in each of its versions, and what holds one.
macro_rules! versions {
    ($($version:ident $inner:ident { $($field:ident: $type:ty, $since:literal;)* })*) => {$(
        mod $version {
            use std::marker::PhantomData;

            use super::{Grow, Unit, bare};

            #[derive(Clone, Debug, PartialEq, Grow)]
            pub(super) struct Page {
                pub(super) nothing: (),
                pub(super) number: u32,
                pub(super) inner: bare::$inner,
                #[serde(skip)]
                pub(super) cached: u64,
                pub(super) reserved: (),
                pub(super) none: [String; 0],
                pub(super) phantom: PhantomData<String>,
                pub(super) units: (Unit, ((), [u8; 0])),
                $(#[rpc(since = $since)] pub(super) $field: $type,)*
            }

            #[derive(Clone, Debug, PartialEq, Grow)]
            pub(super) enum Leaf {
                Nothing(()),
                Units { one: Unit, none: [u16; 0] },
                Page(Page, [u8; 0]),
                #[rpc(unknown)]
                Unknown,
            }

            pub(super) fn page(number: u32) -> Page {
                Page {
                    nothing: (),
                    number,
                    inner: inner(number),
                    cached: 0,
                    reserved: (),
                    none: [],
                    phantom: PhantomData,
                    units: (Unit, ((), [])),
                    $($field: Default::default(),)*
                }
            }

            fn inner(number: u32) -> bare::$inner {
                super::Inner::of(number)
            }

            pub(super) fn leaves(page: Page) -> Vec<Leaf> {
                let units = Leaf::Units { one: Unit, none: [] };
                vec![Leaf::Nothing(()), Leaf::Page(page.clone(), []), units, Leaf::Page(page, []), Leaf::Unknown]
            }
        }
    )*};
}

versions! {
    v1 V1 {}
    v2 V1 { also: (), 2; text: String, 2; last: [u16; 0], 2; }
    v3 V2 { also: (), 2; text: String, 2; last: [u16; 0], 2; unit: Unit, 3; empty: super::Empty, 3; end: (), 3; }
    v4 V2 { also: (), 2; text: String, 2; last: [u16; 0], 2; unit: Unit, 3; empty: super::Empty, 3; end: (), 3; more: PhantomData<u8>, 4; }
}

trait Inner {
    fn of(number: u32) -> Self;
}

impl Inner for bare::V1 {
    fn of(_: u32) -> Self {
        bare::V1 { unit: Unit, none: [] }
    }
}

impl Inner for bare::V2 {
    fn of(number: u32) -> Self {
        bare::V2 { unit: Unit, none: [], phantom: std::marker::PhantomData, number }
    }
}

fn written<T: Serialize>(value: &T) -> Vec<u8> {
    encoded(&As::<Serde, T>::new(value)).unwrap()
}

fn read<T: for<'m> Deserialize<'m>>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode::<Serde, T>(Reader::borrowed(bytes))
}

/// What the other end reads is `expected`: alone, and among other values.
#[track_caller]
fn arrives<T: Serialize + Clone, U>(sent: &T, expected: &U)
where
    U: for<'m> Deserialize<'m> + Clone + Debug + PartialEq,
{
    assert_eq!(read::<U>(&written(sent)).as_ref(), Ok(expected));
    let several = (vec![sent.clone(), sent.clone()], 777_u16, Some(sent.clone()));
    let (pages, number, page): (Vec<U>, u16, Option<U>) = read(&written(&several)).unwrap();
    assert_eq!((pages, number, page.as_ref()), (vec![expected.clone(); 2], 777, Some(expected)));
}

/// The number of a page whose inner struct was written by a version that did not have it.
const DEFAULT: u32 = 7;

proptest! {
    #[test]
    fn a_value_of_each_version_is_read_by_each_version(number: u32, text in ".{0,200}") {
        let one = v1::page(number);
        let two = v2::Page { text: text.clone(), ..v2::page(number) };
        let three = v3::Page { text: text.clone(), ..v3::page(number) };
        let four = v4::Page { text: text.clone(), ..v4::page(number) };

        arrives(&one, &one);
        arrives(&two, &one);
        arrives(&three, &one);
        arrives(&four, &one);

        arrives(&one, &v2::page(number));
        arrives(&two, &two);
        arrives(&three, &two);
        arrives(&four, &two);

        let inner = Inner::of(DEFAULT);
        arrives(&one, &v3::Page { inner, ..v3::page(number) });
        let inner = Inner::of(DEFAULT);
        arrives(&two, &v3::Page { inner, ..three.clone() });
        arrives(&three, &three);
        arrives(&four, &three);

        let inner = Inner::of(DEFAULT);
        arrives(&one, &v4::Page { inner, ..v4::page(number) });
        arrives(&three, &four);
        arrives(&four, &four);

        arrives(&v1::leaves(one.clone()), &v2::leaves(v2::page(number)));
        arrives(&v4::leaves(four.clone()), &v1::leaves(one));
        arrives(&v4::leaves(four), &v3::leaves(three));
    }

    /// The fields of the first version are in every value: without one of them, it is cut.
    #[test]
    fn a_value_that_is_cut_is_refused(number: u32, text in ".{0,20}", bytes in vec(any::<u8>(), 0..20)) {
        let page = v4::Page { text, ..v4::page(number) };
        let whole = written(&page);
        for cut in 0..whole.len() {
            assert!(read::<v4::Page>(&whole[..cut]).is_err(), "{cut} of {whole:?}");
        }
        // What is no value is an error, and what is one can be written again.
        if let Ok(page) = read::<v3::Page>(&bytes) {
            arrives(&page, &page);
        }
    }
}

#[test]
fn a_value_without_the_first_version_is_refused() {
    assert!(read::<v1::Page>(&[0]).is_err());
    // The number is there, and the inner struct is missing.
    assert!(read::<v1::Page>(&[1, 5]).is_err());
    assert_eq!(read::<v1::Page>(&[2, 5, 0]), Ok(v1::page(5)));
}

#[farcall::service]
trait Library {
    fn open(&self, page: v1::Page, leaf: v1::Leaf) -> Vec<v1::Leaf>;
}

struct Shelf;

impl Library for Shelf {
    fn open(&self, page: v1::Page, leaf: v1::Leaf) -> Vec<v1::Leaf> {
        vec![v1::Leaf::Page(page, []), leaf]
    }
}

#[test]
fn a_field_without_bytes_at_the_end_of_a_type_that_grows_arrives() {
    let server = Server::builder().service(LibraryServer::new(Shelf));
    let server = server.listen(format!("shm://growing-end-{}", std::process::id())).unwrap();
    let client = LibraryClient::connect(server.address()).wait().unwrap();
    let (page, leaf) = (v1::page(3), v1::Leaf::Nothing(()));
    let back = client.open(page.clone(), leaf.clone()).wait();
    assert_eq!(back, Ok(vec![v1::Leaf::Page(page, []), leaf]));
    server.shutdown();
}
