//! The shared receive queue of one server thread: its receives, and how many of them each client may count on.

use std::sync::Arc;

use farcall_verbs::{
    Buffer, Device, PostError, ProtectionDomain, SharedReceiveQueue, SharedReceiveQueueHandle,
    WorkCompletion,
};

use crate::contract::{Config, SetupError};
use crate::kit::memory::{Budget, Charge};
use crate::slots::carrier::{ServerCarrier, Shared};
use crate::slots::link::stride;

/// Requests that each client may have outstanding, however many clients there are.
pub(crate) const LEAST_CREDITS: u32 = 2;

/// Receives for messages that are no requests: cancellations, releases, chunks of large requests, goodbyes. One that finds
/// none waits at its sender.
pub(crate) const RESERVE: usize = 256;

/// Receives beyond the least that all clients of a thread have together: 32 MiB of slots of 4 KiB.
const MOST_BEYOND_LEAST: usize = 8192;

/// What one client gets of the receives that are left: one of so many parts. The first hundred clients get all of the usual
/// window; however many come, something is left for the next.
const SHARE: u64 = 8;

/// Receives that are posted again at a time.
const REPOST_AT: usize = 16;

/// The id of every receive: no client has a number this high.
const ANY_CLIENT: u64 = u64::MAX;

/// How many requests clients may send: granted by the accepting threads, backed with receives by the server thread.
#[derive(Debug, Clone)]
pub(crate) struct Grants {
    budget: Arc<Budget>,
    /// Every client may have its whole window.
    all_windows: bool,
    /// What all clients together have at least.
    least: u64,
    pub(crate) queue: SharedReceiveQueueHandle,
    pub(crate) pd: ProtectionDomain,
}

/// A client's requests, until it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) credits: u32,
    pub(crate) charge: Charge,
}

impl Grants {
    fn new(
        window: u32,
        max_clients: usize,
        depth: usize,
        queue: SharedReceiveQueueHandle,
        pd: ProtectionDomain,
    ) -> Grants {
        let requests = depth.saturating_sub(RESERVE).max(1);
        let all_windows = max_clients.saturating_mul(window as usize) <= requests;
        let (budget, least) = (Budget::new(requests as u64), least(max_clients) as u64);
        Grants { budget, all_windows, least, queue, pd }
    }

    /// The requests that one more client may have outstanding, at most `window`.
    pub(crate) fn grant(&self, window: u32) -> Grant {
        if self.all_windows {
            return Grant { credits: window, charge: self.budget.charge_beyond(window.into()) };
        }
        let left = self.budget.limit().saturating_sub(self.least + self.budget.used());
        let most = (left / SHARE + u64::from(LEAST_CREDITS)).min(window.into());
        let charge = self.budget.charge_beyond(most);
        Grant { credits: most as u32, charge }
    }
}

/// The server thread's side.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    queue: SharedReceiveQueue,
    grants: Grants,
    depth: usize,
    buffer_bytes: usize,
    /// Receives that there are.
    count: usize,
    /// Buffers of messages that have been handled.
    used: Vec<Buffer>,
}

impl SharedReceives {
    /// The queue of a thread with at most `max_clients`, and what it grants them.
    pub(crate) fn new(
        device: &Device,
        config: &Config,
        max_clients: usize,
    ) -> Result<(SharedReceives, Grants), SetupError> {
        let depth = depth(config.window, max_clients, device.caps().max_recv_wr)
            .min(device.caps().max_cqe / 2);
        let pd = device.alloc_pd()?;
        let queue = pd.create_srq(depth)?;
        let grants = Grants::new(config.window, max_clients, depth, queue.handle(), pd);
        let mut receives = SharedReceives {
            queue,
            grants: grants.clone(),
            depth,
            buffer_bytes: stride(config.slot) as usize,
            count: 0,
            used: Vec::with_capacity(REPOST_AT),
        };
        receives.try_replenish()?;
        Ok((receives, grants))
    }

    /// Receives of the queue.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Makes receives for what is granted, and the reserve.
    fn try_replenish(&mut self) -> Result<(), SetupError> {
        let granted = usize::try_from(self.grants.budget.used()).unwrap_or(usize::MAX);
        let wanted = granted.saturating_add(RESERVE).min(self.depth);
        let more = wanted.saturating_sub(self.count);
        if more == 0 {
            return Ok(());
        }
        let pool = self.grants.pd.alloc_private(more * self.buffer_bytes)?;
        let pool = pool.into_pool(self.buffer_bytes);
        self.used.extend(std::iter::from_fn(|| pool.take()).take(more));
        self.count += more;
        self.post().map_err(|error| SetupError::Device(error.into()))
    }

    fn post(&mut self) -> Result<(), PostError> {
        let SharedReceives { queue, used, .. } = self;
        used.drain(..).try_for_each(|mut buffer| {
            buffer.set_len(buffer.capacity());
            queue.post_recv(ANY_CLIENT, Some(buffer))
        })
    }
}

impl<C: ServerCarrier> Shared<C> for SharedReceives {
    #[cold]
    fn replenish(&mut self) {
        if let Err(error) = self.try_replenish() {
            // The clients wait for each other's receives.
            tracing::warn!(%error, "no memory for more receives");
        }
    }

    #[inline]
    fn recycle(&mut self, completion: &mut WorkCompletion) {
        let Some(buffer) = completion.buffer.take() else { return };
        self.used.push(buffer);
        if self.used.len() >= REPOST_AT
            && let Err(error) = self.post()
        {
            tracing::error!(%error, "a receive could not be posted again");
        }
    }
}

/// Requests that all clients may have outstanding in any case.
fn least(max_clients: usize) -> usize {
    max_clients.saturating_mul(LEAST_CREDITS as usize)
}

/// How many receives a thread may need, of a device that allows `most`.
fn depth(window: u32, max_clients: usize, most: usize) -> usize {
    let all = max_clients.saturating_mul(window as usize);
    let usual = least(max_clients).saturating_add(MOST_BEYOND_LEAST);
    all.min(usual).saturating_add(RESERVE).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(window: u32, max_clients: usize) -> Grants {
        let device = Device::open("shm").unwrap();
        let pd = device.alloc_pd().unwrap();
        let queue = pd.create_srq(1).unwrap().handle();
        Grants::new(window, max_clients, depth(window, max_clients, 1 << 15), queue, pd)
    }

    #[test]
    fn requests_of_all_clients_have_receives() {
        for (max_clients, window) in [(1, 1), (8, 64), (4096, 64), (10_000, 64), (10_000, 1024)] {
            let grants = grants(window, max_clients);
            let all: Vec<_> = (0..max_clients).map(|_| grants.grant(window)).collect();
            assert!(all.iter().all(|grant| grant.credits >= LEAST_CREDITS.min(window)));
            let sum: u64 = all.iter().map(|grant| u64::from(grant.credits)).sum();
            assert!(sum <= grants.budget.limit(), "{max_clients} clients: {sum}");
        }
    }

    #[test]
    fn a_few_clients_get_their_whole_windows() {
        let grants = grants(64, 4096);
        let all: Vec<_> = (0..100).map(|_| grants.grant(64)).collect();
        assert!(all.iter().all(|grant| grant.credits == 64));
        drop(all);
        assert_eq!(grants.budget.used(), 0);
    }
}
