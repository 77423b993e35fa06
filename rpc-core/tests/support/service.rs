//! A service as the macro would write it, by hand.

use farcall_core::codec::{As, DecodeError, Fixed, Whole};
use farcall_core::service::{Answer, Method, MethodDescription, Service, ServiceDescription};
use farcall_core::transport::Message;
use farcall_core::{CallContext, CallError, Reply, RpcError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

pub static METHODS: [MethodDescription; 8] = [
    MethodDescription::new("echo", 1, 0).any_thread(),
    MethodDescription::new("refuse", 2, 0),
    MethodDescription::new("panics", 3, 0).any_thread(),
    MethodDescription::new("later", 4, 0).any_thread(),
    MethodDescription::new("grow", 5, 0).any_thread(),
    MethodDescription::new("remaining", 6, 0),
    MethodDescription::new("echo32", 7, 0).any_thread(),
    MethodDescription::new("later32", 8, 0).any_thread(),
];

pub static TEST: ServiceDescription =
    ServiceDescription { name: "Test", fingerprint: 7, methods: &METHODS };

macro_rules! method {
    ($type:ident, $name:literal, $id:literal, $output:ty, $read:expr) => {
        #[doc = $name]
        #[derive(Debug)]
        pub enum $type {}

        impl Method for $type {
            const NAME: &'static str = $name;
            const ID: u32 = $id;
            type Output = $output;

            fn read(answer: Answer<'_>) -> $output {
                $read(answer)
            }
        }
    };
}

pub type Bytes = Result<Vec<u8>, RpcError>;
type Array = Result<[u8; 32], RpcError>;
type Refused = Result<Vec<u8>, CallError<Vec<u8>>>;

fn read_bytes(answer: Answer<'_>) -> Bytes {
    match answer {
        Answer::Value(message) => Ok(message.to_vec()),
        Answer::Service(_) => panic!("none of these methods has an error of its own"),
        Answer::Failed(error) => Err(error),
    }
}

fn read_array(answer: Answer<'_>) -> Array {
    match answer {
        Answer::Value(message) => Ok((*message).try_into().expect("32 bytes were sent")),
        Answer::Service(_) => panic!("none of these methods has an error of its own"),
        Answer::Failed(error) => Err(error),
    }
}

fn read_refused(answer: Answer<'_>) -> Refused {
    match answer {
        Answer::Value(message) => Ok(message.to_vec()),
        Answer::Service(message) => Err(CallError::Service(message.to_vec())),
        Answer::Failed(error) => Err(error.into()),
    }
}

method!(Echo, "Test.echo", 1, Bytes, read_bytes);
method!(Refuse, "Test.refuse", 2, Refused, read_refused);
method!(Panics, "Test.panics", 3, Bytes, read_bytes);
method!(Later, "Test.later", 4, Bytes, read_bytes);
method!(Grow, "Test.grow", 5, Bytes, read_bytes);
method!(Remaining, "Test.remaining", 6, Bytes, read_bytes);
method!(Echo32, "Test.echo32", 7, Array, read_array);
method!(Later32, "Test.later32", 8, Array, read_array);
method!(Unknown, "Test.unknown", 99, Bytes, read_bytes);

/// Arguments that are one byte string.
pub fn bytes(bytes: &[u8]) -> As<'_, Whole, [u8]> {
    As::new(bytes)
}

/// Holds futures back until opened.
#[derive(Default)]
pub struct Gate {
    opened: Mutex<(bool, Vec<Waker>)>,
    pub waiting: AtomicU64,
    pub passed: AtomicU64,
    pub dropped: AtomicU64,
    /// Handlers that found, behind the gate, that their callers had given up.
    pub told: AtomicU64,
}

impl Gate {
    pub fn open(&self) {
        let mut opened = self.opened.lock().unwrap();
        opened.0 = true;
        opened.1.drain(..).for_each(Waker::wake);
    }

    /// Lets those through that wait now.
    pub fn pass(&self) {
        self.open();
        self.opened.lock().unwrap().0 = false;
    }

    pub async fn through(&self) {
        struct Inside<'a>(&'a Gate, bool);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                let counter = if self.1 { &self.0.passed } else { &self.0.dropped };
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
        let mut inside = Inside(self, false);
        let mut waited = false;
        std::future::poll_fn(|cx| {
            let mut opened = self.opened.lock().unwrap();
            if !waited {
                // Under the lock: who sees the count may open the gate, which must then find the waker.
                self.waiting.fetch_add(1, Ordering::SeqCst);
            }
            if opened.0 || (waited && !opened.1.iter().any(|w| w.will_wake(cx.waker()))) {
                return Poll::Ready(());
            }
            if !waited {
                opened.1.push(cx.waker().clone());
                waited = true;
            }
            Poll::Pending
        })
        .await;
        inside.1 = true;
    }
}

/// How often a `later32` yields: a wake-up during the second poll differs from one during the first.
pub const YIELDS: u32 = 2;

/// Becomes ready at a later poll, having woken itself at each one before.
pub async fn yield_some() {
    let mut yielded = 0;
    std::future::poll_fn(|cx| {
        if yielded == YIELDS {
            return Poll::Ready(());
        }
        yielded += 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// What a handler does before it answers.
pub type Slow = Arc<Mutex<Option<Arc<dyn Fn() + Send + Sync>>>>;

#[derive(Clone, Default)]
pub struct Test {
    pub gate: Arc<Gate>,
    pub ran: Arc<AtomicU64>,
    pub slow: Slow,
}

impl Test {
    fn be_slow(&self) {
        // Several threads may be slow at once.
        let slow = self.slow.lock().unwrap().clone();
        if let Some(slow) = slow {
            slow();
        }
    }
}

impl Service for Test {
    fn description(&self) -> &'static ServiceDescription {
        &TEST
    }

    fn dispatch(&self, method: usize, arguments: Message<'_>, reply: Reply<'_>) {
        self.ran.fetch_add(1, Ordering::SeqCst);
        match method {
            0 => {
                self.be_slow();
                reply.value(&bytes(&arguments));
            }
            1 => reply.service_error(&bytes(&arguments)),
            2 => panic!("as asked"),
            3 => {
                let (test, arguments) = (self.clone(), arguments.to_vec());
                let future = async move {
                    test.gate.through().await;
                    if CallContext::current().is_some_and(|context| context.is_cancelled()) {
                        test.gate.told.fetch_add(1, Ordering::SeqCst);
                    }
                    test.be_slow();
                    if arguments == b"panic" {
                        panic!("as asked");
                    }
                    arguments
                };
                reply.spawn(future, |output, reply| reply.value(&bytes(&output)));
            }
            4 => match <[u8; 4]>::try_from(&*arguments) {
                Ok(len) => reply.value(&bytes(&vec![7; u32::from_le_bytes(len) as usize])),
                Err(_) => {
                    reply.malformed("Test.grow", "len", DecodeError::Truncated { missing: 4 })
                }
            },
            5 => {
                let remaining = CallContext::current().and_then(|context| context.remaining());
                let micros = remaining.unwrap_or(Duration::ZERO).as_micros() as u64;
                reply.value(&bytes(&micros.to_le_bytes()));
            }
            6 => match <[u8; 32]>::try_from(&*arguments) {
                Ok(data) => {
                    self.be_slow();
                    reply.value(&As::<Fixed, _>::new(&data));
                }
                Err(_) => reply.malformed("Test.echo32", "data", DecodeError::Trailing { left: 1 }),
            },
            7 => {
                let data = <[u8; 32]>::try_from(&*arguments).unwrap_or_default();
                let future = async move {
                    yield_some().await;
                    data
                };
                reply.spawn(future, |data, reply| reply.value(&As::<Fixed, _>::new(&data)));
            }
            other => unreachable!("no method {other}"),
        }
    }
}
