//! The client's queue pair for one-sided operations on lent memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use farcall_verbs::{
    Buffer, BufferPool, CompletionQueue, ConnectOptions, Device, Endpoint, PerProcess, QpType,
    QueuePair, QueuePairConfig, RemoteSlice, Status, WorkCompletion, WorkRequest,
};

use super::lane::{LaneError, SHARED_MEMORY, Window};
use super::{Action, Operation, Outcome, Remote, Rights};

/// Longer operations travel as calls: so many bytes of registered memory are each client's.
pub const MAX_ONE_SIDED_BYTES: usize = 64 << 10;

/// Lends whose windows are remembered. The owner tells those that were forgotten again.
const MAX_KNOWN_WINDOWS: usize = 256;

/// How often an operation's completion is looked for. One on shared memory is there at the first look, unless the owner is gone: then the
/// device reports that within its retry timeout.
const MAX_POLLS: u32 = 100_000_000;

/// The device of all clients of this process.
static DEVICE: PerProcess<Mutex<Option<Device>>> = PerProcess::new();

/// A lane: a queue pair that is connected to one of the owner's, and the windows that the owner has bound on that.
#[derive(Debug)]
pub struct ClientLane {
    qp: QueuePair,
    cq: CompletionQueue,
    buffers: BufferPool,
    /// Its number at the owner, which is a secret of the two.
    number: u64,
    /// By lend and epoch. `None`: the owner has bound none.
    windows: HashMap<(u32, u32), Option<Window>>,
}

/// What has come of an operation that was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It was done.
    Done(Outcome),
    /// The owner has taken the access away: nothing has landed. The lane is over.
    Denied,
    /// The lane has failed. The operation may have landed.
    Failed,
}

impl ClientLane {
    /// A lane that is not connected yet.
    ///
    /// # Errors
    /// This process has no shared memory, or not enough.
    pub fn prepare() -> Result<ClientLane, LaneError> {
        let device = device()?;
        let domain = device.alloc_pd()?;
        let cq = device.create_cq(COMPLETIONS, None)?;
        let config = QueuePairConfig::new(QpType::Rc, cq.handle(), cq.handle());
        let qp = domain.create_qp(config.max_send_wr(COMPLETIONS).max_recv_wr(1))?;
        let buffers =
            domain.alloc_private_on_demand(MAX_ONE_SIDED_BYTES)?.into_pool(MAX_ONE_SIDED_BYTES);
        Ok(ClientLane { qp, cq, buffers, number: 0, windows: HashMap::new() })
    }

    /// What the owner needs to connect.
    pub fn endpoint(&self) -> Bytes {
        Bytes::copy_from_slice(self.qp.endpoint().to_bytes())
    }

    /// Connects to what the owner has answered.
    ///
    /// # Errors
    /// The owner's queue pair cannot be reached.
    pub fn connect(&mut self, number: u64, endpoint: &[u8]) -> Result<(), LaneError> {
        self.qp.connect(&Endpoint::from_bytes(endpoint)?, &ConnectOptions::default())?;
        self.number = number;
        Ok(())
    }

    /// Its number at the owner.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the owner was asked for a window of this lend.
    pub fn knows(&self, at: &Remote) -> bool {
        self.windows.contains_key(&(at.lend, at.epoch))
    }

    /// The owner has bound a window of this lend, or has said that it does not.
    pub fn learn(&mut self, at: &Remote, window: Option<Window>) {
        if self.windows.len() == MAX_KNOWN_WINDOWS {
            self.windows.clear();
        }
        self.windows.insert((at.lend, at.epoch), window);
    }

    /// Whether the operation can be done without the owner's CPU, as far as this end knows.
    pub fn can_execute(&self, operation: &Operation) -> bool {
        self.target(&operation.at, operation.needs()).is_some()
    }

    /// Does the operation without the owner's CPU. `None`: it must travel as a call, which also says what is wrong with it, if anything is.
    /// Only [`check`](Operation::check)ed operations.
    pub fn try_execute(&mut self, operation: &Operation) -> Option<Posted> {
        let target = self.target(&operation.at, operation.needs())?;
        let mut buffer = self.buffers.take()?;
        buffer.set_len(target.len() as usize);
        Some(self.execute(&operation.action, target, buffer))
    }

    /// Where the bytes are, if they and the right are within a window.
    fn target(&self, at: &Remote, needs: Rights) -> Option<RemoteSlice> {
        let window = self.windows.get(&(at.lend, at.epoch))?.as_ref()?;
        let is_small = at.len as usize <= MAX_ONE_SIDED_BYTES && at.len > 0;
        let is_permitted = Rights::from_bits_truncate(window.rights).contains(needs);
        if window.key != at.key || !is_small || !is_permitted {
            return None;
        }
        let offset = at.offset.checked_sub(window.begin)?;
        window.memory.slice(offset, at.len).ok()
    }

    fn execute(&mut self, action: &Action, target: RemoteSlice, mut buffer: Buffer) -> Posted {
        let request = match action {
            Action::Read => WorkRequest::read(buffer, target),
            Action::Write(bytes) => {
                buffer.copy_from_slice(bytes);
                WorkRequest::write(buffer, target).unsignaled()
            }
            Action::CompareAndSwap { expected, new } => {
                WorkRequest::compare_and_swap(buffer, target, *expected, *new)
            }
            Action::FetchAdd { add } => WorkRequest::fetch_add(buffer, target, *add),
        };
        if self.qp.post_send_one(request.signaled(0)).is_err() {
            return Posted::Failed;
        }
        match self.completion() {
            Some(Status::Success) => self.outcome(action),
            Some(Status::RemoteAccess) => Posted::Denied,
            _ => Posted::Failed,
        }
    }

    /// Waits for the one operation that is outstanding.
    fn completion(&mut self) -> Option<Status> {
        let mut completions = [WorkCompletion::default()];
        for _ in 0..MAX_POLLS {
            match self.cq.poll(&mut completions) {
                Ok(0) => core::hint::spin_loop(),
                Ok(_) => return Some(completions[0].status),
                Err(_) => return None,
            }
        }
        None
    }

    fn outcome(&mut self, action: &Action) -> Posted {
        let mut filled = None;
        self.qp.reclaim(&mut |buffer| filled = Some(buffer));
        let Some(buffer) = filled else { return Posted::Failed };
        match action {
            Action::Read => Posted::Done(Outcome::Read(Bytes::copy_from_slice(&buffer))),
            Action::Write(_) => Posted::Done(Outcome::Written),
            Action::CompareAndSwap { .. } | Action::FetchAdd { .. } => {
                let word = buffer.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                word.map_or(Posted::Failed, |word| Posted::Done(Outcome::Word(word)))
            }
        }
    }
}

/// Work requests outstanding at once: one operation waits for its completion.
const COMPLETIONS: usize = 16;

fn device() -> Result<Device, LaneError> {
    let mut opened = DEVICE.get().lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = &*opened {
        return Ok(device.clone());
    }
    let device = Device::open(SHARED_MEMORY)?;
    *opened = Some(device.clone());
    Ok(device)
}
