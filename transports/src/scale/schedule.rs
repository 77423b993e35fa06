//! Which clients of a thread are served now: the slices of groups, and who has which place.
//!
//! A place is given to another client only after the one that had it has said that it writes no more, or is gone. A client that
//! finds no free place is served out of its log. So a client that does not answer holds up only its own place.

use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::RequestSink;

use super::groups::{Groups, most_members};
use super::pool::Pool;
use super::served::{Leave, Served};
use super::slices::Slices;
use super::wire::STOP;
use crate::planted::{Bug, is_planted};
use crate::slots::carrier::{ServerCarrier, Shared};
use crate::slots::requests::Clients;
use crate::slots::wire::Op;

/// How long a client may hold its place after it was told to leave, once another finds none. As for memory that others wait for.
const STALL_NANOS: u64 = 10_000_000_000;

/// The schedule of one server thread.
#[derive(Debug)]
pub(super) struct Schedule {
    groups: Groups,
    slices: Slices,
    pool: Pool,
    /// The pool makes events.
    has_events: bool,
    have_come: bool,
    /// Clients that are served.
    served: Vec<u32>,
    /// Clients that were told to leave their places, and when.
    leaving: Vec<(u32, Instant)>,
    /// The place of each client that has one.
    places: Vec<Option<u32>>,
    /// A client found no place.
    is_short: bool,
}

type Scaled = Clients<Served>;

impl Schedule {
    pub(super) fn new(group: u32, slices: Slices, pool: Pool, has_events: bool) -> Schedule {
        Schedule {
            groups: Groups::new(group),
            slices,
            pool,
            has_events,
            have_come: false,
            served: Vec::with_capacity(most_members(group) as usize),
            leaving: Vec::with_capacity(2 * most_members(group) as usize),
            places: Vec::new(),
            is_short: false,
        }
    }

    /// Takes note of clients that have left, come, or have requests.
    fn update(&mut self, clients: &mut Scaled, now: Instant) {
        while let Some(client) = clients.departed.pop() {
            self.groups.leave(client);
            self.served.retain(|other| *other != client);
            self.leaving.retain(|(other, _)| *other != client);
            // Its queue pair is gone: nothing more lands there.
            self.free_place_of(client, u32::MAX);
        }
        if std::mem::take(&mut self.have_come) {
            for connection in clients.roster.iter() {
                self.groups.join(connection.link.client());
            }
        }
        while let Some(client) = clients.announced.pop() {
            self.note_requests(client, clients, now);
        }
    }

    /// The log of a client has grown, or that of an earlier client of this number that has departed.
    fn note_requests(&mut self, client: u32, clients: &mut Scaled, now: Instant) {
        let Some(connection) = clients.roster.get(client) else { return };
        let carrier = &connection.link.carrier;
        if !carrier.is_outside() || !carrier.has_more() {
            return;
        }
        self.groups.set_waiting(client, true);
        if self.served.is_empty() && self.groups.is_served(client) {
            self.slices.begin(now);
        }
    }

    /// A client of the group that is served comes in.
    fn enter(&mut self, client: u32, clients: &mut Scaled) {
        self.groups.set_waiting(client, false);
        let Some(connection) = clients.roster.get(client) else { return };
        let place = self.pool.take();
        self.is_short |= place.is_none();
        if self.places.len() <= client as usize {
            self.places.resize(client as usize + 1, None);
        }
        self.places[client as usize] = place;
        connection.link.carrier.enter(place);
        self.served.push(client);
    }

    /// The place of this client, of whose cells so many were used, is free.
    fn free_place_of(&mut self, client: u32, used: u32) {
        if let Some(place) = self.places.get_mut(client as usize).and_then(Option::take) {
            self.pool.give_back(place, used);
        }
    }

    /// Gives free places to clients that are served and found none.
    #[cold]
    fn give_places(&mut self, clients: &mut Scaled) {
        for &client in &self.served {
            if self.places[client as usize].is_some() {
                continue;
            }
            let Some(connection) = clients.roster.get(client) else { continue };
            let Some(place) = self.pool.take() else { return };
            self.places[client as usize] = Some(place);
            connection.link.carrier.take_place(place);
        }
        self.is_short = false;
    }

    /// Takes the requests of a client, and READs on in its log.
    #[inline]
    fn serve(
        client: u32,
        clients: &mut Scaled,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let taken = clients.take_requests(client, scratch, now, sink);
        taken + u32::from(read_on(client, clients))
    }

    /// Serves those that are on their way out, until they have left.
    #[cold]
    fn serve_leaving(
        &mut self,
        clients: &mut Scaled,
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> u32 {
        let (mut worked, mut at) = (0, 0);
        while let Some(&(client, since)) = self.leaving.get(at) {
            worked += Self::serve(client, clients, scratch, now, sink);
            let Some(connection) = clients.roster.get(client) else {
                // The next look hears that it has departed.
                at += 1;
                continue;
            };
            let (sender, carrier) = connection.link.parts();
            if carrier.take_left(sender) {
                let (has_more, used) = (carrier.has_more(), carrier.cells_to_clear());
                self.leaving.swap_remove(at);
                self.free_place_of(client, used);
                self.groups.set_waiting(client, has_more);
                continue;
            }
            if self.is_short && since.saturating_add_nanos(STALL_NANOS) < now {
                tracing::warn!(client, "dropping a client that does not leave its place");
                clients.broken.push(client);
            }
            at += 1;
        }
        worked
    }

    /// The served group's time is over, and this one's begins.
    #[cold]
    fn switch(&mut self, to: usize, clients: &mut Scaled, now: Instant) {
        while let Some(client) = self.served.pop() {
            let Some(connection) = clients.roster.get(client) else { continue };
            match connection.link.carrier.leave() {
                Leave::WhenTold => {
                    connection.link.post_op(Op::Mode, STOP);
                    clients.roster.enter_line(client);
                    self.leaving.push((client, now));
                    if is_planted(Bug::EarlySwitch) {
                        self.free_place_of(client, u32::MAX);
                    }
                }
                Leave::AtOnce => {
                    let has_more = connection.link.carrier.has_more();
                    self.free_place_of(client, 0);
                    self.groups.set_waiting(client, has_more);
                }
            }
        }
        // They must hear it at once: the turn may have nothing else to send.
        clients.ring();
        self.groups.serve(to);
        self.slices.begin(now);
        self.is_short = false;
    }

    /// Reads the requests of the group that comes next.
    #[cold]
    fn warm_up(&self, next: usize, clients: &mut Scaled) {
        let mut from = 0;
        while let Some((at, client)) = self.groups.waiting_from(Some(next), from) {
            read_on(client, clients);
            from = at + 1;
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
        scratch: &mut [u8],
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        let mut progress = Progress::IDLE;
        if self.have_come || !clients.announced.is_empty() || !clients.departed.is_empty() {
            self.update(clients, now);
        }
        if !self.leaving.is_empty() {
            progress.worked += self.serve_leaving(clients, scratch, now, sink);
        }
        // Some may have left in an earlier slice of this group, or come here from another.
        while let Some((_, client)) = self.groups.waiting_from(None, 0) {
            self.enter(client, clients);
        }
        if self.is_short && self.pool.has_free() {
            self.give_places(clients);
        }
        for &client in &self.served {
            progress.worked += Self::serve(client, clients, scratch, now, sink);
        }
        progress.scanned = (self.served.len() + self.leaving.len()) as u32;
        if let Some(next) = self.groups.next() {
            if self.slices.is_over(now, self.served.is_empty()) {
                self.switch(next, clients, now);
                progress.next = PollAt::Now;
            } else {
                if self.slices.may_warm_up(now) {
                    self.warm_up(next, clients);
                }
                progress.next = self.slices.poll_at(now);
            }
        }
        progress
    }

    fn arm(&mut self, clients: &mut Scaled) -> bool {
        if self.have_come || !clients.announced.is_empty() || !clients.departed.is_empty() {
            return false;
        }
        if self.has_events {
            self.pool.region.arm();
        }
        let leaving = self.leaving.iter().map(|(client, _)| *client);
        let mut present = self.served.iter().copied().chain(leaving);
        present.all(|client| {
            let waiting = clients.roster.get(client).map(|it| it.link.carrier.waiting());
            waiting.flatten().is_none()
        })
    }
}
