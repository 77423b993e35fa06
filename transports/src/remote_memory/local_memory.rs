//! A client's own registered memory for one-sided operations: what their bytes are read into and written from.

use farcall_verbs::{BufferPool, Device, ProtectionDomain};

use super::lane::LaneError;
use crate::buffers::{Buffer, BufferError, Buffers, OfPool};

/// Most bytes of the buffers of one client that operations of more than [`MEDIUM_BYTES`] use, and that its program takes.
const MOST_BYTES: u64 = 64 << 20;

/// Buffers of operations of up to [`SMALL_BYTES`] each: as many as a batch has operations, and some. Their pages are touched when they are first
/// used.
const SMALL_BUFFERS: usize = 512;
pub(super) const SMALL_BYTES: usize = 1024;

/// Buffers of longer operations, up to [`MEDIUM_BYTES`].
const MEDIUM_BUFFERS: usize = 8;
pub(super) const MEDIUM_BYTES: usize = 64 << 10;

/// Small buffers that are kept at hand.
const MOST_SPARE: usize = 256;

/// Registered memory of one client, of one device. All its lanes are of this memory's protection domain.
#[derive(Debug)]
pub(super) struct LocalMemory {
    device: Device,
    buffers: Buffers,
    small: BufferPool,
    medium: BufferPool,
    /// Small buffers that were used: taking one from here costs less than from the pool.
    spare: Vec<farcall_verbs::Buffer>,
}

/// Memory that an operation uses.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) bytes: farcall_verbs::Buffer,
    /// What else belongs to it, if it is a [`Buffer`] of the program or of its pool.
    pub(super) of_pool: Option<OfPool>,
}

impl Memory {
    /// That of a buffer.
    pub(super) fn of(buffer: Buffer) -> Memory {
        let (bytes, of_pool) = buffer.split();
        Memory { bytes, of_pool: Some(of_pool) }
    }

    /// The buffer; `None` if it is a lane's own memory.
    pub(super) fn into_buffer(self) -> Option<Buffer> {
        Some(Buffer::join(self.bytes, self.of_pool?))
    }
}

impl LocalMemory {
    pub(super) fn new(device: &Device) -> Result<LocalMemory, LaneError> {
        let buffers = Buffers::on(device, MOST_BYTES).map_err(no_memory)?;
        let pool = |count: usize, size: usize| {
            let memory = buffers.domain().alloc_private_on_demand(count * size)?;
            Ok::<_, LaneError>(memory.into_pool(size))
        };
        let small = pool(SMALL_BUFFERS, SMALL_BYTES)?;
        let medium = pool(MEDIUM_BUFFERS, MEDIUM_BYTES)?;
        let device = device.clone();
        Ok(LocalMemory { device, buffers, small, medium, spare: Vec::new() })
    }

    pub(super) fn is_on(&self, device: &Device) -> bool {
        self.device.is_same(device)
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        self.buffers.domain()
    }

    /// The pool of the program's own buffers.
    pub(super) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Memory of this length. `None`: all is in use.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Option<Memory> {
        if len > SMALL_BYTES {
            return self.take_long(len);
        }
        let mut bytes = self.spare.pop().or_else(|| self.small.take())?;
        bytes.set_len(len);
        Some(Memory { bytes, of_pool: None })
    }

    fn take_long(&mut self, len: usize) -> Option<Memory> {
        let medium = if len <= MEDIUM_BYTES { self.medium.take() } else { None };
        let Some(mut bytes) = medium else { return self.buffers.buffer(len).ok().map(Memory::of) };
        bytes.set_len(len);
        Some(Memory { bytes, of_pool: None })
    }

    /// It is not used any more.
    #[inline]
    pub(super) fn give_back(&mut self, memory: Memory) {
        let is_small = memory.of_pool.is_none() && memory.bytes.capacity() == SMALL_BYTES;
        if is_small && self.spare.len() < MOST_SPARE {
            self.spare.push(memory.bytes);
        }
    }
}

fn no_memory(error: BufferError) -> LaneError {
    match error {
        BufferError::Device(error) => LaneError::Device(error),
        BufferError::Open(error) => LaneError::Open(error),
        _ => LaneError::Unsupported,
    }
}
