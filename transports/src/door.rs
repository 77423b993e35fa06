//! How new clients come to a server thread: made in an accepting thread, taken over between polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use farcall_core::transport::Unpark;

use crate::backend::SetupError;
use crate::completions::{Completions, Waker};

/// News for the server thread.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    New(Box<T>),
    /// The handshake of this client did not end well, or it is gone.
    Withdrawn(Seat),
}

/// Which client of a thread, and which connection under that number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// What the accepting threads and the server thread share.
#[derive(Debug)]
pub(crate) struct Door<T> {
    /// Looked at once per poll, so on a line of its own.
    news: CachePadded<AtomicBool>,
    arrivals: Sender<Arrival<T>>,
    seats: Mutex<Seats>,
    waker: Waker,
}

/// Which numbers are free.
#[derive(Debug)]
struct Seats {
    free: Vec<u32>,
    next: u32,
    most: usize,
    generation: u32,
}

impl<T> Door<T> {
    /// The door of a thread that sleeps for these completions and has room for so many; and the thread's side of it.
    pub(crate) fn new(completions: &Completions, most: usize) -> (Arc<Door<T>>, Arrivals<T>) {
        let (arrivals, receiver) = crossbeam_channel::unbounded();
        let door = Door {
            news: CachePadded::new(AtomicBool::new(false)),
            arrivals,
            seats: Mutex::new(Seats { free: Vec::new(), next: 0, most, generation: 0 }),
            waker: completions.waker(),
        };
        let door = Arc::new(door);
        (Arc::clone(&door), Arrivals { door, receiver })
    }

    pub(crate) fn tell(&self, arrival: Arrival<T>) {
        // Fails only when the server thread's half is gone; then the client is dropped here.
        if self.arrivals.send(arrival).is_ok() {
            self.news.store(true, Ordering::SeqCst);
            self.waker.unpark();
        }
    }

    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free number, in its next generation.
    pub(crate) fn take_seat(&self) -> Result<Seat, SetupError> {
        let mut seats = self.seats();
        let in_use = seats.next as usize - seats.free.len();
        if in_use >= seats.most {
            return Err(SetupError::Full(format!("the server has {in_use} clients, its most")));
        }
        seats.generation = seats.generation.wrapping_add(1);
        let number = seats.free.pop().unwrap_or_else(|| {
            seats.next += 1;
            seats.next - 1
        });
        Ok(Seat { number, generation: seats.generation })
    }

    /// The client is gone; another may have its number.
    pub(crate) fn give_back(&self, number: u32) {
        self.seats().free.push(number);
    }
}

/// The server thread's side of a door.
#[derive(Debug)]
pub(crate) struct Arrivals<T> {
    door: Arc<Door<T>>,
    receiver: Receiver<Arrival<T>>,
}

impl<T> Arrivals<T> {
    /// Whether someone has arrived.
    ///
    /// A client's first request cannot be found by a poll that came before this: its arrival was
    /// announced before the client was told that it may send.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.door.news.load(Ordering::Relaxed)
    }

    /// To be called before the arrivals are taken: what comes in between raises the flag again.
    pub(crate) fn lower_flag(&self) {
        self.door.news.store(false, Ordering::SeqCst);
    }

    pub(crate) fn next(&mut self) -> Option<Arrival<T>> {
        self.receiver.try_recv().ok()
    }

    /// The client is gone; another may have its number.
    pub(crate) fn give_back(&self, number: u32) {
        self.door.give_back(number);
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::Device;

    use super::*;

    #[test]
    fn a_number_that_comes_back_is_another_client() {
        let completions = Completions::new(&Device::open("shm").unwrap(), 4).unwrap();
        let (door, arrivals) = Door::<()>::new(&completions, 2);
        let first = door.take_seat().unwrap();
        let second = door.take_seat().unwrap();
        assert_ne!(first.number, second.number);
        let full = door.take_seat().unwrap_err().to_string();
        assert!(full.contains("2 clients"), "{full}");
        arrivals.give_back(first.number);
        let third = door.take_seat().unwrap();
        assert_eq!(third.number, first.number);
        assert_ne!(third.generation, first.generation);
    }

    #[test]
    fn whoever_comes_is_announced_until_taken() {
        let completions = Completions::new(&Device::open("shm").unwrap(), 4).unwrap();
        let (door, mut arrivals) = Door::new(&completions, 2);
        assert!(!arrivals.has_news());
        door.tell(Arrival::New(Box::new(7)));
        assert!(arrivals.has_news());
        arrivals.lower_flag();
        assert!(!arrivals.has_news());
        assert!(matches!(arrivals.next(), Some(Arrival::New(seven)) if *seven == 7));
        assert!(arrivals.next().is_none());
    }
}
