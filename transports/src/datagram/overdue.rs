//! What a client sends again, and when.

use farcall_core::time::Instant;

use super::calls::Calls;
use super::window::{Phase, Say};

impl Calls {
    /// Whoever was sent since the last poll was sent now.
    #[inline]
    pub(crate) fn stamp(&mut self, now: Instant) {
        if self.fresh.is_empty() {
            return;
        }
        if !self.recovers {
            return self.fresh.clear();
        }
        for index in self.fresh.drain(..) {
            let slot = &mut self.window.slots[index as usize];
            slot.sent_at = now;
            if slot.copy == 0 {
                slot.first_at = now;
            }
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
            self.timers.at(slot.due);
        }
    }

    /// There was progress: the timeout begins anew.
    pub(crate) fn moved_on(&mut self, index: u32, now: Instant) {
        let slot = &mut self.window.slots[index as usize];
        slot.tries = 0;
        slot.due = now.saturating_add_nanos(self.round_trip.timeout(0));
        self.timers.at(slot.due);
    }

    /// One more copy of what the slot has sent is to leave.
    fn again(&mut self, index: u32, now: Instant) {
        self.heard_of(index);
        let slot = &mut self.window.slots[index as usize];
        slot.tries = slot.tries.saturating_add(1);
        slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
        self.timers.at(slot.due);
    }

    /// Requests of which nothing was heard, while later ones were answered, are sent again: they, or what was said of them,
    /// are likely lost. If they are not, the server says that it has them, and they are asked for by time alone.
    #[cold]
    pub(crate) fn overtaken(&mut self, now: Instant) {
        // What is younger may be only late (RACK, RFC 8985, section 6.2).
        let sent_before = self.round_trip.not_late(now);
        for index in 0..self.window.used() {
            let slot = &self.window.slots[index as usize];
            let overtaken =
                slot.datagram.is_some_and(|datagram| self.flight.is_overtaken(datagram));
            let timed = slot.due != Instant::FAR_FUTURE && slot.sent_at <= sent_before;
            if overtaken && timed && slot.is_unheard() {
                let what = if slot.abandoned { Say::Cancel } else { Say::Request };
                self.again(index, now);
                self.window.say(index, what);
            }
        }
    }

    /// Sends again what is due. Answers whether the server counts as gone.
    pub(crate) fn fire(&mut self, now: Instant) -> bool {
        self.timers.fire();
        let mut asked = false;
        for index in 0..self.window.used() {
            let slot = &mut self.window.slots[index as usize];
            if matches!(slot.phase, Phase::Free | Phase::Reserved) {
                continue;
            }
            if slot.due > now {
                self.timers.at(slot.due);
                continue;
            }
            if slot.say != Say::Nothing {
                // It has not left yet.
                slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
                self.timers.at(slot.due);
                continue;
            }
            self.again(index, now);
            let slot = &self.window.slots[index as usize];
            let what = match slot.phase {
                Phase::Free | Phase::Reserved => continue,
                _ if slot.abandoned => Say::Cancel,
                Phase::Posted | Phase::Announced => Say::Request,
                Phase::Known => Say::Ask,
                Phase::Sending => {
                    self.transfers.timed_out(index);
                    Say::Nothing
                }
                // Nothing is missing where the response waits for memory.
                Phase::Fetching if self.transfers.ask_again(index).is_none() => continue,
                Phase::Fetching => {
                    self.transfers.timed_out(index);
                    Say::Missing
                }
            };
            asked = true;
            if what != Say::Nothing {
                self.window.say(index, what);
            }
        }
        for release in &mut self.releases {
            if release.due <= now {
                // It counts from the first poll after it was said.
                release.unsaid |= release.due > Instant::ZERO;
                release.due = now.saturating_add_nanos(self.round_trip.timeout(release.tries));
                release.tries = release.tries.saturating_add(1);
                asked |= release.tries > 1;
            }
            self.timers.at(release.due);
        }
        asked && self.timers.asked_again(now)
    }
}
