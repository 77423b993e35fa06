//! Memory files: pages with a descriptor that can be passed to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io;

use crate::memory::mapping::Mapping;

/// Creates a memory file and maps it. It is sealed against size changes: if a peer shrank it, our next
/// access would fault.
pub(crate) fn create(name: &str, len: usize) -> io::Result<(OwnedFd, Mapping)> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let mapping = Mapping::of_file(file.as_fd(), len, true)?;
    Ok((file, mapping))
}

/// Prevents new writable mappings of the file; our own mapping stays writable.
pub(crate) fn seal_for_readers(file: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
}

/// Maps a peer's file. Refuses it unless it has `len` bytes and is sealed against shrinking.
pub(crate) fn map_foreign(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
    if len == 0 || !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(io::Errno::PERM);
    }
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    if size < len as u64 {
        return Err(io::Errno::INVAL);
    }
    Mapping::of_file(file, len, writable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_could_shrink_is_not_mapped() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 4096).unwrap();
        assert_eq!(map_foreign(file.as_fd(), 4096, true).unwrap_err(), io::Errno::PERM);
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert!(map_foreign(file.as_fd(), 4096, true).is_ok());
    }

    #[test]
    fn a_file_shorter_than_promised_is_not_mapped() {
        let (file, _mapping) = create("test", 4096).unwrap();
        assert_eq!(map_foreign(file.as_fd(), 8192, true).unwrap_err(), io::Errno::INVAL);
    }

    #[test]
    fn readers_cannot_map_for_writing() {
        let (file, mapping) = create("test", 4096).unwrap();
        seal_for_readers(file.as_fd()).unwrap();
        assert!(map_foreign(file.as_fd(), 4096, true).is_err());
        assert!(map_foreign(file.as_fd(), 4096, false).is_ok());
        // SAFETY: the first byte of a mapping of ours that no other thread uses.
        unsafe { mapping.start().write(1) };
    }
}
