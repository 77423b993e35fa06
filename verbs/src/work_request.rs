//! Work requests, whose constructors cannot express an invalid one.

use crate::memory::window::Binder;
use crate::{
    Access, AddressHandle, Buffer, Capabilities, MemoryWindow, Operation, PostError, QpNumber,
    QpType, RemoteSlice, SharedSlice,
};

/// The source bytes of a SEND or WRITE.
#[derive(Debug)]
pub enum Local<'a> {
    /// A private buffer, which the queue pair owns until a completion retires it.
    Buffer(Buffer),
    /// Bytes that are copied while posting, at most [`max_inline`](crate::Capabilities::max_inline).
    Inline(&'a [u8]),
    /// A part of a shared region.
    Shared(SharedSlice),
}

impl Local<'_> {
    /// The message's length.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Local::Buffer(buffer) => buffer.len(),
            Local::Inline(bytes) => bytes.len(),
            Local::Shared(slice) => slice.len(),
        }
    }

    /// Whether the message is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Buffer> for Local<'_> {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Local::Buffer(buffer)
    }
}

impl<'a> From<&'a [u8]> for Local<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Local::Inline(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Local<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Local::Inline(bytes)
    }
}

impl From<SharedSlice> for Local<'_> {
    #[inline]
    fn from(slice: SharedSlice) -> Self {
        Local::Shared(slice)
    }
}

/// The destination of a READ or of an atomic's old value. The old value takes 8 bytes in host byte order.
#[derive(Debug)]
pub enum LocalMut {
    /// A private buffer, which the queue pair owns until [`QueuePair::reclaim`](crate::QueuePair::reclaim)
    /// returns it with the data.
    Buffer(Buffer),
    /// A part of a shared region.
    Shared(SharedSlice),
}

impl LocalMut {
    /// Its length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            LocalMut::Buffer(buffer) => buffer.len(),
            LocalMut::Shared(slice) => slice.len(),
        }
    }

    /// Whether its length is 0.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Buffer> for LocalMut {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        LocalMut::Buffer(buffer)
    }
}

impl From<SharedSlice> for LocalMut {
    #[inline]
    fn from(slice: SharedSlice) -> Self {
        LocalMut::Shared(slice)
    }
}

/// One work request for a send queue. It is unsignaled unless [`signaled`](WorkRequest::signaled) is
/// called: success makes no completion, and a later signaled request retires it.
#[derive(Debug)]
pub struct WorkRequest<'a> {
    pub(crate) work: Work<'a>,
    pub(crate) signaled: Option<u64>,
    /// The id of its completion if it fails, unless it is signaled.
    pub(crate) failure_id: u64,
}

#[derive(Debug)]
pub(crate) enum Work<'a> {
    Send { local: Local<'a>, imm: Option<u32>, to: Option<Destination<'a>> },
    Write { local: Local<'a>, remote: RemoteSlice, imm: Option<u32> },
    Read { into: LocalMut, remote: RemoteSlice },
    CompareAndSwap { into: LocalMut, remote: RemoteSlice, expected: u64, new: u64 },
    FetchAdd { into: LocalMut, remote: RemoteSlice, add: u64 },
    Flush { remote: RemoteSlice },
    BindWindow { window: &'a mut MemoryWindow, memory: SharedSlice, access: Access },
    InvalidateWindow { window: &'a mut MemoryWindow },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    pub(crate) handle: &'a AddressHandle,
    pub(crate) qp: QpNumber,
    pub(crate) qkey: u32,
}

impl<'a> WorkRequest<'a> {
    /// Sends bytes to a receive that the peer posted.
    #[inline]
    pub fn send(local: impl Into<Local<'a>>) -> SendRequest<'a> {
        SendRequest { local: local.into(), imm: None, to: None }
    }

    /// Writes bytes into the peer's memory. The remote slice must have the length of `local`.
    #[inline]
    pub fn write(local: impl Into<Local<'a>>, remote: RemoteSlice) -> WriteRequest<'a> {
        WriteRequest { local: local.into(), remote, imm: None }
    }

    /// Reads bytes from the peer's memory. The remote slice must have the length of `into`.
    ///
    /// The peer may write them at the same time. In a READ of at most [`mtu`](crate::Capabilities::mtu) bytes, of each line of 64 bytes the first
    /// word is read no later than the rest: if its owner stores that word last, a line that has it has all, except where
    /// [`reads_first_word_first`](crate::Capabilities::reads_first_word_first) says otherwise. Of a longer READ nothing is promised.
    #[inline]
    pub fn read(into: impl Into<LocalMut>, remote: RemoteSlice) -> WorkRequest<'a> {
        WorkRequest {
            work: Work::Read { into: into.into(), remote },
            signaled: None,
            failure_id: 0,
        }
    }

    /// An inline WRITE_WITH_IMM; unsignaled if there is no id.
    #[inline]
    pub(crate) fn inline_write_imm(
        bytes: &'a [u8],
        remote: RemoteSlice,
        imm: u32,
        signaled: Option<u64>,
    ) -> WorkRequest<'a> {
        let work = Work::Write { local: Local::Inline(bytes), remote, imm: Some(imm) };
        WorkRequest { work, signaled, failure_id: 0 }
    }

    /// Replaces the 8 aligned bytes at `remote` by `new` if they equal `expected`; the old value goes `into`
    /// local memory. Atomic with respect to other atomics of the same device.
    #[inline]
    pub fn compare_and_swap(
        into: impl Into<LocalMut>,
        remote: RemoteSlice,
        expected: u64,
        new: u64,
    ) -> WorkRequest<'a> {
        let work = Work::CompareAndSwap { into: into.into(), remote, expected, new };
        WorkRequest { work, signaled: None, failure_id: 0 }
    }

    /// Adds to the 8 aligned bytes at `remote`, wrapping. The old value goes `into` local memory.
    #[inline]
    pub fn fetch_add(into: impl Into<LocalMut>, remote: RemoteSlice, add: u64) -> WorkRequest<'a> {
        WorkRequest {
            work: Work::FetchAdd { into: into.into(), remote, add },
            signaled: None,
            failure_id: 0,
        }
    }

    /// Makes bytes of the peer's [persistent memory](crate::PersistentRegion) durable. When it completes, bytes
    /// that earlier work requests of this queue pair wrote there survive a power failure (the FLUSH operation
    /// with placement to persistence of the InfiniBand specification, volume 1 release 1.5, annex A19). It
    /// fails on any other memory. Whether it reaches lines that DDIO put into the peer's caches is a property of the peer's machine.
    #[inline]
    pub fn flush(remote: RemoteSlice) -> WorkRequest<'a> {
        WorkRequest { work: Work::Flush { remote }, signaled: None, failure_id: 0 }
    }

    /// Binds a free memory window to memory of this side. From now on the peer of the queue pair may use the window's
    /// [key](MemoryWindow::remote) as `access` allows. The region needs [`Access::MW_BIND`], and none of the flags in `access`.
    /// The binding takes effect before work requests that are posted after it: a peer that one of these tells of the key may
    /// use it. The queue pair, which must be of type RC, the window and the memory belong to one protection domain.
    #[inline]
    pub fn bind_window(
        window: &'a mut MemoryWindow,
        memory: SharedSlice,
        access: Access,
    ) -> WorkRequest<'a> {
        WorkRequest {
            work: Work::BindWindow { window, memory, access },
            signaled: None,
            failure_id: 0,
        }
    }

    /// Invalidates the key of a memory window, on the queue pair that it is bound on. When this completes, accesses with the
    /// key fail, and those that the device had let through have ended: the peer's bytes do not change any more. Bind the
    /// window on another queue pair only then; on this one a binding may be posted at once.
    #[inline]
    pub fn invalidate_window(window: &'a mut MemoryWindow) -> WorkRequest<'a> {
        WorkRequest { work: Work::InvalidateWindow { window }, signaled: None, failure_id: 0 }
    }

    /// Reports its completion, even on success, which retires all requests before it.
    #[inline]
    pub fn signaled(mut self, id: u64) -> WorkRequest<'a> {
        (self.signaled, self.failure_id) = (Some(id), 0);
        self
    }

    /// Gives an unsignaled request an id, with which it completes if it fails. Without one, that completion has id 0.
    #[inline]
    pub fn failing_as(mut self, id: u64) -> WorkRequest<'a> {
        if self.signaled.is_none() {
            self.failure_id = id;
        }
        self
    }
}

impl WorkRequest<'_> {
    /// Checks whether a queue pair of this type and protection domain may post it. Every device does this
    /// before its own checks.
    #[inline]
    pub(crate) fn check(
        &self,
        ty: QpType,
        pd: u32,
        binder: &Binder,
        caps: &Capabilities,
    ) -> Result<(), PostError> {
        let (operation, local, remote) = match &self.work {
            Work::Send { local, imm: None, .. } => (Operation::Send, local.len(), None),
            Work::Send { local, .. } => (Operation::SendWithImm, local.len(), None),
            Work::Write { local, remote, imm: None } => {
                (Operation::Write, local.len(), Some(remote))
            }
            Work::Write { local, remote, .. } => {
                (Operation::WriteWithImm, local.len(), Some(remote))
            }
            Work::Read { into, remote } => (Operation::Read, into.len(), Some(remote)),
            Work::CompareAndSwap { into, remote, .. } => {
                (Operation::CompareAndSwap, into.len(), Some(remote))
            }
            Work::FetchAdd { into, remote, .. } => (Operation::FetchAdd, into.len(), Some(remote)),
            // It has no local memory, but its range has the length limit of a message.
            Work::Flush { remote } => (Operation::Flush, remote.len as usize, None),
            Work::BindWindow { .. } => (Operation::BindWindow, 0, None),
            Work::InvalidateWindow { .. } => (Operation::InvalidateWindow, 0, None),
        };
        if !caps.supports(ty, operation) {
            return Err(PostError::Unsupported { ty, operation });
        }
        let len = local as u64;
        if let Some(remote) = remote {
            let atomic = matches!(operation, Operation::CompareAndSwap | Operation::FetchAdd);
            if remote.len != len || (atomic && len != 8) {
                return Err(PostError::Length { local: len, remote: remote.len });
            }
        }
        let max = if ty == QpType::Ud { caps.mtu as u64 } else { caps.max_message };
        if len > max {
            return Err(PostError::TooLong { len, max });
        }
        self.check_memory(ty, pd, binder, caps.max_inline)
    }

    #[inline]
    fn check_memory(
        &self,
        ty: QpType,
        pd: u32,
        binder: &Binder,
        max_inline: usize,
    ) -> Result<(), PostError> {
        let of_local = |local: &Local<'_>| match local {
            Local::Buffer(buffer) => Ok(buffer.pd()),
            Local::Shared(slice) => Ok(slice.pd()),
            Local::Inline(bytes) if bytes.len() > max_inline => {
                Err(PostError::TooLong { len: bytes.len() as u64, max: max_inline as u64 })
            }
            Local::Inline(_) => Ok(pd), // Inline bytes belong to any domain.
        };
        let found = match &self.work {
            Work::Send { local, to, .. } => {
                if to.is_some() != (ty == QpType::Ud) {
                    return Err(PostError::Destination);
                }
                of_local(local)?
            }
            Work::Write { local, .. } => of_local(local)?,
            Work::Read { into, .. }
            | Work::CompareAndSwap { into, .. }
            | Work::FetchAdd { into, .. } => match into {
                LocalMut::Buffer(buffer) => buffer.pd(),
                LocalMut::Shared(slice) => slice.pd(),
            },
            Work::Flush { .. } => pd, // It has no local memory.
            Work::BindWindow { window, memory, access } => {
                if window.pd() != pd || memory.pd() != pd {
                    return Err(PostError::Foreign);
                }
                window.check_binding(memory, *access)?;
                pd
            }
            Work::InvalidateWindow { window } => {
                window.check_invalidation(binder)?;
                pd
            }
        };
        if found == pd { Ok(()) } else { Err(PostError::Foreign) }
    }
}

/// A builder of a SEND.
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct SendRequest<'a> {
    local: Local<'a>,
    imm: Option<u32>,
    to: Option<Destination<'a>>,
}

impl<'a> SendRequest<'a> {
    /// Adds 32 bits of immediate data.
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    /// Sets the destination of a datagram.
    #[inline]
    pub fn to(mut self, handle: &'a AddressHandle, qp: QpNumber, qkey: u32) -> Self {
        self.to = Some(Destination { handle, qp, qkey });
        self
    }

    /// Finishes the request, with a completion of its own.
    #[inline]
    pub fn signaled(self, id: u64) -> WorkRequest<'a> {
        self.unsignaled().signaled(id)
    }

    /// Finishes the request, without a completion of its own.
    #[inline]
    pub fn unsignaled(self) -> WorkRequest<'a> {
        let SendRequest { local, imm, to } = self;
        WorkRequest { work: Work::Send { local, imm, to }, signaled: None, failure_id: 0 }
    }
}

/// A builder of a WRITE.
#[derive(Debug)]
#[must_use = "a request does nothing until it is posted"]
pub struct WriteRequest<'a> {
    local: Local<'a>,
    remote: RemoteSlice,
    imm: Option<u32>,
}

impl<'a> WriteRequest<'a> {
    /// Also completes one of the peer's receives, with this immediate.
    #[inline]
    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = Some(imm);
        self
    }

    /// Finishes the request, with a completion of its own.
    #[inline]
    pub fn signaled(self, id: u64) -> WorkRequest<'a> {
        self.unsignaled().signaled(id)
    }

    /// Finishes the request, without a completion of its own.
    #[inline]
    pub fn unsignaled(self) -> WorkRequest<'a> {
        let WriteRequest { local, remote, imm } = self;
        WorkRequest { work: Work::Write { local, remote, imm }, signaled: None, failure_id: 0 }
    }
}

impl<'a> From<SendRequest<'a>> for WorkRequest<'a> {
    #[inline]
    fn from(request: SendRequest<'a>) -> Self {
        request.unsignaled()
    }
}

impl<'a> From<WriteRequest<'a>> for WorkRequest<'a> {
    #[inline]
    fn from(request: WriteRequest<'a>) -> Self {
        request.unsignaled()
    }
}
