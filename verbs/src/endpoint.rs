//! How a queue pair is named to a peer, out of band.

use crate::EndpointError;
use crate::QpNumber;

/// Names one queue pair of one device to a peer. Plain bytes, at most [`Endpoint::MAX_BYTES`], to be
/// carried by whatever connects the two sides first. Whoever holds it may connect: it is a capability.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    bytes: [u8; Endpoint::MAX_BYTES],
    len: u8,
}

impl Endpoint {
    /// The most bytes that [`to_bytes`](Endpoint::to_bytes) gives.
    pub const MAX_BYTES: usize = 64;

    /// The endpoint as bytes.
    pub fn to_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The endpoint that a peer sent.
    pub fn from_bytes(bytes: &[u8]) -> Result<Endpoint, EndpointError> {
        unimplemented!()
    }

    /// The queue pair it names.
    pub fn qp(&self) -> QpNumber {
        unimplemented!()
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

/// A UD destination: the device behind an endpoint. One handle serves every queue pair there.
#[derive(Clone, Debug)]
pub struct AddressHandle {
    _private: (),
}
