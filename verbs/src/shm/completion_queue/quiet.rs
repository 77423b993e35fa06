//! Of many queue pairs and senders, those that are quiet become dormant; and a poller that sleeps.

use std::sync::atomic::{Ordering, fence};
use std::task::Waker;

use super::{CompletionQueue, attention};
use crate::shm::datagram::DatagramReceiver;
use crate::shm::dormant::{MOST_AWAKE, POLLS_PER_SWEEP};
use crate::shm::receive::Receiver;

impl CompletionQueue {
    #[inline]
    pub(super) fn count_to_sweep(&mut self) {
        self.polls_to_sweep -= 1;
        if self.polls_to_sweep == 0 {
            self.sweep();
        }
    }

    /// Lets those sleep that have been quiet since the last time.
    #[cold]
    fn sweep(&mut self) {
        self.polls_to_sweep = POLLS_PER_SWEEP;
        for receiver in &mut self.receivers {
            receiver.note_activity();
            if receiver.is_quiet() {
                receiver.arm(true);
            }
        }
        self.datagrams.iter_mut().for_each(DatagramReceiver::arm_quiet);
        // Between arming the inboxes and looking at them, as in `arm`.
        fence(Ordering::SeqCst);
        self.put_to_sleep(|receiver| {
            let stays = receiver.is_quiet() && receiver.has_arrival();
            if stays {
                receiver.arm(false);
            }
            receiver.is_quiet() && !stays
        });
        for datagrams in &mut self.datagrams {
            self.dormant.add_senders(datagrams.pair.id, datagrams.take_quiet());
        }
    }

    /// Those of which `sleeps` says so become dormant. Their inboxes are armed, and have been looked at after that.
    fn put_to_sleep(&mut self, sleeps: impl Fn(&Receiver) -> bool) {
        self.dormant.add(self.receivers.extract_if(.., |receiver| sleeps(receiver)));
    }

    /// Looks at the dormant ones again that have called.
    #[cold]
    pub(super) fn wake_called(&mut self) {
        self.dormant.wake(&self.shared.called, &mut self.receivers, &mut self.datagrams);
        // The senders have taken back the arming, and may have had no message: a doorbell after a WRITE calls, too. The next one has to
        // wake the poller, whose event for this call is gone.
        self.arm_newcomers();
    }

    /// Inboxes have come to those that are looked at. If the poller has armed the queue, it has armed all of them.
    pub(super) fn arm_newcomers(&self) {
        if self.armed {
            self.arm_inboxes();
        }
    }

    /// Looks which dormant ones were called for from other processes.
    #[cold]
    pub(super) fn look_for_calls(&mut self) {
        let Some(channel) = &self.shared.channel else { return };
        if channel.pass_on_calls(Some(&self.shared)) {
            self.wake_called();
        }
    }

    pub(crate) fn arm(&mut self) {
        if self.shared.channel.is_none() {
            return;
        }
        self.armed = true;
        self.shared.armed.store(true, Ordering::SeqCst);
        self.arm_inboxes();
        let mut bits = self.shared.attention.fetch_or(attention::ARMED, Ordering::SeqCst);
        if bits & attention::WAITING != 0 {
            // A peer that has made room before does not know that it is to ring.
            self.try_waiting();
            bits |= self.shared.attention.load(Ordering::SeqCst);
        }
        let arrived = self.receivers.iter().any(Receiver::has_arrival)
            || self.datagrams.iter().any(DatagramReceiver::has_arrival)
            || !self.staged.is_empty();
        let busy = attention::CHANGES
            | attention::SENDS
            | attention::ERRORS
            | attention::OVERRUN
            | attention::CALLED;
        if arrived || bits & busy != 0 {
            return self.shared.wake();
        }
        if self.receivers.len() > MOST_AWAKE {
            self.put_to_sleep(Receiver::is_called_for);
        }
        for datagrams in self.datagrams.iter_mut().filter(|all| all.len() > MOST_AWAKE) {
            self.dormant.add_senders(datagrams.pair.id, datagrams.take_called_for());
        }
    }

    /// Events call this waker. Returns whether all do: the page in which a process calls may have no room for one of its queue pairs.
    pub(crate) fn wake_with(&mut self, waker: &Waker) -> bool {
        self.shared.waker.get_or_init(|| waker.clone()).will_wake(waker)
            && self.datagrams.iter().all(DatagramReceiver::are_called_for)
            && self.receivers.iter().all(Receiver::is_called_for)
    }

    pub(crate) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.shared.armed.store(false, Ordering::SeqCst);
            self.shared.attention.fetch_and(!attention::ARMED, Ordering::SeqCst);
            self.set_armed(false);
        }
    }

    /// Arms the inboxes, before they are looked at: a peer that publishes a cell after the look sees that it has to ring
    /// (`Outbox::ring_doorbell`).
    fn arm_inboxes(&self) {
        self.set_armed(true);
        fence(Ordering::SeqCst);
    }

    fn set_armed(&self, armed: bool) {
        for receiver in &self.receivers {
            receiver.arm(armed);
        }
        for datagrams in &self.datagrams {
            datagrams.arm(armed);
        }
    }
}
