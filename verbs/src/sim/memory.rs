//! Memory of a node: pages, and the table in which its NIC finds them by key.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;

use super::media::Span;
use crate::dispatch::Registration;
use crate::memory::bytes::copy_forward;
use crate::memory::mapping::{Mapping, PAGE_BYTES};
use crate::memory::region::{Region, RegionParts};
use crate::{Access, RemoteSlice, VerbsError};

/// From this on, pages of their own; shorter regions come from the allocator, as there may be more of
/// them than a process may have mappings.
const MAPPED_BYTES: usize = 64 << 10;

/// Where the first region of a node lies, as peers name it. Real addresses differ from run to run.
pub(super) const FIRST_ADDRESS: u64 = 0x5151_0000_0000;

/// Pages of one region. The owner holds them; the NIC finds them as long as it does.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    from: From,
}

#[derive(Debug)]
enum From {
    Allocator(Layout),
    /// Persistent memory, which has an owner of its own.
    Media {
        _pages: Arc<Pages>,
    },
    Mapped {
        _mapping: Mapping,
    },
}

// SAFETY: pages are a range of addresses, valid in every thread until they are dropped. Who may read or
// write there is up to whoever uses the pointer.
unsafe impl Send for Pages {}
// SAFETY: as above; nothing of the value itself changes.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> Result<Pages, VerbsError> {
        let system = |source| VerbsError::System { what: "memory for a region", source };
        if len >= MAPPED_BYTES {
            let mapping = Mapping::untouched(len).map_err(|error| system(error.into()))?;
            return Ok(Pages {
                start: mapping.start_non_null(),
                len,
                from: From::Mapped { _mapping: mapping },
            });
        }
        let out_of_memory = || system(std::io::ErrorKind::OutOfMemory.into());
        let align = if len < PAGE_BYTES { 64 } else { PAGE_BYTES };
        let layout = Layout::from_size_align(len.max(1), align).map_err(|_| out_of_memory())?;
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        Ok(Pages { start, len, from: From::Allocator(layout) })
    }

    /// An opening of persistent memory: the same pages, held.
    pub(super) fn opening(pages: Arc<Pages>) -> Pages {
        Pages { start: pages.start, len: pages.len, from: From::Media { _pages: pages } }
    }

    /// Stores as many bytes as the pages have.
    pub(super) fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len, "another length");
        // SAFETY: the pages have these bytes, and `bytes` is the simulator's own. Nobody else uses fresh pages.
        unsafe { copy_forward(self.start.as_ptr(), bytes.as_ptr(), bytes.len()) };
    }

    /// Copies bytes at `offset` out.
    pub(super) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        let len = into.len();
        assert!(offset <= self.len as u64 && len as u64 <= self.len as u64 - offset, "beyond");
        // SAFETY: in range; their owner may write there meanwhile, which the copy tolerates. `into` is
        // exclusively ours.
        unsafe { copy_forward(into.as_mut_ptr(), self.at(offset), len) };
    }

    /// The byte at `offset`, which lies in the pages or right behind them.
    fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.len as u64);
        // SAFETY: in the range; checked by the region table.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let From::Allocator(layout) = self.from {
            // SAFETY: allocated with this layout, and nobody else frees it.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// Memory that no peer can reach: the NIC has no part in it.
pub(super) fn private(len: usize, pd: u32) -> Result<Region, VerbsError> {
    let pages = Arc::new(Pages::new(len)?);
    Ok(region(pages, Access::empty(), 0, pd, 0))
}

fn region(pages: Arc<Pages>, access: Access, rkey: u32, pd: u32, address: u64) -> Region {
    let (start, len) = (pages.start, pages.len);
    let registration = Registration::Sim(pages);
    Region::named(RegionParts { start, len, access, lkey: 0, rkey, pd, registration }, address)
}

/// The regions that a NIC knows, by their keys.
#[derive(Debug, Default)]
pub(super) struct Regions {
    by_key: HashMap<u32, Registered, FixedState>,
    registered: u64,
    next_address: u64,
    /// Regions whose owners are gone are looked for when there are as many as this.
    sweep_at: usize,
}

#[derive(Debug)]
struct Registered {
    pages: Weak<Pages>,
    address: u64,
    len: u64,
    access: Access,
    pd: u32,
    /// Its number among the persistent ones.
    persistent: Option<u32>,
    watchers: Vec<u32>,
}

/// A region that was found, held as long as this is.
#[derive(Debug)]
pub(super) struct Found {
    pages: Option<Arc<Pages>>,
    offset: u64,
    len: u64,
    persistent: Option<u32>,
    pub(super) access: Access,
    /// Actors wait for what is written there.
    pub(super) watched: bool,
}

impl Regions {
    /// Registers memory under a key that `draw` gives; it has that number if it is persistent.
    pub(super) fn register(
        &mut self,
        pd: u32,
        pages: Arc<Pages>,
        persistent: Option<u32>,
        access: Access,
        mut draw: impl FnMut() -> u32,
    ) -> Region {
        let len = pages.len;
        self.sweep();
        let rkey = loop {
            let key = draw();
            if key != 0 && !self.by_key.contains_key(&key) {
                break key;
            }
        };
        let address = FIRST_ADDRESS + self.next_address;
        // A page lies between two regions, so that what overruns one hits nothing.
        self.next_address += (len.next_multiple_of(PAGE_BYTES) + PAGE_BYTES) as u64;
        self.registered += 1;
        let registered = Registered {
            pages: Arc::downgrade(&pages),
            address,
            len: len as u64,
            access,
            pd,
            persistent,
            watchers: Vec::new(),
        };
        self.by_key.insert(rkey, registered);
        region(pages, access, rkey, pd, address)
    }

    /// Forgets regions whose owners are gone: nobody tells, so that an owner never waits.
    fn sweep(&mut self) {
        if self.by_key.len() >= self.sweep_at {
            self.by_key.retain(|_, registered| registered.pages.strong_count() > 0);
            self.sweep_at = 2 * self.by_key.len().max(32);
        }
    }

    /// How many have an owner.
    pub(super) fn owned(&self) -> usize {
        self.by_key.values().filter(|registered| registered.pages.strong_count() > 0).count()
    }

    /// What `remote` names, if it is lent for `access` in this protection domain.
    pub(super) fn find(&self, remote: RemoteSlice, access: Access, pd: u32) -> Option<Found> {
        let RemoteSlice { addr, len, rkey } = remote;
        if len == 0 {
            // No bytes, no key: as on hardware.
            let nothing =
                Found { pages: None, offset: 0, len, persistent: None, access, watched: false };
            return Some(nothing);
        }
        let region = self.by_key.get(&rkey)?;
        let offset = addr.wrapping_sub(region.address);
        let fits = offset <= region.len && len <= region.len - offset;
        if region.pd != pd || !region.access.contains(access) || !fits {
            return None;
        }
        let pages = Some(region.pages.upgrade()?);
        let watched = !region.watchers.is_empty();
        let (persistent, access) = (region.persistent, region.access);
        Some(Found { pages, offset, len, persistent, access, watched })
    }

    /// The bytes of persistent memory that a key and an offset in its region name.
    pub(super) fn span(&self, rkey: u32, start: u64, len: u64) -> Option<Span> {
        let region = self.by_key.get(&rkey)?.persistent?;
        Some(Span { region, start, len })
    }

    /// From now on this actor is told what is written into a region. `false`: there is no such region.
    pub(super) fn watch(&mut self, rkey: u32, actor: u32) -> bool {
        let Some(region) = self.by_key.get_mut(&rkey) else { return false };
        if !region.watchers.contains(&actor) {
            region.watchers.push(actor);
        }
        true
    }

    /// The node's memory is gone.
    pub(super) fn forget_all(&mut self) {
        self.by_key.clear();
    }

    pub(super) fn watchers(&self, rkey: u32) -> &[u32] {
        self.by_key.get(&rkey).map_or(&[], |region| &region.watchers)
    }
}

impl Found {
    fn at(&self, offset: u64, len: u64) -> Option<*mut u8> {
        assert!(offset <= self.len && len <= self.len - offset, "beyond what was found");
        self.pages.as_ref().map(|pages| pages.at(self.offset + offset))
    }

    pub(super) fn is_persistent(&self) -> bool {
        self.persistent.is_some()
    }

    /// Which bytes of persistent memory these are, if they are such.
    pub(super) fn span(&self, start: usize, len: usize) -> Option<Span> {
        let (start, len) = (self.offset + start as u64, len as u64);
        self.persistent.map(|region| Span { region, start, len })
    }

    /// Stores bytes at an offset of what was found.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        if let Some(target) = self.at(offset as u64, bytes.len() as u64) {
            // SAFETY: `len` bytes at `target` lie in pages that this value holds. Their owner may look
            // there meanwhile, which the copy tolerates; `bytes` is the simulator's own.
            unsafe { copy_forward(target, bytes.as_ptr(), bytes.len()) };
        }
    }

    /// Appends all of it.
    pub(super) fn read(&self, into: &mut Vec<u8>) {
        let len = self.len as usize;
        if let Some(source) = self.at(0, self.len) {
            into.reserve(len);
            // SAFETY: `len` bytes at `source` lie in pages that this value holds; their owner may write
            // there meanwhile, which the copy tolerates. As many were reserved, and all are written.
            unsafe {
                copy_forward(into.as_mut_ptr().add(into.len()), source, len);
                into.set_len(into.len() + len);
            }
        }
    }

    /// Changes the aligned word that was found; what it held.
    pub(super) fn change(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut word = Vec::with_capacity(8);
        self.read(&mut word);
        let old = word.try_into().map_or(0, u64::from_ne_bytes);
        self.write(0, &change(old).to_ne_bytes());
        old
    }
}

/// Bytes of a posted request's local memory, which its queue pair keeps in place: a buffer in its in-flight
/// ring, or part of a shared region that the request itself holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(*mut u8);

// SAFETY: an address. What is there is touched only through the unsafe functions below, whose callers say
// why it is still there.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    pub(super) fn new(start: *mut u8) -> Place {
        Place(start)
    }

    /// Appends the `len` bytes there.
    ///
    /// # Safety
    /// The request that this is part of is still posted, and its memory has `len` bytes.
    pub(super) unsafe fn read(self, len: usize, into: &mut Vec<u8>) {
        into.reserve(len);
        // SAFETY: the caller vouches for the source. Peers may write there, if it is shared, which the copy
        // tolerates. As many bytes were reserved, and all are written.
        unsafe {
            copy_forward(into.as_mut_ptr().add(into.len()), self.0, len);
            into.set_len(into.len() + len);
        }
    }

    /// Stores bytes there.
    ///
    /// # Safety
    /// The request that this is part of is still posted, and its memory has room for the bytes.
    pub(super) unsafe fn write(self, bytes: &[u8]) {
        // SAFETY: the caller vouches for the target; no reference to a buffer under DMA is alive, and peers
        // may race with us in shared memory, which the copy tolerates.
        unsafe { copy_forward(self.0, bytes.as_ptr(), bytes.len()) };
    }
}
