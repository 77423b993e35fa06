//! The completion queues of one server thread, each for a cluster of its clients (DaRPC, SoCC 2014, section 3).
//!
//! A queue has an entry for everything that its clients may have outstanding, so it cannot overrun. One queue for all would
//! have to be larger than devices allow, or than few clients are worth: when the queues are full, the next client begins
//! a new one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farcall_core::site::Site;
use farcall_verbs::{CompletionQueueHandle, Device};

use super::completions::Completions;
use super::memory::{Budget, Charge};
use crate::contract::SetupError;

/// Where the accepting threads place clients, and where the server thread finds new queues.
#[derive(Debug)]
pub(crate) struct Clusters {
    site: Site,
    device: Device,
    /// Entries that each queue has besides those of its clients.
    common: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    clusters: Vec<Cluster>,
    /// Queues that the server thread does not poll yet.
    new: Vec<ClusterQueue>,
    /// Entries for the clients of the next queue.
    next: usize,
}

#[derive(Debug)]
struct Cluster {
    queue: CompletionQueueHandle,
    entries: Arc<Budget>,
}

/// A queue that a server thread polls, and the entries that its clients have there.
#[derive(Debug)]
pub(crate) struct ClusterQueue {
    pub(crate) completions: Completions,
    pub(crate) entries: Arc<Budget>,
}

/// A client's place: the queue of its completions, and its entries there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) queue: CompletionQueueHandle,
    pub(crate) entries: Charge,
}

impl Clusters {
    /// The first queue, with `first` entries for its clients, and `common` ones that every queue has besides. Each further
    /// queue is twice as large as the one before it, as far as the device allows.
    pub(crate) fn new(
        site: &Site,
        device: &Device,
        common: usize,
        first: usize,
    ) -> Result<Arc<Clusters>, SetupError> {
        let state = State { clusters: Vec::new(), new: Vec::new(), next: first };
        let (site, device) = (site.clone(), device.clone());
        let clusters = Clusters { site, device, common, state: Mutex::new(state) };
        clusters.add(&mut clusters.state(), 1)?;
        Ok(Arc::new(clusters))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a client with so many completions outstanding at most.
    pub(crate) fn place(&self, entries: usize) -> Result<Place, SetupError> {
        let mut state = self.state();
        if let Some(place) = state.clusters.iter().rev().find_map(|it| it.place(entries)) {
            return Ok(place);
        }
        self.add(&mut state, entries)?;
        let place = state.clusters.last().and_then(|cluster| cluster.place(entries));
        place.ok_or_else(|| {
            SetupError::Unsupported(format!(
                "a connection has {entries} completions outstanding, besides {} common ones; the device's queues hold {}",
                self.common,
                self.device.caps().max_cqe
            ))
        })
    }

    /// Adds a queue with room for at least `least`, if the device allows that.
    fn add(&self, state: &mut State, least: usize) -> Result<(), SetupError> {
        let most = self.device.caps().max_cqe.saturating_sub(self.common).max(1);
        let entries = state.next.max(least).min(most);
        let completions = Completions::new(&self.site, &self.device, self.common + entries)?;
        let (queue, charged) = (completions.queue(), Budget::new(entries as u64));
        state.clusters.push(Cluster { queue, entries: Arc::clone(&charged) });
        state.new.push(ClusterQueue { completions, entries: charged });
        state.next = entries.saturating_mul(2);
        Ok(())
    }

    /// Queues that were added since the last time. A client arrives at the server thread after its queue was added.
    pub(crate) fn take_new(&self) -> impl Iterator<Item = ClusterQueue> + use<> {
        std::mem::take(&mut self.state().new).into_iter()
    }

    /// This queue has failed: no more clients are placed there. The next one gets a new queue, if there is no other.
    pub(crate) fn forget(&self, queue: &ClusterQueue) {
        let mut state = self.state();
        state.clusters.retain(|cluster| !Arc::ptr_eq(&cluster.entries, &queue.entries));
        state.next = (queue.entries.limit() as usize).max(1);
    }
}

impl Cluster {
    fn place(&self, entries: usize) -> Option<Place> {
        let entries = self.entries.charge(entries as u64)?;
        Some(Place { queue: self.queue.clone(), entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_refused_for_want_of_a_completion_queue() {
        let device = Device::open("shm-plain").unwrap();
        let clusters = Clusters::new(&Site::new(), &device, 4096, 160 * 16).unwrap();
        let places: Vec<_> = (0..10_000).map(|_| clusters.place(160).unwrap()).collect();
        let queues = clusters.take_new().count();
        let most = (device.caps().max_cqe - 4096) / 160;
        assert!((10_000 / most..10_000 / most + 5).contains(&queues), "{queues} queues");
        drop(places);
        assert_eq!(clusters.state().clusters.len(), queues);
        let _again: Vec<_> = (0..10_000).map(|_| clusters.place(160).unwrap()).collect();
        assert_eq!(clusters.take_new().count(), 0, "clients that are gone leave their places");
    }

    #[test]
    fn a_connection_larger_than_any_queue_is_refused() {
        let device = Device::open("shm-plain").unwrap();
        let clusters = Clusters::new(&Site::new(), &device, 0, 1).unwrap();
        let refused = clusters.place(device.caps().max_cqe + 1).unwrap_err().to_string();
        assert!(refused.contains("32767"), "{refused}");
    }
}
