//! Work requests that wait for the doorbell.

use std::ptr::null_mut;

use super::sys::{Zeroed, ibv_send_flags as flags, ibv_send_wr, ibv_sge};

/// The most work requests per doorbell; a longer list rings in between.
const LONGEST_LIST: usize = 32;

/// A list of work requests, reused by all posts so that posting does not allocate.
#[derive(Debug)]
pub(super) struct Pending {
    entries: Box<[Entry]>,
    /// Space for the inline bytes of each entry: the caller's bytes are only borrowed during the post.
    inline: Box<[u8]>,
    max_inline: usize,
    len: usize,
}

struct Entry {
    request: ibv_send_wr,
    sge: ibv_sge,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("wr_id", &self.request.wr_id).finish_non_exhaustive()
    }
}

// SAFETY: pointers of entries point into entries of the same list and to memory that work requests hold.
// Only the owner of the list follows them.
unsafe impl Send for Pending {}
// SAFETY: as above; through a shared reference nothing of it can be reached.
unsafe impl Sync for Pending {}

/// The local memory of a work request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes<'a> {
    /// Copied now.
    Inline(&'a [u8]),
    /// Registered memory: address, length and key.
    At(u64, u32, u32),
}

impl Pending {
    pub(super) fn new(max_send_wr: usize, max_inline: usize) -> Pending {
        let count = max_send_wr.min(LONGEST_LIST);
        let entry = |_| Entry { request: ibv_send_wr::zeroed(), sge: ibv_sge::zeroed() };
        Pending {
            entries: (0..count).map(entry).collect(),
            inline: vec![0; count * max_inline].into(),
            max_inline,
            len: 0,
        }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len == self.entries.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The number of inline bytes that an entry has room for.
    #[inline]
    pub(super) fn max_inline(&self) -> usize {
        self.max_inline
    }

    /// Appends an entry and sets its memory. The caller fills in the rest.
    ///
    /// # Panics
    /// If the list is full, or the inline bytes are more than there is room for.
    #[inline]
    pub(super) fn push(&mut self, bytes: Bytes<'_>) -> &mut ibv_send_wr {
        let entry = &mut self.entries[self.len];
        let request = &mut entry.request;
        request.send_flags = 0;
        request.num_sge = 1;
        match bytes {
            Bytes::Inline([]) | Bytes::At(_, 0, _) => request.num_sge = 0,
            Bytes::Inline(bytes) => {
                let start = self.len * self.max_inline;
                let copy = &mut self.inline[start..start + self.max_inline][..bytes.len()];
                copy.copy_from_slice(bytes);
                entry.sge.addr = copy.as_ptr().expose_provenance() as u64;
                (entry.sge.length, entry.sge.lkey) = (bytes.len() as u32, 0);
                request.send_flags = flags::IBV_SEND_INLINE.0;
            }
            Bytes::At(addr, len, lkey) => {
                (entry.sge.addr, entry.sge.length, entry.sge.lkey) = (addr, len, lkey);
            }
        }
        self.len += 1;
        request
    }

    /// Empties the list and returns its first element, linked to the others, for the device to take
    /// immediately.
    #[inline]
    pub(super) fn take(&mut self) -> *mut ibv_send_wr {
        let len = std::mem::take(&mut self.len);
        let start = self.entries.as_mut_ptr();
        for index in 0..len {
            // SAFETY: `index < len <= entries.len()`. All pointers come from `start`, so none invalidates
            // another.
            unsafe {
                let entry = start.add(index);
                (*entry).request.sg_list = &raw mut (*entry).sge;
                (*entry).request.next = if index + 1 < len {
                    &raw mut (*start.add(index + 1)).request
                } else {
                    null_mut()
                };
            }
        }
        // SAFETY: in the allocation, as `take` is called with something in the list only; otherwise the
        // pointer is not followed.
        unsafe { &raw mut (*start).request }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_linked_in_its_order_and_keeps_copies_of_inline_bytes() {
        let mut pending = Pending::new(100, 16);
        let mut scratch = *b"first";
        pending.push(Bytes::Inline(&scratch)).wr_id = 1;
        scratch.fill(0);
        pending.push(Bytes::At(0x1000, 4096, 7)).wr_id = 2;
        pending.push(Bytes::Inline(&[])).wr_id = 3;
        assert_eq!(pending.len(), 3);
        let mut next = pending.take();
        let mut found = Vec::new();
        while !next.is_null() {
            // SAFETY: the list is linked and lives.
            unsafe {
                let sge = &*(*next).sg_list;
                found.push(((*next).wr_id, (*next).num_sge, sge.length));
                if (*next).wr_id == 1 {
                    let copy = std::slice::from_raw_parts(sge.addr as *const u8, 5);
                    assert_eq!(copy, b"first");
                }
                next = (*next).next;
            }
        }
        assert_eq!(found, [(1, 1, 5), (2, 1, 4096), (3, 0, 0)]);
        assert!(pending.is_empty());
    }

    #[test]
    fn a_list_is_no_longer_than_the_queue() {
        let mut pending = Pending::new(2, 0);
        assert!(!pending.is_full());
        pending.push(Bytes::Inline(&[]));
        pending.push(Bytes::Inline(&[]));
        assert!(pending.is_full());
    }
}
