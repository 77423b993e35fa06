//! Which clients' cells the server looks into.
//!
//! With few clients it looks into one of each in every turn, which costs some ten nanoseconds for each. With thousands, most call
//! nothing for a while: it looks at those that have called lately, and at a part of the others. A client that fetches in vain sends
//! an immediate, as to a server that sleeps, and so waits for no round of those.

use farcall_core::time::{Instant, Progress};
use farcall_core::transport::RequestSink;

use super::responses::Responses;
use crate::kit::scratch::Scratch;
use crate::slots::carrier::Shared;
use crate::slots::requests::Clients;

/// So many are all looked at in each turn.
const FEW: u32 = 64;

/// How long a client is looked at in each turn after a request.
const LISTED_NANOS: u64 = 2_000_000;

/// How many of the others are looked at in a turn, and how many after a sleep: one of them may have woken the thread.
const OTHERS: u32 = 8;
const OTHERS_AFTER_SLEEP: u32 = 512;

/// The clients of a server thread, by when they have called.
#[derive(Debug, Default)]
pub(super) struct Lookout {
    /// Those that are looked at in each turn.
    listed: Vec<u32>,
    /// By number.
    clients: Vec<Looked>,
    /// The next of the others.
    next: u32,
    /// So many are to be looked at before all have been since the thread has slept.
    unseen: u32,
}

#[derive(Debug, Clone, Copy)]
struct Looked {
    is_listed: bool,
    /// When a request was found.
    found: Instant,
}

impl Looked {
    const NEVER: Looked = Looked { is_listed: false, found: Instant::ZERO };
}

impl Lookout {
    /// There are so many numbers of clients.
    #[cold]
    fn make_room(&mut self, end: u32) {
        self.clients.resize(end as usize, Looked::NEVER);
        self.listed.reserve_exact(end as usize - self.listed.len());
    }

    /// This client has called.
    fn found(&mut self, client: u32, now: Instant) {
        let Some(looked) = self.clients.get_mut(client as usize) else { return };
        looked.found = now;
        if !std::mem::replace(&mut looked.is_listed, true) {
            self.listed.push(client);
        }
    }

    /// This client was looked at, and so many requests were taken.
    fn note(&mut self, client: u32, taken: u32, now: Instant) -> Progress {
        if taken > 0 {
            self.found(client, now);
        }
        Progress { worked: taken, scanned: 1, ..Progress::IDLE }
    }

    /// Nothing was found of the client at this place of the list. `true`: it stays there.
    fn stays(&mut self, place: usize, now: Instant) -> bool {
        let looked = &mut self.clients[self.listed[place] as usize];
        looked.is_listed = now.as_nanos().saturating_sub(looked.found.as_nanos()) < LISTED_NANOS;
        if !looked.is_listed {
            self.listed.swap_remove(place);
            return false;
        }
        true
    }

    /// The next of those that are not listed, if the next client is one.
    fn next_other(&mut self) -> Option<u32> {
        let client = self.next;
        self.next = if client + 1 < self.clients.len() as u32 { client + 1 } else { 0 };
        self.unseen = self.unseen.saturating_sub(1);
        let looked = self.clients.get(client as usize)?;
        (!looked.is_listed).then_some(client)
    }
}

impl Shared<Responses> for Lookout {
    #[inline]
    fn look(
        &mut self,
        clients: &mut Clients<Responses>,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        match clients.roster.end() > FEW {
            true => self.look_at_some(clients, scratch, now, sink),
            false => clients.look_at_all(scratch, now, sink),
        }
    }

    /// Looks at all: a request that has come is found now, and one that comes from now on makes an event.
    fn arm(&mut self, clients: &mut Clients<Responses>) -> bool {
        self.unseen = clients.roster.end();
        clients.arm_carriers()
    }
}

impl Lookout {
    #[inline(never)]
    fn look_at_some(
        &mut self,
        clients: &mut Clients<Responses>,
        scratch: &mut Scratch,
        now: Instant,
        sink: &mut dyn RequestSink,
    ) -> Progress {
        let end = clients.roster.end();
        let mut progress = Progress::IDLE;
        if self.clients.len() < end as usize {
            self.make_room(end);
        }
        while let Some(client) = clients.announced.pop() {
            self.found(client, now);
        }
        let mut take = |client| clients.take_requests(client, u32::MAX, scratch, now, sink);
        let mut place = 0;
        while let Some(&client) = self.listed.get(place) {
            let taken = take(client);
            progress = progress.and(self.note(client, taken, now));
            place += usize::from(taken > 0 || self.stays(place, now));
        }
        let others = if self.unseen > 0 { OTHERS_AFTER_SLEEP } else { OTHERS };
        for _ in 0..others.min(end) {
            let Some(client) = self.next_other() else { continue };
            progress = progress.and(self.note(client, take(client), now));
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn clients_are_listed_while_they_call_and_all_others_have_their_turn() {
        let mut lookout = Lookout::default();
        lookout.make_room(100);
        for (client, now) in [(7, at(0)), (9, at(5)), (7, at(6))] {
            lookout.found(client, now);
        }
        assert_eq!(lookout.listed, [7, 9]);
        assert!(lookout.stays(0, at(7)) && !lookout.stays(1, at(7)));
        assert_eq!(lookout.listed, [7]);
        lookout.found(100, at(7));
        assert_eq!(lookout.listed, [7], "it came in the meantime");
        lookout.unseen = 100;
        let mut others: Vec<_> = (0..100).filter_map(|_| lookout.next_other()).collect();
        others.sort_unstable();
        assert_eq!(others, (0..100).filter(|client| *client != 7).collect::<Vec<_>>());
        assert_eq!(lookout.unseen, 0);
    }
}
