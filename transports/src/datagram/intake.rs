//! How new sessions come to a server thread: made in the accepting thread, taken over between polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use farcall_verbs::{CompletionChannel, Device, Endpoint, ProtectionDomain};

use super::session::{Bounds, Session};
use super::setup::{EndSetup, max_whole, part_bytes};
use crate::backend::{Accepted, Intake, Keepsake, SetupError};
use crate::handshake::Terms;

/// Most sessions of one server thread.
const MAX_SESSIONS: usize = 1 << 20;

/// News for the server thread.
#[derive(Debug)]
pub(crate) enum Arrival {
    New(Box<Session>),
    /// The handshake of this session did not end well, or its client is gone.
    Withdrawn {
        number: u32,
        generation: u32,
    },
}

/// The server thread's queue pair, as clients are told of it.
#[derive(Debug)]
pub(crate) struct Us {
    pub(crate) device: Device,
    pub(crate) pd: ProtectionDomain,
    pub(crate) endpoint: Endpoint,
    pub(crate) qkey: u32,
    pub(crate) mtu: usize,
}

/// What the accepting threads and the server thread share.
#[derive(Debug)]
pub(crate) struct Door {
    /// Looked at once per poll, so on a line of its own.
    news: CachePadded<AtomicBool>,
    arrivals: Sender<Arrival>,
    numbers: Mutex<Numbers>,
    us: Us,
    channel: CompletionChannel,
}

/// Which session numbers are free.
#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
    most: usize,
    generation: u32,
}

impl Door {
    pub(crate) fn new(
        us: Us,
        channel: &CompletionChannel,
        max_clients: usize,
    ) -> (Arc<Door>, Receiver<Arrival>) {
        let (arrivals, receiver) = crossbeam_channel::unbounded();
        let most = max_clients.min(MAX_SESSIONS);
        let numbers = Numbers { free: Vec::new(), next: 0, most, generation: 0 };
        let door = Door {
            news: CachePadded::new(AtomicBool::new(false)),
            arrivals,
            numbers: Mutex::new(numbers),
            us,
            channel: channel.clone(),
        };
        (Arc::new(door), receiver)
    }

    /// Whether someone has arrived.
    ///
    /// A client's first request cannot be found by a poll that came before this: its arrival was
    /// announced before the client was told that it may send.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    pub(crate) fn take_news(&self) {
        self.news.store(false, Ordering::SeqCst);
    }

    fn tell(&self, arrival: Arrival) {
        // Fails only when the server thread's half is gone; then the session is dropped here.
        if self.arrivals.send(arrival).is_ok() {
            self.news.store(true, Ordering::SeqCst);
            self.channel.wake();
        }
    }

    fn take_number(&self) -> Result<(u32, u32), SetupError> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = numbers.next as usize - numbers.free.len();
        if in_use >= numbers.most {
            return Err(SetupError::Full(format!("the server has {in_use} clients, its most")));
        }
        numbers.generation = numbers.generation.wrapping_add(1);
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        Ok((number, numbers.generation))
    }

    /// The session is over; another may have its number.
    pub(crate) fn give_back(&self, number: u32) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.free.push(number);
    }

    /// Our end of a session with the client that said this, and what it must know of us.
    fn make(
        &self,
        (number, generation): (u32, u32),
        terms: &Terms,
        theirs: &[u8],
        keepsake: &Keepsake,
    ) -> Result<(Vec<u8>, Session), SetupError> {
        let us = &self.us;
        let theirs = EndSetup::from_bytes(theirs)?;
        let salt = u64::from(generation) << 32 ^ us.device.now_ns();
        let epoch = super::setup::mix(us.endpoint.to_bytes(), theirs.mix(salt));
        let way = theirs.way(&us.pd, epoch, us.mtu)?;
        let ours = EndSetup::new(&us.endpoint, us.qkey, number, epoch, way.mtu);
        let bounds = Bounds {
            window: terms.window,
            max_message: terms.max_message,
            max_whole: max_whole(terms, way.mtu),
            part_bytes: part_bytes(way.mtu),
        };
        let session = Session::new(way, number, generation, bounds, keepsake.custody());
        Ok((ours.to_bytes(), session))
    }
}

/// The accepting threads' hold of a [`Door`].
#[derive(Debug)]
pub(crate) struct DatagramIntake(pub(crate) Arc<Door>);

impl Intake for DatagramIntake {
    fn accept(
        &self,
        terms: &Terms,
        setup: &[u8],
        _timeout: Duration,
    ) -> Result<Accepted, SetupError> {
        let door = &self.0;
        let (number, generation) = door.take_number()?;
        let keepsake = Keepsake::default();
        let made = door.make((number, generation), terms, setup, &keepsake);
        let (setup, session) = made.inspect_err(|_| door.give_back(number))?;
        door.tell(Arrival::New(Box::new(session)));
        let door = Arc::clone(door);
        let withdraw = Box::new(move || door.tell(Arrival::Withdrawn { number, generation }));
        Ok(Accepted { setup, withdraw, keepsake })
    }
}
