//! How new clients come to a server thread: made in an accepting thread, taken over between polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use crossbeam_utils::CachePadded;
use farcall_core::metrics::RefusalReason;
use farcall_core::site::Site;
use farcall_core::transport::{ClientId, ClientInfo};

use super::tear_down::TearDown;
use crate::contract::{
    Accepted, AskForRoom, HalfPlaces, OnDisconnect, RoomRequest, SetupError, Source, ThreadPlaces,
};

/// How long a server thread that ends waits until clients are gone which it has dropped before.
const TEAR_DOWN_BOUND: Duration = Duration::from_secs(1);

/// News for the server thread.
#[derive(Debug)]
pub(crate) enum Arrival<T> {
    /// A client, and what its handshake has come to.
    New(Box<T>, ClientInfo),
    /// The handshake of this client did not end well, or its process has died.
    Withdrawn(ClientId),
    /// A client is to be dropped, so that there is room for another.
    RoomWanted(RoomRequest),
}

/// What the accepting threads and the server thread share.
#[derive(Debug)]
pub(crate) struct AcceptQueue<T> {
    /// Looked at once per poll, so on a line of its own.
    has_news: CachePadded<AtomicBool>,
    arrivals: Sender<Arrival<T>>,
    places: HalfPlaces,
    /// Set with the first client, as a server thread must not take the time to start it. `None`: there is none.
    tear_down: OnceLock<Option<TearDown>>,
    site: Site,
}

impl<T: Send + 'static> AcceptQueue<T> {
    /// Accepts a client: `make` makes the server's end of its connection, with the setup bytes for the client.
    pub(crate) fn accept(
        self: &Arc<Self>,
        (source, info): (Source, &ClientInfo),
        make: impl FnOnce(ClientId, &OnDisconnect) -> Result<(Vec<u8>, T), SetupError>,
    ) -> Result<Accepted, SetupError> {
        // In a simulation clients are torn down at the moment of virtual time at which they are dropped.
        let start = || (!self.site.is_driven()).then(TearDown::of_this_process).flatten();
        self.tear_down.get_or_init(start);
        let id = self.places.take((source, info))?;
        let on_disconnect = OnDisconnect::default();
        let made = make(id, &on_disconnect);
        let (setup, client) = made.inspect_err(|_| self.places.give_back(id.number))?;
        if !self.push(Arrival::New(Box::new(client), info.clone())) {
            self.places.give_back(id.number);
            return Err(SetupError::Full(
                "the server's threads start again after a failure".into(),
            ));
        }
        let queue = Arc::clone(self);
        let withdraw = Box::new(move || {
            queue.push(Arrival::Withdrawn(id));
        });
        Ok(Accepted { setup, withdraw, on_disconnect, take_stream: None })
    }
}

impl<T: Send + 'static> AcceptQueue<T> {
    /// The queue of a server thread's half with memory for so many clients, and the thread's side of it.
    pub(crate) fn new(
        site: &Site,
        (places, most): (Arc<ThreadPlaces>, usize),
    ) -> (Arc<AcceptQueue<T>>, Arrivals<T>) {
        let (arrivals, receiver) = crossbeam_channel::unbounded();
        let queue = Arc::new_cyclic(|queue: &Weak<AcceptQueue<T>>| AcceptQueue {
            has_news: CachePadded::new(AtomicBool::new(false)),
            arrivals,
            places: HalfPlaces::new(places, most, Weak::clone(queue) as Weak<dyn AskForRoom>),
            tear_down: OnceLock::new(),
            site: site.clone(),
        });
        (Arc::clone(&queue), Arrivals { queue, receiver })
    }
}

#[cfg(test)]
impl<T: Send + 'static> AcceptQueue<T> {
    /// That of a thread's only half.
    pub(crate) fn alone(
        site: &Site,
        limits: crate::contract::ClientLimits,
    ) -> (Arc<AcceptQueue<T>>, Arrivals<T>) {
        AcceptQueue::new(site, (ThreadPlaces::new(site, limits), usize::MAX))
    }
}

impl<T: Send> AskForRoom for AcceptQueue<T> {
    fn ask(&self, request: RoomRequest) -> bool {
        self.push(Arrival::RoomWanted(request))
    }
}

impl<T> AcceptQueue<T> {
    /// `false`: the server thread's half is gone, and the client is dropped here.
    fn push(&self, arrival: Arrival<T>) -> bool {
        let is_sent = self.arrivals.send(arrival).is_ok();
        if is_sent {
            self.has_news.store(true, Ordering::SeqCst);
            self.site.wake();
        }
        is_sent
    }

    /// Makes room for a client from that source: see [`HalfPlaces::make_room`].
    pub(crate) fn make_room(&self, source: Source, wait: Duration) -> bool {
        self.places.make_room(source, wait)
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

    /// Drops what a client had, and then frees its number: on another thread, if there is one.
    pub(crate) fn tear_down(&self, number: u32, member: Box<T>)
    where
        T: Send + 'static,
    {
        let queue = Arc::clone(&self.queue);
        let leaving = Leaving { _member: member, _place: LeavingPlace { queue, number } };
        match self.queue.tear_down.get() {
            Some(Some(tear_down)) => {
                self.queue.places.leave(number);
                tear_down.drop_there(Box::new(leaving));
            }
            _ => drop(leaving),
        }
    }

    /// The thread has refused something.
    pub(crate) fn count_refusal(&self, reason: RefusalReason) {
        self.queue.site.refusals().count(reason);
    }

    /// The places of its clients.
    pub(crate) fn places(&self) -> &HalfPlaces {
        &self.queue.places
    }
}

impl<T> Drop for Arrivals<T> {
    /// Clients that the thread has dropped before are gone when it ends, if that takes no longer than it may.
    fn drop(&mut self) {
        self.queue.places.end(TEAR_DOWN_BOUND);
    }
}

/// A client that the server thread has let go of.
struct Leaving<T> {
    // Dropped in this order: completions of its queue pair must not meet a new client of its number, and who gets its place finds its
    // memory and its descriptors free.
    _member: Box<T>,
    _place: LeavingPlace<T>,
}

struct LeavingPlace<T> {
    queue: Arc<AcceptQueue<T>>,
    number: u32,
}

impl<T> Drop for LeavingPlace<T> {
    fn drop(&mut self) {
        self.queue.places.give_back(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::ClientLimits;

    #[test]
    fn a_client_that_cannot_be_made_gives_its_number_back() {
        let (queue, _arrivals) = AcceptQueue::<()>::alone(&Site::new(), ClientLimits::of(1));
        for _ in 0..3 {
            let failed = queue.accept((Source::Unknown, &ClientInfo::default()), |_, _| {
                Err(SetupError::Misbehaved("a test"))
            });
            assert!(matches!(failed, Err(SetupError::Misbehaved(_))));
        }
        assert!(
            queue
                .accept((Source::Unknown, &ClientInfo::default()), |_, _| Ok((Vec::new(), ())))
                .is_ok()
        );
    }

    #[test]
    fn a_thread_that_is_gone_takes_no_clients() {
        let (queue, arrivals) = AcceptQueue::alone(&Site::new(), ClientLimits::of(1));
        drop(arrivals);
        for _ in 0..3 {
            let refused =
                queue.accept((Source::Unknown, &ClientInfo::default()), |_, _| Ok((Vec::new(), 7)));
            assert!(matches!(refused, Err(SetupError::Full(_))));
        }
    }

    #[test]
    fn an_arrival_is_announced_until_it_is_taken() {
        let (queue, mut arrivals) = AcceptQueue::alone(&Site::new(), ClientLimits::of(2));
        assert!(!arrivals.has_news());
        let accepted = queue
            .accept((Source::Unknown, &ClientInfo::default()), |_, _| Ok((Vec::new(), 7)))
            .unwrap();
        assert!(arrivals.has_news());
        arrivals.clear_news();
        assert!(!arrivals.has_news());
        assert!(matches!(arrivals.next(), Some(Arrival::New(seven, _)) if *seven == 7));
        assert!(arrivals.next().is_none());
        (accepted.withdraw)();
        assert!(arrivals.has_news());
        assert!(matches!(arrivals.next(), Some(Arrival::Withdrawn(ClientId { number: 0, .. }))));
    }
}
