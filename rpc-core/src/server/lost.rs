//! Transports whose device is lost are replaced, while the thread's other transports go on.
//!
//! A new transport gets a number of its own among those of the thread, and the old number stays with one that takes no answers: handlers
//! of the old transport's calls may still run, and the new one's clients must not get what they answer.

use super::control::Control;
use super::thread::ServerThread;
use super::turn::Extras;
use crate::error::ReserveError;
use crate::panics::contain;
use crate::site::Site;
use crate::time::{Instant, Progress};
use crate::transport::{CallToken, Renewal, Replies, RequestSink, ServerTransport, WindDown};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The first pause before a new transport is asked for. Each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a shutdown is looked for in a pause.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The transports of a thread that are being replaced.
pub(super) struct Replacements {
    /// Which address the transports belong to that came after the first, with their numbers.
    later: Vec<(u32, usize)>,
    /// Transports that are being made now.
    pending: usize,
    /// Lost ones for which there was no thread.
    again: Vec<u32>,
    made: (Sender<Made>, Receiver<Made>),
}

/// A transport of the address of this number; none if the server ends.
struct Made(usize, Option<Box<dyn ServerTransport>>);

impl Default for Replacements {
    fn default() -> Self {
        Replacements { later: Vec::new(), pending: 0, again: Vec::new(), made: unbounded() }
    }
}

impl Replacements {
    /// The thread has started again: it has one transport per address.
    pub(super) fn forget_later(&mut self) {
        self.later.clear();
    }

    pub(super) fn are_under_way(&self) -> bool {
        self.pending > 0 || !self.again.is_empty()
    }
}

impl ServerThread {
    /// Has transports made that replace the lost ones, and takes over those that are made.
    #[cold]
    pub(super) fn replace_lost(&mut self) {
        let again = core::mem::take(&mut self.replacements.again);
        for number in again.into_iter().chain(core::mem::take(&mut self.dispatcher.turn.lost)) {
            let later = self.replacements.later.iter().find(|(later, _)| *later == number);
            let address = later.map_or(number as usize, |(_, address)| *address);
            let renewal = self.recovery.renewals.get(address).cloned().flatten();
            let (Some(renewal), Some(lost)) = (renewal, self.transports.get_mut(number as usize))
            else {
                continue;
            };
            let lost = core::mem::replace(lost, Box::new(Tombstone));
            self.dispatcher.turn.clients.lose(number);
            if let Err(error) = self.replace(address, lost, renewal) {
                tracing::error!(%error, "no thread to open a lost device again");
                // The next turn tries again.
                self.replacements.again.push(number);
            }
        }
        while let Ok(Made(address, transport)) = self.replacements.made.1.try_recv() {
            self.replacements.pending -= 1;
            if let Some(transport) = transport {
                self.replacements.later.push((self.transports.len() as u32, address));
                self.transports.push(transport);
                let thread = self.index;
                tracing::info!(thread, "a server thread has its device again, and serves there");
            }
        }
        self.dispatcher.turn.extras.set(Extras::LOST, self.replacements.are_under_way());
    }

    /// Drops a transport and makes another one of its address, on a thread of its own: both may take long.
    fn replace(
        &mut self,
        address: usize,
        lost: Box<dyn ServerTransport>,
        renewal: Arc<dyn Renewal>,
    ) -> io::Result<()> {
        let (site, control) = (self.site.clone(), Arc::clone(&self.control));
        let (thread, made) = (self.index, self.replacements.made.0.clone());
        let replace = move || {
            renewal.lose(thread);
            contain("dropping a transport without a device", || drop(lost));
            let transport = renew(&*renewal, thread, (&site, &control));
            // Fails only if the thread has ended.
            let _ = made.send(Made(address, transport));
            site.wake();
        };
        let thread = thread::Builder::new().name("farcall-renew".into());
        // Without a thread, the transport is dropped here.
        contain("starting a thread", || thread.spawn(replace)).transpose()?;
        self.replacements.pending += 1;
        Ok(())
    }
}

/// Asks for a transport until there is one; none if the server ends before.
fn renew(
    renewal: &dyn Renewal,
    thread: usize,
    (site, control): (&Site, &Control),
) -> Option<Box<dyn ServerTransport>> {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut left = pause;
        while !left.is_zero() {
            if control.draining().is_some() {
                return None;
            }
            let step = left.min(LOOK_EVERY);
            thread::sleep(step);
            left -= step;
        }
        match renewal.renew(thread, site) {
            Ok(transport) => return Some(transport),
            Err(error) if pause == FIRST_PAUSE => {
                tracing::error!(thread, %error, "a server thread waits for its device");
            }
            Err(error) => tracing::debug!(thread, %error, "the device is still not there"),
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// What stays of a transport whose device is lost.
struct Tombstone;

impl ServerTransport for Tombstone {
    fn poll(&mut self, _: Instant, _: &mut dyn RequestSink) -> Progress {
        Progress::IDLE
    }

    fn replies(&mut self) -> &mut dyn Replies {
        self
    }

    fn flush(&mut self) {}

    fn arm(&mut self) -> bool {
        true
    }

    fn connections(&self) -> usize {
        0
    }

    fn wind_down(&mut self, _: Instant, _: WindDown) -> bool {
        true
    }
}

impl Replies for Tombstone {
    fn reserve(&mut self, _: &CallToken, _: usize) -> Result<&mut [u8], ReserveError> {
        Err(ReserveError::Closed)
    }

    fn post(&mut self, _: CallToken, _: usize) {}

    fn waiting_limit(&self) -> u64 {
        0
    }
}
