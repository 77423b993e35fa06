//! The shared receive queue of one server thread: its receives, and how many of them each client may count on.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};
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

/// Receives that no client has for itself: for goodbyes, for those that are used and not posted again yet, and for what clients send
/// beyond what they may. A message that finds no receive waits at its sender.
pub(crate) const RESERVE: usize = 64;

/// Receives beyond the least that all clients of a thread have together: 64 MiB of slots of 4 KiB.
const MOST_BEYOND_LEAST: usize = 16_384;

/// What one client gets of the receives that are left: one of so many parts. The first hundred clients get all of the usual
/// window; however many come, something is left for the next.
const SHARE: u64 = 4;

/// Receives for the [operations](crate::slots::operations) of a client that has so many for its requests, at least.
const fn least_spare(credits: u32) -> u32 {
    credits.div_ceil(4)
}

/// Receives for the operations of a client, at most: each request may be cancelled at once, and in a short window there is one for a
/// chunk that the client writes while the server reads another.
const fn most_spare(credits: u32) -> u32 {
    if credits < 4 { 4 } else { credits }
}

/// Receives that each client has, however many clients there are.
const LEAST_RECEIVES: u64 = LEAST_CREDITS as u64 + least_spare(LEAST_CREDITS) as u64;

/// The most credits that so many receives are for, with those for operations at least.
const fn credits_of(receives: u64) -> u64 {
    receives * 4 / 5
}

/// Receives that are posted again at a time.
const REPOST_AT: usize = 16;

/// The id of every receive: no client has a number this high.
const ANY_CLIENT: u64 = u64::MAX;

/// How many requests clients may send, each with its part of the operations. The accepting threads grant them and make the receives,
/// which the server thread posts: to register memory takes longer than a turn may.
#[derive(Debug, Clone)]
pub(crate) struct Grants {
    budget: Arc<Budget>,
    stock: Arc<Stock>,
    /// Every client may have its whole window.
    all_windows: bool,
    /// What all clients together have at least.
    least: u64,
    pub(crate) queue: SharedReceiveQueueHandle,
    pub(crate) pd: ProtectionDomain,
}

/// The receives of a thread, posted or on their way to it.
#[derive(Debug)]
struct Stock {
    /// How many have been made.
    made: Mutex<usize>,
    /// The most that there may be.
    depth: usize,
    buffer_bytes: usize,
    to_server: Sender<Vec<Buffer>>,
}

impl Stock {
    /// A stock without receives, and where the server thread gets them.
    fn new(depth: usize, slot_bytes: u32) -> (Arc<Stock>, Receiver<Vec<Buffer>>) {
        let (to_server, made) = unbounded();
        let buffer_bytes = stride(slot_bytes) as usize;
        let stock = Stock { made: Mutex::new(0), depth, buffer_bytes, to_server };
        (Arc::new(stock), made)
    }

    /// Makes receives until there are as many as this.
    fn grow_to(&self, wanted: usize, pd: &ProtectionDomain) -> Result<(), SetupError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let more = wanted.min(self.depth).saturating_sub(*made);
        if more == 0 {
            return Ok(());
        }
        let pool =
            pd.alloc_private_on_demand(more * self.buffer_bytes)?.into_pool(self.buffer_bytes);
        let receives = std::iter::from_fn(|| pool.take()).take(more).collect();
        *made += more;
        // Fails only when the server thread's half is gone, which drops the client too.
        let _ = self.to_server.send(receives);
        Ok(())
    }
}

/// A client's requests, until it is dropped.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) credits: u32,
    /// Receives for its operations.
    pub(crate) spare: u32,
    pub(crate) charge: Charge,
}

impl Grants {
    fn new(
        window: u32,
        max_clients: usize,
        stock: Arc<Stock>,
        queue: SharedReceiveQueueHandle,
        pd: ProtectionDomain,
    ) -> Grants {
        let requests = stock.depth.saturating_sub(RESERVE).max(1);
        let all_windows = all_receives(window, max_clients) <= requests;
        let (budget, least) = (Budget::new(requests as u64), least(max_clients) as u64);
        Grants { budget, stock, all_windows, least, queue, pd }
    }

    /// Makes receives for what is granted, and the reserve.
    pub(crate) fn back(&self) -> Result<(), SetupError> {
        let granted = usize::try_from(self.budget.used()).unwrap_or(usize::MAX);
        self.stock.grow_to(granted.saturating_add(RESERVE), &self.pd)
    }

    /// The requests that one more client may have outstanding, at most `window`.
    pub(crate) fn grant(&self, window: u32) -> Grant {
        if self.all_windows {
            return self.grant_receives(window, most_spare(window));
        }
        let left = self.budget.limit().saturating_sub(self.least + self.budget.used());
        let most = left / SHARE + LEAST_RECEIVES;
        let credits = credits_of(most).min(window.into()) as u32;
        let rest = most - u64::from(credits);
        let spare = rest.clamp(least_spare(credits).into(), most_spare(credits).into());
        self.grant_receives(credits, spare as u32)
    }

    fn grant_receives(&self, credits: u32, spare: u32) -> Grant {
        let charge = self.budget.charge_beyond(u64::from(credits) + u64::from(spare));
        Grant { credits, spare, charge }
    }
}

/// The server thread's side.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    queue: SharedReceiveQueue,
    depth: usize,
    /// Receives that the accepting threads have made.
    made: Receiver<Vec<Buffer>>,
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
        let (stock, made) = Stock::new(depth, config.slot);
        let grants = Grants::new(config.window, max_clients, stock, queue.handle(), pd);
        let used = Vec::with_capacity(REPOST_AT);
        let mut receives = SharedReceives { queue, depth, made, used };
        grants.back()?;
        receives.post_made().map_err(|error| SetupError::Device(error.into()))?;
        Ok((receives, grants))
    }

    /// Receives of the queue.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Posts the receives that have been made.
    fn post_made(&mut self) -> Result<(), PostError> {
        let SharedReceives { queue, made, .. } = self;
        made.try_iter().flatten().try_for_each(|buffer| post(queue, buffer))
    }

    fn post(&mut self) -> Result<(), PostError> {
        let SharedReceives { queue, used, .. } = self;
        used.drain(..).try_for_each(|buffer| post(queue, buffer))
    }
}

fn post(queue: &mut SharedReceiveQueue, mut buffer: Buffer) -> Result<(), PostError> {
    buffer.set_len(buffer.capacity());
    queue.post_recv(ANY_CLIENT, Some(buffer))
}

impl<C: ServerCarrier> Shared<C> for SharedReceives {
    #[cold]
    fn replenish(&mut self) {
        if let Err(error) = self.post_made() {
            // The clients wait for each other's receives.
            tracing::error!(%error, "receives of new clients could not be posted");
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

/// Receives that all clients have in any case.
fn least(max_clients: usize) -> usize {
    max_clients.saturating_mul(LEAST_RECEIVES as usize)
}

/// Receives of all clients, each with its whole window.
fn all_receives(window: u32, max_clients: usize) -> usize {
    max_clients.saturating_mul((window + most_spare(window)) as usize)
}

/// How many receives a thread may need, of a device that allows `most`.
fn depth(window: u32, max_clients: usize, most: usize) -> usize {
    let all = all_receives(window, max_clients);
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
        let (stock, _) = Stock::new(depth(window, max_clients, 1 << 15), 4096);
        Grants::new(window, max_clients, stock, queue, pd)
    }

    #[test]
    fn requests_of_all_clients_have_receives() {
        for (max_clients, window) in [(1, 1), (8, 64), (4096, 64), (10_000, 64), (10_000, 1024)] {
            let grants = grants(window, max_clients);
            let all: Vec<_> = (0..max_clients).map(|_| grants.grant(window)).collect();
            assert!(all.iter().all(|grant| grant.credits >= LEAST_CREDITS.min(window)));
            assert!(all.iter().all(|grant| grant.spare >= least_spare(grant.credits)));
            let sum: u64 = all.iter().map(|it| u64::from(it.credits + it.spare)).sum();
            assert!(sum <= grants.budget.limit(), "{max_clients} clients: {sum}");
        }
    }

    #[test]
    fn credits_are_as_many_as_have_receives() {
        for receives in 3..5000 {
            let credits = credits_of(receives) as u32;
            let with_operations = |credits| u64::from(credits + least_spare(credits));
            assert!(with_operations(credits) <= receives, "{receives}");
            assert!(with_operations(credits + 1) > receives, "{receives}");
        }
    }

    #[test]
    fn a_few_clients_get_their_whole_windows() {
        let grants = grants(64, 4096);
        let all: Vec<_> = (0..100).map(|_| grants.grant(64)).collect();
        assert!(all.iter().all(|grant| (grant.credits, grant.spare) == (64, 64)));
        drop(all);
        assert_eq!(grants.budget.used(), 0);
    }
}
