//! Memory files: pages with a descriptor that can be passed to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::io;
use rustix::process::{Resource, getrlimit};

use crate::memory::mapping::{Mapping, Population};

/// What peers may do with a memory file of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    Read,
    ReadAndWrite,
}

/// Creates a memory file and maps it for writing. It is sealed against size changes: if a peer shrank it, our next access would
/// fault. It is also sealed against more seals: one against writing, by a peer, would keep all others out.
pub(crate) fn create(
    name: &str,
    len: usize,
    peers: Peers,
    population: Population,
) -> io::Result<(OwnedFd, Mapping)> {
    // To go beyond the limit is not only an error: its signal, SIGXFSZ, ends the process.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < len as u64) {
        return Err(io::Errno::FBIG);
    }
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, len as u64)?;
    let mapping = Mapping::of_file(file.as_fd(), len, true, population)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    // That one spares the mapping that there is.
    let for_readers = SealFlags::FUTURE_WRITE;
    fcntl_add_seals(&file, if peers == Peers::Read { seals | for_readers } else { seals })?;
    Ok((file, mapping))
}

/// Bytes of a block as `fstat` counts them.
const BLOCK_BYTES: u64 = 512;

/// Maps a peer's file. Refuses it unless it has exactly `len` bytes and is sealed against shrinking. Pages that the peer has
/// not allocated are not allocated here: the system would charge them to us.
pub(crate) fn map_foreign(file: BorrowedFd<'_>, len: usize, writable: bool) -> io::Result<Mapping> {
    if len == 0 || !fcntl_get_seals(file)?.contains(SealFlags::SHRINK) {
        return Err(io::Errno::PERM);
    }
    let stat = fstat(file)?;
    if u64::try_from(stat.st_size) != Ok(len as u64) {
        return Err(io::Errno::INVAL);
    }
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES;
    let population = match allocated < len as u64 {
        true => Population::WhenTouched,
        false => Population::AtOnce,
    };
    Mapping::of_file(file, len, writable, population)
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
    fn a_file_of_another_length_than_promised_is_not_mapped() {
        let (file, _mapping) =
            create("test", 8192, Peers::ReadAndWrite, Population::AtOnce).unwrap();
        for len in [4096, 12_288] {
            assert_eq!(map_foreign(file.as_fd(), len, true).unwrap_err(), io::Errno::INVAL);
        }
        assert!(map_foreign(file.as_fd(), 8192, true).is_ok());
    }

    #[test]
    fn mapping_a_file_of_holes_allocates_nothing() {
        let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let _mapping = map_foreign(file.as_fd(), 1 << 20, true).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks, 0);
    }

    #[test]
    fn pages_are_allocated_when_they_are_touched_if_asked_for() {
        let allocated = |population| {
            let (file, mapping) = create("test", 1 << 20, Peers::ReadAndWrite, population).unwrap();
            let before = fstat(&file).unwrap().st_blocks;
            // SAFETY: a byte of a mapping of ours that no other thread uses.
            unsafe { mapping.start().add(8192).write(1) };
            (before, fstat(&file).unwrap().st_blocks)
        };
        assert_eq!(allocated(Population::WhenTouched), (0, 8));
        assert_eq!(allocated(Population::AtOnce), (2048, 2048));
    }

    #[test]
    fn a_peer_cannot_seal_a_file_against_others() {
        for peers in [Peers::Read, Peers::ReadAndWrite] {
            let (file, _mapping) = create("test", 4096, peers, Population::AtOnce).unwrap();
            let sealed = fcntl_add_seals(&file, SealFlags::FUTURE_WRITE);
            assert_eq!(sealed.unwrap_err(), io::Errno::PERM, "{peers:?}");
        }
        let (file, _mapping) =
            create("test", 4096, Peers::ReadAndWrite, Population::AtOnce).unwrap();
        assert!(map_foreign(file.as_fd(), 4096, true).is_ok());
    }

    #[test]
    fn readers_cannot_map_for_writing() {
        let (file, mapping) = create("test", 4096, Peers::Read, Population::AtOnce).unwrap();
        assert_eq!(map_foreign(file.as_fd(), 4096, true).err(), Some(io::Errno::PERM));
        assert!(map_foreign(file.as_fd(), 4096, false).is_ok());
        // SAFETY: the first byte of a mapping of ours that no other thread uses.
        unsafe { mapping.start().write(1) };
    }
}
