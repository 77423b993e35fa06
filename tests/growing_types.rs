//! Types that later versions add fields and variants to: values of one version, read by ends of another.

use std::collections::BTreeMap;

use farcall::shape::Kind;
use farcall::{Grow, RunningServer, Server, ServiceClient, Shape};
use farcall_core::codec::{As, DecodeError, EncodeError, Reader, Serde, decode, encoded};
use serde::{Deserialize, Serialize};

/// Has only what the first version had.
mod v1 {
    use farcall::Grow;

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(crate) struct Options {
        pub(crate) limit: u32,
    }

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(crate) enum Event {
        Opened {
            at: u64,
        },
        Wrote(Vec<Options>),
        #[rpc(unknown)]
        Unknown,
    }

    #[farcall::service]
    pub(crate) trait Log {
        fn list(&self, options: Options, last: Event) -> Vec<Event>;
    }
}

mod v2 {
    use farcall::Grow;

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(crate) struct Options {
        pub(crate) limit: u32,
        #[rpc(since = 2, default = true)]
        pub(crate) sorted: bool,
        #[rpc(since = 2, default = "de".to_owned())]
        pub(crate) language: String,
        #[rpc(since = 3)]
        pub(crate) within: Option<Box<Self>>,
    }

    #[derive(Clone, Debug, PartialEq, Grow)]
    pub(crate) enum Event {
        Opened {
            at: u64,
        },
        Wrote(Vec<Options>),
        #[rpc(since = 2)]
        Closed,
        #[rpc(since = 2)]
        Moved(String, Box<Event>),
        #[rpc(unknown)]
        Unknown,
    }

    #[farcall::service]
    pub(crate) trait Log {
        fn list(&self, options: Options, last: Event) -> Vec<Event>;
    }

    pub(crate) fn options(limit: u32) -> Options {
        Options { limit, sorted: true, language: "de".to_owned(), within: None }
    }
}

fn written<T: Serialize>(value: &T) -> Vec<u8> {
    encoded(&As::<Serde, T>::new(value)).unwrap()
}

fn read<T: for<'m> Deserialize<'m>>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode::<Serde, T>(Reader::borrowed(bytes))
}

/// What an end of another version reads of a value, with something behind it.
fn sent<T: Serialize, U: for<'m> Deserialize<'m>>(value: T) -> U {
    let (value, behind): (U, u16) = read(&written(&(value, 777_u16))).unwrap();
    assert_eq!(behind, 777);
    value
}

fn new_options() -> v2::Options {
    let within = Some(Box::new(v2::Options { sorted: false, ..v2::options(300) }));
    v2::Options { limit: 5, sorted: false, language: "fr".repeat(100), within }
}

#[test]
fn an_old_end_skips_the_fields_that_it_does_not_know() {
    assert_eq!(sent::<_, v1::Options>(new_options()), v1::Options { limit: 5 });
    assert_eq!(sent::<_, v2::Options>(new_options()), new_options());
    let several = [new_options(), v2::options(70_000)];
    let limits: [v1::Options; 2] = sent(several);
    assert_eq!(limits, [5, 70_000].map(|limit| v1::Options { limit }));
}

#[test]
fn a_new_end_takes_the_defaults_of_the_fields_that_are_missing() {
    assert_eq!(sent::<_, v2::Options>(v1::Options { limit: 9 }), v2::options(9));
    let map = BTreeMap::from([("a", v1::Options { limit: 1 }), ("b", v1::Options { limit: 200 })]);
    let map: BTreeMap<String, v2::Options> = sent(map);
    assert_eq!((&map["a"], &map["b"]), (&v2::options(1), &v2::options(200)));
}

#[test]
fn a_variant_that_an_end_does_not_know_is_the_unknown_one() {
    let moved = || v2::Event::Moved("there".to_owned(), Box::new(v2::Event::Closed));
    assert_eq!(sent::<_, v1::Event>(moved()), v1::Event::Unknown);
    assert_eq!(sent::<_, v1::Event>(v2::Event::Closed), v1::Event::Unknown);
    assert_eq!(sent::<_, v2::Event>(moved()), moved());
    let opened = v2::Event::Opened { at: 1 << 40 };
    assert_eq!(sent::<_, v1::Event>(opened), v1::Event::Opened { at: 1 << 40 });
    let wrote: v1::Event = sent(v2::Event::Wrote(vec![new_options(), v2::options(7)]));
    let [five, seven] = [5, 7].map(|limit| v1::Options { limit });
    assert_eq!(wrote, v1::Event::Wrote(vec![five, seven]));
}

#[test]
fn an_unknown_variant_that_is_sent_on_stays_unknown() {
    assert_eq!(sent::<_, v2::Event>(v1::Event::Unknown), v2::Event::Unknown);
    assert_eq!(sent::<_, v1::Event>(v1::Event::Unknown), v1::Event::Unknown);
}

/// A length, and the value in the format of other structs and enums.
#[test]
fn a_value_has_its_length_in_front() {
    assert_eq!(written(&v1::Options { limit: 300 }), [2, 0xac, 2]);
    assert_eq!(written(&v2::options(1)), [6, 1, 1, 2, b'd', b'e', 0]);
    assert_eq!(written(&v2::Event::Closed), [1, 2]);
    let long = v2::Options { language: "x".repeat(200), ..v2::options(1) };
    assert_eq!(written(&long)[..6], [205, 1, 1, 1, 200, 1]);
}

#[test]
fn a_value_that_ends_elsewhere_than_a_version_of_its_type_is_refused() {
    let whole = written(&v2::options(300));
    for cut in 0..whole.len() {
        assert!(read::<v2::Options>(&whole[..cut]).is_err(), "{cut}");
        assert!(read::<v1::Options>(&whole[..cut]).is_err(), "{cut}");
    }
    // Without what the first version has, in the middle of a number, and with a length beyond the message.
    for bytes in
        [&[0][..], &[1, 0xac], &[3, 0xac, 2], &[0xff, 0xff, 0xff, 0xff, 0x0f, 1], &[2, 1, 7]]
    {
        assert!(read::<v2::Options>(bytes).is_err(), "{bytes:?}");
    }
    // A variant without its payload, with more than that, and none at all.
    for bytes in [&[1, 0][..], &[3, 0, 1, 1], &[0], &[1, 0x80]] {
        assert!(read::<v2::Event>(bytes).is_err(), "{bytes:?}");
    }
}

/// Each level counts the bytes below it once: 100 levels are 5,000 steps, and not 2^100.
#[test]
fn deep_values_are_written_and_read() {
    let levels = |count| {
        (0..count).fold(v2::options(1), |inner, _| v2::Options {
            within: Some(Box::new(inner)),
            ..v2::options(1)
        })
    };
    assert_eq!(sent::<_, v2::Options>(levels(50)), levels(50));
    // Each is a struct and an option. What would not be read is not written.
    let deepest = levels(63);
    assert_eq!(read::<v2::Options>(&written(&deepest)).as_ref(), Ok(&deepest));
    let too_deep = encoded(&As::<Serde, _>::new(&levels(64)));
    assert_eq!(too_deep, Err(EncodeError::TooDeep { limit: 128 }));
    let inner = written(&deepest);
    let mut around = written(&v2::options(1)).split_off(1);
    around.pop();
    let body = [&around, &[1][..], &inner].concat();
    assert!((0x80..0x4000).contains(&body.len()));
    let length = [body.len() as u8 | 0x80, (body.len() >> 7) as u8];
    let too_deep = read::<v2::Options>(&[&length[..], &body].concat());
    assert_eq!(too_deep, Err(DecodeError::TooDeep { limit: 128 }));
}

#[derive(Debug, PartialEq, Grow)]
struct Borrowed<'a> {
    name: &'a str,
    #[rpc(since = 2, default = "none")]
    tag: &'a str,
}

#[test]
fn a_type_that_may_grow_may_borrow() {
    let bytes = written(&Borrowed { name: "a", tag: "b" });
    let back: Borrowed<'_> = decode::<Serde, _>(Reader::borrowed(&bytes)).unwrap();
    assert_eq!(back, Borrowed { name: "a", tag: "b" });
    let back: Borrowed<'_> = decode::<Serde, _>(Reader::borrowed(&[2, 1, b'a'])).unwrap();
    assert_eq!(back, Borrowed { name: "a", tag: "none" });
}

#[test]
fn other_formats_have_no_length() {
    let text = serde_json::to_string(&v2::options(1)).unwrap();
    assert_eq!(text, r#"{"limit":1,"sorted":true,"language":"de","within":null}"#);
    assert_eq!(serde_json::from_str::<v2::Options>(r#"{"limit":1}"#).unwrap(), v2::options(1));
    let old: v1::Options = serde_json::from_str(&text).unwrap();
    assert_eq!(old, v1::Options { limit: 1 });
    let closed = serde_json::to_string(&v2::Event::Closed).unwrap();
    assert_eq!(closed, r#""Closed""#);
    assert_eq!(serde_json::from_str::<v1::Event>(&closed).unwrap(), v1::Event::Unknown);
}

#[test]
fn what_is_added_does_not_change_the_shape() {
    assert_eq!(v1::Options::SHAPE.hash(), v2::Options::SHAPE.hash());
    assert_eq!(v1::Event::SHAPE.hash(), v2::Event::SHAPE.hash());
    assert!(matches!(v1::Event::SHAPE.kind(), Kind::Growing(_)));
    let (old, new) = (v1::LogClient::DESCRIPTION, v2::LogClient::DESCRIPTION);
    assert_eq!(old.fingerprint, new.fingerprint);
}

#[test]
fn a_lock_file_lists_what_was_added() {
    use farcall::lock::{Compatibility, Lock, text};
    let new = text::<v2::LogClient>();
    let types = new.split_once("type Event").unwrap().1;
    assert_eq!(
        types,
        " may grow\n  0 Opened { at: u64 }\n  1 Wrote([Options])\n  2 Closed since 2\n  3 Moved(str, Event) since 2\n\n\
         type Options may grow\n  limit: u32\n  sorted: bool since 2\n  language: str since 2\n  \
         within: Option<Options> since 3\n"
    );
    let lock = |text: &str| Lock::parse(text).unwrap();
    let (old, new) = (lock(&text::<v1::LogClient>()), lock(&new));
    let upgrade = Compatibility::of(&old, &new);
    assert!(upgrade.keeps_old_clients() && upgrade.keeps_old_servers(), "{upgrade}");
    let back = Compatibility::of(&new, &old);
    assert!(!back.keeps_old_clients(), "{back}");
}

struct Echo;

impl v1::Log for Echo {
    fn list(&self, options: v1::Options, last: v1::Event) -> Vec<v1::Event> {
        vec![v1::Event::Wrote(vec![options]), last]
    }
}

impl v2::Log for Echo {
    fn list(&self, options: v2::Options, last: v2::Event) -> Vec<v2::Event> {
        vec![v2::Event::Wrote(vec![options]), last, v2::Event::Closed]
    }
}

fn address(name: &str) -> String {
    format!("shm://growing-{name}-{}", std::process::id())
}

#[test]
fn old_and_new_ends_call_each_other() {
    let old = Server::builder().service(v1::LogServer::new(Echo));
    let old: RunningServer = old.listen(address("old")).unwrap();
    let client = v2::LogClient::connect(old.address()).wait().unwrap();
    let listed = client.list(new_options(), v2::Event::Closed).wait();
    let wrote = v2::Event::Wrote(vec![v2::options(5)]);
    assert_eq!(listed, Ok(vec![wrote, v2::Event::Unknown]));

    let new = Server::builder().service(v2::LogServer::new(Echo));
    let new: RunningServer = new.listen(address("new")).unwrap();
    let client = v1::LogClient::connect(new.address()).wait().unwrap();
    let options = v1::Options { limit: 5 };
    let listed = client.list(options.clone(), v1::Event::Opened { at: 3 }).wait();
    let wrote = v1::Event::Wrote(vec![options]);
    assert_eq!(listed, Ok(vec![wrote, v1::Event::Opened { at: 3 }, v1::Event::Unknown]));
}
