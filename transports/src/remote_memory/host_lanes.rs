//! The owner's queue pairs for one-sided operations, and the memory windows by which it gives access and takes it away.

use core::time::Duration;
use std::collections::HashMap;

use bytes::Bytes;
use farcall_verbs::{
    Access, CompletionQueue, ConnectOptions, Device, Endpoint, MemoryWindow, ProtectionDomain,
    QpState, QpType, QueuePair, QueuePairConfig, SharedRegion, WorkCompletion, WorkRequest,
};

use super::lane::{LaneError, Window};
use super::{Remote, Rights};

/// Most lanes of one owner. Clients beyond them use calls.
const MAX_LANES: usize = 1024;

/// Most windows of one lane. Lends beyond them travel as calls.
const MAX_WINDOWS: usize = 64;

/// How often the completion of a binding or an invalidation is looked for, before the queue pair is given up. An invalidation waits for one
/// access of at most 64 KiB by the client.
const MAX_POLLS: u32 = 100_000_000;

/// How long connecting to a client's endpoint may take. A thread of the server waits meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The lanes of an owner, by their numbers.
#[derive(Debug, Default)]
pub(super) struct HostLanes {
    lanes: HashMap<u64, HostLane>,
}

#[derive(Debug)]
struct HostLane {
    /// By lend.
    windows: HashMap<u32, (u32, MemoryWindow)>,
    qp: QueuePair,
    cq: CompletionQueue,
}

impl HostLanes {
    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Connects a lane to a client's endpoint. Returns that of the owner's end.
    pub(super) fn open(
        &mut self,
        number: u64,
        device: &Device,
        domain: &ProtectionDomain,
        client: &[u8],
    ) -> Result<Bytes, LaneError> {
        self.lanes.retain(|_, lane| lane.qp.state() == QpState::ReadyToSend);
        if self.lanes.len() >= MAX_LANES {
            return Err(LaneError::TooMany);
        }
        let client = Endpoint::from_bytes(client)?;
        let cq = device.create_cq(MAX_WINDOWS, None)?;
        let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
        let mut qp = domain.create_qp(config.max_send_wr(MAX_WINDOWS).max_recv_wr(1))?;
        qp.connect(&client, &ConnectOptions::default().setup_timeout(CONNECT_TIMEOUT))?;
        let endpoint = Bytes::copy_from_slice(qp.endpoint().to_bytes());
        self.lanes.insert(number, HostLane { windows: HashMap::new(), qp, cq });
        Ok(endpoint)
    }

    /// Gives the client of a lane access to a lend. `None`: it must use calls.
    pub(super) fn bind(
        &mut self,
        number: u64,
        domain: &ProtectionDomain,
        lend: &Lend<'_>,
    ) -> Option<Window> {
        let lane = self.lanes.get_mut(&number)?;
        let bound = lane.bind(domain, lend);
        if bound.is_none() && lane.qp.state() != QpState::ReadyToSend {
            self.lanes.remove(&number);
        }
        bound
    }

    /// Ends the access that windows give to a lend. When it returns, nothing lands any more.
    pub(super) fn revoke(&mut self, lend: u32) {
        self.lanes.retain(|_, lane| lane.invalidate(lend));
    }
}

/// A lend, to bind a window to.
#[derive(Debug)]
pub(super) struct Lend<'a> {
    pub(super) remote: Remote,
    pub(super) bytes: &'a SharedRegion,
    /// Where the lent bytes begin in the region.
    pub(super) begin: u64,
    pub(super) len: u64,
    pub(super) rights: Rights,
}

impl HostLane {
    fn bind(&mut self, domain: &ProtectionDomain, lend: &Lend<'_>) -> Option<Window> {
        let Remote { lend: number, epoch, key, .. } = lend.remote;
        let described = |window: &MemoryWindow| {
            let memory = window.remote()?;
            Some(Window { memory, begin: lend.begin, rights: lend.rights.bits(), key })
        };
        if let Some((bound, window)) = self.windows.get(&number) {
            return if *bound == epoch { described(window) } else { None };
        }
        if self.windows.len() == MAX_WINDOWS || lend.len == 0 {
            return None;
        }
        let mut window = domain.alloc_memory_window().ok()?;
        let part = lend.bytes.slice(lend.begin as usize, lend.len as usize);
        let binding = WorkRequest::bind_window(&mut window, part, access_of(lend.rights));
        self.qp.post_send_one(binding.signaled(0)).ok()?;
        if !self.completes() {
            return None;
        }
        let bound = described(&window);
        self.windows.insert(number, (epoch, window));
        bound
    }

    /// Takes the access away. Returns whether the lane can be used further; if not, it ends with it.
    fn invalidate(&mut self, lend: u32) -> bool {
        let Some((_, mut window)) = self.windows.remove(&lend) else { return true };
        let invalidation = WorkRequest::invalidate_window(&mut window);
        if self.qp.post_send_one(invalidation.signaled(0)).is_err() {
            return false;
        }
        self.completes()
    }

    /// Waits for the one work request that is outstanding. Returns whether it succeeded.
    fn completes(&mut self) -> bool {
        let mut completions = [WorkCompletion::default()];
        for _ in 0..MAX_POLLS {
            match self.cq.poll(&mut completions) {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => return completions[0].status == farcall_verbs::Status::Success,
                Err(_) => return false,
            }
        }
        tracing::error!(
            "a client is stopped within an access to lent memory; its lane ends, and it may still write there when it goes on"
        );
        false
    }
}

fn access_of(rights: Rights) -> Access {
    let pairs = [
        (Rights::READ, Access::REMOTE_READ),
        (Rights::WRITE, Access::REMOTE_WRITE),
        (Rights::ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let of = |(right, access)| if rights.contains(right) { access } else { Access::empty() };
    pairs.map(of).into_iter().collect()
}
