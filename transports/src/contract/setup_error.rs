//! Why an end of a connection could not be made.

use farcall_verbs::{ConnectError, VerbsError};

/// Why an end of a connection, or a server thread's half, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The fabric cannot carry this backend.
    #[error("{0}")]
    Unsupported(String),
    /// The device failed.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// The peer's part of the setup makes no sense.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(&'static str),
    /// No more clients fit.
    #[error("{0}")]
    Full(String),
    /// No more clients of this source fit.
    #[error("{0}")]
    SourceFull(String),
    /// The identity has as many connections as its quota allows.
    #[error("{0}")]
    IdentityFull(String),
    /// The device was removed, or has failed.
    #[error("{0}")]
    NoDevice(String),
}

impl From<VerbsError> for SetupError {
    fn from(error: VerbsError) -> SetupError {
        SetupError::Device(error.into())
    }
}

impl From<ConnectError> for SetupError {
    fn from(error: ConnectError) -> SetupError {
        match error {
            ConnectError::Mismatch(_) => SetupError::Unsupported(format!(
                "{error}; both ends have to name RDMA devices, or both device=shm"
            )),
            error => SetupError::Device(error.into()),
        }
    }
}
