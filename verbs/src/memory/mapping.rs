//! Pages that this process maps; dropping the mapping unmaps them.

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// The size of a small page. Lengths are rounded up to it.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Mappings shorter than this are populated at once, so that the first message does not pay for page
/// faults.
const POPULATE_MAX_BYTES: usize = 64 << 20;

/// Mappings of at least this length ask for huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A range of mapped pages.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses, valid in every thread until it is dropped. The users of the
// pointer decide who may read or write there.
unsafe impl Send for Mapping {}
// SAFETY: as above; the mapping itself has no interior state.
unsafe impl Sync for Mapping {}

/// `len` rounded up to whole pages.
pub(crate) fn page_rounded(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_BYTES)
}

impl Mapping {
    /// Maps zeroed pages that no other process sees; huge pages if the system has some reserved.
    pub(crate) fn anonymous(len: usize) -> io::Result<Mapping> {
        if len >= HUGE_PAGE_BYTES
            && let Some(rounded) = len.checked_next_multiple_of(HUGE_PAGE_BYTES)
            && let Ok(mapping) = Mapping::huge(rounded)
        {
            return Ok(mapping);
        }
        Self::small_pages(len, populate)
    }

    /// Maps pages that take no memory before they are touched.
    #[cfg(feature = "sim")]
    pub(crate) fn untouched(len: usize) -> io::Result<Mapping> {
        Self::small_pages(len, |_| MapFlags::empty())
    }

    fn small_pages(len: usize, populate: impl Fn(usize) -> MapFlags) -> io::Result<Mapping> {
        let len = page_rounded(len).ok_or(io::Errno::NOMEM)?;
        // SAFETY: a null hint lets the kernel choose a free range; nothing else refers to it.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | populate(len),
            )?
        };
        Ok(Self::from_raw_parts(start.cast(), len))
    }

    /// Maps reserved huge pages. Fails if too few are reserved.
    fn huge(len: usize) -> io::Result<Mapping> {
        // SAFETY: a null hint lets the kernel choose a free range; nothing else refers to it. All pages
        // are reserved by the call, so that none can be missing later.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB | populate(len),
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::Errno::NOMEM)?;
        Ok(Mapping { start, len })
    }

    /// Maps the first `len` bytes of a memory file, and populates it, unless it has holes whose pages that would allocate. The
    /// caller has checked that the file has that many bytes and is sealed against shrinking, or that the file is our own.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        has_holes: bool,
    ) -> io::Result<Mapping> {
        let populate = if has_holes { MapFlags::empty() } else { populate(len) };
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a null hint lets the kernel choose a free range; the file's pages may be written by
        // other processes, which is why this type gives only raw pointers.
        let start = unsafe { mmap(null_mut(), len, prot, MapFlags::SHARED | populate, file, 0)? };
        Ok(Self::from_raw_parts(start.cast(), len))
    }

    fn from_raw_parts(start: *mut u8, len: usize) -> Mapping {
        if len >= HUGE_PAGE_BYTES {
            // SAFETY: advice on a range that we have just mapped; it changes no contents. A kernel
            // without huge pages refuses, and plain pages serve.
            let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start).expect("mmap never gives page zero without a hint");
        Mapping { start, len }
    }

    #[inline]
    pub(crate) fn start_non_null(&self) -> NonNull<u8> {
        self.start
    }

    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

fn populate(len: usize) -> MapFlags {
    if len <= POPULATE_MAX_BYTES { MapFlags::POPULATE } else { MapFlags::empty() }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range has been ours since `from_raw_parts`, and users of pointers into it keep this value alive.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}
