//! The handshake of `shm://` addresses, over an abstract Unix socket.
//!
//! The socket's name holds the user's id, and both ends check the other's: only this user can take
//! part. An abstract name is in no directory: a killed server leaves nothing behind, and its name is
//! free at once.

mod dial;
mod listen;
mod stream;

use rustix::net::SocketAddrUnix;

/// The socket of the service of that name.
fn socket_address(name: &str) -> rustix::io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    SocketAddrUnix::new_abstract_name(format!("farcall/{user}/{name}").as_bytes())
}
