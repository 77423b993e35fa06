//! The I/O thread of an endpoint: drives the channels whose callers do not, and sleeps when none has work.

use super::endpoint::EndpointShared;
use super::io::{ChannelIo, Watch};
use super::parking::Parked;
use super::shared::Shared;
use super::waking;
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::panics::contain;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::Armed;
use core::task::Waker;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

/// How long callers must not have driven before the thread does: it looks that often. A task that is not polled any more delays the calls of
/// others by twice that time at most.
const NAP: Duration = Duration::from_millis(4);

/// The same while calls are under way.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// An endpoint's thread.
pub(super) struct IoThread {
    endpoint: Arc<EndpointShared>,
    /// Those that it looks at.
    channels: Vec<Arc<Shared>>,
    parked: Parked,
    idle: IdlePolicy,
    /// What wakes the callers whose calls have ended, until the turn is over.
    woken: Vec<Waker>,
}

/// What a round of turns has found.
#[derive(Clone, Copy)]
struct Round {
    progress: Progress,
    /// Calls are under way, and this thread drives.
    has_calls: bool,
    /// A caller has just left calls to this thread.
    is_handed_over: bool,
    /// A channel is over.
    has_gone: bool,
}

impl Round {
    /// A round of this progress alone.
    fn of(progress: Progress) -> Round {
        Round { progress, ..Round::IDLE }
    }

    const IDLE: Round = Round {
        progress: Progress::IDLE,
        has_calls: false,
        is_handed_over: false,
        has_gone: false,
    };

    fn and(self, other: Round) -> Round {
        Round {
            progress: self.progress.and(other.progress),
            has_calls: self.has_calls | other.has_calls,
            is_handed_over: self.is_handed_over | other.is_handed_over,
            has_gone: self.has_gone | other.has_gone,
        }
    }
}

impl IoThread {
    pub(super) fn new(endpoint: Arc<EndpointShared>, idle: IdlePolicy) -> IoThread {
        let (channels, parked) = (Vec::new(), Parked::default());
        IoThread { endpoint, channels, parked, idle, woken: Vec::with_capacity(waking::ROOM) }
    }

    /// Runs until the endpoint and all its channels are dropped.
    pub(super) fn run(mut self) {
        let mut idler = Idler::new(self.idle);
        let mut now = self.endpoint.site.now();
        loop {
            let round = self.turn(now);
            if self.is_over() {
                return;
            }
            if round.is_handed_over {
                idler.idled_long();
            }
            if !round.progress.is_idle() {
                idler.worked();
                now = self.endpoint.site.now();
            } else if !round.has_calls || idler.wants_clock() {
                now = self.endpoint.site.now();
                if self.rest(&mut idler, now, round) {
                    now = self.endpoint.site.now();
                }
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// One turn of all channels that callers do not drive.
    fn turn(&mut self, now: Instant) -> Round {
        if self.endpoint.has_new() {
            self.endpoint.take_new(&mut self.channels);
        }
        if self.endpoint.called.is_some() {
            self.parked.take_called(&self.endpoint.called, &mut self.channels);
        }
        let woken = &mut self.woken;
        let mut round = match &mut self.channels[..] {
            [only] => look_contained(only, now, woken),
            [] => Round::IDLE,
            channels => self.endpoint.site.together(|| {
                let turns = channels.iter().map(|channel| look_contained(channel, now, woken));
                turns.fold(Round::IDLE, Round::and)
            }),
        };
        waking::wake_all(woken);
        if self.endpoint.site.has_companions() {
            round = round.and(Round::of(self.endpoint.site.turn_companions(now)));
        }
        if round.has_gone {
            self.channels.retain(|channel| !channel.is_dead());
        }
        round
    }

    fn is_over(&self) -> bool {
        self.channels.is_empty()
            && self.parked.is_empty()
            && self.endpoint.is_closed()
            && !self.endpoint.has_new()
    }

    /// Rests after an empty turn. Returns whether that took long enough to read the clock again.
    fn rest(&mut self, idler: &mut Idler, now: Instant, round: Round) -> bool {
        let next = round.progress.next;
        // There is nothing to spin for without a call.
        let rest = if round.has_calls { idler.rest(now) } else { Rest::Park };
        match (rest, next) {
            (Rest::Spin, _) | (_, PollAt::Now) => {
                core::hint::spin_loop();
                return false;
            }
            (Rest::Yield, _) => thread::yield_now(),
            (Rest::Park, PollAt::At(at)) => self.sleep(now, at),
            (Rest::Park, PollAt::OnEvent) => self.sleep(now, Instant::FAR_FUTURE),
        }
        true
    }

    /// Sleeps until then, unless a channel has work or the thread is about to end. While callers drive, it naps: their transports make no
    /// events.
    fn sleep(&mut self, now: Instant, until: Instant) {
        let asleep = self.endpoint.site.fall_asleep();
        if self.endpoint.has_new() || self.is_over() {
            return;
        }
        let companions = self.endpoint.site.arm_companions();
        if !companions.may_sleep() {
            return;
        }
        let is_event_awaited = companions == Armed::AtSite;
        let (mut nap, mut is_armed) = (None, is_event_awaited || !self.parked.is_empty());
        let mut next = 0;
        while let Some(channel) = self.channels.get(next) {
            // If it panics, the next turn finds the channel ended.
            let falls = contain(TURN, || fall_asleep(channel, now, until));
            match falls.unwrap_or(Sleep::Awake) {
                Sleep::Awake => return,
                Sleep::Armed => is_armed = true,
                Sleep::Parked => {
                    is_armed = true;
                    self.parked.insert(self.channels.swap_remove(next));
                    continue;
                }
                Sleep::Nap(until) => nap = Some(nap.unwrap_or(until).min(until)),
            }
            next += 1;
        }
        if self.endpoint.called.is_some() {
            return;
        }
        let until = until.min(nap.unwrap_or(until));
        let until = (until != Instant::FAR_FUTURE).then_some(until);
        match is_armed || nap.is_none() {
            true => asleep.sleep(until),
            false => asleep.nap(until),
        }
    }
}

/// What the log says of a channel that panics.
const TURN: &str = "a turn of a client, whose connection is over,";

/// [`look`]. A panic, in a subscriber of the log for example, ends this channel and no other.
fn look_contained(channel: &Shared, now: Instant, woken: &mut Vec<Waker>) -> Round {
    contain(TURN, || look(channel, now, woken)).unwrap_or_else(|| after_panic(channel))
}

#[cold]
fn after_panic(channel: &Shared) -> Round {
    channel.end_look();
    Round { has_gone: channel.is_dead(), ..Round::IDLE }
}

/// A turn of a channel, unless its callers take them.
fn look(channel: &Shared, now: Instant, woken: &mut Vec<Waker>) -> Round {
    let Some(mut io) = channel.take_to_look() else {
        channel.wake_overdue(now, woken);
        return Round { has_gone: channel.is_dead(), ..Round::IDLE };
    };
    channel.set_unwatched(false);
    if channel.stopped() {
        drop(io);
        return Round { has_gone: true, ..Round::IDLE };
    }
    let mut round = Round::IDLE;
    if callers_drive(&io, now) {
        if io.has_news() && channel.attendant() == 0 {
            // It was left while this thread looked last.
            round.progress = io.turn(now);
        }
    } else {
        round.is_handed_over = io.is_handed_over;
        io.is_handed_over = false;
        (io.attendance.task, io.attendance.last) = (None, None);
        channel.clear_attendant();
        round.progress = io.turn(now);
        round.has_calls = io.is_up() && io.driver.has_calls();
    }
    // This thread is awake, and looks again.
    io.watch = Watch::Naps;
    woken.append(io.driver.woken());
    if put_back(channel, io) {
        round.progress.next = PollAt::Now;
    }
    round
}

/// How a channel lets the thread sleep.
enum Sleep {
    /// It has work.
    Awake,
    /// What arrives makes an event.
    Armed,
    /// The same, and it calls for this channel, which need not be looked at before.
    Parked,
    /// Its callers drive; the thread looks again then.
    Nap(Instant),
}

/// Prepares a channel for the thread to sleep. After [`Site::fall_asleep`](crate::site::Site::fall_asleep).
fn fall_asleep(channel: &Shared, now: Instant, until: Instant) -> Sleep {
    let Some(mut io) = channel.take_to_look() else {
        return if channel.is_dead() { Sleep::Awake } else { Sleep::Nap(now + NAP) };
    };
    if channel.stopped() {
        channel.put_after_look(io);
        return Sleep::Awake;
    }
    let sleep = if callers_drive(&io, now) {
        io.watch = Watch::Naps;
        Sleep::Nap(io.attendance.last.unwrap_or(now) + nap(&io))
    } else if io.is_handed_over {
        io.watch = Watch::Naps;
        Sleep::Awake
    } else {
        return arm(channel, io, until);
    };
    if put_back(channel, io) { Sleep::Awake } else { sleep }
}

/// Arms a channel. Parks it if nothing is due on its own, and all that can happen calls for it.
fn arm(channel: &Shared, mut io: Box<ChannelIo>, until: Instant) -> Sleep {
    let may_park = io.is_up() && io.next == PollAt::OnEvent;
    if may_park {
        // First: what happens from now on must call for it.
        channel.parking.announce();
    }
    let armed = io.arm();
    let sleep = match armed {
        Armed::No => Sleep::Awake,
        Armed::ByWaker if may_park => Sleep::Parked,
        Armed::AtSite | Armed::ByWaker => Sleep::Armed,
    };
    io.watch = match sleep {
        Sleep::Parked => Watch::Armed(Instant::FAR_FUTURE),
        Sleep::Armed => Watch::Armed(until),
        Sleep::Awake | Sleep::Nap(_) => Watch::Naps,
    };
    channel.set_unwatched(armed.may_sleep());
    let sleep = if put_back(channel, io) { Sleep::Awake } else { sleep };
    if may_park && !matches!(sleep, Sleep::Parked) {
        channel.parking.revoke();
    }
    sleep
}

/// Callers have driven lately, and did not leave their calls to this thread.
fn callers_drive(io: &ChannelIo, now: Instant) -> bool {
    io.is_up() && !io.is_handed_over && io.attendance.last.is_some_and(|last| now - last < nap(io))
}

fn nap(io: &ChannelIo) -> Duration {
    if io.driver.has_calls() { SHORT_NAP } else { NAP }
}

/// Puts the I/O back. Returns whether something was left meanwhile that no task is about to see.
fn put_back(channel: &Shared, io: Box<ChannelIo>) -> bool {
    let seen_cancels = io.driver.seen_cancels();
    channel.put_after_look(io);
    channel.has_news(seen_cancels) && (channel.attendant() == 0 || channel.stopped())
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.channels.extend(self.parked.drain());
        self.channels.iter().for_each(|channel| channel.retire());
        self.endpoint.site.end_thread();
        self.endpoint.end();
    }
}
