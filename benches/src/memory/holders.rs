//! How long a revoke takes while many clients have access, and what their lanes keep.

use std::process;
use std::time::Instant;

use anyhow::{Result, ensure};
use farcall::Endpoint;
use farcall::memory::{MemoryError, Remote, RemoteMemory, Rights, Until};
use serde::Serialize;

use super::Owner;
use crate::process::proportional_bytes;

/// A lend that many clients have used one-sided.
#[derive(Debug, Clone, Serialize)]
pub struct Revoke {
    /// Clients with a lane that has access.
    pub holders: usize,
    /// How long the revoke took, in nanoseconds.
    pub took_ns: u64,
    /// Memory of a client's lane, both ends, in bytes.
    pub bytes_per_lane: u64,
}

/// Revokes a lend of so many holders.
pub(super) fn measure(holders: usize, core: usize) -> Result<Revoke> {
    let owner = Owner::start(4096, core, holders + 1)?;
    let lent = owner.region.lend(.., Rights::READ, Until::REVOKED)?;
    let endpoint = Endpoint::new();
    let connect = |_| RemoteMemory::connect(owner.server.address()).endpoint(&endpoint).wait();
    let clients = (0..holders).map(connect).collect::<Result<Vec<_>, _>>()?;
    // A call on each, before and after they have lanes, so that the difference is the lanes'.
    use_all(&clients, &lent)?;
    let before = proportional_bytes(process::id())?;
    let clients: Vec<_> = clients.into_iter().map(RemoteMemory::one_sided).collect();
    use_all(&clients, &lent)?;
    use_all(&clients, &lent)?;
    let bytes = proportional_bytes(process::id())?.saturating_sub(before);
    let begin = Instant::now();
    ensure!(owner.region.revoke() == 1, "the lend had ended");
    let took_ns = begin.elapsed().as_nanos() as u64;
    for client in &clients {
        ensure!(client.read(&lent).wait() == Err(MemoryError::Revoked), "a holder has read");
    }
    drop(clients);
    owner.server.shutdown();
    Ok(Revoke { holders, took_ns, bytes_per_lane: bytes / holders.max(1) as u64 })
}

fn use_all(clients: &[RemoteMemory], lent: &Remote) -> Result<()> {
    let first = lent.slice(0..32)?;
    for client in clients {
        ensure!(client.read(&first).wait()?.len() == 32, "a read was short");
    }
    Ok(())
}
