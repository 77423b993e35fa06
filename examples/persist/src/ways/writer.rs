//! Writing by a way.

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

use super::machine::Machine;
use super::matrix::{Refused, Way};
use super::{call, flush, write, write_and_call, write_and_read, write_then_read};

/// Writes to memory that a server lends, by one way, so that each write is durable when it has ended. Clones use the same connection.
#[derive(Clone, Debug)]
pub struct Writer {
    way: Way,
    /// For operations that the server's CPU does.
    calls: RemoteMemory,
    /// For operations that its NIC does.
    lane: RemoteMemory,
}

impl Writer {
    /// A writer over this connection, to a server that is such a machine.
    ///
    /// # Errors
    ///
    /// [`Refused`]: writes of this way are not durable there when they end.
    pub fn new(memory: RemoteMemory, way: Way, machine: Machine) -> Result<Writer, Refused> {
        way.durability(machine)?;
        Ok(Writer::of(memory, way))
    }

    /// For tests that show what is lost where a way is refused.
    #[cfg(feature = "sim")]
    #[doc(hidden)]
    #[must_use]
    pub fn unchecked(memory: RemoteMemory, way: Way) -> Writer {
        Writer::of(memory, way)
    }

    fn of(memory: RemoteMemory, way: Way) -> Writer {
        Writer { way, lane: memory.clone().one_sided(), calls: memory }
    }

    /// By which way it writes.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Writes bytes, as many as the memory has. They are durable when it has ended with success.
    ///
    /// # Errors
    ///
    /// [`BatchError`]. [`NotPersistent`](farcall::memory::MemoryError::NotPersistent): the memory is not of
    /// [`persistent_region`](farcall::memory::Memory::persistent_region). [`NotOneSided`](farcall::memory::MemoryError::NotOneSided): the way
    /// needs the server's NIC, and there is no lane to it. After an error the bytes may be there, in part or not.
    pub async fn write(&self, at: &Remote, bytes: impl Into<Bytes>) -> Result<(), BatchError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(());
        }
        match self.way {
            Way::Write => write::write(&self.lane, at, bytes).await,
            Way::WriteThenRead => write_then_read::write(&self.lane, at, bytes).await,
            Way::WriteAndRead => write_and_read::write(&self.lane, at, bytes).await,
            Way::WriteAndCall => write_and_call::write(&self.lane, &self.calls, at, bytes).await,
            Way::Call => call::write(&self.calls, at, bytes).await,
            Way::Flush => flush::write(&self.lane, at, bytes).await,
        }
    }
}
