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
        let due = now.saturating_add_nanos(self.round_trip.timeout(0));
        for index in self.fresh.drain(..) {
            let slot = &mut self.window.slots[index as usize];
            if slot.due == Instant::FAR_FUTURE {
                (slot.sent_at, slot.due) = (now, due);
            }
        }
        self.timers.at(due);
    }

    /// There was progress: the timeout begins anew.
    pub(crate) fn moved_on(&mut self, index: u32, now: Instant) {
        let slot = &mut self.window.slots[index as usize];
        slot.tries = 0;
        slot.due = now.saturating_add_nanos(self.round_trip.timeout(0));
        // Of what is waited for now no round trip can be measured.
        slot.repeated = true;
        self.timers.at(slot.due);
    }

    /// Sends again what is due. Answers whether the server counts as gone.
    pub(crate) fn fire(&mut self, now: Instant) -> bool {
        self.timers.fire();
        let mut asked = false;
        for index in 0..self.window.slots.len() as u32 {
            let slot = &mut self.window.slots[index as usize];
            if matches!(slot.phase, Phase::Free | Phase::Reserved) {
                continue;
            }
            if slot.due > now {
                self.timers.at(slot.due);
                continue;
            }
            slot.tries = slot.tries.saturating_add(1);
            slot.repeated = true;
            slot.due = now.saturating_add_nanos(self.round_trip.timeout(slot.tries));
            self.timers.at(slot.due);
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
                Phase::Fetching => Say::Missing,
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
