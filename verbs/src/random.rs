//! Random numbers of the operating system: keys and secrets that no other process can predict.

use rustix::io;
use rustix::rand::{GetRandomFlags, getrandom};

/// `N` random bytes, at most 256: so many come at once.
pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    const { assert!(N <= 256) };
    let mut bytes = [0; N];
    let filled = io::retry_on_intr(|| getrandom(&mut bytes[..], GetRandomFlags::empty()))?;
    if filled == N { Ok(bytes) } else { Err(io::Errno::IO) }
}

/// A random number.
pub(crate) fn word() -> io::Result<u64> {
    bytes().map(u64::from_ne_bytes)
}
