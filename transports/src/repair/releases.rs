//! Large responses that the client has fetched, and that the server does not know to free yet.

use farcall_core::time::Instant;

use super::round_trip::RoundTrip;
use super::timers::Timers;

#[derive(Debug)]
struct Release {
    slot: u32,
    generation: u32,
    /// It is to be sent.
    is_queued: bool,
    repeats: u32,
    /// When it is sent again; zero before the first poll after it was queued.
    due: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Releases(Vec<Release>);

impl Releases {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The response in this use of the slot was fetched.
    pub(crate) fn push(&mut self, slot: u32, generation: u32) {
        self.0.push(Release { slot, generation, is_queued: true, repeats: 0, due: Instant::ZERO });
    }

    /// The next request of the slot tells the server too.
    pub(crate) fn remove_slot(&mut self, slot: u32) {
        self.0.retain(|release| release.slot != slot);
    }

    /// The server has freed the response.
    pub(crate) fn acknowledge(&mut self, slot: u32, generation: u32) {
        self.0.retain(|release| (release.slot, release.generation) != (slot, generation));
    }

    /// Sends the slots and generations of those that are queued, as far as `send` has room.
    #[cold]
    pub(crate) fn send(&mut self, mut send: impl FnMut(u32, u32) -> bool) {
        for release in self.0.iter_mut().filter(|release| release.is_queued) {
            release.is_queued = !send(release.slot, release.generation);
        }
    }

    /// The server answers again: those that were repeated are sent at the next timeout, which is short.
    pub(crate) fn restart_timers(
        &mut self,
        now: Instant,
        round_trip: &RoundTrip,
        timers: &mut Timers,
    ) {
        for release in self.0.iter_mut().filter(|release| release.repeats > 1) {
            release.repeats = 1;
            release.due = now.saturating_add_nanos(round_trip.timeout(0));
            timers.set(release.due);
        }
    }

    /// Queues again what is due. Tells whether anything is.
    pub(crate) fn queue_due(
        &mut self,
        now: Instant,
        round_trip: &RoundTrip,
        timers: &mut Timers,
    ) -> bool {
        let mut repeated = false;
        for release in &mut self.0 {
            if release.due <= now {
                // Its time counts from the first poll after it was queued.
                release.is_queued |= release.due > Instant::ZERO;
                release.due = now.saturating_add_nanos(round_trip.timeout(release.repeats));
                release.repeats = release.repeats.saturating_add(1);
                repeated |= release.repeats > 1;
            }
            timers.set(release.due);
        }
        repeated
    }
}
