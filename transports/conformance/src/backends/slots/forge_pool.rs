//! What only ends of `scale` have: a log of requests, and a message pool. The layout is written down a second time.

use farcall_transports::contract::Terms;
use farcall_verbs::{
    Access, ProtectionDomain, RemoteRegion, RemoteSlice, SharedRegion, SharedSlice,
};
use serde::{Deserialize, Serialize};

use super::forge::stride;

/// What a client of `scale` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ClientSetup {
    pub(super) port: Vec<u8>,
    pub(super) log: RemoteRegion,
    pub(super) wants_pin: bool,
    pub(super) caller: u64,
}

/// How a pool is laid out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PoolLayout {
    pub(crate) places: u32,
    pub(crate) place_bytes: u64,
    pub(crate) cell_bytes: u32,
}

/// What a server of `scale` says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ServerSetup {
    pub(super) port: Vec<u8>,
    pub(super) pool: RemoteRegion,
    pub(super) layout: PoolLayout,
    pub(super) key: u32,
    /// The key to the client's first place, if a memory window guards it.
    pub(super) first_rkey: Option<u32>,
    pub(super) looks: bool,
    pub(super) is_pinned: bool,
}

/// The argument by which a client says that it has left its place.
pub(crate) const LEFT: u32 = 0;

/// The argument by which a client says how far its log has grown.
pub(crate) const GROWN: u32 = 1;

/// The argument by which a server tells a client to leave its place.
pub(crate) const STOP: u32 = 0;

/// What says the same on a response.
pub(crate) const STOP_NOTE: u16 = 0xffff;

/// The pool of a server, as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    pub(crate) region: RemoteRegion,
    pub(crate) layout: PoolLayout,
    pub(crate) key: u32,
    /// The key to the place that this client gets next, if places are guarded.
    pub(crate) next_rkey: Option<u32>,
    /// The key to its place.
    pub(crate) rkey: u32,
}

impl Pool {
    pub(super) fn of(server: ServerSetup) -> Pool {
        let ServerSetup { pool: region, layout, key, first_rkey: next_rkey, .. } = server;
        Pool { region, layout, key, next_rkey, rkey: region.rkey }
    }

    /// The server has given this client another place: the lower eight bits of its window's key count.
    pub(super) fn enter(&mut self) {
        if let Some(next) = self.next_rkey {
            self.rkey = next;
            self.next_rkey = Some(next & !0xff | next.wrapping_add(1) & 0xff);
        }
    }

    /// Where the bytes end that are at the end of a place's first cell.
    pub(crate) fn first_cell_end(&self, place: u32) -> u64 {
        let at = u64::from(place) * self.layout.place_bytes + u64::from(self.layout.cell_bytes);
        self.region.addr + at
    }
}

/// A client's log, or a copy of what the server has read of it; and the pool of a server.
pub(super) struct Log {
    /// Of this end, if it is the client.
    pub(super) region: SharedRegion,
    page: u64,
    pages: u64,
    pub(super) end: u64,
    pub(super) read: u64,
    /// Bytes that are being read.
    pub(super) reading: u64,
    pub(super) pool: SharedRegion,
}

/// Bytes of the pool of a server by hand.
const POOL_BYTES: u32 = 1 << 20;

impl Log {
    pub(super) fn new(pd: &ProtectionDomain, terms: &Terms) -> Log {
        let (page, pages) = (u64::from(stride(terms.slot)), u64::from(terms.window) + 2);
        let region = pd.alloc_shared((page * pages) as usize, Access::REMOTE_READ).expect("a log");
        let pool =
            pd.alloc_shared(POOL_BYTES as usize, Access::REMOTE_WRITE).expect("a message pool");
        Log { region, page, pages, end: 0, read: 0, reading: 0, pool }
    }

    pub(super) fn layout(&self, terms: &Terms) -> PoolLayout {
        let cell_bytes = stride(terms.slot);
        PoolLayout { places: 1, place_bytes: (cell_bytes * terms.window).into(), cell_bytes }
    }

    /// Uses the slots that were agreed on.
    pub(super) fn set_terms(&mut self, terms: &Terms) {
        (self.page, self.pages) = (stride(terms.slot).into(), u64::from(terms.window) + 2);
    }

    fn at(&self, position: u64) -> usize {
        (position % (self.page * self.pages)) as usize
    }

    fn left(&self, position: u64) -> u64 {
        self.page - position % self.page
    }

    /// Adds a request, of which what is beyond its page is cut off.
    pub(super) fn append(&mut self, slot: u32, message: &[u8]) {
        let bytes = 8 + message.len().next_multiple_of(8) as u64;
        if bytes > self.left(self.end) {
            self.region.store_release_u64(self.at(self.end), 0);
            self.end += self.left(self.end);
        }
        let word = u64::from(slot | (message.len() as u32) << 10) << 32;
        self.region.store_release_u64(self.at(self.end), word);
        let kept = message.len().min(self.page as usize - 8);
        self.region.copy_in(self.at(self.end) + 8, &message[..kept]);
        self.end += bytes.min(self.left(self.end));
    }

    /// At the server: what to read next of the client's log.
    pub(super) fn next_read(&self, theirs: RemoteRegion) -> Option<RemoteSlice> {
        let len = (self.end - self.read).min(self.left(self.read));
        (len > 0 && self.reading == 0)
            .then(|| RemoteSlice::new(theirs.addr + self.at(self.read) as u64, theirs.rkey, len))
    }

    /// At the server: where so many bytes of the log that are read next are copied to, which is the same place of its own.
    pub(super) fn copy_of(&self, len: usize) -> SharedSlice {
        self.region.slice(self.at(self.read), len)
    }

    /// At the server: the requests that were read.
    pub(super) fn take_read(&mut self) -> Vec<(u32, Vec<u8>)> {
        let (mut at, to) = (self.read, self.read + std::mem::take(&mut self.reading));
        self.read = to;
        let mut requests = Vec::new();
        while at < to {
            let word = self.region.load_u64(self.at(at));
            let (slot, len) = ((word >> 32) as u32 & 0x3ff, (word >> 42) as usize);
            if len == 0 {
                break;
            }
            let mut bytes = vec![0; len];
            self.region.copy_out(self.at(at) + 8, &mut bytes);
            requests.push((slot, bytes));
            at += 8 + len.next_multiple_of(8) as u64;
        }
        requests
    }
}

/// Takes what a carrier notes on a message off it; 0 is nothing.
pub(super) fn take_note(message: &mut [u8]) -> u16 {
    match message.get_mut(6..8) {
        Some(note) => {
            u16::from_le_bytes([std::mem::take(&mut note[0]), std::mem::take(&mut note[1])])
        }
        None => 0,
    }
}
