//! What a server advises its clients: the way on which all of them together make most calls.
//!
//! A client that tries a way alone gains nothing where all clients are the limit: its calls still wait behind theirs, for example because
//! the server's NIC has no room for the contexts of all queue pairs (FaSST, section 3.2; ScaleRPC, section 2). So a server that
//! has many clients advises all of them the same way, has all of them try another now and then, and compares how many calls it answers in a
//! time. Otherwise it advises nothing, and each client takes the way that is best for its own calls.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use farcall_core::time::Instant;
use farcall_core::transport::{Adviser, ThreadLoad};

use super::budget::Budget;
use super::choice::{Choice, Lanes, Measured, Step};
use super::experience::{Experience, Features, Present};
use super::pace::Pace;

/// A server with fewer clients that call begins to advise nothing: each has its part of the NIC, and sees what it gains.
const MANY_CLIENTS: f64 = 16.0;

/// A server that advises its clients ends that when fewer call.
const FEW_CLIENTS: f64 = 8.0;

/// The load is another one when so many times as many clients call, or so many times fewer.
const OTHER_CLIENTS: f64 = 1.8;

/// The part of the latest look in the running mean of clients that call.
const FRESH: f64 = 0.3;

/// Time between two looks.
const LOOK_NS: u64 = 1_000_000;

/// Clients follow other advice within this time, and what is measured meanwhile is of both.
const MOVING_NS: u64 = 4_000_000;

/// Clients whose calls take long move later. As long as most have not, what is measured says nothing of where they go.
const LONGEST_MOVING_NS: u64 = 16_000_000;
const MOST_PERCENT: u64 = 50;

/// A client that moves is counted once more for so long.
const COUNTED_TWICE_NS: u64 = 5_000_000;

/// The part of the calls that come over a way when all clients have moved there that will, in per cent.
const MOVED_PERCENT: u64 = 90;

/// Looks at clients that move in which there are far fewer calls than before, or none moves, after which it is judged what they do now.
const LOOKS_AT_STRAGGLERS: u32 = 2;

/// A way on which calls take so many times as long is left after one look, and is not tried where that is known.
const WORSE: f64 = 1.15;

/// How long the other ways wait while the one is tried that is expected to be the best, and how often one is.
const EXPECTED_FIRST_NS: u64 = 15_000_000;

/// The pace of trials in which all clients move. One look counts as one answer.
static OF_SERVER: Pace = Pace {
    settling_ns: 0,
    trial_look_ns: LOOK_NS,
    first_pause_ns: 400_000_000,
    after_move_ns: 10_000_000,
    looks_between: 3,
    // All calls of some milliseconds differ less than those of one client.
    gain: 0.93,
    far_worse_from: WORSE,
    in_order: true,
    // Its trials end after a look if they harm.
    budget: Budget::new(u64::MAX, 1.0),
    // Its looks are of all clients.
    has_noise: false,
    least: 1,
    far_worse: 1,
    no_better: 3,
    better: 3,
};

/// A way that a server may advise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdvisedWay {
    /// Its number in the server's answers.
    pub number: u8,
    /// Its index among the ways of the address.
    pub half: usize,
    /// Its load on the server's NIC does not grow with the number of clients.
    pub suits_many: bool,
}

/// Advises by the rate of all threads' calls.
#[derive(Debug)]
pub struct BySharedRate {
    threads: Box<[Told]>,
    ways: Vec<AdvisedWay>,
    advice: AtomicU8,
    next_look: AtomicU64,
    decision: Mutex<Decision>,
}

/// What one thread has told of its load.
#[derive(Debug, Default)]
struct Told {
    active: AtomicU64,
    lately: AtomicU64,
    mean_bytes: AtomicU64,
    /// Over each way.
    calls: Box<[AtomicU64]>,
}

/// The load of all threads.
#[derive(Debug, Default)]
struct Load {
    active: u64,
    /// Clients that have called lately.
    lately: u64,
    /// The mean length of requests.
    mean_bytes: u64,
    /// Since the last look, over each way.
    calls: Vec<u64>,
    /// Until the last look.
    before: Vec<u64>,
}

impl BySharedRate {
    /// Of a server with so many threads, which may advise these ways. It tries them in this order.
    pub fn new(threads: usize, ways: Vec<AdvisedWay>, seed: u64) -> BySharedRate {
        let calls = || ways.iter().map(|_| AtomicU64::default()).collect();
        let told = |_| Told { calls: calls(), ..Told::default() };
        BySharedRate {
            threads: (0..threads).map(told).collect(),
            advice: AtomicU8::default(),
            next_look: AtomicU64::default(),
            decision: Mutex::new(Decision::new(&ways, seed)),
            ways,
        }
    }

    fn add_up(&self, load: &mut Load) {
        (load.active, load.lately) = (0, 0);
        load.calls.fill(0);
        let (mut bytes, mut threads) = (0, 0);
        for told in &self.threads {
            load.active += told.active.load(Ordering::Relaxed);
            load.lately += told.lately.load(Ordering::Relaxed);
            let mean = told.mean_bytes.load(Ordering::Relaxed);
            (bytes, threads) = (bytes + mean, threads + u64::from(mean > 0));
            let calls = told.calls.iter().map(|it| it.load(Ordering::Relaxed));
            load.calls.iter_mut().zip(calls).for_each(|(sum, it)| *sum += it);
        }
        load.mean_bytes = bytes.checked_div(threads).unwrap_or(0);
        for (calls, before) in load.calls.iter_mut().zip(&mut load.before) {
            let until_now = std::mem::replace(before, *calls);
            *calls = before.saturating_sub(until_now);
        }
    }
}

impl Adviser for BySharedRate {
    fn advise(&self, thread: usize, load: &ThreadLoad<'_>, now: Instant) -> u8 {
        if let Some(told) = self.threads.get(thread) {
            told.active.store(load.active as u64, Ordering::Relaxed);
            told.lately.store(load.active_lately as u64, Ordering::Relaxed);
            told.mean_bytes.store(load.mean_bytes as u64, Ordering::Relaxed);
            for (way, told) in self.ways.iter().zip(&told.calls) {
                told.store(load.calls.get(way.half).copied().unwrap_or(0), Ordering::Relaxed);
            }
        }
        // One thread decides; the others go on with what was decided.
        if now.as_nanos() >= self.next_look.load(Ordering::Relaxed)
            && let Ok(mut decision) = self.decision.try_lock()
        {
            let next = now.saturating_add_nanos(LOOK_NS);
            self.next_look.store(next.as_nanos(), Ordering::Relaxed);
            self.add_up(&mut decision.load);
            let advised = decision.look(now);
            let number = advised.and_then(|way| self.ways.get(way)).map_or(0, |way| way.number);
            if self.advice.swap(number, Ordering::Relaxed) != number {
                tracing::debug!(number, "advises its clients");
            }
        }
        self.advice.load(Ordering::Relaxed)
    }
}

/// The decision, for all clients together.
#[derive(Debug)]
struct Decision {
    seed: u64,
    /// The load at this look.
    load: Load,
    /// The running mean of clients that call.
    active: f64,
    /// While there are many clients.
    for_many: Option<ForMany>,
    experience: Experience,
}

/// Which way many clients are advised.
#[derive(Debug)]
struct ForMany {
    choice: Choice,
    last_look: Instant,
    /// The running mean of clients that call, while they are where they are to stay.
    active: f64,
    /// That mean when the ways were last compared. `None`: calls come over another way since, and as many clients may be seen differently.
    compared: Option<f64>,
    advised: usize,
    /// The load when a way was last tried.
    features: Features,
    /// A way that is expected to be better is tried first from then on.
    next_expected: Instant,
    /// When the advice was last changed.
    changed: Instant,
    /// The part of the calls over the advised way at the last look, in per cent.
    moved_percent: u64,
    /// They move back from a way that was tried.
    is_returning: bool,
    /// Looks with stragglers.
    looks: u32,
}

impl Load {
    fn all_calls(&self) -> u64 {
        self.calls.iter().sum()
    }

    fn features(&self) -> Features {
        Features { clients: self.lately as f64, bytes: self.mean_bytes as f64 }
    }
}

impl Decision {
    fn new(ways: &[AdvisedWay], seed: u64) -> Decision {
        let (calls, before) = (vec![0; ways.len()], vec![0; ways.len()]);
        let load = Load { calls, before, ..Load::default() };
        let experience = Experience::new(ways.iter().map(|way| way.suits_many).collect());
        Decision { seed, load, active: 0.0, for_many: None, experience }
    }

    /// Which of the ways to advise from now on.
    fn look(&mut self, now: Instant) -> Option<usize> {
        let Decision { seed, load, active, for_many, experience } = self;
        *active += FRESH * (load.active as f64 - *active);
        let least = if for_many.is_some() { FEW_CLIENTS } else { MANY_CLIENTS };
        if *active < least || load.calls.is_empty() {
            *for_many = None;
            return None;
        }
        let many = for_many.get_or_insert_with(|| ForMany::new(load, *seed, now));
        many.look(load, experience, now);
        Some(many.advised)
    }
}

impl ForMany {
    /// They begin on the way of most calls.
    fn new(load: &Load, seed: u64, now: Instant) -> ForMany {
        let (calls, mut advised) = (&load.calls, 0);
        for (way, here) in calls.iter().enumerate() {
            if *here > calls[advised] {
                advised = way;
            }
        }
        let choice = Choice::new(calls.len(), advised, seed, &OF_SERVER);
        let (changed, active) = (now, load.active as f64);
        ForMany {
            choice,
            last_look: now,
            active,
            compared: None,
            advised,
            features: load.features(),
            next_expected: now,
            changed,
            moved_percent: 0,
            is_returning: true,
            looks: 0,
        }
    }

    /// Ways that are known to be worse under this load are not tried now, and the one that is expected to be the best comes first.
    fn skip_known(&mut self, load: &Load, experience: &Experience, now: Instant) {
        let Some(home_ns) = self.choice.mean_ns() else { return };
        let present = Present { load: load.features(), home: self.choice.home(), home_ns };
        for way in 0..load.calls.len() {
            let is_known_worse = || experience.expect(&present, way).is_some_and(|it| it > WORSE);
            if self.choice.is_due(way, now) && is_known_worse() {
                self.choice.pause(way, now);
            }
        }
        if now >= self.next_expected
            && let Some(best) = experience.better_than(&present)
        {
            self.next_expected = now.saturating_add_nanos(EXPECTED_FIRST_NS);
            self.choice.try_first(best, EXPECTED_FIRST_NS, now);
        }
    }

    fn look(&mut self, load: &Load, experience: &mut Experience, now: Instant) {
        let since = std::mem::replace(&mut self.last_look, now);
        let calls = load.all_calls();
        if calls == 0 || since == now {
            return;
        }
        // In thousandths of a nanosecond, for calls take some 50 ns.
        let ns = (now - since).as_nanos() as u64;
        let measured = Measured { answers: 1, under_way_ns: ns.saturating_mul(1000) / calls };
        let moving_ns = (now - self.changed).as_nanos() as u64;
        let percent = load.calls[self.advised] * 100 / calls;
        if self.choice.opening().is_some() {
            let is_worse = self.choice.is_far_worse(measured);
            if self.have_moved(percent, moving_ns, is_worse) {
                self.choice.moved(now);
            }
        } else if self.is_returning {
            self.is_returning = !self.have_moved(percent, moving_ns, false);
        } else {
            if self.choice.is_settled() && moving_ns > COUNTED_TWICE_NS {
                self.note_active(load.lately as f64, now);
            }
            if self.choice.is_settled() && load.mean_bytes > 0 {
                self.skip_known(load, experience, now);
            }
            self.decide(measured, load, experience, now);
        }
    }

    fn note_active(&mut self, latest: f64, now: Instant) {
        let Some(compared) = self.compared else {
            (self.active, self.compared) = (latest, Some(latest));
            return;
        };
        self.active += FRESH * (latest - self.active);
        let is_other = !(1.0 / OTHER_CLIENTS..OTHER_CLIENTS).contains(&(self.active / compared));
        if is_other && self.choice.load_changed(now) {
            self.compared = Some(self.active);
        }
    }

    fn decide(
        &mut self,
        measured: Measured,
        load: &Load,
        experience: &mut Experience,
        now: Instant,
    ) {
        let (home, at, features) = (self.choice.home(), self.advised, self.features);
        let advised = match self.choice.look(measured, Lanes::One, now) {
            Step::Stay | Step::Leave => return,
            Step::Keep { before_ns, now_ns } => {
                experience.note(features, home, before_ns);
                experience.note(features, at, now_ns);
                self.compared = None;
                return;
            }
            Step::Try(way) | Step::Go(way) => {
                self.features = load.features();
                self.compared = self.compared.map(|_| self.active);
                way
            }
            Step::Return { before_ns, now_ns } => {
                if let Some(now_ns) = now_ns {
                    experience.note(features, home, before_ns);
                    experience.note(features, at, now_ns);
                }
                self.choice.home()
            }
        };
        (self.advised, self.changed) = (advised, now);
        (self.moved_percent, self.looks) = (0, 0);
        self.is_returning = self.choice.opening().is_none();
    }

    /// Whether all clients have moved that will, or those that have show already that it `is_worse`.
    fn have_moved(&mut self, percent: u64, moving_ns: u64, is_worse: bool) -> bool {
        let before = std::mem::replace(&mut self.moved_percent, percent);
        if percent >= MOVED_PERCENT {
            return true;
        }
        let least_ns = if percent < MOST_PERCENT { LONGEST_MOVING_NS } else { MOVING_NS };
        let is_straggling = percent <= before && moving_ns > least_ns;
        let shows_worse = is_worse && percent >= MOST_PERCENT;
        self.looks = if is_straggling || shows_worse { self.looks + 1 } else { 0 };
        self.looks >= LOOKS_AT_STRAGGLERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE_IMM: u8 = 1;
    const DATAGRAM: u8 = 2;
    const SCALE: u8 = 6;

    /// A server of two threads, whose clients follow within `LAG` looks. It answers as many calls in a millisecond as `rate(way)` says.
    /// Without advice they are on `write_imm`.
    struct Server {
        adviser: BySharedRate,
        now: Instant,
        calls: [u64; 5],
        connections: usize,
        /// The advice of the last looks, the latest last.
        advised: Vec<u8>,
        changes: u32,
    }

    const LAG: usize = 4;

    impl Server {
        fn new(connections: usize) -> Server {
            let ways = [(DATAGRAM, 1), (SCALE, 4), (WRITE_IMM, 0)];
            let way = |(number, half)| AdvisedWay { number, half, suits_many: number != WRITE_IMM };
            let ways = ways.map(way);
            let adviser = BySharedRate::new(2, ways.to_vec(), 9);
            let advised = vec![0; LAG];
            Server { adviser, now: Instant::ZERO, calls: [0; 5], connections, advised, changes: 0 }
        }

        fn run(&mut self, ms: u64, rate: impl Fn(u8) -> u64) -> u8 {
            for _ in 0..2 * ms {
                self.now = self.now.saturating_add_nanos(500_000);
                let followed = match self.advised[self.advised.len() - LAG] {
                    0 => WRITE_IMM,
                    advised => advised,
                };
                let mut advice = 0;
                let half = match followed {
                    DATAGRAM => 1,
                    SCALE => 4,
                    _ => 0,
                };
                self.calls[half] += rate(followed) / 4;
                for thread in 0..2 {
                    let load = ThreadLoad {
                        calls: &self.calls,
                        active: self.connections / 2,
                        active_lately: self.connections / 2,
                        mean_bytes: 64,
                    };
                    advice = self.adviser.advise(thread, &load, self.now);
                }
                self.changes += u32::from(self.advised.last() != Some(&advice));
                self.advised.push(advice);
            }
            self.advised[self.advised.len() - 1]
        }
    }

    #[test]
    fn all_clients_are_advised_to_take_the_way_of_most_calls() {
        let mut server = Server::new(400);
        assert_eq!(server.run(60, |way| if way == DATAGRAM { 20_000 } else { 5_000 }), DATAGRAM);
        server.changes = 0;
        assert_eq!(server.run(60, |way| if way == SCALE { 20_000 } else { 8_000 }), SCALE);
    }

    #[test]
    fn few_clients_and_those_that_gain_nothing_are_left_alone() {
        let mut few = Server::new(12);
        few.run(1000, |way| if way == DATAGRAM { 20_000 } else { 5_000 });
        assert_eq!(few.changes, 0);
        let mut many = Server::new(400);
        let rate = |way| if way == WRITE_IMM { 5_000 } else { 5_100 };
        assert_eq!(many.run(10_000, rate), WRITE_IMM);
        many.advised.drain(..2_000);
        let advised = many.advised.iter().filter(|advice| **advice != WRITE_IMM).count();
        assert!(advised * 50 < many.advised.len(), "{advised} of {} looks", many.advised.len());
    }

    #[test]
    fn advice_ends_when_most_clients_have_left() {
        let mut server = Server::new(400);
        let rate = |way| if way == DATAGRAM { 20_000 } else { 5_000 };
        assert_eq!(server.run(60, rate), DATAGRAM);
        server.connections = 4;
        assert_eq!(server.run(20, rate), 0);
    }

    #[test]
    fn a_server_without_calls_tries_nothing() {
        let mut server = Server::new(400);
        server.run(1000, |_| 0);
        assert_eq!(server.changes, 1, "to where they are");
    }
}
