//! Code of a program that panics where a client or a server calls it: values that are encoded or decoded, what a handler has panicked with.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use farcall::{RpcError, Server};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number whose code panics where asked.
struct Fragile(u32);

const WHEN_ENCODED: u32 = 1;
const WHEN_DECODED: u32 = 2;
/// Values are measured before there is memory for them, and encoded then.
const WHEN_ENCODED_AGAIN: u32 = 3;

thread_local! {
    static ENCODED: Cell<u32> = const { Cell::new(0) };
}

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let before = ENCODED.replace(ENCODED.get() + 1);
        let panics = self.0 == WHEN_ENCODED || self.0 == WHEN_ENCODED_AGAIN && before % 2 == 1;
        assert!(!panics, "a bug of the program's, as asked");
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fragile, D::Error> {
        let number = u32::deserialize(deserializer)?;
        assert_ne!(number, WHEN_DECODED, "a bug of the program's, as asked");
        Ok(Fragile(number))
    }
}

impl farcall::Shape for Fragile {
    const SHAPE: &'static farcall::shape::Node = <u32 as farcall::Shape>::SHAPE;
}

/// Panics with itself when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(0_u32);
    }
}

#[farcall::service]
trait Library {
    fn burn(&self, book: Fragile) -> u32;
    fn lend(&self, number: u32) -> (Fragile, Vec<u8>);
    fn explode(&self);
    async fn explode_later(&self);
    fn count(&self) -> u32;
}

struct Shelf;

impl Library for Shelf {
    fn burn(&self, book: Fragile) -> u32 {
        book.0
    }

    fn lend(&self, number: u32) -> (Fragile, Vec<u8>) {
        // Long enough to be decoded where it has arrived.
        (Fragile(number), vec![7; 200])
    }

    fn explode(&self) {
        panic_any(Bomb);
    }

    async fn explode_later(&self) {
        panic_any(Bomb);
    }

    fn count(&self) -> u32 {
        7
    }
}

const CALLS: usize = 4;

/// More than any window.
const MANY: usize = 200;

fn panics<R>(work: impl FnOnce() -> R) -> bool {
    ENCODED.set(0);
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn values_that_panic_cost_a_client_no_call() {
    let server = Server::builder().service(LibraryServer::new(Shelf));
    let server = server.listen("shm://panics-of-values").unwrap();
    let client = LibraryClient::connect(server.address()).max_calls(CALLS).wait().unwrap();
    for _ in 0..2 * CALLS {
        assert!(panics(|| client.burn(Fragile(WHEN_ENCODED)).wait()));
        assert!(panics(|| client.burn(Fragile(WHEN_ENCODED_AGAIN)).wait()));
        assert!(panics(|| client.lend(WHEN_DECODED).wait()));
    }
    let counted: Result<u32, RpcError> = client.count().wait();
    assert_eq!(counted, Ok(7));
}

#[test]
fn values_that_panic_cost_a_polling_client_no_slot() {
    for backend in ["write_imm", "send_recv", "rfp", "scale", "datagram"] {
        let address = format!("shm://panics-of-polled-{backend}?backend={backend}");
        let server = Server::builder().service(LibraryServer::new(Shelf)).listen(address.as_str());
        let server = server.unwrap();
        let mut client = LibraryPollClient::connect(server.address()).wait().unwrap();
        for _ in 0..MANY {
            assert!(panics(|| client.burn(Fragile(WHEN_ENCODED))), "{backend}");
            assert!(panics(|| client.burn(Fragile(WHEN_ENCODED_AGAIN))), "{backend}");
            assert!(panics(|| client.lend(WHEN_DECODED)), "{backend}");
        }
        assert_eq!(client.count(), Ok(7), "{backend}");
        assert_eq!(client.connection().in_flight(), 0);
    }
}

#[test]
fn what_a_handler_panics_with_may_panic_when_it_is_dropped() {
    let server = Server::builder().service(LibraryServer::new(Shelf));
    let server = server.listen("shm://panics-of-handlers").unwrap();
    let mut other = LibraryPollClient::connect(server.address()).wait().unwrap();
    let client = LibraryClient::connect(server.address()).wait().unwrap();
    for _ in 0..3 {
        assert_eq!(client.explode().wait(), Err(RpcError::HandlerPanicked));
        assert_eq!(client.explode_later().wait(), Err(RpcError::HandlerPanicked));
        // The same connection: a new one would have to be made by hand.
        assert_eq!(other.count(), Ok(7));
    }
}
