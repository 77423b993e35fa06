//! How two ends meet before any data flows: one dials, the other listens, and both shake hands over
//! a socket. What kind of socket depends on the address: see [`unix`](crate::unix) and
//! [`tcp`](crate::tcp), which know nothing of handshakes.

mod accept;
pub(crate) mod admission;
pub(crate) mod attempt;
mod device;
mod dial;
pub(crate) mod halves;
mod listen;
mod running;
mod stream;
pub(crate) mod tether;
pub(crate) mod tethered;

pub use device::DeviceError;

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

/// A connected socket.
pub(crate) trait Socket: Read + Write + AsFd + Send {
    /// Bounds the next reads.
    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Bounds the next writes.
    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()>;

    /// Refuses a peer that must not take part, saying why.
    fn check_peer(&self) -> Result<(), String>;

    /// Prepares it to be the connection's tether: from now on the system notices when the other end's
    /// process is gone, or its machine has been silent for so long. `false`: the device of these connections notices that itself, where their
    /// queue pairs are connected.
    fn become_tether(&self, silence: Duration) -> io::Result<bool>;
}

/// A listening socket that never blocks.
pub(crate) trait Listener: AsFd + Send {
    /// The next client.
    fn accept(&self) -> io::Result<Box<dyn Socket>>;
}
