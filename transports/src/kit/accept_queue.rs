//! How new clients come to a server thread: made in an accepting thread, taken over between polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use farcall_core::site::Site;

use crate::contract::{Accepted, OnDisconnect, SetupError};

/// A client of a server thread: its number, and which connection under that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// News for the server thread.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    New(Box<T>),
    /// The handshake of this client did not end well, or its process has died.
    Withdrawn(ClientId),
}

/// What the accepting threads and the server thread share.
#[derive(Debug)]
pub(crate) struct AcceptQueue<T> {
    /// Looked at once per poll, so on a line of its own.
    has_news: CachePadded<AtomicBool>,
    arrivals: Sender<Arrival<T>>,
    numbers: Mutex<Numbers>,
    site: Site,
}

/// Which client numbers are free.
#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
    max_clients: usize,
    generation: u32,
}

impl<T: Send + 'static> AcceptQueue<T> {
    /// Accepts a client: `make` makes the server's end of its connection, with the setup bytes for the client.
    pub(crate) fn accept(
        self: &Arc<Self>,
        make: impl FnOnce(ClientId, &OnDisconnect) -> Result<(Vec<u8>, T), SetupError>,
    ) -> Result<Accepted, SetupError> {
        let id = self.take_number()?;
        let on_disconnect = OnDisconnect::default();
        let made = make(id, &on_disconnect);
        let (setup, client) = made.inspect_err(|_| self.give_back(id.number))?;
        self.push(Arrival::New(Box::new(client)));
        let queue = Arc::clone(self);
        let withdraw = Box::new(move || queue.push(Arrival::Withdrawn(id)));
        Ok(Accepted { setup, withdraw, on_disconnect, take_stream: None })
    }
}

impl<T> AcceptQueue<T> {
    /// The queue of a server thread with room for `max_clients`, and the thread's side of it.
    pub(crate) fn new(site: &Site, max_clients: usize) -> (Arc<AcceptQueue<T>>, Arrivals<T>) {
        let (arrivals, receiver) = crossbeam_channel::unbounded();
        let numbers = Numbers { free: Vec::new(), next: 0, max_clients, generation: 0 };
        let queue = Arc::new(AcceptQueue {
            has_news: CachePadded::new(AtomicBool::new(false)),
            arrivals,
            numbers: Mutex::new(numbers),
            site: site.clone(),
        });
        (Arc::clone(&queue), Arrivals { queue, receiver })
    }

    fn push(&self, arrival: Arrival<T>) {
        // Fails only when the server thread's half is gone; then the client is dropped here.
        if self.arrivals.send(arrival).is_ok() {
            self.has_news.store(true, Ordering::SeqCst);
            self.site.wake();
        }
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free number, in its next generation.
    fn take_number(&self) -> Result<ClientId, SetupError> {
        let mut numbers = self.numbers();
        let in_use = numbers.next as usize - numbers.free.len();
        if in_use >= numbers.max_clients {
            return Err(SetupError::Full(format!(
                "the server thread has {in_use} clients, the most that it may have"
            )));
        }
        numbers.generation = numbers.generation.wrapping_add(1);
        let number = numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        Ok(ClientId { number, generation: numbers.generation })
    }

    /// The client is gone; another may have its number.
    fn give_back(&self, number: u32) {
        self.numbers().free.push(number);
    }
}

/// The server thread's side of an accept queue.
#[derive(Debug)]
pub(crate) struct Arrivals<T> {
    queue: Arc<AcceptQueue<T>>,
    receiver: Receiver<Arrival<T>>,
}

impl<T> Arrivals<T> {
    /// Whether a client has arrived or was withdrawn.
    ///
    /// Ask after polling for completions: an arrival is announced before its client may send, so a request that the poll
    /// found belongs to a client that this announces.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.queue.has_news.load(Ordering::Relaxed)
    }

    /// To be called before the arrivals are taken: what comes in between raises the flag again.
    pub(crate) fn clear_news(&self) {
        self.queue.has_news.store(false, Ordering::SeqCst);
    }

    pub(crate) fn next(&mut self) -> Option<Arrival<T>> {
        self.receiver.try_recv().ok()
    }

    /// The client is gone; another may have its number.
    pub(crate) fn give_back(&self, number: u32) {
        self.queue.give_back(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_comes_back_is_another_client() {
        let (queue, arrivals) = AcceptQueue::<()>::new(&Site::new(), 2);
        let first = queue.take_number().unwrap();
        let second = queue.take_number().unwrap();
        assert_ne!(first.number, second.number);
        let full = queue.take_number().unwrap_err().to_string();
        assert!(full.contains("2 clients"), "{full}");
        arrivals.give_back(first.number);
        let third = queue.take_number().unwrap();
        assert_eq!(third.number, first.number);
        assert_ne!(third.generation, first.generation);
    }

    #[test]
    fn a_client_that_cannot_be_made_gives_its_number_back() {
        let (queue, _arrivals) = AcceptQueue::<()>::new(&Site::new(), 1);
        for _ in 0..3 {
            let failed = queue.accept(|_, _| Err(SetupError::Misbehaved("a test")));
            assert!(matches!(failed, Err(SetupError::Misbehaved(_))));
        }
        assert!(queue.accept(|_, _| Ok((Vec::new(), ()))).is_ok());
    }

    #[test]
    fn an_arrival_is_announced_until_it_is_taken() {
        let (queue, mut arrivals) = AcceptQueue::new(&Site::new(), 2);
        assert!(!arrivals.has_news());
        let accepted = queue.accept(|_, _| Ok((Vec::new(), 7))).unwrap();
        assert!(arrivals.has_news());
        arrivals.clear_news();
        assert!(!arrivals.has_news());
        assert!(matches!(arrivals.next(), Some(Arrival::New(seven)) if *seven == 7));
        assert!(arrivals.next().is_none());
        (accepted.withdraw)();
        assert!(arrivals.has_news());
        assert!(matches!(arrivals.next(), Some(Arrival::Withdrawn(ClientId { number: 0, .. }))));
    }
}
