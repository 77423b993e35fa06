//! Who is at the other end of a Unix socket.

use std::mem::size_of;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io;

/// The process at the other end of a Unix socket, as the kernel saw it when the process connected or listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Its process id; `None` if it has none here: it is in a pid namespace that this process cannot see into, as the
    /// processes of another container are.
    pub process: Option<NonZeroU32>,
    /// Its effective user id, as the user namespace of this process maps it.
    pub user: u32,
}

impl PeerCredentials {
    /// Those of the process at the other end of a connected Unix socket.
    ///
    /// # Errors
    /// What the system says: this is no such socket.
    // Not rustix's: its `UCred` cannot hold the process id 0, which means an unknown one.
    pub fn of(socket: impl AsFd) -> io::Result<PeerCredentials> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `found`, which has as many, and the descriptor is open. Any bytes are a
        // `ucred`.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut len,
            )
        };
        if failed != 0 {
            let error = std::io::Error::last_os_error();
            return Err(io::Errno::from_io_error(&error).unwrap_or(io::Errno::INVAL));
        }
        Ok(PeerCredentials::from(found))
    }
}

impl From<libc::ucred> for PeerCredentials {
    fn from(found: libc::ucred) -> PeerCredentials {
        let process = u32::try_from(found.pid).ok().and_then(NonZeroU32::new);
        PeerCredentials { process, user: found.uid }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn both_ends_of_a_socket_of_this_process_are_this_process() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let this = PeerCredentials {
            process: NonZeroU32::new(std::process::id()),
            user: rustix::process::geteuid().as_raw(),
        };
        assert_eq!(PeerCredentials::of(&ours), Ok(this));
        assert_eq!(PeerCredentials::of(&theirs), Ok(this));
    }

    #[test]
    fn a_process_of_a_foreign_pid_namespace_has_no_number() {
        let found = |pid| PeerCredentials::from(libc::ucred { pid, uid: 7, gid: 8 });
        assert_eq!(found(0), PeerCredentials { process: None, user: 7 });
        assert_eq!(found(5).process, NonZeroU32::new(5));
    }

    #[test]
    fn what_is_no_socket_has_no_other_end() {
        let file = File::open("/dev/null").unwrap();
        assert_eq!(PeerCredentials::of(&file), Err(io::Errno::NOTSOCK));
    }
}
