//! A WRITE and a native FLUSH behind it, under one doorbell.
//!
//! 1. The client posts a WRITE and a FLUSH of the same range, and rings once.
//! 2. The server's NIC takes the WRITE, and executes the FLUSH after it: it reports when the bytes of the range are in the persistence domain, as
//!    far as a NIC can bring them there. It empties itself and PCIe; lines in a cache it reaches on machines only whose owner declares so.
//! 3. The FLUSH's completion reaches the client.
//!
//! One round trip, without the server's CPU. NICs and Soft-RoCE (`rdma_rxe` since Linux 6.2) have it, but this library posts it only on simulated
//! racks so far; elsewhere the batch fails with [`NotOneSided`](farcall::memory::MemoryError::NotOneSided).

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

pub(super) async fn write(
    lane: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    lane.batch().write(at, bytes).flush(at).only_one_sided().post().await.map(drop)
}
