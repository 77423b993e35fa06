//! Callers that drive their channel, and what may happen to them meanwhile. Every wait is bounded.
#![forbid(unsafe_code)]

mod support;

use core::task::{Context, Poll, Waker};
use farcall_core::{Call, Channel, ChannelOptions, Endpoint, IdlePolicy, RpcError, Server, Waited};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Wake;
use std::thread;
use std::time::{Duration, Instant};
use support::bounds::{BOUND, until};
use support::intercepted::{Intercepted, OnPoll};
use support::loopback::{Clock, Loopback};
use support::service::{Bytes, Echo, Later, TEST, Test, bytes};

struct Bench {
    net: Loopback,
    test: Test,
    _server: farcall_core::RunningServer,
}

fn bench() -> Bench {
    let (net, test) = (Loopback::new(Clock::real(), 16), Test::default());
    let server = Server::builder().service(test.clone()).serve(&net).expect("the place is free");
    Bench { net, test, _server: server }
}

impl Bench {
    fn channel(&self) -> Channel {
        let options = ChannelOptions::default().timeout(2 * BOUND);
        Channel::connect(self.net.clone(), &TEST, options).expect("a server listens")
    }

    fn intercepted(&self, on_poll: OnPoll, options: ChannelOptions) -> Channel {
        let dial = Intercepted { net: self.net.clone(), on_poll };
        Channel::connect(dial, &TEST, options).expect("a server listens")
    }
}

fn echo(channel: &Channel, payload: &[u8]) -> Call<Bytes> {
    channel.call::<Echo, _>(&bytes(payload))
}

fn later(channel: &Channel, payload: &[u8]) -> Call<Bytes> {
    channel.call::<Later, _>(&bytes(payload))
}

/// One poll of a task that is never polled again by itself.
fn poll(call: &mut Call<Bytes>) -> Poll<Bytes> {
    poll_with(call, Waker::noop())
}

fn poll_with(call: &mut Call<Bytes>, waker: &Waker) -> Poll<Bytes> {
    Pin::new(call).poll(&mut Context::from_waker(waker))
}

/// Sets a flag.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Polls once, and is told when to poll again.
fn flagged(call: &mut Call<Bytes>) -> (Arc<Flag>, Poll<Bytes>) {
    let flag = Arc::new(Flag::default());
    let polled = poll_with(call, &Waker::from(flag.clone()));
    (flag, polled)
}

/// Runs a task that polls only when woken.
fn run(call: &mut Call<Bytes>) -> Bytes {
    let start = Instant::now();
    loop {
        let (flag, polled) = flagged(call);
        if let Poll::Ready(result) = polled {
            return result;
        }
        while !flag.0.load(SeqCst) {
            assert!(start.elapsed() < BOUND, "the task is never woken");
            thread::yield_now();
        }
    }
}

/// Calls in a row: the I/O thread leaves the channel to its callers.
fn become_busy(channel: &Channel) {
    for n in 0..20_u8 {
        assert_eq!(echo(channel, &[n]).wait(), Ok(vec![n]));
    }
}

#[test]
fn a_task_that_is_not_polled_any_more_does_not_hold_up_others() {
    let bench = bench();
    let channel = bench.channel();
    for round in 0..20_u8 {
        become_busy(&channel);
        // It drives, announces its next turn, and never takes it.
        let mut stuck = later(&channel, b"stuck");
        assert!(poll(&mut stuck).is_pending());
        let start = Instant::now();
        let mut other = echo(&channel, &[round]);
        assert_eq!(run(&mut other), Ok(vec![round]));
        assert!(start.elapsed() < BOUND / 10, "{:?}", start.elapsed());
        assert_eq!(echo(&channel, b"wait").wait(), Ok(b"wait".to_vec()));
        std::mem::forget(stuck);
        until("the handler runs", || bench.test.gate.waiting.load(SeqCst) > round.into());
        bench.test.gate.pass();
    }
}

#[test]
fn a_task_that_is_dropped_while_it_attends_leaves_its_turns_to_others() {
    let bench = bench();
    let channel = bench.channel();
    for round in 0..100_u8 {
        become_busy(&channel);
        let mut attends = later(&channel, b"x");
        assert!(poll(&mut attends).is_pending());
        let mut other = echo(&channel, &[round]);
        let (flag, polled) = flagged(&mut other);
        drop(attends);
        if polled.is_pending() {
            until("the other task is woken", || flag.0.load(SeqCst));
        }
        assert_eq!(
            if polled.is_pending() { run(&mut other) } else { Ok(vec![round]) },
            Ok(vec![round])
        );
    }
    // One that was dropped before it was sent never ran.
    let waiting = || bench.test.gate.waiting.load(SeqCst);
    until("the server is told of all of them", || {
        bench.test.gate.dropped.load(SeqCst) == waiting()
    });
}

#[test]
fn a_task_takes_the_turns_of_its_next_call_too() {
    const ROUNDS: u64 = 50;
    let bench = bench();
    let channel = bench.channel();
    become_busy(&channel);
    let mut rounds_with_turns = 0;
    for round in 1..=ROUNDS {
        // The next call has the ticket of the last one.
        let mut call = later(&channel, b"x");
        let (flag, polled) = flagged(&mut call);
        assert!(polled.is_pending(), "the handler has not answered");
        // It is to be polled at once, for the next turn, unless the I/O thread looked just then.
        rounds_with_turns += u64::from(flag.0.load(SeqCst));
        thread::sleep(Duration::from_micros(100)); // Longer than a task attends without progress.
        until("the handler runs", || bench.test.gate.waiting.load(SeqCst) == round);
        bench.test.gate.pass();
        assert_eq!(run(&mut call), Ok(b"x".to_vec()));
    }
    assert!(rounds_with_turns > ROUNDS / 2, "{rounds_with_turns}");
}

#[test]
fn a_blocking_call_that_another_carries_ends_when_that_leaves() {
    let bench = bench();
    let channel = bench.channel();
    thread::scope(|scope| {
        for n in 0..4_u8 {
            let channel = &channel;
            scope.spawn(move || {
                for round in 0..200 {
                    let data = [n, round];
                    let call = echo(channel, &data);
                    let start = Instant::now();
                    assert_eq!(call.wait(), Ok(data.to_vec()));
                    assert!(start.elapsed() < BOUND / 2, "{:?}", start.elapsed());
                }
            });
        }
        // A long one, which they carry too.
        let long = scope.spawn(|| later(&channel, b"long").wait());
        until("it runs", || bench.test.gate.waiting.load(SeqCst) == 1);
        bench.test.gate.open();
        assert_eq!(long.join().expect("no panic"), Ok(b"long".to_vec()));
    });
}

/// Does something when it is woken.
struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A call whose answer another caller takes in, which then wakes this.
fn call_with_waker(
    bench: &Bench,
    channel: &Channel,
    on_wake: impl Fn() + Send + Sync + 'static,
) -> Call<Bytes> {
    let mut call = later(channel, b"x");
    let waker = Waker::from(Arc::new(Does(on_wake)));
    let before = bench.test.gate.waiting.load(SeqCst);
    assert!(poll_with(&mut call, &waker).is_pending());
    // It waits longer than it would attend.
    until("it is left to the I/O thread", || {
        thread::sleep(Duration::from_millis(1));
        assert!(poll_with(&mut call, &waker).is_pending());
        bench.test.gate.waiting.load(SeqCst) > before
    });
    call
}

#[test]
fn a_waker_that_panics_harms_no_other_call() {
    let bench = bench();
    let channel = bench.channel();
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = is_armed.clone();
    let mut panics = call_with_waker(&bench, &channel, move || {
        assert!(!armed.load(SeqCst), "in a waker, as asked");
    });
    let other = Arc::new(Flag::default());
    let mut woken = later(&channel, b"y");
    assert!(poll_with(&mut woken, &Waker::from(other.clone())).is_pending());
    is_armed.store(true, SeqCst);
    until("both run", || bench.test.gate.waiting.load(SeqCst) == 2);
    bench.test.gate.open();
    until("the other task is woken", || {
        // This caller drives, and calls the wakers.
        assert_eq!(echo(&channel, b"z").wait(), Ok(b"z".to_vec()));
        other.0.load(SeqCst)
    });
    assert_eq!(run(&mut woken), Ok(b"y".to_vec()));
    is_armed.store(false, SeqCst);
    assert_eq!(run(&mut panics), Ok(b"x".to_vec()));
}

#[test]
fn a_waker_may_itself_wait_for_a_call() {
    let bench = bench();
    let channel = bench.channel();
    let answers = Arc::new(Mutex::new(Vec::new()));
    let (nested, into) = (channel.clone(), answers.clone());
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = is_armed.clone();
    let mut call = call_with_waker(&bench, &channel, move || {
        if armed.swap(false, SeqCst) {
            into.lock().unwrap().push(echo(&nested, b"nested").wait());
        }
    });
    is_armed.store(true, SeqCst);
    bench.test.gate.open();
    until("the waker has got its answer", || {
        assert_eq!(echo(&channel, b"z").wait(), Ok(b"z".to_vec()));
        answers.lock().unwrap().contains(&Ok(b"nested".to_vec()))
    });
    assert_eq!(run(&mut call), Ok(b"x".to_vec()));
}

#[test]
fn a_panic_of_the_transport_ends_the_channel_and_no_other_of_its_endpoint() {
    let bench = bench();
    let endpoint = Endpoint::new();
    let options = || ChannelOptions::default().timeout(2 * BOUND).endpoint(&endpoint);
    let caller = thread::current().id();
    let is_armed = Arc::new(AtomicBool::new(false));
    let armed = is_armed.clone();
    let on_poll = move || {
        if thread::current().id() == caller && armed.swap(false, SeqCst) {
            panic!("in a poll, as asked");
        }
    };
    let broken = bench.intercepted(Arc::new(on_poll), options());
    let sound = Channel::connect(bench.net.clone(), &TEST, options()).expect("a server listens");
    let mut pending = later(&broken, b"x");
    let (flag, _) = flagged(&mut pending);
    is_armed.store(true, SeqCst);
    // The I/O thread may drive just now: then this one does at its next try.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        for _ in 0..1000 {
            let _ = echo(&broken, b"y").wait();
        }
    }));
    let panic = panicked.expect_err("the caller that drives gets the panic");
    assert_eq!(panic.downcast_ref(), Some(&"in a poll, as asked"));
    until("the other caller is woken", || flag.0.load(SeqCst));
    let gone = run(&mut pending);
    assert!(matches!(gone, Err(RpcError::PeerGone { .. })), "{gone:?}");
    let after = echo(&broken, b"y").wait();
    assert!(matches!(after, Err(RpcError::PeerGone { may_have_run: false, .. })), "{after:?}");
    assert_eq!(echo(&sound, b"on").wait(), Ok(b"on".to_vec()));
    broken.close();
}

/// The caller that is stopped. The I/O thread is not: tasks depend on it then.
const DRIVER: &str = "driver";

/// A channel, and a caller that can be stopped in a turn.
struct Stoppable {
    channel: Channel,
    /// Stops the caller's polls while held.
    gate: Arc<Mutex<()>>,
    stopped: Arc<AtomicU32>,
}

impl Stoppable {
    fn new(bench: &Bench) -> Stoppable {
        let (gate, stopped) = (Arc::new(Mutex::new(())), Arc::new(AtomicU32::new(0)));
        let (closed, count) = (gate.clone(), stopped.clone());
        let on_poll = move || {
            if thread::current().name() == Some(DRIVER)
                && let Err(std::sync::TryLockError::WouldBlock) = closed.try_lock()
            {
                count.fetch_add(1, SeqCst);
                drop(closed.lock());
            }
        };
        let options = ChannelOptions::default().timeout(2 * BOUND);
        Stoppable { channel: bench.intercepted(Arc::new(on_poll), options), gate, stopped }
    }

    /// Runs `meanwhile` while a caller that drives is stopped in its turn, and its end when that goes on.
    fn while_stopped<R>(&self, meanwhile: impl FnOnce() -> R, then: impl FnOnce(R)) {
        let before = self.stopped.load(SeqCst);
        thread::scope(|scope| {
            let held = self.gate.lock().unwrap();
            let drive = || {
                // The I/O thread may carry its call while it waits.
                while self.stopped.load(SeqCst) == before {
                    assert_eq!(echo(&self.channel, b"driver").wait(), Ok(b"driver".to_vec()));
                }
            };
            let driver = thread::Builder::new().name(DRIVER.into()).spawn_scoped(scope, drive);
            until("it is stopped in a poll", || self.stopped.load(SeqCst) == before + 1);
            let result = meanwhile();
            drop(held);
            then(result);
            driver.expect("the system has threads").join().expect("no panic");
        });
        assert_eq!(echo(&self.channel, b"on").wait(), Ok(b"on".to_vec()));
    }
}

const LATE: Result<Vec<u8>, RpcError> =
    Err(RpcError::DeadlineExceeded { may_have_run: true, waited: Waited::ForDriver });

#[test]
fn callers_end_at_their_deadlines_while_the_one_who_drives_is_stopped() {
    let bench = bench();
    let stoppable = Stoppable::new(&bench);
    let channel = &stoppable.channel;
    for is_busy in [true, false, true, false] {
        if is_busy {
            become_busy(channel);
        } else {
            // Long enough that the I/O thread sleeps, and not for a nap: nobody has looked after the channel when the driver comes.
            thread::sleep(Duration::from_millis(20));
        }
        let sent_before = is_busy.then(|| {
            let mut call = later(channel, b"sent before").timeout(Duration::from_millis(100));
            assert!(poll(&mut call).is_pending());
            call
        });
        let meanwhile = || {
            let short = || echo(channel, b"x").timeout(Duration::from_millis(50));
            let start = Instant::now();
            assert_eq!(short().wait(), LATE, "it waits");
            assert_eq!(run(&mut short()), LATE, "a task");
            let mut polled = short();
            assert!(poll(&mut polled).is_pending());
            assert_eq!(polled.wait(), LATE, "a task that becomes a wait");
            if let Some(mut call) = sent_before {
                // Its time may have passed before the driver was stopped.
                let ended = run(&mut call);
                let is_late =
                    matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: true, .. }));
                assert!(is_late, "it was sent before: {ended:?}");
            }
            assert!(start.elapsed() < BOUND / 2, "{:?}", start.elapsed());
            // One that has time is woken when the driver goes on.
            let mut task = echo(channel, b"task");
            let (flag, polled) = flagged(&mut task);
            assert!(polled.is_pending());
            (task, flag)
        };
        stoppable.while_stopped(meanwhile, |(mut task, flag)| {
            until("the task is woken", || flag.0.load(SeqCst));
            assert_eq!(run(&mut task), Ok(b"task".to_vec()));
        });
    }
    until("what was given up is free", || {
        let snapshot = channel.metrics().snapshot();
        snapshot.methods.iter().all(|method| method.in_flight() == 0)
    });
}

#[test]
fn a_runtime_that_is_shut_down_cancels_its_calls_and_no_others() {
    let bench = bench();
    let channel = bench.channel();
    for round in 1..=5 {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
        let runtime = runtime.expect("the system has threads");
        for _ in 0..8 {
            let channel = channel.clone();
            runtime.spawn(async move { later(&channel, b"x").await });
        }
        let waiting = || bench.test.gate.waiting.load(SeqCst);
        until("all of them run", || waiting() == round * 9 - 1);
        let mut kept = later(&channel, b"kept");
        assert!(poll(&mut kept).is_pending());
        until("this one runs too", || waiting() == round * 9);
        runtime.shutdown_background();
        until("the calls are cancelled", || bench.test.gate.dropped.load(SeqCst) == round * 8);
        bench.test.gate.pass();
        assert_eq!(run(&mut kept), Ok(b"kept".to_vec()));
    }
}

#[test]
fn a_call_whose_deadline_has_passed_is_not_sent_by_the_one_who_waits() {
    let bench = bench();
    let channel = bench.channel();
    let past = Instant::now().checked_sub(Duration::from_secs(1)).expect("the system is older");
    for _ in 0..100 {
        let error = echo(&channel, b"x").deadline(past).wait();
        assert!(
            matches!(error, Err(RpcError::DeadlineExceeded { may_have_run: false, .. })),
            "{error:?}"
        );
    }
    assert_eq!(bench.test.ran.load(SeqCst), 0);
    assert_eq!(echo(&channel, b"x").wait(), Ok(b"x".to_vec()));
}

#[test]
fn deadlines_hold_without_anyone_polling() {
    let bench = bench();
    let channel = bench.channel();
    for is_busy in [false, true, false, true] {
        if is_busy {
            become_busy(&channel);
        }
        let mut call = later(&channel, b"x").timeout(Duration::from_millis(30));
        let (flag, polled) = flagged(&mut call);
        assert!(polled.is_pending());
        // Its waker is called once to poll again soon, and once more when it has ended.
        until("the server is told", || bench.test.gate.dropped.swap(0, SeqCst) == 1);
        drop(flag);
        let ended = run(&mut call);
        assert!(
            matches!(ended, Err(RpcError::DeadlineExceeded { may_have_run: true, .. })),
            "{ended:?}"
        );
    }
}

/// Where the system tells of this thread.
fn this_thread() -> PathBuf {
    Path::new("/proc").join(fs::read_link("/proc/thread-self").expect("the system tells of it"))
}

/// The thread waits in the system.
fn is_asleep(thread: &Path) -> bool {
    let stat = fs::read_to_string(thread.join("stat")).expect("the thread is there");
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('S'))
}

#[test]
fn a_caller_that_parks_hands_its_call_to_the_io_thread() {
    let bench = bench();
    let options = ChannelOptions::default().timeout(2 * BOUND).idle(IdlePolicy::PARK);
    let channel = Channel::connect(bench.net.clone(), &TEST, options).expect("a server listens");
    for n in 0..50_u64 {
        thread::scope(|scope| {
            let ((tell, told), channel) = (mpsc::channel(), &channel);
            let call = scope.spawn(move || {
                tell.send(this_thread()).expect("it is awaited");
                later(channel, b"x").wait()
            });
            until("it runs", || bench.test.gate.waiting.load(SeqCst) == n + 1);
            if n % 2 == 0 {
                let caller = told.recv().expect("it has begun");
                until("it has parked", || is_asleep(&caller));
            }
            bench.test.gate.pass();
            assert_eq!(call.join().expect("no panic"), Ok(b"x".to_vec()));
        });
    }
}

/// Polls a call some times, then drops it.
async fn abandon(call: Call<Bytes>, polls: u32) {
    let mut call = Box::pin(call);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 || call.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn thousands_of_tasks_share_a_channel_while_some_give_up_at_any_point() {
    const TASKS: u32 = 2000;
    // Those that were given up keep theirs until the next turn.
    const MAX_CALLS: u32 = 4 * TASKS;
    let bench = bench();
    let options = ChannelOptions::default().timeout(2 * BOUND).max_calls(MAX_CALLS as usize);
    let channel = Channel::connect(bench.net.clone(), &TEST, options).expect("a server listens");
    let tasks: Vec<_> = (0..TASKS)
        .map(|n| {
            let channel = channel.clone();
            tokio::spawn(async move {
                for round in 0..3 {
                    if (n + round) % 3 == 0 {
                        abandon(echo(&channel, b"gone"), n % 7).await;
                    }
                    let data = (n + round).to_le_bytes();
                    assert_eq!(echo(&channel, &data).await, Ok(data.to_vec()));
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(BOUND, task).await.expect("in time").expect("no panic");
    }
    until("no call is under way", || {
        let snapshot = channel.metrics().snapshot();
        snapshot.methods.iter().all(|method| method.in_flight() == 0)
    });
    // Every job is free again.
    let mut calls: Vec<_> = (0..MAX_CALLS).map(|_| echo(&channel, b"all")).collect();
    for call in &mut calls {
        assert_eq!(run(call), Ok(b"all".to_vec()));
    }
}

#[tokio::test]
async fn a_task_may_block_its_runtime_to_wait() {
    let bench = bench();
    let channel = bench.channel();
    let pending = tokio::spawn({
        let channel = channel.clone();
        async move { later(&channel, b"x").await }
    });
    while bench.test.gate.waiting.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    for n in 0..10_u8 {
        assert_eq!(echo(&channel, &[n]).wait(), Ok(vec![n]));
    }
    bench.test.gate.open();
    assert_eq!(pending.await.expect("no panic"), Ok(b"x".to_vec()));
}

#[test]
fn a_handler_may_wait_for_a_call_to_another_server() {
    let (front, back) = (bench(), bench());
    let to_back = back.channel();
    *front.test.slow.lock().expect("no panic") = Some(Arc::new(move || {
        assert_eq!(echo(&to_back, b"behind").wait(), Ok(b"behind".to_vec()));
    }));
    let to_front = front.channel();
    for n in 0..100_u8 {
        assert_eq!(echo(&to_front, &[n]).wait(), Ok(vec![n]));
    }
    assert_eq!(back.test.ran.load(SeqCst), 100);
}

/// The thread that would answer is the one that waits.
#[test]
fn a_handler_that_waits_for_its_own_thread_waits_until_the_deadline() {
    let bench = bench();
    let channel = bench.channel();
    let inner = channel.clone();
    let within = Arc::new(Mutex::new(None));
    let ended = within.clone();
    *bench.test.slow.lock().expect("no panic") = Some(Arc::new(move || {
        let mut ended = ended.lock().expect("no panic");
        if ended.is_none() {
            *ended = Some(echo(&inner, b"x").timeout(Duration::from_millis(30)).wait());
        }
    }));
    assert_eq!(echo(&channel, b"outer").wait(), Ok(b"outer".to_vec()));
    let within = within.lock().expect("no panic").take();
    let is_late =
        matches!(within, Some(Err(RpcError::DeadlineExceeded { may_have_run: true, .. })));
    assert!(is_late, "{within:?}");
}

#[test]
fn an_idle_channel_sleeps() {
    let bench = bench();
    let polls = Arc::new(AtomicU32::new(0));
    let count = polls.clone();
    let on_poll = move || {
        count.fetch_add(1, SeqCst);
    };
    let channel = bench.intercepted(Arc::new(on_poll), ChannelOptions::default());
    for _ in 0..5 {
        become_busy(&channel);
        // From some moment on nobody polls; a nap is some milliseconds.
        until("nobody polls any more", || {
            let before = polls.load(SeqCst);
            thread::sleep(Duration::from_millis(100));
            polls.load(SeqCst) == before
        });
    }
}
