//! One attempt to connect: what can go wrong with it, in the words of its caller.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;

use crate::address::Limits;
use crate::backend::{BackendKind, PendingClient, SetupError};
use crate::handshake::{Frame, FrameError, Hello, PROTOCOL_VERSION, Reject, Welcome, within};

/// Errors name the address as its user wrote it.
pub(crate) struct Attempt<'a> {
    pub(crate) address: &'a dyn Display,
    pub(crate) timeout: Duration,
}

/// The first frame of a client.
pub(crate) fn hello(
    backend: BackendKind,
    limits: &Limits,
    service: &'static ServiceDescription,
    pending: &dyn PendingClient,
) -> Hello {
    Hello {
        backend: backend.name().to_owned(),
        service: service.name.to_owned(),
        fingerprint: service.fingerprint,
        terms: limits.terms(),
        setup: pending.setup(),
    }
}

impl Attempt<'_> {
    fn address(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn io(&self, doing: &'static str, cause: io::Error) -> ConnectError {
        ConnectError::Io { address: self.address(), doing, cause }
    }

    pub(crate) fn timed_out(&self) -> ConnectError {
        ConnectError::TimedOut { address: self.address(), after: self.timeout }
    }

    pub(crate) fn misbehaved(&self, what: impl ToString) -> ConnectError {
        ConnectError::PeerMisbehaved { address: self.address(), what: what.to_string() }
    }

    pub(crate) fn no_server(&self, hint: impl Into<String>) -> ConnectError {
        ConnectError::NoServer { address: self.address(), hint: hint.into() }
    }

    pub(crate) fn device(
        &self,
        cause: impl std::error::Error + Send + Sync + 'static,
    ) -> ConnectError {
        ConnectError::Device { address: self.address(), cause: cause.into() }
    }

    pub(crate) fn frame(&self, error: FrameError) -> ConnectError {
        match error {
            FrameError::Version { theirs } => ConnectError::VersionMismatch {
                address: self.address(),
                ours: PROTOCOL_VERSION,
                theirs,
            },
            FrameError::Magic => self.misbehaved(format!("{error}; is that a farcall server?")),
            _ => self.misbehaved(error),
        }
    }

    pub(crate) fn setup(&self, error: SetupError) -> ConnectError {
        let address = self.address();
        match error {
            SetupError::Unsupported(what) => ConnectError::Unsupported { address, what },
            SetupError::Misbehaved(what) => {
                ConnectError::PeerMisbehaved { address, what: what.to_owned() }
            }
            SetupError::Full(reason) => ConnectError::Refused { address, reason },
            SetupError::Device(cause) => ConnectError::Device { address, cause },
        }
    }

    /// The server's welcome, with terms that its client can take.
    pub(crate) fn welcomed(&self, answer: Frame, hello: &Hello) -> Result<Welcome, ConnectError> {
        match answer {
            Frame::Welcome(welcome) if within(&welcome.terms, &hello.terms) => Ok(welcome),
            Frame::Welcome(Welcome { terms, .. }) => {
                Err(self.misbehaved(format!("impossible terms {terms:?}")))
            }
            Frame::Reject(reject) => Err(self.rejected(reject, hello)),
            Frame::Hello(_) | Frame::Ready => {
                Err(self.misbehaved("it answered with a client's frame"))
            }
        }
    }

    fn rejected(&self, reject: Reject, hello: &Hello) -> ConnectError {
        let address = self.address();
        match reject {
            Reject::Backend { theirs } => {
                ConnectError::BackendMismatch { address, ours: hello.backend.clone(), theirs }
            }
            Reject::Service { served } => {
                ConnectError::NoSuchService { address, asked: hello.service.clone(), served }
            }
            Reject::Fingerprint { theirs } => ConnectError::FingerprintMismatch {
                address,
                service: hello.service.clone(),
                ours: hello.fingerprint,
                theirs,
            },
            Reject::Refused { reason } => ConnectError::Refused { address, reason },
            Reject::NotPermitted { reason } => ConnectError::NotPermitted { address, reason },
            Reject::Malformed { what } => {
                ConnectError::Refused { address, reason: format!("it read our frame as: {what}") }
            }
        }
    }
}
