//! The I/O thread of an endpoint: gives its channels their turns, and sleeps when none has work.

use super::endpoint::EndpointShared;
use super::io::ChannelIo;
use crate::idle::{IdlePolicy, Idler, Rest};
use crate::time::{Instant, PollAt, Progress};
use std::sync::Arc;
use std::thread;

/// An endpoint's thread.
pub(super) struct IoThread {
    endpoint: Arc<EndpointShared>,
    channels: Vec<ChannelIo>,
    idle: IdlePolicy,
}

impl IoThread {
    pub(super) fn new(endpoint: Arc<EndpointShared>, idle: IdlePolicy) -> IoThread {
        IoThread { endpoint, channels: Vec::new(), idle }
    }

    /// Runs until the endpoint and all its channels are dropped.
    pub(super) fn run(mut self) {
        let mut idler = Idler::new(self.idle);
        let mut now = self.endpoint.site.now();
        loop {
            let progress = self.turn(now);
            if self.is_over() {
                return;
            }
            if !progress.is_idle() {
                idler.worked();
                now = self.endpoint.site.now();
            } else if idler.wants_clock() {
                now = self.endpoint.site.now();
                if self.rest(&mut idler, now, progress) {
                    now = self.endpoint.site.now();
                }
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// One turn of all channels.
    fn turn(&mut self, now: Instant) -> Progress {
        if self.endpoint.has_new() {
            self.endpoint.take_new(&mut self.channels);
        }
        let progress = match &mut self.channels[..] {
            [only] => only.turn(now),
            [] => Progress::IDLE,
            channels => self.endpoint.site.together(|| {
                let turns = channels.iter_mut().map(|channel| channel.turn(now));
                turns.fold(Progress::IDLE, Progress::and)
            }),
        };
        if self.channels.iter().any(ChannelIo::is_over) {
            self.channels.retain(|channel| !channel.is_over());
        }
        progress
    }

    fn is_over(&self) -> bool {
        self.channels.is_empty() && self.endpoint.is_closed() && !self.endpoint.has_new()
    }

    /// Rests after an empty turn. Returns whether that took long enough to read the clock again.
    fn rest(&mut self, idler: &mut Idler, now: Instant, progress: Progress) -> bool {
        match (idler.rest(now), progress.next) {
            (Rest::Spin, _) | (_, PollAt::Now) => {
                core::hint::spin_loop();
                return false;
            }
            (Rest::Yield, _) => thread::yield_now(),
            (Rest::Park, PollAt::At(at)) => self.sleep(Some(at)),
            (Rest::Park, PollAt::OnEvent) => self.sleep(None),
        }
        true
    }

    /// Sleeps, unless a channel has work or the thread is about to end.
    fn sleep(&mut self, until: Option<Instant>) {
        let asleep = self.endpoint.site.fall_asleep();
        let may_sleep = !self.endpoint.has_new()
            && !self.is_over()
            && self.channels.iter_mut().all(ChannelIo::may_sleep);
        if may_sleep {
            asleep.sleep(until);
        }
    }
}

impl Drop for IoThread {
    fn drop(&mut self) {
        self.endpoint.end();
    }
}
