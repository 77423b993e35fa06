//! Queue pairs, and senders of datagrams, that have been quiet.
//!
//! A poll looks at every inbox of its queue, which takes long if there are thousands. So those that had no message for a while are
//! dormant: they are armed as for a poller that sleeps, and who sends to one calls. Within the process it calls the completion queue; from
//! another process it sets a [bit](super::calls) and rings an event. The poller looks in each poll whether a few processes have set bits, and
//! now and then which events have been rung.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::completion_queue::CqShared;
use super::datagram::{DatagramReceiver, Reader};
use super::events::{Caller, PeersEvent};
use super::peer::lock;
use super::receive::Receiver;

/// So many queue pairs, or senders of a datagram queue pair, are always looked at: that takes less than being called by one.
pub(super) const MOST_AWAKE: usize = 16;

/// Polls between two searches for quiet ones.
pub(super) const POLLS_PER_SWEEP: u32 = 512;

/// After so many polls in a row that found nothing, the poller looks whether peers in other processes have called; and after so many in any case.
const IDLE_POLLS_PER_LOOK: u32 = 32;
const POLLS_PER_LOOK: u32 = 512;

/// So many processes are looked at in each poll.
const MOST_WATCHED: usize = 8;

/// Those of one completion queue.
#[derive(Default)]
pub(super) struct Dormant {
    /// By the ids of their queue pairs.
    receivers: HashMap<u64, Receiver, foldhash::fast::RandomState>,
    /// By the ids of their paths, with those of the queue pairs that they send to.
    senders: HashMap<u64, (u64, Reader), foldhash::fast::RandomState>,
    remote: Remote,
    /// Those that called, while they are woken. Empty, and keeps its memory.
    called: Vec<u64>,
    polls: u32,
    idle_polls: u32,
}

impl Dormant {
    /// With room for so many that call before the poller looks.
    pub(super) fn with_room(called: usize) -> Dormant {
        Dormant { called: Vec::with_capacity(called), ..Dormant::default() }
    }

    /// These sleep from now on. Their inboxes are armed, and have been looked at after that.
    pub(super) fn add(&mut self, quiet: impl Iterator<Item = Receiver>) {
        for receiver in quiet {
            self.remote.add(receiver.pair.caller());
            self.receivers.insert(receiver.pair.id, receiver);
        }
    }

    /// These senders to a datagram queue pair do. They are in other processes, or seem to be.
    pub(super) fn add_senders(&mut self, pair: u64, quiet: impl Iterator<Item = Reader>) {
        for reader in quiet {
            self.remote.add(reader.caller());
            self.senders.insert(reader.id(), (pair, reader));
        }
    }

    /// This datagram queue pair is gone.
    pub(super) fn remove_senders_to(&mut self, pair: u64) {
        for (_, (_, reader)) in self.senders.extract_if(|_, (to, _)| *to == pair) {
            self.remote.remove(reader.caller());
        }
    }

    /// Takes out the one of this queue pair, if it is dormant.
    pub(super) fn remove(&mut self, pair: u64) -> Option<Receiver> {
        let receiver = self.receivers.remove(&pair)?;
        self.remote.remove(receiver.pair.caller());
        Some(receiver)
    }

    /// Moves those that `called` to the ones that are awake, and empties it. Their senders have taken back the arming.
    pub(super) fn wake(
        &mut self,
        called: &Mutex<Vec<u64>>,
        awake: &mut Vec<Receiver>,
        datagrams: &mut [DatagramReceiver],
    ) {
        std::mem::swap(&mut *lock(called), &mut self.called);
        let mut called = std::mem::take(&mut self.called);
        for id in called.drain(..) {
            if let Some(receiver) = self.remove(id) {
                awake.push(receiver);
            } else if let Some((pair, reader)) = self.senders.remove(&id) {
                self.remote.remove(reader.caller());
                if let Some(to) = datagrams.iter_mut().find(|datagrams| datagrams.pair.id == pair) {
                    to.put_back(reader);
                }
            }
        }
        self.called = called;
    }

    /// Some are called for from other processes.
    #[inline]
    pub(super) fn has_remote(&self) -> bool {
        self.remote.count > 0
    }

    /// Passes on what processes that are looked at in each poll have called for. Returns whether they have.
    #[inline]
    pub(super) fn pass_on_watched(&self, own: &Arc<CqShared>) -> bool {
        let mut any = false;
        for (event, _) in &self.remote.watched {
            if event.calls.any() {
                event.calls.pass_on(Some(own));
                any = true;
            }
        }
        any
    }

    /// Whether it is time to look if they are, after a poll that found something or did not.
    #[inline]
    pub(super) fn must_look(&mut self, has_found: bool) -> bool {
        self.polls += 1;
        self.idle_polls = if has_found { 0 } else { self.idle_polls + 1 };
        let must = self.idle_polls >= IDLE_POLLS_PER_LOOK || self.polls >= POLLS_PER_LOOK;
        if must {
            (self.polls, self.idle_polls) = (0, 0);
        }
        must
    }
}

/// Those that are called for from other processes.
#[derive(Default)]
struct Remote {
    count: usize,
    /// Where the first few processes call, and for how many.
    watched: Vec<(Arc<PeersEvent>, usize)>,
}

impl Remote {
    fn place(&self, event: &Arc<PeersEvent>) -> Option<usize> {
        self.watched.iter().position(|(watched, _)| Arc::ptr_eq(watched, event))
    }

    fn add(&mut self, caller: Option<&Caller>) {
        let Some(Caller { event, .. }) = caller else { return };
        self.count += 1;
        match self.place(event) {
            Some(at) => self.watched[at].1 += 1,
            None if self.watched.len() < MOST_WATCHED => {
                self.watched.push((Arc::clone(event), 1));
            }
            None => {}
        }
    }

    fn remove(&mut self, caller: Option<&Caller>) {
        let Some(Caller { event, .. }) = caller else { return };
        self.count -= 1;
        let Some(at) = self.place(event) else { return };
        // Some may have been added while there was no room: then it is forgotten early, and looked at now and then.
        self.watched[at].1 -= 1;
        if self.watched[at].1 == 0 {
            self.watched.swap_remove(at);
        }
    }
}
