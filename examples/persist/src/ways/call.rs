//! A call that carries the bytes.
//!
//! 1. The client sends a request with the bytes, and where they are to be, by whatever backend its connection has.
//! 2. The server's thread copies them there, writes the lines back from its caches and waits (`clwb`, `sfence`), or has the file synced.
//! 3. The answer reaches the client.
//!
//! One round trip and the server's CPU, in every persistence domain. For small writes as quick as one-sided ways (Kalia et al., SoCC 2020);
//! for large ones the copy costs.

use farcall::Bytes;
use farcall::memory::{BatchError, Remote, RemoteMemory};

pub(super) async fn write(
    calls: &RemoteMemory,
    at: &Remote,
    bytes: Bytes,
) -> Result<(), BatchError> {
    // Calls make what they write durable; the flush also refuses memory that is not persistent.
    calls.batch().write(at, bytes).flush(at).post().await.map(drop)
}
