//! How new clients come to a server thread: made in the accepting thread, taken over between polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use farcall_verbs::{CompletionChannel, CompletionQueueHandle, Device};

use super::entry::Entry;
use super::layout::MAX_CLIENTS;
use super::setup::{Port, Side, Sizes};
use crate::backend::{Accepted, Intake, Keepsake, SetupError};
use crate::handshake::Terms;

/// News for the server thread.
#[derive(Debug)]
pub(crate) enum Arrival {
    New(Box<Entry>),
    /// The handshake of this client did not end well.
    Withdrawn {
        client: u32,
        generation: u32,
    },
}

/// What the accepting threads and the server thread share.
#[derive(Debug)]
pub(crate) struct Door {
    /// Looked at once per poll, so on a line of its own.
    news: CachePadded<AtomicBool>,
    arrivals: Sender<Arrival>,
    numbers: Mutex<Numbers>,
    device: Device,
    cq: CompletionQueueHandle,
    cq_capacity: usize,
    channel: CompletionChannel,
}

/// Which client numbers are free, and how much of the completion queue is spoken for.
#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
    most: u32,
    generation: u32,
    completions: usize,
}

impl Door {
    pub(crate) fn new(
        device: &Device,
        cq: CompletionQueueHandle,
        cq_capacity: usize,
        channel: &CompletionChannel,
        max_clients: usize,
    ) -> (Arc<Door>, Receiver<Arrival>) {
        let (arrivals, receiver) = crossbeam_channel::unbounded();
        let most = max_clients.min(MAX_CLIENTS as usize) as u32;
        let door = Door {
            news: CachePadded::new(AtomicBool::new(false)),
            arrivals,
            numbers: Mutex::new(Numbers {
                free: Vec::new(),
                next: 0,
                most,
                generation: 0,
                completions: 0,
            }),
            device: device.clone(),
            cq,
            cq_capacity,
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
        // Fails only when the server thread's half is gone; then the client is dropped here.
        if self.arrivals.send(arrival).is_ok() {
            self.news.store(true, Ordering::SeqCst);
            self.channel.wake();
        }
    }

    fn take_number(&self, completions: usize) -> Result<(u32, u32), SetupError> {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = numbers.next as usize - numbers.free.len();
        if in_use >= numbers.most as usize {
            return Err(SetupError::Full(format!("the server has {in_use} clients, its most")));
        }
        if numbers.completions + completions > self.cq_capacity {
            return Err(SetupError::Full(format!(
                "the completion queue of {} entries is full with {in_use} clients; more server threads, or a smaller window, make room",
                self.cq_capacity
            )));
        }
        numbers.completions += completions;
        numbers.generation = numbers.generation.wrapping_add(1);
        let client = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        Ok((client, numbers.generation))
    }

    /// The client is gone; another may have its number.
    pub(crate) fn give_back(&self, client: u32, completions: usize) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.completions -= completions;
        numbers.free.push(client);
    }
}

/// The accepting threads' hold of a [`Door`].
#[derive(Debug)]
pub(crate) struct WriteImmIntake(pub(crate) Arc<Door>);

impl Intake for WriteImmIntake {
    fn accept(
        &self,
        terms: &Terms,
        setup: &[u8],
        timeout: Duration,
    ) -> Result<Accepted, SetupError> {
        let door = &self.0;
        let completions = Sizes::new(terms, door.device.caps()).completions();
        let (client, generation) = door.take_number(completions)?;
        let made = Port::open(&door.device, &door.cq, terms, client).and_then(|port| {
            let ours = port.setup();
            let end = port.connect(&door.device, terms, setup, Side::Server, timeout)?;
            Ok((ours, end))
        });
        let (ours, (link, pd)) = match made {
            Ok(made) => made,
            Err(error) => {
                door.give_back(client, completions);
                return Err(error);
            }
        };
        let keepsake = Keepsake::default();
        let custody = keepsake.custody();
        let entry = Entry::new(link, pd, client, generation, terms, completions, custody);
        door.tell(Arrival::New(Box::new(entry)));
        let door = Arc::clone(door);
        let withdraw = Box::new(move || door.tell(Arrival::Withdrawn { client, generation }));
        Ok(Accepted { setup: ours, withdraw, keepsake })
    }
}
