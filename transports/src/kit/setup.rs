//! What a peer said of itself in the handshake, decoded.

use farcall_verbs::Endpoint;
use serde::de::DeserializeOwned;

use crate::contract::SetupError;

/// A peer's setup.
///
/// # Errors
/// [`SetupError::Misbehaved`].
pub(crate) fn decode<S: DeserializeOwned>(setup: &[u8]) -> Result<S, SetupError> {
    postcard::from_bytes(setup).map_err(|_| SetupError::Misbehaved("its setup cannot be decoded"))
}

/// The endpoint in a peer's setup.
///
/// # Errors
/// [`SetupError::Misbehaved`].
pub(crate) fn decode_endpoint(endpoint: &[u8]) -> Result<Endpoint, SetupError> {
    Endpoint::from_bytes(endpoint)
        .map_err(|_| SetupError::Misbehaved("its endpoint cannot be decoded"))
}
