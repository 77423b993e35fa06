//! Which client has which place of the pool.
//!
//! A client that has left is torn down on another thread than the server thread. Until its queue pair is destroyed, what it has sent
//! may land in its place, which nobody else may have.

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::pool::Pool;

/// The places of one server thread.
#[derive(Debug)]
pub(super) struct Places {
    pool: Pool,
    /// That of each client that has one.
    of_clients: Vec<Option<u32>>,
    /// Clients whose queue pairs are destroyed, once each. The number of one is given to another client only after it can be taken
    /// from here.
    gone: Receiver<u32>,
}

/// Makes what tells of each client that it is gone.
#[derive(Debug)]
pub(super) struct WatchClients(Sender<u32>);

/// Tells that a client is gone when it is dropped, which must be after the queue pair.
#[derive(Debug)]
pub(super) struct TellsGone {
    client: u32,
    to: Sender<u32>,
}

impl Places {
    pub(super) fn new(pool: Pool) -> (Places, WatchClients) {
        let (sender, gone) = unbounded();
        (Places { pool, of_clients: Vec::new(), gone }, WatchClients(sender))
    }

    /// A write into any of them makes an event, once.
    pub(super) fn arm(&self) {
        self.pool.region.arm();
    }

    /// The client has one.
    pub(super) fn has(&self, client: u32) -> bool {
        self.of_clients.get(client as usize).is_some_and(Option::is_some)
    }

    /// Nobody has one of them.
    pub(super) fn have_free(&mut self) -> bool {
        self.pool.has_free() || self.free_gone()
    }

    /// Gives one to this client, which has none, if one is free.
    pub(super) fn give(&mut self, client: u32) -> Option<u32> {
        debug_assert!(!self.has(client));
        let place = self.have_free().then(|| self.pool.take()).flatten()?;
        if self.of_clients.len() <= client as usize {
            self.of_clients.resize(client as usize + 1, None);
        }
        self.of_clients[client as usize] = Some(place);
        Some(place)
    }

    /// Nothing more lands in the place of this client, if it has one, and only so many of its cells were used.
    pub(super) fn free(&mut self, client: u32, used: u32) {
        if let Some(place) = self.of_clients.get_mut(client as usize).and_then(Option::take) {
            self.pool.give_back(place, used);
        }
    }

    /// Frees the places of clients that are gone. `true`: some place is free.
    #[cold]
    pub(super) fn free_gone(&mut self) -> bool {
        while let Ok(client) = self.gone.try_recv() {
            self.free(client, u32::MAX);
        }
        self.pool.has_free()
    }
}

impl WatchClients {
    pub(super) fn watch(&self, client: u32) -> TellsGone {
        TellsGone { client, to: self.0.clone() }
    }
}

impl Drop for TellsGone {
    fn drop(&mut self) {
        // Fails only if the server thread's half is gone.
        let _ = self.to.send(self.client);
    }
}

#[cfg(test)]
mod tests {
    use farcall_verbs::{Access, Device};

    use super::super::pool::PoolLayout;
    use super::*;
    use crate::contract::Terms;

    #[test]
    fn a_place_is_free_once_nothing_of_its_client_is_left() {
        let layout = PoolLayout::new(1, &Terms { window: 2, slot: 64, max_message: 64 });
        let pd = Device::open("shm").unwrap().alloc_pd().unwrap();
        let memory = pd.alloc_shared(layout.bytes() as usize, Access::REMOTE_WRITE).unwrap();
        let (mut places, clients) = Places::new(Pool::new(memory, &layout));
        let (first, without_place) = (clients.watch(3), clients.watch(4));
        assert_eq!(places.give(3), Some(0));
        assert_eq!((places.give(4), places.have_free()), (None, false));
        drop(without_place);
        assert_eq!((places.give(5), places.has(3)), (None, true));
        drop(first);
        assert_eq!((places.give(5), places.has(3)), (Some(0), false));
    }
}
