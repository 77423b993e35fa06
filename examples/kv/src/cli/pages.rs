//! Iterates over the store's entries page by page, with only the current page in memory.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use farcall_kv::limits::PAGE_ENTRIES;
use farcall_kv::service::KvClient;

use super::connect;

/// Iterates over the store in key order.
pub(crate) struct Pages {
    client: KvClient,
    /// The last key read, or the first one wanted.
    from: Vec<u8>,
    after: bool,
    over: bool,
}

impl Pages {
    /// All entries of the store at `address`.
    pub(crate) fn connect(address: &str, timeout: Duration) -> Result<Self> {
        let client = connect(address, timeout)?;
        Ok(Self { client, from: Vec::new(), after: false, over: false })
    }

    /// Skips entries before this key.
    pub(crate) fn starting(self, from: Vec<u8>) -> Self {
        Self { from, ..self }
    }

    /// The next entries, at least one, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        self.next_up_to(PAGE_ENTRIES)
    }

    /// As [`next`](Self::next), with at most `limit` entries.
    pub(crate) fn next_up_to(&mut self, limit: u32) -> Result<Option<Vec<(Bytes, Bytes)>>> {
        if self.over {
            return Ok(None);
        }
        let entries = self.client.scan(&self.from, self.after, limit).wait()?;
        let Some((last, _)) = entries.last() else {
            self.over = true;
            return Ok(None);
        };
        self.from.clear();
        self.from.extend_from_slice(last);
        self.after = true;
        Ok(Some(entries))
    }
}
