//! The service that is measured.

use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;

/// How long the server's thread waits to be resumed: far longer than a slice, so it only expires if the bench has
/// died.
pub(crate) const REST_BOUND: Duration = Duration::from_secs(60);

/// Returns its argument.
#[farcall::service]
pub trait Echo {
    /// 8 bytes.
    fn echo_8(&self, data: [u8; 8]) -> [u8; 8];
    /// 16 bytes.
    fn echo_16(&self, data: [u8; 16]) -> [u8; 16];
    /// 32 bytes.
    fn echo_32(&self, data: [u8; 32]) -> [u8; 32];
    /// 64 bytes.
    fn echo_64(&self, data: [u8; 64]) -> [u8; 64];
    /// Any number of bytes.
    fn echo(&self, data: Bytes) -> Bytes;
    /// Sleeps until resumed, so that the server's core is free meanwhile.
    fn rest(&self) -> bool;
}

/// The implementation of the service.
pub struct EchoService {
    resumed: Mutex<mpsc::Receiver<()>>,
}

impl EchoService {
    /// Creates the service, and the sender that ends its rest.
    pub fn new() -> (Self, mpsc::Sender<()>) {
        let (resume, resumed) = mpsc::channel();
        (Self { resumed: Mutex::new(resumed) }, resume)
    }
}

impl Echo for EchoService {
    fn echo_8(&self, data: [u8; 8]) -> [u8; 8] {
        data
    }

    fn echo_16(&self, data: [u8; 16]) -> [u8; 16] {
        data
    }

    fn echo_32(&self, data: [u8; 32]) -> [u8; 32] {
        data
    }

    fn echo_64(&self, data: [u8; 64]) -> [u8; 64] {
        data
    }

    fn echo(&self, data: Bytes) -> Bytes {
        data
    }

    fn rest(&self) -> bool {
        let resumed = self.resumed.lock().unwrap_or_else(PoisonError::into_inner);
        resumed.recv_timeout(REST_BOUND).is_ok()
    }
}
