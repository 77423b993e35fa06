//! Random numbers for handshakes.

use std::io;

use farcall_core::transport::ConnectionId;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::handshake::Nonce;

/// An id of a connection.
pub(super) fn connection_id() -> io::Result<ConnectionId> {
    let random = random()?;
    let mut id = [0; 16];
    id.copy_from_slice(&random[..16]);
    Ok(ConnectionId::new(id))
}

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
