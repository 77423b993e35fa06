//! The service that the cases call.

use std::{
    collections::HashMap,
    future::poll_fn,
    panic,
    sync::{Mutex, PoisonError},
    task::Poll,
    thread,
    time::Duration,
};

use bytes::Bytes;
use farcall::{PollClient, Shape};
use serde::{Deserialize, Serialize};

use crate::{gates::Gates, pattern};

/// A structured value for [`Suite::describe`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub struct Record {
    /// A short text.
    pub name: String,
    /// Some numbers.
    pub numbers: Vec<u64>,
    /// Perhaps another record.
    pub inner: Option<Box<Record>>,
}

/// The suite's own error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
pub enum SuiteError {
    /// The caller asked for it.
    Refused {
        /// The number that was asked for.
        code: u32,
    },
    /// The bytes differ from their pattern.
    Mismatch {
        /// Where the first wrong word is.
        offset: u64,
    },
}

impl std::fmt::Display for SuiteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SuiteError::Refused { code } => write!(f, "refused with {code}, as asked"),
            SuiteError::Mismatch { offset } => write!(f, "the bytes differ at offset {offset}"),
        }
    }
}

impl std::error::Error for SuiteError {}

/// The number of [`Suite::echo`], for callers that make their requests by hand.
pub const ECHO: u32 = 0x0e;

/// The number of [`Suite::describe`].
pub const DESCRIBE: u32 = 0x0d;

/// The beginning of the message of a panic that a case asked for.
const PANIC_ON_REQUEST: &str = "asked to panic";

/// Prints no message for panics that a case asked for.
pub fn silence_requested_panics() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !info.payload_as_str().is_some_and(|text| text.starts_with(PANIC_ON_REQUEST)) {
            usual(info);
        }
    }));
}

/// The number of a method of [`Suite`], for callers that make their requests by hand.
///
/// # Panics
/// The service has no such method.
pub fn method_id(name: &str) -> u32 {
    let mut methods = SuitePollClient::DESCRIPTION.methods.iter();
    methods.find(|method| method.name == name).expect("a method of the service").id
}

/// What the cases call.
#[farcall::service(any_thread)]
pub trait Suite {
    /// Gives back the bytes, from a handler that runs in place.
    #[rpc(id = 0x0e)]
    fn echo(&self, bytes: &[u8]) -> Vec<u8>;
    /// Gives back the bytes, from a task that has yielded once.
    async fn echo_later(&self, bytes: Vec<u8>) -> Vec<u8>;
    /// Checks that the bytes are the pattern of `seed`; gives their number.
    fn check(&self, seed: u64, bytes: &[u8]) -> Result<u64, SuiteError>;
    /// Makes `len` bytes of the pattern of `seed`.
    fn make(&self, seed: u64, len: u64) -> Vec<u8>;
    /// Like [`make`](Suite::make), but the caller gets the memory in which the response arrived.
    fn lend(&self, seed: u64, len: u64) -> Bytes;
    /// Gives back a value with structure.
    #[rpc(id = 0x0d)]
    fn describe(&self, record: Record) -> Record;
    /// Counts one execution under `id`; gives how many there have been.
    fn tally(&self, id: u64) -> u64;
    /// How many executions have been counted under `id`.
    fn tallied(&self, id: u64) -> u64;
    /// Counts one execution under `gate`, waits at it, and gives back `value`.
    async fn hold(&self, gate: u64, value: u64) -> u64;
    /// Waits at `gate`, then gives `len` bytes of the pattern of `seed`.
    async fn make_held(&self, gate: u64, seed: u64, len: u64) -> Vec<u8>;
    /// How many calls wait at `gate`.
    fn held(&self, gate: u64) -> u64;
    /// Opens `gate`.
    fn open(&self, gate: u64);
    /// Waits at `gate` in place: the server's thread does nothing else.
    fn block(&self, gate: u64);
    /// Counts one execution under `id`, and keeps the server's thread for so many microseconds.
    fn work(&self, id: u64, micros: u64);
    /// Gives the service's own error.
    fn refuse(&self, code: u32) -> Result<(), SuiteError>;
    /// Panics in the handler.
    fn panic_in_place(&self);
    /// Panics in the handler's task.
    async fn panic_in_task(&self);
    /// The process and the thread that the handler runs on.
    fn whereabouts(&self) -> (u32, u32);
}

/// Another service, for servers that offer two.
#[farcall::service]
pub trait Other {
    /// Adds two numbers.
    fn add(&self, left: u64, right: u64) -> u64;
}

/// A service that no server of the suite offers.
#[farcall::service]
pub trait Absent {
    /// Does nothing.
    fn nothing(&self);
}

/// A service of the same name as the suite's, with other signatures.
pub mod changed {
    /// A service that no case calls.
    #[farcall::service]
    pub trait Suite {
        /// Takes an argument of another type.
        fn echo(&self, number: u64) -> u64;
    }
}

/// The state behind [`Suite`] and [`Other`].
#[derive(Debug, Default)]
pub struct Handlers {
    gates: Gates,
    tallies: Mutex<HashMap<u64, u64>>,
}

impl Handlers {
    /// Opens a gate without a call.
    pub fn open_gate(&self, gate: u64) {
        self.gates.open(gate);
    }

    /// Counts one run under this number; how many there have been.
    pub(crate) fn count(&self, id: u64) -> u64 {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.entry(id).or_default();
        *tally += 1;
        *tally
    }
}

/// Pending once, then ready.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Suite for Handlers {
    fn echo(&self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    async fn echo_later(&self, bytes: Vec<u8>) -> Vec<u8> {
        yield_once().await;
        bytes
    }

    fn check(&self, seed: u64, bytes: &[u8]) -> Result<u64, SuiteError> {
        match pattern::mismatch(seed, bytes) {
            None => Ok(bytes.len() as u64),
            Some(offset) => Err(SuiteError::Mismatch { offset: offset as u64 }),
        }
    }

    fn make(&self, seed: u64, len: u64) -> Vec<u8> {
        pattern::make(seed, len as usize)
    }

    fn lend(&self, seed: u64, len: u64) -> Bytes {
        pattern::make(seed, len as usize).into()
    }

    fn describe(&self, record: Record) -> Record {
        record
    }

    fn tally(&self, id: u64) -> u64 {
        self.count(id)
    }

    fn tallied(&self, id: u64) -> u64 {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.get(&id).copied().unwrap_or(0)
    }

    async fn hold(&self, gate: u64, value: u64) -> u64 {
        self.count(gate);
        self.gates.pass(gate).await;
        value
    }

    async fn make_held(&self, gate: u64, seed: u64, len: u64) -> Vec<u8> {
        self.gates.pass(gate).await;
        pattern::make(seed, len as usize)
    }

    fn held(&self, gate: u64) -> u64 {
        self.gates.waiting(gate)
    }

    fn open(&self, gate: u64) {
        self.gates.open(gate);
    }

    fn block(&self, gate: u64) {
        self.gates.block(gate);
    }

    fn work(&self, id: u64, micros: u64) {
        self.count(id);
        thread::sleep(Duration::from_micros(micros));
    }

    fn refuse(&self, code: u32) -> Result<(), SuiteError> {
        Err(SuiteError::Refused { code })
    }

    fn panic_in_place(&self) {
        panic!("{PANIC_ON_REQUEST} in place");
    }

    async fn panic_in_task(&self) {
        yield_once().await;
        panic!("{PANIC_ON_REQUEST} in a task");
    }

    fn whereabouts(&self) -> (u32, u32) {
        (std::process::id(), rustix::thread::gettid().as_raw_nonzero().get() as u32)
    }
}

impl Other for Handlers {
    fn add(&self, left: u64, right: u64) -> u64 {
        left.wrapping_add(right)
    }
}
