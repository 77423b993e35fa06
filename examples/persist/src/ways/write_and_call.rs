//! A WRITE, and then a call that names the range, which the server's CPU flushes.
//!
//! 1. The client posts a WRITE and waits for its completion. Where that says only that the server's NIC has the bytes, it posts a READ behind
//!    the WRITE: the CPU could flush before it sees them otherwise, as the call takes another queue pair.
//! 2. It calls: flush this range. The server's thread writes the lines back from its caches and waits (`clwb`, `sfence`), or has the file
//!    synced.
//! 3. The answer reaches the client.
//!
//! Two round trips and the server's CPU, but the CPU touches no data: for large writes where only a CPU can make them durable. Octopus,
//! Orion and others save the second round trip with a WRITE_WITH_IMM, whose immediate names the range to the server. Lanes of lent memory have
//! no immediates: an owner that nobody calls has no receives posted. [A call that carries the bytes](super::call) takes one round trip, too.

use farcall::Bytes;
use farcall::memory::{BatchError, Carrier, Completion, Remote, RemoteMemory};

pub(super) async fn write(
    lane: &RemoteMemory,
    calls: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    let caps = lane.caps();
    // Before there is a lane it is not known what its completions say.
    let is_visible = caps.carrier == Carrier::OneSided && caps.completion >= Completion::Visible;
    if is_visible {
        super::write::write(lane, at, bytes).await?;
    } else {
        super::write_and_read::write(lane, at, bytes).await?;
    }
    calls.batch().flush(at).post().await.map(drop)
}
