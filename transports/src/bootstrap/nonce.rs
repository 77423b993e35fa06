//! Random numbers for handshakes.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::handshake::Nonce;

/// A number that nobody can predict, from the operating system.
pub(super) fn random() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    let fill = || getrandom(&mut nonce[..], GetRandomFlags::empty());
    // So few bytes come at once.
    match rustix::io::retry_on_intr(fill)? {
        filled if filled == nonce.len() => Ok(nonce),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
