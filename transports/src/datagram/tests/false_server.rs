//! A client whose server says anything: each call ends once at most, and nothing else happens.

use std::collections::BTreeMap;
use std::time::Duration;

use farcall_core::error::{ReserveError, TransportFailure};
use farcall_core::site::Site;
use farcall_core::time::{Instant, PollAt};
use farcall_core::transport::{ClientTransport, Closing, Delivery, Message, ReplySink, SlotId};
use farcall_verbs::{CompletionOpcode, CompletionQueue, Device, GRH_BYTES, WorkCompletion};
use proptest::prelude::*;

use super::by_hand::WINDOW;
use super::hostile::{any_body, any_kind};
use crate::contract::{Answer, Backend, Config, Fabric, Placement};
use crate::datagram::Datagram;
use crate::datagram::ablation::Without;
use crate::datagram::port::{Peer, Port};
use crate::datagram::setup::{EndSetup, FEW_CALLS, Sizes};
use crate::datagram::wire::{Header, Id, Kind};

const MAX_MESSAGE: u64 = 1 << 20;
const EPOCH: u64 = 0x1234_5678_9abc_def0;

/// The calls that wait, by slot and generation.
#[derive(Debug, Default)]
struct Caller {
    waits: BTreeMap<(u32, u32), SlotId>,
    ended: usize,
    closed: bool,
}

impl Caller {
    fn end(&mut self, slot: SlotId) {
        assert!(!self.closed, "{slot:?} ends after the session");
        let waited = self.waits.remove(&(slot.index, slot.generation));
        assert!(waited.is_some(), "{slot:?} ends and does not wait");
        self.ended += 1;
    }
}

impl ReplySink for Caller {
    fn reply(&mut self, slot: SlotId, message: Message<'_>) {
        assert!(message.len() as u64 <= MAX_MESSAGE);
        self.end(slot);
    }

    fn failed(&mut self, slot: SlotId, _: TransportFailure) {
        self.end(slot);
    }

    fn lane_lost(&mut self, _: std::ops::Range<u32>, _: TransportFailure) {
        panic!("it has one lane");
    }

    fn closed(&mut self, _: TransportFailure) {
        assert!(!std::mem::replace(&mut self.closed, true), "closed twice");
        self.waits.clear();
    }
}

/// A client, and the queue pair that it takes for a server's.
struct Pair {
    window: u32,
    client: Box<dyn ClientTransport>,
    caller: Caller,
    port: Port,
    cq: CompletionQueue,
    peer: Peer,
    now: u64,
    /// The kinds of what the client has said, in order.
    heard: Vec<Kind>,
}

impl Pair {
    fn new() -> Pair {
        Pair::of_window(WINDOW)
    }

    fn of_window(window: u32) -> Pair {
        let device = Device::open("shm").unwrap();
        let (memory, slot) = (16 << 20, 512);
        let config = Config { window, slot, max_message: MAX_MESSAGE, memory, ..Config::default() };
        let site = Site::new();
        let at = Placement::new(&site, Fabric::Verbs(&device));
        let pending = Datagram.dial(&at, &config).unwrap();
        let theirs = EndSetup::from_bytes(&pending.setup()).unwrap();
        let sizes = Sizes::of_client(64, device.caps(), Without::of(&Config::default()));
        let cq = device.create_cq(sizes.completions(), None).unwrap();
        let pd = device.alloc_pd().unwrap();
        let (port, address) = Port::open(&device, &pd, &cq.handle(), &sizes).unwrap();
        let ours = EndSetup::new(&address, 3, EPOCH, sizes.mtu).to_bytes();
        let peer = theirs.peer(&pd, EPOCH, sizes.mtu).unwrap();
        let (terms, timeout) = (config.terms(), Duration::from_secs(20));
        let client = pending.finish(Answer { terms: &terms, setup: &ours, timeout }).unwrap();
        let caller = Caller::default();
        let mut pair = Pair { window, client, caller, port, cq, peer, now: 1, heard: Vec::new() };
        // The first words to somebody are on their way for longer: later ones come at once.
        assert!(pair.is_served());
        pair
    }

    fn call(&mut self, len: usize) {
        self.call_as(Delivery::AtMostOnce, len);
    }

    fn call_as(&mut self, delivery: Delivery, len: usize) {
        if let Ok((slot, bytes)) = self.client.reserve(len) {
            bytes.fill(7);
            self.client.post(slot, delivery);
            self.caller.waits.insert((slot.index, slot.generation), slot);
        }
    }

    fn give_up(&mut self, which: usize) {
        let chosen = self.caller.waits.iter().nth(which).map(|(key, slot)| (*key, *slot));
        if let Some((key, slot)) = chosen {
            self.client.abandon(slot);
            self.caller.waits.remove(&key);
        }
    }

    /// Some time passes; the client has its turn, and the server hears what it says. When the client wants the next one.
    fn turn(&mut self, ns: u64) -> PollAt {
        self.now += ns;
        let now = Instant::from_nanos(self.now);
        let next = self.client.poll(now, &mut self.caller).next;
        self.client.flush();
        let mut completion = [WorkCompletion::default()];
        while self.cq.poll(&mut completion).unwrap() > 0 {
            match completion[0].opcode {
                CompletionOpcode::Recv => {
                    let buffer = completion[0].buffer.take().unwrap();
                    let datagram = &buffer[GRH_BYTES..completion[0].byte_len as usize];
                    let (.., messages) = Header::split(datagram).unwrap();
                    self.heard.extend(messages.map(|message| message.kind));
                    self.port.recycle(buffer);
                }
                _ => self.port.retire(&completion[0]),
            }
        }
        next
    }

    fn say(&mut self, kind: Kind, id: (u32, u32), body: &[u8]) {
        let id = Id { slot: id.0, generation: id.1, mark: id.1 as u8 };
        // A full send queue is loss.
        if self.port.put(&self.peer, kind, id, (body, &[])) {
            self.port.post(&self.peer);
            self.port.ring();
        }
    }

    /// Turns until the client has nothing more to take and to say, and what it said meanwhile.
    fn settle(&mut self) -> Vec<Kind> {
        self.heard.clear();
        // It polls a few times before what has come to an idle queue pair is seen.
        for _ in 0..1000 {
            self.turn(1);
        }
        std::mem::take(&mut self.heard)
    }

    /// Whether the client is still there and gets its answers.
    fn is_served(&mut self) -> bool {
        while !self.caller.waits.is_empty() {
            self.give_up(0);
        }
        for _ in 0..self.window {
            self.call(8);
        }
        self.turn(1);
        self.answer_all()
    }

    /// Answers all calls that wait. Whether that ends them.
    fn answer_all(&mut self) -> bool {
        let (before, asked) = (self.caller.ended, self.caller.waits.len());
        let begin = std::time::Instant::now();
        while !self.caller.closed
            && self.caller.ended < before + asked
            && begin.elapsed() < Duration::from_secs(20)
        {
            for id in self.caller.waits.keys().copied().collect::<Vec<_>>() {
                self.say(Kind::Response, id, b"answered");
            }
            self.turn(1);
            std::thread::yield_now();
        }
        self.caller.closed || self.caller.ended == before + asked
    }
}

#[test]
fn a_client_without_calls_has_nothing_to_look_at_by_itself() {
    let mut pair = Pair::new();
    // When all that has come is taken.
    let next = |pair: &mut Pair| (0..1000).map(|_| pair.turn(1)).find(|next| *next != PollAt::Now);
    assert_eq!(next(&mut pair), Some(PollAt::OnEvent));
    pair.call(8);
    pair.turn(1);
    assert!(matches!(next(&mut pair), Some(PollAt::At(_))), "it may have to send it again");
    assert!(pair.answer_all());
    assert_eq!(next(&mut pair), Some(PollAt::OnEvent));
}

#[test]
fn the_answers_to_all_calls_arrive_at_once() {
    // More than a client has receives at first, and fewer than an inbox holds of one sender.
    for window in [FEW_CALLS, 24] {
        let mut pair = Pair::of_window(window);
        for _ in 0..window {
            pair.call(8);
        }
        pair.turn(1);
        // One datagram each, and once.
        for id in pair.caller.waits.keys().copied().collect::<Vec<_>>() {
            pair.say(Kind::Response, id, b"answered");
        }
        let begin = std::time::Instant::now();
        while !pair.caller.waits.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", pair.caller.waits.len());
            pair.turn(1);
        }
    }
}

/// The server says that the response is not kept. Only a small idempotent call whose request is known to have arrived may be asked
/// for again: the request of another is on its way, may not run again, or is not in its slot.
#[test]
fn only_a_small_idempotent_call_that_has_run_is_sent_again_when_its_response_is_dropped() {
    use Delivery::{AtMostOnce, Idempotent};
    const SMALL: usize = 8;
    const LARGE: usize = 10_000;
    for (delivery, len, has_run, said) in [
        (Idempotent, SMALL, true, vec![Kind::Idempotent]),
        (Idempotent, SMALL, false, vec![]),
        (AtMostOnce, SMALL, true, vec![]),
        (AtMostOnce, SMALL, false, vec![]),
        (Idempotent, LARGE, true, vec![]),
        (Idempotent, LARGE, false, vec![]),
        (AtMostOnce, LARGE, true, vec![]),
    ] {
        let mut pair = Pair::new();
        pair.settle();
        pair.call_as(delivery, len);
        let request = match (delivery, len) {
            (_, LARGE) => Kind::Announce,
            (Idempotent, _) => Kind::Idempotent,
            (AtMostOnce, _) => Kind::Request,
        };
        assert_eq!(pair.settle(), [request]);
        let (&id, _) = pair.caller.waits.iter().next().unwrap();
        if has_run {
            pair.say(Kind::Running, id, &[]);
            assert_eq!(pair.settle(), []);
        }
        pair.say(Kind::Dropped, id, &[]);
        assert_eq!(pair.settle(), said, "{delivery:?}, {len} bytes, has run: {has_run}");
        assert!(pair.answer_all() && !pair.caller.closed);
    }
}

/// No server is declared dead that has been silent for this.
const SHORT_NS: u64 = 500_000_000;

#[derive(Clone, Debug)]
enum Step {
    Call(usize),
    GiveUp(usize),
    /// Of the call that waits in this place, or was there so many generations before or after.
    Say(Kind, usize, i8, Vec<u8>),
    /// The same again, as often.
    Repeat(u8),
    /// The same in another epoch.
    Stranger(u64),
    Turn(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let near = prop_oneof![6 => Just(0), 1 => -2_i8..3];
    prop_oneof![
        3 => prop_oneof![0_usize..400, 5_000..20_000_usize].prop_map(Step::Call),
        1 => (0..4_usize).prop_map(Step::GiveUp),
        8 => (any_kind(), 0..5_usize, near, any_body())
            .prop_map(|(kind, which, near, body)| Step::Say(kind, which, near, body)),
        1 => (1..4_u8).prop_map(Step::Repeat),
        1 => any::<u64>().prop_map(Step::Stranger),
        4 => prop_oneof![0..2_000_u64, 0..200_000_000_u64].prop_map(Step::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_server_ends_each_call_once_at_most(
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let mut pair = Pair::new();
        let mut last = None;
        // A server that is silent for long is declared dead, and one that talks may end the session.
        let (mut has_spoken, mut passed) = (false, 0);
        for step in steps {
            match step {
                Step::Call(len) => pair.call(len),
                Step::GiveUp(which) => pair.give_up(which),
                Step::Say(kind, which, near, body) => {
                    has_spoken = true;
                    // Some of a slot that nobody has.
                    let waiting = pair.caller.waits.keys().nth(which).copied();
                    let (slot, generation) = waiting.unwrap_or((which as u32, 1));
                    let id = (slot, generation.wrapping_add_signed(near.into()));
                    pair.say(kind, id, &body);
                    last = Some((kind, id, body));
                }
                Step::Repeat(times) => {
                    for _ in 0..times {
                        last.iter().for_each(|(kind, id, body)| pair.say(*kind, *id, body));
                    }
                }
                Step::Stranger(epoch) => {
                    let ours = std::mem::replace(&mut pair.peer.epoch, epoch);
                    last.iter().for_each(|(kind, id, body)| pair.say(*kind, *id, body));
                    pair.say(Kind::Goodbye, (0, 0), &[]);
                    pair.peer.epoch = ours;
                }
                Step::Turn(ns) => {
                    passed += ns;
                    pair.turn(ns);
                }
            }
        }
        // All that was said has come before the client is asked whether it is well.
        for _ in 0..20 {
            pair.turn(1);
        }
        let may_be_closed = has_spoken || passed > SHORT_NS;
        prop_assert!(may_be_closed || !pair.caller.closed, "a stranger has ended the session");
        let has_free = pair.caller.closed || pair.is_served();
        prop_assert!(has_free);
        pair.client.close(Closing::PeerGone);
        pair.turn(1);
        prop_assert!(pair.caller.closed);
        prop_assert!(matches!(pair.client.reserve(1), Err(ReserveError::Closed)));
    }
}
