//! A WRITE and a READ behind it, under one doorbell.
//!
//! 1. The client posts a WRITE and a READ of its last bytes, and rings once.
//! 2. The server's NIC takes the WRITE, and then reads memory for the READ. On one queue pair it does so in this order, and on PCIe a read
//!    never passes the writes before it: these leave the NIC and the PCIe queue first, with DDIO off to the memory controller, with DDIO on
//!    into the last-level cache.
//! 3. The READ's completion reaches the client, which asked for none of the WRITE's.
//!
//! One round trip, and the time of a PCIe read (Wei et al., USENIX ATC 2021).

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

pub(super) async fn write(
    lane: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    let batch = lane.batch().write(at, bytes).read(&last_bytes(at)?);
    batch.only_one_sided().post().await.map(drop)
}

/// The last bytes of some memory. Which are read does not matter: the READ is after the WRITE on its queue pair.
pub(super) fn last_bytes(at: &Remote) -> Result<Remote, BatchError> {
    let last = at.slice(at.len().saturating_sub(8)..);
    last.map_err(|error| BatchError { at: 1, error })
}
