//! Which clients of a thread are served now: the slices of groups, and who has which place.
//!
//! A place is given to another client only after the one that had it has said that it writes no more, or is [gone](super::places). A
//! client that finds no free place is served out of its log. So a client that does not answer holds up only its own place.

use farcall_core::metrics::RefusalReason;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::RequestSink;

use super::ablation::Without;
use super::groups::{Groups, most_members};
use super::long_calls::{Calls, LongCalls};
use super::numbered::Demand;
use super::places::Places;
use super::priority::Work;
use super::served::{Leave, Served};
use super::slices::Slices;
use super::wire::STOP;
use crate::kit::scratch::Scratch;
use crate::planted::{Bug, is_planted};
use crate::slots::carrier::{ServerCarrier, Shared};
use crate::slots::requests::Clients;
use crate::slots::wire::Op;

/// How long a client may hold its place after it was told to leave, once another finds none. As for memory that others wait for.
const STALL_NANOS: u64 = 10_000_000_000;

/// How long a response to a client may come that tells it to leave its place: about what a request takes that is on its way when the slice
/// ends. A client that gets none in that time is told by a message of its own.
const RESPONSE_NANOS: u64 = 2_000;

/// The schedule of one server thread.
#[derive(Debug)]
pub(super) struct Schedule {
    groups: Groups,
    slices: Slices,
    long_calls: LongCalls,
    places: Places,
    /// The pool makes events.
    has_events: bool,
    have_come: bool,
    /// Clients that are served: pinned ones, and behind them those of the group that is served.
    served: Vec<u32>,
    /// How many of them are pinned: they stay when the slice ends.
    pinned: usize,
    /// Clients that come in, for a moment.
    entering: Vec<u32>,
    /// Which of those that are served comes first in the next look, if not all are.
    first: usize,
    /// Clients that must leave their places, and since when.
    leaving: Vec<(u32, Instant)>,
    /// When to tell those that no response has told.
    tell_at: PollAt,
    /// A client found no place, or may have one now.
    is_short: bool,
    without: Without,
}

type Scaled = Clients<Served>;

impl Schedule {
    pub(super) fn new(group: u32, slices: Slices, places: Places, has_events: bool) -> Schedule {
        let groups = match slices.numbered() {
            Some(numbered) => Groups::by_caller(numbered.groups(), group),
            None => Groups::new(group),
        };
        Schedule {
            groups,
            long_calls: LongCalls::new(slices.usual_nanos(), 3 * most_members(group) as usize),
            slices,
            places,
            has_events,
            have_come: false,
            served: Vec::with_capacity(most_members(group) as usize),
            pinned: 0,
            entering: Vec::with_capacity(most_members(group) as usize),
            first: 0,
            leaving: Vec::with_capacity(2 * most_members(group) as usize),
            tell_at: PollAt::OnEvent,
            is_short: false,
            without: Without::default(),
        }
    }

    /// Leaves this out from now on.
    pub(super) fn leave_out(&mut self, without: Without) {
        self.without = without;
        self.groups.leave_out(without);
    }

    /// Takes note of clients that have left, come, or have requests.
    fn update(&mut self, clients: &mut Scaled, now: Instant) {
        while let Some(client) = clients.departed.pop() {
            self.groups.leave(client);
            self.long_calls.forget(client);
            if let Some(at) = self.served.iter().position(|other| *other == client) {
                self.served.remove(at);
                self.pinned -= usize::from(at < self.pinned);
            }
            self.leaving.retain(|(other, _)| *other != client);
            if !self.groups.are_several() {
                self.long_calls.forget_all();
                // Some may have been without places.
                self.is_short = true;
            }
        }
        // Before those that have come: they have the numbers of clients that are gone.
        self.places.free_gone();
        if std::mem::take(&mut self.have_come) {
            let unpinned = clients.roster.iter().filter(|it| !it.link.carrier.is_pinned());
            for connection in unpinned {
                self.groups.join_of(connection.link.client(), connection.link.carrier.caller());
            }
        }
        while let Some(client) = clients.announced.pop() {
            self.note_requests(client, clients, now);
        }
    }

    /// The log of a client has grown, or that of an earlier client of this number that has departed.
    fn note_requests(&mut self, client: u32, clients: &mut Scaled, now: Instant) {
        let Some(connection) = clients.roster.get(client) else { return };
        let carrier = &mut connection.link.carrier;
        if !carrier.is_outside() || !carrier.has_more() {
            return;
        }
        if carrier.is_pinned() {
            return self.enter(client, clients);
        }
        carrier.wait_since(now);
        self.groups.wait(client);
        if self.is_idle() && self.groups.is_served(client) {
            self.slices.restart(now);
        }
    }

    /// No client of the group that is served has requests.
    fn is_idle(&self) -> bool {
        self.served.len() == self.pinned
    }

    /// Those of the served group that wait come in.
    fn enter_waiting(&mut self, clients: &mut Scaled) {
        let mut entering = std::mem::take(&mut self.entering);
        entering.extend(self.groups.take_waiting());
        for client in entering.drain(..) {
            self.enter(client, clients);
        }
        self.entering = entering;
    }

    /// Not one that may have long calls: the switch would have to wait for those in its place.
    fn may_have_place(&self, client: u32) -> bool {
        !self.groups.are_several() || self.long_calls.of(client) == Calls::Short
    }

    /// A client comes in.
    fn enter(&mut self, client: u32, clients: &mut Scaled) {
        let Some(connection) = clients.roster.get(client) else { return };
        let place = match self.may_have_place(client) {
            false => None,
            true => {
                let place = self.places.give(client);
                self.is_short |= place.is_none();
                place
            }
        };
        connection.link.carrier.enter(place);
        self.served.push(client);
        if connection.link.carrier.is_pinned() {
            let last = self.served.len() - 1;
            self.served.swap(self.pinned, last);
            self.pinned += 1;
        }
    }

    /// Gives free places to clients that are served and found none.
    #[cold]
    fn give_places(&mut self, clients: &mut Scaled) {
        for &client in &self.served {
            if self.places.has(client) || !self.may_have_place(client) {
                continue;
            }
            let Some(connection) = clients.roster.get(client) else { continue };
            let Some(place) = self.places.give(client) else { return };
            connection.link.carrier.take_place(place);
        }
        self.is_short = false;
    }

    /// Takes the requests of a client, and READs on in its log.
    #[inline]
    fn serve(
        client: u32,
        clients: &mut Scaled,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let taken = clients.take_requests(client, u32::MAX, scratch, now, sink);
        taken + u32::from(read_on(client, clients))
    }

    /// How many requests may be taken before the clock is read again, while there are other groups.
    fn begin_look(&mut self, now: Instant) -> u32 {
        self.slices.update(now);
        let left_nanos = self.groups.next().map(|_| self.slices.nanos_left(now));
        let most = self.long_calls.begin_look(now, left_nanos);
        self.is_short |= self.long_calls.have_shortened();
        most
    }

    /// As [`serve`](Schedule::serve) for all that are served, while there are other groups: takes so many requests at most, and those
    /// that may take long one by one.
    fn serve_some(
        &mut self,
        most: u32,
        clients: &mut Scaled,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let (mut taken, mut reads, mut next) = (0, 0, 0);
        let mut unknown = None;
        for step in 0..self.served.len() {
            let at = (self.first + step) % self.served.len();
            let client = self.served[at];
            reads += u32::from(read_on(client, clients));
            let its_most = self.long_calls.most_of(client, most - taken);
            if its_most > 0 {
                taken += self.take(client, its_most, clients, scratch, now, sink);
                next = if taken == most { at + 1 } else { 0 };
            } else if self.long_calls.of(client) == Calls::Unknown {
                unknown.get_or_insert(at);
            }
        }
        // One that must be taken alone is the first of the next look.
        self.first = unknown.unwrap_or(next);
        // In the order in which they left or came in.
        for at in 0..self.leaving.len() + self.served.len() {
            if !self.long_calls.may_take_long(taken) {
                break;
            }
            let client = match self.leaving.get(at) {
                Some((client, _)) => *client,
                None => self.served[at - self.leaving.len()],
            };
            if self.long_calls.are_long(client) {
                taken += self.take(client, 1, clients, scratch, now, sink);
            }
        }
        taken + reads
    }

    /// Takes so many requests of a client at most, and learns how long they take.
    fn take(
        &mut self,
        client: u32,
        most: u32,
        clients: &mut Scaled,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let connection = clients.roster.get(client);
        let since = connection.and_then(|connection| connection.link.carrier.waits_since());
        if let Some(since) = since {
            sink.have_waited(now.as_nanos().saturating_sub(since.as_nanos()));
        }
        let taken = clients.take_requests(client, most, scratch, now, sink);
        if since.is_some() {
            sink.have_waited(0);
        }
        self.long_calls.record(client, taken);
        taken
    }

    /// Serves those that are on their way out, until they have left; takes so many requests at most.
    #[cold]
    fn serve_leaving(
        &mut self,
        most: u32,
        clients: &mut Scaled,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let (mut worked, mut taken, mut told, mut at) = (0, 0, 0, 0);
        self.tell_at = PollAt::OnEvent;
        while let Some(&(client, since)) = self.leaving.get(at) {
            let its_most = match self.groups.are_several() {
                true => self.long_calls.most_of(client, most - taken),
                false => u32::MAX,
            };
            let its = self.take(client, its_most, clients, scratch, now, sink);
            (taken, worked) = (taken + its, worked + its + u32::from(read_on(client, clients)));
            let Some(connection) = clients.roster.get(client) else {
                // The next look hears that it has departed.
                at += 1;
                continue;
            };
            let (sender, carrier) = connection.link.parts();
            if carrier.take_left(sender) {
                let (has_more, used) = (carrier.has_more(), carrier.cells_to_clear());
                self.leaving.swap_remove(at);
                self.places.free(client, used);
                if has_more {
                    carrier.wait_since(now);
                    self.groups.wait(client);
                }
                continue;
            }
            if carrier.must_be_told() {
                let tell_at = since.saturating_add_nanos(RESPONSE_NANOS);
                if tell_at > now {
                    self.tell_at = self.tell_at.earlier(PollAt::At(tell_at));
                } else {
                    carrier.told();
                    connection.link.post_op(Op::Mode, STOP);
                    clients.roster.enter_line(client);
                    told += 1;
                }
            }
            if self.is_short && since.saturating_add_nanos(STALL_NANOS) < now {
                clients.roster.count_refusal(RefusalReason::Stalled);
                tracing::warn!(client, "dropping a client that does not leave its place");
                clients.broken.push(client);
            }
            at += 1;
        }
        if told > 0 {
            // They must hear it at once: the turn may have nothing else to send.
            clients.ring();
        }
        worked + told
    }

    /// The group to go on to now, if that is due. `next` has waited longest.
    fn choose(&mut self, next: usize, now: Instant) -> Option<usize> {
        let is_idle = self.is_idle();
        let Schedule { groups, slices, .. } = self;
        match slices.numbered_mut() {
            None => slices.is_over(now, is_idle).then_some(next),
            Some(numbered) => {
                let demand = Demand { served: groups.served(), is_idle, longest: Some(next) };
                numbered.choose(demand, |group| groups.has_waiting(group))
            }
        }
    }

    /// The group whose requests are read before the slice ends. `next` has waited longest.
    fn choose_next(&self, next: usize) -> usize {
        let numbered = self.slices.numbered();
        let due = numbered.map(|it| it.due_next()).filter(|due| self.groups.has_waiting(*due));
        due.unwrap_or(next)
    }

    /// The served group's time is over, and that of another begins.
    #[cold]
    fn switch(&mut self, next: usize, clients: &mut Scaled, now: Instant) {
        let nanos = self.slices.nanos_until(now);
        while !self.is_idle()
            && let Some(client) = self.served.pop()
        {
            let Some(connection) = clients.roster.get(client) else { continue };
            let work = connection.link.carrier.take_work();
            self.groups.record(client, Work { nanos, ..work });
            match connection.link.carrier.leave() {
                Leave::WhenTold => {
                    self.leaving.push((client, now));
                    if is_planted(Bug::EarlySwitch) {
                        self.places.free(client, u32::MAX);
                    }
                }
                Leave::AtOnce => {
                    let has_more = connection.link.carrier.has_more();
                    if has_more {
                        connection.link.carrier.wait_since(now);
                    }
                    self.places.free(client, 0);
                    match work.requests {
                        _ if !has_more => {}
                        0 if self.long_calls.are_long(client) => {
                            self.groups.wait_in_group(client);
                        }
                        0 => self.groups.wait_on(client),
                        _ => self.groups.wait(client),
                    }
                }
            }
        }
        let usual_nanos = self.slices.usual_nanos();
        let length_nanos = match self.slices.numbered() {
            None => self.groups.go_on(usual_nanos),
            Some(_) => {
                self.groups.go_on_to(next);
                usual_nanos
            }
        };
        self.slices.begin(now, length_nanos);
        self.long_calls.begin_slice();
        // The client that has waited longest, which is the first to come in.
        self.first = self.pinned;
        self.is_short = false;
    }

    /// Reads the requests of the group that comes next.
    #[cold]
    fn warm_up(&self, next: usize, clients: &mut Scaled) {
        for client in self.groups.waiting(next) {
            read_on(client, clients);
        }
    }
}

/// READs on in a client's log, if there is more.
#[inline]
fn read_on(client: u32, clients: &mut Scaled) -> bool {
    let Some(connection) = clients.roster.get(client) else { return false };
    let Some(read) = connection.link.carrier.next_read() else { return false };
    let is_posted = connection.link.fetch_requests(read);
    if is_posted {
        connection.link.carrier.begin_read(&read);
    }
    is_posted
}

impl Shared<Served> for Schedule {
    fn replenish(&mut self) {
        self.have_come = true;
    }

    #[inline]
    fn look(
        &mut self,
        clients: &mut Scaled,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        let mut progress = Progress::IDLE;
        if self.have_come || !clients.announced.is_empty() || !clients.departed.is_empty() {
            self.update(clients, now);
        }
        let are_several = self.groups.are_several();
        let most = if are_several { self.begin_look(now) } else { u32::MAX };
        if !self.leaving.is_empty() {
            progress.worked += self.serve_leaving(most, clients, scratch, now, sink);
        }
        // Some may have left in an earlier slice of this group, or come here from another.
        if self.groups.have_waiting() {
            self.enter_waiting(clients);
        }
        if self.is_short && self.places.have_free() {
            self.give_places(clients);
        }
        if are_several {
            progress.worked += self.serve_some(most, clients, scratch, now, sink);
        } else {
            for &client in &self.served {
                progress.worked += Self::serve(client, clients, scratch, now, sink);
            }
        }
        progress.scanned = (self.served.len() + self.leaving.len()) as u32;
        if let Some(next) = self.groups.next() {
            if let Some(next) = self.choose(next, now) {
                self.switch(next, clients, now);
                progress.next = PollAt::Now;
            } else {
                if self.slices.may_warm_up(now) && !self.without.warm_up() {
                    self.warm_up(self.choose_next(next), clients);
                }
                progress.next = self.slices.poll_at(now);
            }
        }
        if !self.leaving.is_empty() {
            progress.next = progress.next.earlier(self.tell_at);
        }
        progress
    }

    fn arm(&mut self, clients: &mut Scaled) -> bool {
        if self.have_come || !clients.announced.is_empty() || !clients.departed.is_empty() {
            return false;
        }
        if self.has_events {
            self.places.arm();
        }
        let leaving = self.leaving.iter().map(|(client, _)| *client);
        let mut present = self.served.iter().copied().chain(leaving);
        present.all(|client| {
            clients.roster.get(client).is_none_or(|connection| {
                let carrier = &connection.link.carrier;
                carrier.waiting().is_none() && !carrier.has_due_operation()
            })
        })
    }
}
