//! Driving by a caller: it takes the I/O of its channel, takes turns until its own call has ended, and puts the I/O back.

use super::driver::Successor;
use super::io::{ChannelIo, Watch};
use super::job::Job;
use super::shared::Shared;
use super::ticket::Ticket;
use super::waking;
use crate::idle::Rest;
use crate::time::{Instant, PollAt, Progress};
use crate::transport::Armed;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

/// Callers that drive again within this time keep the I/O thread from sleeping armed: an event for each response would cost more
/// than its naps.
const SOON: Duration = Duration::from_millis(1);

/// How long a task that waits polls again and again after the last progress, before it leaves its call to the I/O thread.
const ATTEND: Duration = Duration::from_micros(50);

/// A task that waits alone spins at most this long without progress before it returns to its executor.
const LONGEST_SPIN_NS: u64 = 5_000;

/// A task whose call makes progress all the time, as one with a long message does, returns to its executor after this time at the latest.
const LONGEST_POLL: Duration = Duration::from_micros(20);

/// The least that it spins, if its client's calls are short.
const LEAST_SPIN_NS: u64 = 1_000;

/// How often a task yields to an I/O thread that only looks. It may have been stopped in that.
const TRIES_WHILE_LOOKING: u32 = 64;

/// Turns of a task that spins between two readings of the clock.
const TURNS_PER_CLOCK: u32 = 32;

/// A caller that drives. Its turns are those of the polling client.
pub(super) struct Drive<'c> {
    shared: &'c Shared,
    /// `None` when it is put back.
    io: Option<Box<ChannelIo>>,
    now: Instant,
    is_soon: bool,
}

/// How a caller stops to drive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// Its call has ended.
    Done,
    /// It is polled again soon; this is the id of its ticket.
    Back(usize),
    /// It has waited long: the I/O thread drives on.
    GiveUp,
}

/// How a blocking caller stopped to drive.
pub(super) enum Driven {
    /// Its call has ended.
    Ended(Box<Job>),
    /// Its call goes on, and somebody else drives. The call's ticket, unless it has ended by now.
    GivenUp(Option<Arc<Ticket>>),
}

impl Shared {
    /// Lets the caller drive, unless somebody does.
    #[inline]
    pub(super) fn drive(&self) -> Option<Drive<'_>> {
        let mut drive = self.drive_unstamped()?;
        drive.read_clock();
        Some(drive)
    }

    /// The same. If the I/O thread has the connection for a moment, tries again: that thread puts it back for a caller to drive.
    pub(super) fn drive_or_wait_for_look(&self) -> Option<Drive<'_>> {
        if let Some(drive) = self.drive() {
            return Some(drive);
        }
        for _ in 0..TRIES_WHILE_LOOKING {
            if !self.is_looking() {
                break;
            }
            thread::yield_now();
        }
        self.drive()
    }

    /// The same, without reading the clock: the caller sends a call first.
    #[inline]
    pub(super) fn drive_unstamped(&self) -> Option<Drive<'_>> {
        if !self.is_here() {
            return None;
        }
        let mut io = self.io.take()?;
        self.clear_attendant();
        io.is_handed_over = false;
        let now = io.driver.now();
        let mut is_soon = false;
        if let Watch::Armed(until) = io.watch {
            is_soon = self.disarm(&mut io, until);
        }
        Some(Drive { shared: self, io: Some(io), now, is_soon })
    }

    /// The I/O thread sleeps. Returns whether callers drive often.
    #[cold]
    fn disarm(&self, io: &mut ChannelIo, until: Instant) -> bool {
        io.disarm(until);
        let now = self.site.now();
        io.attendance.last.is_some_and(|last| now - last < SOON)
    }

    /// Takes one turn, unless somebody drives: sends a cancellation, for example.
    pub(super) fn turn_once(&self) {
        match self.drive() {
            Some(mut drive) => {
                drive.turn();
                drive.leave(Leave::Done);
            }
            None => self.leave_to_driver(),
        }
    }
}

impl Shared {
    /// Something was left for the caller that has just put the I/O back.
    #[cold]
    fn see_to_news(&self, how: Leave) {
        if let Some(mut drive) = self.drive() {
            drive.turn();
            drive.leave_to_others(how);
        }
    }
}

impl Drive<'_> {
    #[inline]
    fn io(&mut self) -> &mut ChannelIo {
        self.io.as_mut().expect("only the last use puts it back")
    }

    /// Takes the caller's call. If it is the only one, sends it at once, and reads the clock when it has left, as the polling client
    /// does.
    #[inline]
    pub(super) fn send_own(&mut self, job: Box<Job>) {
        let io = self.io();
        io.driver.set_own(job.ticket.id());
        match io.send_alone(job) {
            Ok(slot) => {
                let now = self.read_clock();
                self.io().driver.stamp(slot, now);
            }
            Err(job) => self.accept_own(job),
        }
    }

    #[cold]
    fn accept_own(&mut self, job: Box<Job>) {
        let now = self.read_clock();
        self.io().driver.accept_one(job, now);
    }

    #[inline]
    pub(super) fn set_own(&mut self, ticket: usize) {
        self.io().driver.set_own(ticket);
    }

    #[inline]
    pub(super) fn turn(&mut self) -> Progress {
        let now = self.now;
        self.io().turn(now)
    }

    #[inline]
    fn read_clock(&mut self) -> Instant {
        self.now = self.shared.site.now();
        self.now
    }

    /// Drives until the call of this ticket has ended, as the polling client does, or has taken long.
    #[inline]
    pub(super) fn until_done(mut self, own: usize) -> Driven {
        let mut idler = self.io().idler.clone();
        let mut idle_since = self.now;
        loop {
            let progress = self.turn();
            if let Some(job) = self.take_own(idle_since) {
                self.leave(Leave::Done);
                return Driven::Ended(job);
            }
            if self.io().driver.has_woken() {
                match self.wake_others(own) {
                    Ok(still_driving) => self = still_driving,
                    Err(driven) => return driven,
                }
            }
            if !progress.is_idle() {
                idler.worked();
                idle_since = self.read_clock();
            } else if idler.wants_clock() {
                let now = self.read_clock();
                match (idler.rest(now), progress.next) {
                    _ if self.must_leave() => return self.give_up(),
                    (Rest::Spin, _) | (_, PollAt::Now) => {}
                    (Rest::Yield, _) => match self.yield_core(own) {
                        Ok(still_driving) => self = still_driving,
                        Err(driven) => return driven,
                    },
                    (Rest::Park, _) => return self.give_up(),
                }
            }
        }
    }

    /// Takes turns for a task. Spins some microseconds if its call is the only one, and such calls end soon after their last progress.
    /// Returns the call if it has ended.
    #[inline]
    pub(super) fn for_task(&mut self, own: usize) -> Option<Box<Job>> {
        self.io().driver.set_own(own);
        let begin = self.now;
        let mut idle_since = self.io().attendance.idle_since(own).unwrap_or(begin);
        let (mut spins_since, mut worked, mut turns) = (begin, 0, 0_u32);
        loop {
            let progress = self.turn().worked;
            if let Some(job) = self.take_own(idle_since) {
                return Some(job);
            }
            worked += progress;
            let io = self.io();
            let usual_ns = io.attendance.usual_ns;
            if usual_ns > LONGEST_SPIN_NS || !io.driver.is_alone() || !io.is_up() {
                break;
            }
            turns += 1;
            if progress > 0 {
                spins_since = self.read_clock();
                idle_since = spins_since;
            } else if turns.is_multiple_of(TURNS_PER_CLOCK) {
                let spin =
                    Duration::from_nanos((2 * usual_ns + LEAST_SPIN_NS).min(LONGEST_SPIN_NS));
                if self.read_clock() - spins_since > spin {
                    break;
                }
            }
            if self.now - begin > LONGEST_POLL {
                break;
            }
        }
        // From now on its ticket gives it.
        let io = self.io();
        io.driver.set_own(0);
        if worked > 0 {
            io.attendance.task = None;
        }
        None
    }

    /// A task leaves whose call goes on. Returns whether it must be polled again soon, to take the next turn; otherwise it is woken
    /// when its call has ended.
    pub(super) fn leave_pending(mut self, own: usize) -> bool {
        let now = self.now;
        let idle_since = self.io().attendance.idle_since(own);
        if idle_since.is_some() {
            // It is the task itself that drove a moment ago.
            self.is_soon = false;
        }
        let idle_since = idle_since.unwrap_or(now);
        let until = idle_since + self.io().idle.awake(ATTEND);
        self.io().attendance.task = Some((own, idle_since));
        if now < until && !self.must_leave() {
            // What it waits for may need this core.
            let must_yield =
                self.io().driver.has_one_call() && self.io().idle.yields_after(now - idle_since);
            self.leave(Leave::Back(own));
            if must_yield {
                thread::yield_now();
            }
            return true;
        }
        let io = self.io();
        io.attendance.task = None;
        io.driver.leave_call(own);
        self.leave(Leave::GiveUp);
        false
    }

    /// The call that the caller waits for, if it has ended. There was no progress since `idle_since`.
    #[inline]
    fn take_own(&mut self, idle_since: Instant) -> Option<Box<Job>> {
        let job = self.io().driver.take_own()?;
        let now = self.read_clock();
        let io = self.io();
        io.driver.record_own(&job, now);
        // The next call may have the same ticket.
        io.attendance.task = None;
        let (usual_ns, nanos) = (&mut io.attendance.usual_ns, (now - idle_since).as_nanos() as u64);
        *usual_ns = *usual_ns - *usual_ns / 8 + nanos / 8;
        Some(job)
    }

    /// Callers do not drive without a connection, nor when the channel ends.
    #[inline]
    fn must_leave(&mut self) -> bool {
        !self.io().is_up() || self.shared.stopped()
    }

    #[cold]
    fn give_up(mut self) -> Driven {
        let own = self.io().driver.own();
        let ticket = self.io().driver.leave_call(own);
        self.leave(Leave::GiveUp);
        Driven::GivenUp(ticket)
    }

    /// Wakes the callers whose calls have ended, while the I/O is put back: their wakers may poll a task at once, or wait. Somebody else
    /// may drive then.
    #[cold]
    fn wake_others(mut self, own: usize) -> Result<Self, Driven> {
        let ticket = self.io().driver.release_own();
        let Some(mut io) = self.io.take() else { return Err(Driven::GivenUp(ticket)) };
        let woken = waking::take(io.driver.woken());
        self.shared.io.put(io);
        waking::wake(woken);
        self.take_back(own, ticket)
    }

    /// Lets other threads have this core, while the I/O is put back. The system may let this thread wait long, for it has a lower priority,
    /// or its group has used up its time: others drive meanwhile, and end its call.
    #[cold]
    fn yield_core(mut self, own: usize) -> Result<Self, Driven> {
        let (shared, now) = (self.shared, self.now);
        let ticket = self.io().driver.release_own();
        let Some(mut io) = self.io.take() else { return Err(Driven::GivenUp(ticket)) };
        // The I/O thread drives if no caller has for a while.
        io.attendance.last = Some(now);
        let must_rouse = matches!(io.watch, Watch::Disarmed(_)) && !io.driver.has_one_call();
        if must_rouse {
            io.watch = Watch::Naps;
        }
        let seen_cancels = io.driver.seen_cancels();
        shared.io.put(io);
        if must_rouse {
            shared.rouse();
        }
        if !shared.has_news(seen_cancels) {
            thread::yield_now();
        }
        self.take_back(own, ticket)
    }

    /// Drives on after the I/O was put back, unless somebody else does, or has ended the call of this ticket.
    fn take_back(mut self, own: usize, ticket: Option<Arc<Ticket>>) -> Result<Self, Driven> {
        let Some(io) = self.shared.io.take() else { return Err(Driven::GivenUp(ticket)) };
        self.io = Some(io);
        self.shared.clear_attendant();
        if let Some(job) = ticket.and_then(|ticket| ticket.take()) {
            self.leave(Leave::Done);
            return Err(Driven::Ended(job));
        }
        if let Watch::Armed(until) = self.io().watch {
            self.io().disarm(until);
        }
        self.io().driver.set_own(own);
        Ok(self)
    }

    /// Puts the I/O back, provides for what arrives meanwhile, and wakes the callers whose calls have ended.
    #[inline]
    pub(super) fn leave(mut self, how: Leave) {
        let (shared, now) = (self.shared, self.now);
        match &mut self.io {
            Some(io) if how == Leave::Done && io.is_at_rest() && !shared.stopped() => {
                io.attendance.last = Some(now);
            }
            _ => return self.leave_to_others(how),
        }
        let Some(io) = self.io.take() else { return };
        let seen_cancels = io.driver.seen_cancels();
        shared.io.put(io);
        if shared.has_news(seen_cancels) {
            shared.see_to_news(how);
        }
    }

    /// The same if there is more to do than to put it back.
    fn leave_to_others(mut self, how: Leave) {
        loop {
            let Some(mut io) = self.io.take() else { return };
            let shared = self.shared;
            if shared.stopped() {
                // Its calls end.
                drop(io);
                return shared.rouse();
            }
            let mut on_its_way = None;
            if io.driver.has_calls() || !io.is_up() {
                on_its_way = provide_for_calls(&mut io, how);
            }
            io.attendance.last = Some(self.now);
            let mut must_rouse = io.is_handed_over;
            if let Watch::Disarmed(until) = io.watch {
                must_rouse = self.end_disarmed(&mut io, until, how);
            }
            if let (Leave::Back(task), Watch::Naps) = (how, io.watch) {
                shared.set_attendant(task);
            }
            let seen_cancels = io.driver.seen_cancels();
            let woken = io.driver.has_woken().then(|| waking::take(io.driver.woken()));
            shared.io.put(io);
            if must_rouse {
                shared.rouse();
            }
            if let Some(woken) = woken {
                waking::wake(woken);
            }
            let has_news = match how {
                // It looks when it is back.
                Leave::Back(_) => shared.stopped(),
                _ => {
                    shared.has_news(seen_cancels)
                        || on_its_way.is_some_and(|successor| !successor.is_to_drive())
                }
            };
            if !has_news {
                return;
            }
            let Some(again) = shared.drive() else { return };
            self = again;
            self.turn();
        }
    }

    /// The I/O thread sleeps, and would not notice what arrives: arms again, or has it look. Returns whether to rouse it.
    #[cold]
    fn end_disarmed(&self, io: &mut ChannelIo, until: Instant, how: Leave) -> bool {
        let is_soon = self.is_soon && how != Leave::GiveUp;
        let is_armed = !is_soon
            && io.is_up()
            && io.next != PollAt::Now
            && match io.arm() {
                Armed::No => false,
                // The thread does not look at a parked channel.
                Armed::AtSite => !self.shared.parking.is_parked(),
                Armed::ByWaker => true,
            };
        if !is_armed {
            io.watch = Watch::Naps;
            return true;
        }
        io.watch = Watch::Armed(until);
        matches!(io.next, PollAt::At(at) if at < until)
    }
}

/// Calls go on when the caller has left: another caller drives next, or the I/O thread. Returns the ticket of a caller that was woken
/// before to drive: if it has come meanwhile, it may have gone again, because the I/O was not there.
fn provide_for_calls(io: &mut ChannelIo, how: Leave) -> Option<Arc<Ticket>> {
    let must_hand_over = match how {
        _ if !io.is_up() => true,
        Leave::Back(_) => false,
        Leave::GiveUp => true,
        Leave::Done => match io.driver.find_successor() {
            Successor::Woken | Successor::NotNeeded => false,
            Successor::OnItsWay(ticket) => return Some(ticket),
            Successor::None => true,
        },
    };
    io.is_handed_over |= must_hand_over;
    None
}

impl Drop for Drive<'_> {
    /// A panic in a turn: nobody knows what state the connection is in, so the channel ends, and its calls with it.
    fn drop(&mut self) {
        if let Some(io) = self.io.take() {
            drop(io);
            self.shared.rouse();
        }
    }
}

#[cfg(test)]
mod alone;

#[cfg(test)]
mod tests {
    use super::Leave;
    use crate::channel::{Channel, ChannelOptions};
    use crate::error::RpcError;
    use crate::idle::IdlePolicy;
    use crate::support::loopback::{Clock, Loopback};
    use crate::support::service::{Echo, TEST, bytes};
    use core::pin::pin;
    use core::sync::atomic::{AtomicBool, Ordering};
    use core::task::{Context, Waker};
    use core::time::Duration;
    use std::sync::Arc;
    use std::task::Wake;
    use std::thread;
    use std::time::Instant;

    const BOUND: Duration = Duration::from_secs(30);

    #[test]
    fn a_caller_that_yields_its_core_does_not_keep_the_connection() {
        let net = Loopback::new(Clock::real(), 4);
        // It answers nothing.
        let _server = net.listen(&net.site());
        // Without the last step the caller would drive until its call ends.
        let idle = IdlePolicy::default().spin(Duration::ZERO).park(false);
        let options = ChannelOptions::default().idle(idle).timeout(2 * BOUND);
        let channel = Channel::connect(net, &TEST, options).expect("it listens");
        let caller = channel.clone();
        let waiting = thread::spawn(move || caller.call::<Echo, _>(&bytes(b"x")).wait());
        let (begin, mut taken) = (Instant::now(), 0);
        // The caller must have driven in between.
        while taken < 200 {
            assert!(begin.elapsed() < BOUND, "nobody else gets the connection");
            if let Some(mut drive) = channel.shared().drive() {
                taken += u32::from(drive.io().driver.has_calls());
                drive.leave(Leave::Done);
            }
            thread::yield_now();
        }
        channel.close();
        assert!(matches!(waiting.join(), Ok(Err(RpcError::PeerGone { .. }))));
    }

    /// Otherwise it would be polled for as long as the call takes.
    #[test]
    fn a_task_whose_call_takes_long_is_left_alone() {
        let net = Loopback::new(Clock::real(), 4);
        // It answers nothing.
        let _server = net.listen(&net.site());
        let options = ChannelOptions::default().timeout(2 * BOUND);
        let channel = Channel::connect(net, &TEST, options).expect("it listens");
        let mut call = pin!(channel.call::<Echo, _>(&bytes(b"x")));
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&woken));
        let begin = Instant::now();
        while woken.0.swap(false, Ordering::Relaxed) {
            assert!(begin.elapsed() < BOUND, "it is woken although nothing has come");
            assert!(call.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }

    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
