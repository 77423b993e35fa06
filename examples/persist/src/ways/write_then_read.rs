//! A WRITE, and when it has completed a READ.
//!
//! 1. The client posts a WRITE and waits for its completion: the server's NIC has the bytes.
//! 2. It posts a READ of the last of them. The server's NIC reads memory over PCIe, and a read never passes the writes before it, so
//!    these leave the NIC and the PCIe queue first: with DDIO off to the memory controller, with DDIO on into the last-level cache.
//! 3. The READ's completion reaches the client.
//!
//! Two round trips. What programs do that know verbs a little; [WRITE and READ under one doorbell](super::write_and_read) is the same,
//! sooner (Wei et al., USENIX ATC 2021: 4 us become 3).

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

use super::write_and_read::last_bytes;

pub(super) async fn write(
    lane: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    super::write::write(lane, at, bytes).await?;
    lane.batch().read(&last_bytes(at)?).only_one_sided().post().await.map(drop)
}
