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

/// Mappings of at least this length ask for huge pages, if their memory is allocated at once.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// When the pages of memory are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Population {
    /// At once, so that the first message does not pay for page faults.
    AtOnce,
    /// When they are touched, so that what is never used takes no memory.
    WhenTouched,
}

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
        Self::small_pages(len, Population::AtOnce)
    }

    /// Maps pages that take no memory before they are touched.
    pub(crate) fn untouched(len: usize) -> io::Result<Mapping> {
        Self::small_pages(len, Population::WhenTouched)
    }

    /// Maps zeroed pages that no other process sees.
    pub(crate) fn populated(len: usize, population: Population) -> io::Result<Mapping> {
        match population {
            Population::AtOnce => Self::anonymous(len),
            Population::WhenTouched => Self::untouched(len).map(Self::with_first_page),
        }
    }

    /// Touches the first page of a new, writable mapping: the first message does not pay for it.
    pub(crate) fn with_first_page(self) -> Mapping {
        // SAFETY: a byte of a mapping of ours, which is zero and which no other thread or process knows of yet. A mapping has a page at least.
        unsafe { self.start().write_volatile(0) };
        self
    }

    fn small_pages(len: usize, population: Population) -> io::Result<Mapping> {
        let len = page_rounded(len).ok_or(io::Errno::NOMEM)?;
        // SAFETY: a null hint lets the kernel choose a free range; nothing else refers to it.
        let start = unsafe {
            mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | populate(len, population),
            )?
        };
        Self::from_raw_parts(start.cast(), len, population)
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
                MapFlags::PRIVATE
                    | MapFlags::HUGETLB
                    | MapFlags::HUGE_2MB
                    | populate(len, Population::AtOnce),
            )?
        };
        Self::kept_from_children(start.cast(), len)
    }

    /// Maps the first `len` bytes of a memory file, and populates it if asked to, which allocates the pages of its holes. The
    /// caller has checked that the file has that many bytes and is sealed against shrinking, or that the file is our own.
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        len: usize,
        writable: bool,
        population: Population,
    ) -> io::Result<Mapping> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | populate(len, population);
        // SAFETY: a null hint lets the kernel choose a free range; the file's pages may be written by
        // other processes, which is why this type gives only raw pointers.
        let start = unsafe { mmap(null_mut(), len, prot, flags, file, 0)? };
        Self::from_raw_parts(start.cast(), len, population)
    }

    fn from_raw_parts(start: *mut u8, len: usize, population: Population) -> io::Result<Mapping> {
        // Of memory that is taken when touched, a huge page would take what 512 small ones do, for one message.
        if len >= HUGE_PAGE_BYTES && population == Population::AtOnce {
            // SAFETY: advice on a range that we have just mapped; it changes no contents. A kernel
            // without huge pages refuses, and plain pages serve.
            let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
        }
        Self::kept_from_children(start, len)
    }

    /// The pages are this process's alone: a forked child has none of them. Otherwise a write after a fork could go to a copy
    /// of a page that the NIC does not know (ibv_fork_init(3)), and a child could write into rings that both would share.
    fn kept_from_children(start: *mut u8, len: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start).ok_or(io::Errno::NOMEM)?;
        let mapping = Mapping { start, len };
        // SAFETY: advice on a range that we have just mapped; it changes no contents.
        unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxDontFork)? };
        Ok(mapping)
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

fn populate(len: usize, population: Population) -> MapFlags {
    match population {
        Population::AtOnce if len <= POPULATE_MAX_BYTES => MapFlags::POPULATE,
        _ => MapFlags::empty(),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range has been ours since `from_raw_parts`, and users of pointers into it keep this value alive.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// The kernel's flags of the mapping that begins at this address.
    fn flags(start: *mut u8) -> String {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        let flags = maps.lines().find_map(|line| {
            if let Some((range, _)) = line.split_once('-')
                && let Ok(first) = usize::from_str_radix(range, 16)
            {
                within = first == start.addr();
            }
            line.strip_prefix("VmFlags:").filter(|_| within)
        });
        flags.expect("it is mapped").to_owned()
    }

    #[test]
    fn a_child_has_no_page_of_its_parents_mappings() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let mappings = [
            Mapping::anonymous(PAGE_BYTES).unwrap(),
            Mapping::anonymous(HUGE_PAGE_BYTES).unwrap(),
            Mapping::of_file(file.as_fd(), 8192, true, Population::AtOnce).unwrap(),
            Mapping::of_file(file.as_fd(), 8192, false, Population::WhenTouched).unwrap(),
        ];
        for mapping in &mappings {
            let flags = flags(mapping.start());
            assert!(flags.contains(" dc"), "{flags}: not left out of copies");
        }
    }

    #[test]
    fn a_child_that_uses_its_parents_mapping_faults_and_changes_nothing() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let mapping = Mapping::of_file(file.as_fd(), 8192, true, Population::AtOnce).unwrap();
        let first = mapping.start();
        // SAFETY: the first byte of a mapping of ours. The child only writes there and exits: it allocates nothing, takes no
        // lock, and runs no destructor.
        let child = unsafe {
            first.write(1);
            let child = libc::fork();
            if child == 0 {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                first.write_volatile(2);
                libc::_exit(0);
            }
            child
        };
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let mut status = 0;
        // SAFETY: a child of ours, and a place of ours for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
            "{status:#x}"
        );
        // SAFETY: as above.
        assert_eq!(unsafe { first.read_volatile() }, 1);
    }
}
