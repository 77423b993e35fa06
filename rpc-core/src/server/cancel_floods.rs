//! Clients that cancel calls again and again, in scripted polls: what that costs the thread, and which calls it ends.

use super::CancelPolicy;
use super::dispatcher::Dispatcher;
use super::executor::Executor;
use super::table::Table;
use super::turn::Turn;
use crate::error::ReserveError;
use crate::metrics::{MethodTable, ThreadCounters};
use crate::service::Method;
use crate::site::Site;
use crate::support::loopback::Clock;
use crate::support::service::{Later, TEST, Test};
use crate::time::{Instant, Progress};
use crate::transport::{
    CallToken, ClientEvent, ClientId, Message, Replies, RequestSink, ServerTransport, WindDown,
};
use crate::wire::{HEADER_BYTES, RequestHeader};
use core::sync::atomic::Ordering::SeqCst;
use rustix::time::{ClockId, clock_gettime};
use std::sync::{Arc, Mutex};

/// Slots per client.
const WINDOW: u32 = 64;

/// What one poll of the transport brings. Clients are in their first generation.
#[derive(Clone, Copy)]
enum Arrival {
    Request { client: u32, slot: u32 },
    Cancel { client: u32, slot: u32, generation: u32 },
    Goodbye { client: u32, client_generation: u32 },
}

#[derive(Clone, Default)]
struct Script(Arc<Mutex<Vec<Arrival>>>);

struct Scripted {
    next: Script,
    answers: Answers,
}

#[derive(Default)]
struct Answers {
    room: [u8; 32],
    /// Clients and slots.
    answered: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl ServerTransport for Scripted {
    fn poll(&mut self, _now: Instant, sink: &mut dyn RequestSink) -> Progress {
        let mut request = [0; HEADER_BYTES];
        RequestHeader::new(Later::ID, 0).write(&mut request);
        let mut progress = Progress::IDLE;
        for arrival in self.next.0.lock().expect("no panic").drain(..) {
            match arrival {
                Arrival::Request { client, slot } => {
                    let call = CallToken::new(client, 1, slot, 1);
                    sink.request(call, Message::Borrowed(&request), &mut self.answers);
                    progress.worked += 1;
                }
                Arrival::Cancel { client, slot, generation } => {
                    let client = ClientId { number: client, generation: 1 };
                    sink.client(client, ClientEvent::Cancelled { slot, generation });
                }
                Arrival::Goodbye { client, client_generation } => {
                    let client = ClientId { number: client, generation: client_generation };
                    sink.client(client, ClientEvent::Left);
                }
            }
        }
        progress
    }

    fn replies(&mut self) -> &mut dyn Replies {
        &mut self.answers
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }

    fn connections(&self) -> usize {
        0
    }

    fn wind_down(&mut self, _now: Instant, _step: WindDown) -> bool {
        true
    }
}

impl Replies for Answers {
    fn reserve(&mut self, _call: &CallToken, len: usize) -> Result<&mut [u8], ReserveError> {
        Ok(&mut self.room[..len])
    }

    fn post(&mut self, call: CallToken, _len: usize) {
        self.answered.lock().expect("no panic").push((call.client(), call.slot()));
    }

    fn waiting_limit(&self) -> u64 {
        u64::MAX
    }
}

struct Bench {
    script: Script,
    transports: Vec<Box<dyn ServerTransport>>,
    dispatcher: Dispatcher,
    test: Test,
    answered: Arc<Mutex<Vec<(u32, u32)>>>,
}

/// A thread on which `tasks` handlers wait: a window of each client.
fn bench(tasks: u32, policy: CancelPolicy) -> Bench {
    let site = Site::driven(Arc::new(Clock::virtual_time()));
    let methods = Arc::new(MethodTable::new(&[&TEST]));
    let test = Test::default();
    let dispatcher = Dispatcher::new(
        vec![Box::new(test.clone())],
        Table::new(&[&TEST]).expect("distinct ids"),
        methods.unknown(),
        Turn::new(site.clone(), Arc::new(ThreadCounters::new(&methods)), None),
        Executor::new(tasks as usize, policy, site),
        None,
    );
    let (script, answers) = (Script::default(), Answers::default());
    let answered = answers.answered.clone();
    let transports: Vec<Box<dyn ServerTransport>> =
        vec![Box::new(Scripted { next: script.clone(), answers })];
    let mut bench = Bench { script, transports, dispatcher, test, answered };
    bench.turn((0..tasks).map(|it| Arrival::Request { client: it / WINDOW, slot: it % WINDOW }));
    assert_eq!(bench.test.gate.waiting.load(SeqCst), u64::from(tasks));
    bench
}

impl Bench {
    fn turn(&mut self, arrivals: impl Iterator<Item = Arrival>) -> Progress {
        self.script.0.lock().expect("no panic").extend(arrivals);
        let progress = self.dispatcher.turn(Instant::ZERO, &mut self.transports);
        if !progress.is_idle() {
            self.dispatcher.end_turn(Instant::ZERO);
        }
        progress
    }

    fn dropped(&self) -> u64 {
        self.test.gate.dropped.load(SeqCst)
    }

    fn answered(&self) -> Vec<(u32, u32)> {
        self.answered.lock().expect("no panic").clone()
    }
}

fn cancel(client: u32, slot: u32) -> Arrival {
    Arrival::Cancel { client, slot, generation: 1 }
}

/// CPU time of a turn of this thread, the shortest of some.
fn cpu_ns(mut turn: impl FnMut()) -> i64 {
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec * 1_000_000_000 + time.tv_nsec
    };
    let measure = |_| {
        let before = cpu();
        turn();
        cpu() - before
    };
    (0..5).map(measure).min().expect("some were measured")
}

#[test]
fn a_cancellation_costs_the_same_however_many_calls_the_thread_works_on() {
    let cost = |tasks| {
        let mut bench = bench(tasks, CancelPolicy::Finish);
        // Of calls that run, of calls that are over, and of clients that are gone.
        let flood = (0..2_000).map(|number| match number % 3 {
            0 => cancel(0, number % WINDOW),
            1 => Arrival::Cancel { client: 0, slot: number % WINDOW, generation: 7 },
            _ => Arrival::Goodbye { client: 0, client_generation: 7 },
        });
        cpu_ns(|| {
            bench.turn(flood.clone());
        })
    };
    let (few, many) = (cost(WINDOW), cost(256 * WINDOW));
    assert!(many < few * 16, "{few} ns with 64 calls, {many} ns with 16,384");
}

#[test]
fn a_call_that_is_cancelled_again_and_again_ends_once() {
    let mut bench = bench(2 * WINDOW, CancelPolicy::Abort);
    let progress = bench.turn((0..10_000).map(|_| cancel(1, 3)));
    assert_eq!(progress.worked, 1, "one call ended");
    assert_eq!((bench.dropped(), bench.answered()), (1, vec![(1, 3)]));
    assert!(bench.turn((0..10_000).map(|_| cancel(1, 3))).is_idle(), "it is over");
    assert_eq!((bench.dropped(), bench.answered().len()), (1, 1));
}

#[test]
fn only_the_call_of_that_client_slot_and_generation_is_cancelled() {
    let mut bench = bench(2 * WINDOW, CancelPolicy::Abort);
    let others = [
        cancel(2, 3),
        cancel(u32::MAX, 3),
        cancel(1, WINDOW),
        cancel(1, u32::MAX),
        Arrival::Cancel { client: 1, slot: 3, generation: 2 },
        Arrival::Goodbye { client: 1, client_generation: 2 },
        Arrival::Goodbye { client: 2, client_generation: 1 },
    ];
    assert!(bench.turn(others.into_iter()).is_idle());
    assert_eq!(bench.dropped(), 0);
}

#[test]
fn the_calls_of_a_client_that_is_gone_end_and_no_others() {
    let mut bench = bench(3 * WINDOW, CancelPolicy::Abort);
    bench.turn([Arrival::Goodbye { client: 1, client_generation: 1 }].into_iter());
    let of_one: Vec<_> = (0..WINDOW).map(|slot| (1, slot)).collect();
    assert_eq!((bench.dropped(), bench.answered()), (u64::from(WINDOW), of_one));
}
