//! A WRITE alone.
//!
//! 1. The client posts a WRITE. Its NIC sends the bytes.
//! 2. The server's NIC takes them and acknowledges, before they have left it.
//! 3. The completion reaches the client. The bytes may be in the NIC, in a PCIe queue, in a cache, or in memory.
//!
//! So it is durable only where a battery keeps all of these. One round trip; the server's CPU does nothing.

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

pub(super) async fn write(
    lane: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    // Bytes that travel in a call are stored by the server's CPU, which nothing here knows how to flush.
    lane.batch().write(at, bytes).only_one_sided().post().await.map(drop)
}
