//! Values that cannot travel, and values of which one might think so: each call says why, and the server goes on.

use farcall::{RpcError, RunningServer, Server, Shape};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list as nobody should send it: each part is in the one before.
#[derive(Debug, Shape, Serialize, Deserialize)]
struct List {
    value: u32,
    next: Option<Box<List>>,
}

impl List {
    fn of(parts: u32) -> List {
        let first = List { value: 0, next: None };
        (1..parts).fold(first, |next, value| List { value, next: Some(Box::new(next)) })
    }
}

/// Without it, dropping a long list would overflow the stack.
impl Drop for List {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut part) = next {
            next = part.next.take();
        }
    }
}

/// A number that is refused at 7 when it is written, and at 8 when it is read.
#[derive(Debug, PartialEq, Shape)]
#[rpc(opaque = "picky 1")]
struct Picky(u32);

impl Serialize for Picky {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            7 => Err(S::Error::custom("7 is no good")),
            number => number.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u32::deserialize(deserializer)? {
            8 => Err(D::Error::custom("8 is no good")),
            number => Ok(Picky(number)),
        }
    }
}

const NONE: usize = 0;

#[farcall::service]
trait Odd {
    fn make(&self, parts: u32) -> List;
    fn take(&self, list: List) -> u32;
    fn make_picky(&self, number: u32) -> Picky;
    fn try_picky(&self, number: u32) -> Result<u32, Picky>;
    fn take_picky(&self, picky: Picky) -> u32;
    fn nothing(&self, none: [u8; 0]) -> [u8; 0];
    fn nothings(&self, by_reference: &[u8; NONE], several: Vec<[u8; NONE]>, unit: ()) -> u64;
    fn optional(&self, none: Option<[u8; 0]>, pair: ([u8; 0], [u16; 0])) -> Vec<([u8; 0], ())>;
}

struct Service;

impl Odd for Service {
    fn make(&self, parts: u32) -> List {
        List::of(parts)
    }

    fn take(&self, list: List) -> u32 {
        list.value
    }

    fn make_picky(&self, number: u32) -> Picky {
        Picky(number)
    }

    fn try_picky(&self, number: u32) -> Result<u32, Picky> {
        Err(Picky(number))
    }

    fn take_picky(&self, picky: Picky) -> u32 {
        picky.0
    }

    fn nothing(&self, none: [u8; 0]) -> [u8; 0] {
        none
    }

    fn nothings(&self, _: &[u8; NONE], several: Vec<[u8; NONE]>, _: ()) -> u64 {
        several.len() as u64
    }

    fn optional(&self, none: Option<[u8; 0]>, _: ([u8; 0], [u16; 0])) -> Vec<([u8; 0], ())> {
        none.map(|none| (none, ())).into_iter().collect()
    }
}

fn serve(name: &str) -> (RunningServer, OddClient) {
    let server = Server::builder().service(OddServer::new(Service));
    let server = server.listen(format!("shm://odd-{name}-{}", std::process::id())).unwrap();
    let client = OddClient::connect(server.address()).wait().unwrap();
    (server, client)
}

#[track_caller]
fn assert_malformed<T: std::fmt::Debug>(result: Result<T, RpcError>, what: &str) {
    match result {
        Err(RpcError::Malformed { what: said, .. }) if said.contains(what) => {}
        other => panic!("{other:?} does not say {what:?}"),
    }
}

#[test]
fn a_value_that_is_nested_too_deep_fails_its_call_and_not_the_server() {
    let (_server, client) = serve("deep");
    // Each part is a struct and an option.
    assert_eq!(client.make(64).wait().map(|list| list.value), Ok(63));
    assert_eq!(client.take(List::of(64)).wait(), Ok(63));
    for parts in [65, 1_000, 50_000, 1_000_000] {
        let made = client.make(parts).wait();
        assert_malformed(made, "result: the value is nested deeper than 128 levels");
        let taken = client.take(List::of(parts)).wait();
        assert_malformed(taken, "Odd.take: the value is nested deeper than 128 levels");
        assert_eq!(client.make(1).wait().map(|list| list.value), Ok(0), "the server goes on");
    }
}

#[test]
fn what_a_serialize_or_deserialize_says_reaches_the_caller() {
    let (_server, client) = serve("picky");
    assert_eq!(client.make_picky(6).wait(), Ok(Picky(6)));
    assert_malformed(client.make_picky(7).wait(), "7 is no good");
    assert_malformed(client.make_picky(8).wait(), "8 is no good");
    assert_malformed(client.take_picky(Picky(7)).wait(), "7 is no good");
    assert_malformed(client.take_picky(Picky(8)).wait(), "8 is no good");
    for (number, what) in [(7, "7 is no good"), (8, "8 is no good")] {
        let error = client.try_picky(number).wait().unwrap_err();
        let error = error.rpc().expect("not the service's own").to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn arrays_without_elements_travel() {
    let (_server, client) = serve("empty");
    assert_eq!(client.nothing([]).wait(), Ok([]));
    assert_eq!(client.nothings(&[], vec![[]; 1_000], ()).wait(), Ok(1_000));
    assert_eq!(client.optional(Some([]), ([], [])).wait(), Ok(vec![([], ())]));
    assert_eq!(client.optional(None, ([], [])).wait(), Ok(vec![]));
    // As many as there may be in one message.
    assert_eq!(client.nothings(&[], vec![[]; 65_000], ()).wait(), Ok(65_000));
    assert_malformed(client.nothings(&[], vec![[]; 70_000], ()).wait(), "too many elements");
}
