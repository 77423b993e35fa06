//! The client's end of lent memory.

use bytes::Bytes;
use farcall_transports::buffers::{Buffer, BufferError, Buffers};
use farcall_transports::remote_memory::{
    Action, Atomics, BatchError, MAX_BATCH_BYTES, MAX_BATCH_OPERATIONS, MAX_OPERATION_BYTES,
    MemoryError, Operation, Outcome, Remote,
};

use farcall_verbs::Visibility;

use super::lane::{LaneCaps, SharedLane};
use super::operation::{BatchCall, MemoryCall};
use super::service::LentMemoryClient;
use super::usage::MemoryUsage;
use crate::{Channel, ConnectError, Connecting, ServiceClient, ServiceDescription};

/// The memory that the server of a connection lends. Clones use the same connection.
///
/// Name it where the connection is made, `.also::<RemoteMemory>()`, and take it from a client's channel with
/// [`on`](Self::on); or [`connect`](Self::connect) for it alone.
#[derive(Clone, Debug)]
pub struct RemoteMemory {
    calls: LentMemoryClient,
    lane: Option<SharedLane>,
}

/// How operations travel, and what is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How operations travel.
    pub carrier: Carrier,
    /// How atomic operations travel. As calls although others are one-sided, where a NIC's atomic operations are not atomic with those of a
    /// CPU: then the server's CPU does all of them, those of clients without RDMA, too.
    pub atomics: Carrier,
    /// What the end of a write, or of an atomic operation, means. It is never [`Persistent`](Completion::Persistent) by itself: a flush is.
    pub completion: Completion,
    /// Who makes bytes durable for a [flush](Batch::flush).
    pub flusher: Flusher,
    /// Most bytes of one operation.
    pub max_operation_bytes: u64,
    /// Most bytes of the operations of one batch together.
    pub max_batch_bytes: u64,
    /// Most operations of one batch.
    pub max_batch_operations: usize,
}

/// Who makes bytes of persistent memory durable for a [flush](Batch::flush).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flusher {
    /// The server's CPU: flushes travel as calls.
    Server,
    /// The server's device, without its CPU: the FLUSH of the InfiniBand specification. Whether that reaches bytes in the server's caches is a
    /// property of the machine, which its owner must know: see [`Batch::flush`].
    Device,
}

/// What the end of an operation means: see [`Capabilities::completion`] and [`Capabilities::completion_of`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Completion {
    /// The server's device is responsible for the bytes. Other clients see them, and the server's CPUs do a moment later.
    Acknowledged,
    /// The server's CPUs see the bytes.
    Visible,
    /// They survive the server, and a loss of power.
    Persistent,
}

impl Capabilities {
    /// What it means that an operation has this outcome: a flush that its bytes are [persistent](Completion::Persistent), any other what
    /// [`completion`](Self::completion) says.
    pub fn completion_of(&self, outcome: &Outcome) -> Completion {
        if *outcome == Outcome::Flushed { Completion::Persistent } else { self.completion }
    }
}

/// How operations travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// As calls of a built-in service: a thread of the server does them.
    Calls,
    /// The client's device does them, by a queue pair of its own, without the server's CPU. It does so from its second operation on a lend
    /// on; the others travel as calls.
    OneSided,
}

impl RemoteMemory {
    /// Connects to a server that lends memory, for that alone.
    pub fn connect(address: impl crate::ToAddress) -> Connecting<RemoteMemory> {
        crate::connect::connect(address)
    }

    /// The memory that is lent over the connection of another client, whose channel this is.
    ///
    /// # Errors
    /// [`ConnectError::NotCarried`]: the connection was made without it. [`Connecting::also`] adds it.
    pub fn on(channel: &Channel) -> Result<RemoteMemory, ConnectError> {
        ServiceClient::on(channel)
    }

    /// The channel, for its metrics, to close it, or for a client with another timeout.
    pub fn channel(&self) -> &Channel {
        self.calls.channel()
    }

    /// Does operations one-sided from now on, where that is possible: over the RDMA device or the simulated NIC of the connection, if the
    /// server's memory is [on](super::Memory::on) a device of that kind; or on shared memory, of a server of this user and machine whose memory
    /// is [`Memory::new`](super::Memory::new)'s. The queue pair is opened when it is first used, and again after a lend was revoked that was in
    /// use. Clones share it. What an operation does, and which errors it gives, does not change; [`caps`](Self::caps) tells whether there is
    /// one.
    ///
    /// Any number of operations may be under way. So many are posted at once as the queue pair takes, further ones wait for their turn, and
    /// beyond some thousands there is [`Full`](MemoryError::Full).
    pub fn one_sided(self) -> RemoteMemory {
        let lane = self.lane.clone().or_else(|| Some(SharedLane::new(self.channel().site())));
        RemoteMemory { lane, ..self }
    }

    /// How operations travel at present, and what is possible.
    pub fn caps(&self) -> Capabilities {
        Capabilities::of(self.lane.as_ref().and_then(SharedLane::caps))
    }

    /// The pool of registered memory whose buffers [`read_into`](Self::read_into) and [`write_from`](Self::write_from) use without a copy: of
    /// the device of the client's lane. Without one it is shared memory.
    ///
    /// # Errors
    /// [`BufferError`]: there is no such memory.
    pub fn buffers(&self) -> Result<Buffers, BufferError> {
        match &self.lane {
            Some(lane) => lane.buffers(),
            None => Buffers::new(),
        }
    }

    /// What the server has and lends, for those who operate it.
    ///
    /// # Errors
    /// When it has ended: [`RpcError`](crate::RpcError).
    pub fn usage(&self) -> crate::Call<Result<MemoryUsage, crate::RpcError>> {
        self.calls.usage()
    }

    /// Reads all of it. If it is written at the same time, the bytes may be a mixture of old and new.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`].
    pub fn read(&self, at: &Remote) -> MemoryCall<Bytes> {
        let operation = Operation { at: *at, action: Action::Read };
        if let Err(why) = operation.check() {
            return MemoryCall::refused(why);
        }
        if let Some(lane) = &self.lane {
            let read = |outcome| match outcome {
                Outcome::Read(bytes) => Some(bytes),
                _ => None,
            };
            let posted = lane.post(&self.calls, vec![operation], Vec::new(), false);
            return MemoryCall::of_one(BatchCall::on_lane(posted), read);
        }
        let len = at.len();
        MemoryCall::of(self.calls.read(*at), move |bytes| match bytes.len() as u64 == len {
            true => Ok(bytes),
            false => {
                let why = "the server answered with another number of bytes".into();
                Err(MemoryError::Gone { may_have_landed: false, why })
            }
        })
    }

    /// Writes these bytes, as many as the memory has. They are all there when it has ended, and land in no certain order.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`].
    pub fn write(&self, at: &Remote, bytes: impl Into<Bytes>) -> MemoryCall<()> {
        let bytes = bytes.into();
        let operation = Operation { at: *at, action: Action::Write(bytes.clone()) };
        match (operation.check(), &self.lane) {
            (Err(why), _) => MemoryCall::refused(why),
            (Ok(()), None) => MemoryCall::of(self.calls.write(*at, bytes), Ok),
            (Ok(()), Some(lane)) => {
                let written = |outcome| (outcome == Outcome::Written).then_some(());
                let posted = lane.post(&self.calls, vec![operation], Vec::new(), false);
                MemoryCall::of_one(BatchCall::on_lane(posted), written)
            }
        }
    }

    /// Reads all of it into the first bytes of a buffer, which has that length afterwards. No CPU of this end copies the bytes once more if the
    /// operation is one-sided and the buffer is one of [`buffers`](Self::buffers).
    ///
    /// If it fails, the buffer goes back to its pool, as soon as the device does not write to it any more.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`]; [`OutOfRange`](MemoryError::OutOfRange) if the buffer is too short, too.
    pub fn read_into(&self, at: &Remote, mut buffer: Buffer) -> MemoryCall<Buffer> {
        let (len, of) = (at.len(), buffer.len() as u64);
        if len > of {
            return MemoryCall::refused(MemoryError::OutOfRange { offset: 0, len, of });
        }
        buffer.truncate(len as usize);
        self.with_buffer(Operation { at: *at, action: Action::Read }, buffer)
    }

    /// Writes the bytes of a buffer, as many as the memory has, and gives it back. They are not copied first if the operation is one-sided and
    /// the buffer is one of [`buffers`](Self::buffers).
    ///
    /// If it fails, the buffer goes back to its pool, as soon as the device does not read it any more.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`].
    pub fn write_from(&self, at: &Remote, buffer: Buffer) -> MemoryCall<Buffer> {
        let (len, of) = (buffer.len() as u64, at.len());
        if len != of {
            return MemoryCall::refused(MemoryError::OutOfRange { offset: 0, len, of });
        }
        self.with_buffer(Operation { at: *at, action: Action::Write(Bytes::new()) }, buffer)
    }

    fn with_buffer(&self, operation: Operation, buffer: Buffer) -> MemoryCall<Buffer> {
        if let Err(why) = operation.check_with(buffer.len() as u64) {
            return MemoryCall::refused(why);
        }
        let lane = match &self.lane {
            Some(lane) => lane.clone(),
            None => SharedLane::none(self.channel().site()),
        };
        MemoryCall::with_buffer(lane.post_with(&self.calls, operation, buffer))
    }

    /// Replaces the [word](Remote::word) by `new` if it equals `expected`, and gives what it was: it was replaced if that is `expected`.
    /// Atomic with respect to other clients' atomic operations, not to the owner's own stores.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`].
    pub fn compare_and_swap(&self, at: &Remote, expected: u64, new: u64) -> MemoryCall<u64> {
        self.atomic(Operation { at: *at, action: Action::CompareAndSwap { expected, new } })
    }

    /// Adds to the [word](Remote::word), wrapping, and gives what it was. Atomic as [`compare_and_swap`](Self::compare_and_swap) is.
    ///
    /// # Errors
    /// When it has ended: [`MemoryError`]. If it [may have landed](MemoryError::may_have_landed), it must not be repeated blindly.
    pub fn fetch_add(&self, at: &Remote, add: u64) -> MemoryCall<u64> {
        self.atomic(Operation { at: *at, action: Action::FetchAdd { add } })
    }

    fn atomic(&self, operation: Operation) -> MemoryCall<u64> {
        match operation.check() {
            Ok(()) => {
                MemoryCall::of_one(self.post(vec![operation], Vec::new(), false), |it| it.word())
            }
            Err(why) => MemoryCall::refused(why),
        }
    }

    /// Several operations that travel together, and are done in their order until one fails.
    pub fn batch(&self) -> Batch {
        let memory = self.clone();
        Batch { memory, operations: Vec::new(), fences: Vec::new(), only_one_sided: false }
    }

    fn post(
        &self,
        operations: Vec<Operation>,
        fences: Vec<u32>,
        only_one_sided: bool,
    ) -> BatchCall {
        let len = operations.len();
        match &self.lane {
            // Of no operations a lane has no completion.
            Some(lane) if len > 0 => {
                let posted = lane.post(&self.calls, operations, fences, only_one_sided);
                BatchCall::on_lane(posted)
            }
            None if only_one_sided => {
                let why = "this client has no lane; RemoteMemory::one_sided gives it one".into();
                BatchCall::refused(BatchError { at: 0, error: MemoryError::NotOneSided { why } })
            }
            _ => BatchCall::of(self.calls.batch(operations), len),
        }
    }
}

impl Capabilities {
    /// Of a client with a lane of this kind, or without one.
    pub(super) fn of(lane: Option<LaneCaps>) -> Capabilities {
        let (carrier, atomics) = match lane.map(|lane| lane.atomics) {
            None => (Carrier::Calls, Carrier::Calls),
            Some(Atomics::Calls) => (Carrier::OneSided, Carrier::Calls),
            Some(Atomics::OneSided) => (Carrier::OneSided, Carrier::OneSided),
        };
        Capabilities {
            carrier,
            atomics,
            completion: match lane.map(|lane| lane.visibility) {
                Some(Visibility::CompletionMeansDelivered) => Completion::Acknowledged,
                _ => Completion::Visible,
            },
            flusher: match lane {
                Some(LaneCaps { flushes: true, .. }) => Flusher::Device,
                _ => Flusher::Server,
            },
            max_operation_bytes: MAX_OPERATION_BYTES,
            max_batch_bytes: MAX_BATCH_BYTES,
            max_batch_operations: MAX_BATCH_OPERATIONS,
        }
    }
}

impl ServiceClient for RemoteMemory {
    const DESCRIPTION: &'static ServiceDescription = LentMemoryClient::DESCRIPTION;

    fn from_channel(channel: Channel) -> Self {
        RemoteMemory { calls: LentMemoryClient::from_channel(channel), lane: None }
    }

    fn channel(&self) -> &Channel {
        self.calls.channel()
    }
}

/// Operations that travel together: see [`RemoteMemory::batch`].
#[derive(Clone, Debug)]
#[must_use = "a batch does nothing until it is posted"]
pub struct Batch {
    memory: RemoteMemory,
    operations: Vec<Operation>,
    /// The indices of operations that begin when those before them have ended, ascending.
    fences: Vec<u32>,
    only_one_sided: bool,
}

impl Batch {
    /// Reads all of it.
    pub fn read(self, at: &Remote) -> Self {
        self.with(at, Action::Read)
    }

    /// Writes these bytes, as many as the memory has.
    pub fn write(self, at: &Remote, bytes: impl Into<Bytes>) -> Self {
        self.with(at, Action::Write(bytes.into()))
    }

    /// Replaces the [word](Remote::word) by `new` if it equals `expected`.
    pub fn compare_and_swap(self, at: &Remote, expected: u64, new: u64) -> Self {
        self.with(at, Action::CompareAndSwap { expected, new })
    }

    /// Adds to the [word](Remote::word), wrapping.
    pub fn fetch_add(self, at: &Remote, add: u64) -> Self {
        self.with(at, Action::FetchAdd { add })
    }

    /// Makes the bytes durable that the operations before it have written there. With its [`Flushed`](Outcome::Flushed) they survive a loss of
    /// power, if the memory is [persistent](super::Memory::persistent_region); on other memory there is
    /// [`NotPersistent`](MemoryError::NotPersistent). It needs the right to write.
    ///
    /// Where operations travel as calls, or the device has no flush, the server's CPU writes the bytes back from its caches
    /// ([`Flusher::Server`]). Else the server's device does it ([`Flusher::Device`]). On a machine whose device writes into caches that lose their
    /// content (DDIO without eADR), a device may end at the memory controller and say that it has flushed: then it has not, and only the
    /// owner of the machine can know.
    ///
    /// A flush in a batch of its own makes durable what earlier batches of this client wrote, if their writes were [visible](Completion::Visible)
    /// when they ended. If they were only [acknowledged](Completion::Acknowledged), flush in the batch that writes, or read a byte before.
    pub fn flush(self, at: &Remote) -> Self {
        self.with(at, Action::Flush)
    }

    /// It fails with [`NotOneSided`](MemoryError::NotOneSided) where it would have to travel as a call: for those who depend on the path that the
    /// bytes take. The first batch on a lend asks the owner for access, and then goes one-sided.
    pub fn only_one_sided(self) -> Self {
        Batch { only_one_sided: true, ..self }
    }

    /// What follows begins when what is before has ended. Where operations travel as calls this is so in any case; a device may begin a
    /// later operation while an earlier read or atomic one is under way.
    pub fn fence(mut self) -> Self {
        let at = self.operations.len() as u32;
        if at > 0 && self.fences.last() != Some(&at) {
            self.fences.push(at);
        }
        self
    }

    fn with(mut self, at: &Remote, action: Action) -> Self {
        self.operations.push(Operation { at: *at, action });
        self
    }

    /// Prepares to send it.
    ///
    /// # Errors
    /// When it has ended: [`BatchError`] names the first operation that failed. Those before it have been done, those after it not.
    pub fn post(self) -> BatchCall {
        let refused = |at: usize, error| BatchError { at: at as u32, error };
        if let Err(why) = Operation::check_together(&self.operations) {
            return BatchCall::refused(refused(0, why));
        }
        for (at, operation) in self.operations.iter().enumerate() {
            if let Err(why) = operation.check() {
                return BatchCall::refused(refused(at, why));
            }
        }
        self.memory.post(self.operations, self.fences, self.only_one_sided)
    }
}

/// Nothing of this end outlives its call.
const _: () = {
    const fn is_plain<T: Send + Sync + 'static>() {}
    is_plain::<RemoteMemory>();
    is_plain::<Outcome>();
};
