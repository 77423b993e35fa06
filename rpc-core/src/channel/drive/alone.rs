//! A caller that drives while there is no I/O thread: each of its turns takes some virtual time.

use super::super::driver::Driver;
use super::super::io::Dialler;
use super::super::options::ChannelOptions;
use super::*;
use crate::error::FailureKind;
use crate::idle::IdlePolicy;
use crate::metrics::{MethodTable, ThreadCounters};
use crate::service::Method;
use crate::support::intercepted::Intercepted;
use crate::support::loopback::{Clock, Loopback, ServerEnd};
use crate::support::service::{Echo, TEST, bytes};
use crate::transport::{CallToken, Dial, DialOptions, Message};
use crate::transport::{Replies, RequestSink, ServerTransport};
use crate::wire::Status;
use core::sync::atomic::{AtomicU32, Ordering};
use crossbeam_channel::bounded;

const TURN: Duration = Duration::from_nanos(100);

/// Answers each request at once.
struct Answers;

impl RequestSink for Answers {
    fn request(&mut self, call: CallToken, message: Message<'_>, replies: &mut dyn Replies) {
        let mut answer = message.to_vec();
        Status::Value.write(&mut answer);
        let room = replies.reserve(&call, answer.len()).expect("room");
        room.copy_from_slice(&answer);
        replies.post(call, answer.len());
    }

    fn is_idempotent(&self, _: &[u8]) -> bool {
        false
    }
}

struct Bench {
    shared: Arc<Shared>,
    server: ServerEnd,
    turns: Arc<AtomicU32>,
}

/// A channel as [`Channel::connect`](super::super::handle::Channel::connect) makes it.
fn bench() -> Bench {
    let net = Loopback::new(Clock::virtual_time(), 4);
    let (site, turns) = (net.site(), Arc::new(AtomicU32::new(0)));
    let server = net.listen(&site);
    let (clock, counted) = (net.clock.clone(), turns.clone());
    let on_poll = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        clock.advance(TURN);
    };
    let address = Intercepted { net, on_poll: Arc::new(on_poll) };
    let dialled = address.dial(&TEST, &site, &DialOptions::default()).expect("a server listens");
    let shared = Arc::new(Shared::new(8, site.clone()));
    let methods = Arc::new(MethodTable::new(&[&TEST]));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let driver = Driver::new(shared.clone(), methods, counters, 4, None);
    let options = ChannelOptions::default();
    let dialler = Dialler { address: Arc::new(address), service: &TEST, site, options };
    let (idle, end) = (IdlePolicy::default(), bounded(0).0);
    shared.io.put(ChannelIo::new(driver, &shared, dialled.transport, dialler, idle, end));
    Bench { shared, server, turns }
}

impl Bench {
    fn drive(&self) -> Drive<'_> {
        self.shared.drive().expect("nobody else drives")
    }

    /// Begins a call. Gives its ticket.
    fn begin(&self, drive: &mut Drive<'_>) -> usize {
        let mut job = self.shared.job().expect("there is room");
        job.arguments.encode(&bytes(b"own"), true).expect("bytes");
        (job.method, job.sent_as) = (Echo::ID, Echo::ID);
        job.timeout_ns = Duration::from_secs(10).as_nanos() as u64;
        let ticket = job.ticket.id();
        drive.send_own(job);
        ticket
    }

    /// A call whose answer comes behind the first turns of its task: how many turns those were.
    fn turns_of_a_call(&mut self, usual_ns: u64) -> u32 {
        let shared = self.shared.clone();
        let mut drive = shared.drive().expect("nobody else drives");
        drive.io().attendance.usual_ns = usual_ns;
        let ticket = self.begin(&mut drive);
        let before = self.turns.load(Ordering::Relaxed);
        assert!(drive.for_task(ticket).is_none(), "there is no answer");
        let turns = self.turns.load(Ordering::Relaxed) - before;
        self.server.poll(Instant::ZERO, &mut Answers);
        self.shared.recycle(drive.for_task(ticket).expect("it is answered"));
        drive.leave(Leave::Done);
        turns
    }

    /// Whether the I/O thread is to drive after a call of which `leave` says how its caller leaves.
    fn hands_over(&mut self, is_up: bool, leave: fn(usize) -> Leave) -> bool {
        if !is_up {
            self.server.poll(Instant::ZERO, &mut Answers);
            self.server.die(FailureKind::PeerGone);
        }
        let mut drive = self.drive();
        let ticket = self.begin(&mut drive);
        drive.turn();
        assert_eq!((drive.io().is_up(), drive.io().driver.has_calls()), (is_up, true));
        drive.leave(leave(ticket));
        self.shared.io.take().expect("it was put back").is_handed_over
    }
}

#[test]
fn a_task_spins_only_for_a_call_that_is_alone_and_usually_short() {
    let mut bench = bench();
    for _ in 0..4 {
        assert_eq!(bench.turns_of_a_call(0), 1, "others may have called lately");
    }
    assert!(bench.turns_of_a_call(0) > 1);
    assert!(bench.turns_of_a_call(LONGEST_SPIN_NS) > 1);
    assert_eq!(bench.turns_of_a_call(LONGEST_SPIN_NS + 1), 1, "it usually takes long");
}

#[test]
fn a_task_that_is_polled_again_soon_keeps_its_call_from_the_io_thread() {
    assert!(!bench().hands_over(true, Leave::Back));
    assert!(bench().hands_over(false, Leave::Back), "callers do not connect again");
    assert!(bench().hands_over(true, |_| Leave::GiveUp));
}

#[test]
fn what_arrives_while_a_caller_drives_makes_no_event() {
    let bench = bench();
    let until = Instant::from_nanos(1 << 40);
    let mut asleep = bench.shared.io.take().expect("nobody drives");
    assert!(asleep.arm().may_sleep());
    asleep.watch = Watch::Armed(until);
    bench.shared.io.put(asleep);
    let mut drive = bench.drive();
    assert_eq!(drive.io().watch, Watch::Disarmed(until));
    drive.leave(Leave::Done);
    let after = bench.shared.io.take().expect("it was put back");
    assert_eq!(after.watch, Watch::Armed(until), "the I/O thread still sleeps");
}
