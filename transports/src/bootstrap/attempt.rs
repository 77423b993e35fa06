//! One attempt to connect: what can go wrong with it, in errors that name its address.

use farcall_core::transport::DialOptions;
use std::fmt::Display;
use std::io;
use std::time::Duration;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;

use crate::contract::{Backend, Config, PendingClient, SetupError};
use crate::handshake::{
    ClientHandshake, FrameError, Hello, MAX_FRAME_BYTES, MAX_SERVICES, Refusal, Reject,
};

/// An attempt to connect to an address, which its errors name as the user wrote it.
#[derive(Clone, Copy)]
pub struct Attempt<'a> {
    /// The address.
    pub address: &'a dyn Display,
    /// The bound on the attempt.
    pub timeout: Duration,
}

impl Attempt<'_> {
    /// The client's half of the handshake, with what its options ask for but a key. `pending` is its end of the connection.
    ///
    /// # Errors
    /// It names more services than a hello has room for.
    pub fn handshake(
        &self,
        (backend, config): (&dyn Backend, &Config),
        service: &'static ServiceDescription,
        options: &DialOptions,
        pending: &dyn PendingClient,
    ) -> Result<ClientHandshake, ConnectError> {
        let hello = Hello {
            backend: backend.name().to_owned(),
            service: service.name.to_owned(),
            fingerprint: service.fingerprint,
            terms: config.terms(),
            setup: pending.setup(),
            further: Vec::new(),
            lane: options.lane,
            why: options.why,
            thread: options.thread,
        };
        let handshake = ClientHandshake::new(hello, service)
            .carrying(&options.further)
            .require(&options.require);
        self.check_services(&handshake)?;
        Ok(handshake)
    }

    fn check_services(&self, handshake: &ClientHandshake) -> Result<(), ConnectError> {
        let count = handshake.hello().services().count();
        let len = handshake.hello_bytes().len();
        let what = if count > MAX_SERVICES {
            format!("{count} services on one connection; it carries {MAX_SERVICES} at most")
        } else if len > MAX_FRAME_BYTES {
            format!(
                "the names of {count} services on one connection are too long; make another connection"
            )
        } else {
            return Ok(());
        };
        Err(ConnectError::Unsupported { address: self.address(), what })
    }

    fn address(&self) -> String {
        self.address.to_string()
    }

    /// The system failed while `doing`.
    pub fn io(&self, doing: &'static str, cause: io::Error) -> ConnectError {
        ConnectError::Io { address: self.address(), doing, cause }
    }

    /// The time is over.
    pub fn timed_out(&self) -> ConnectError {
        ConnectError::TimedOut { address: self.address(), after: self.timeout }
    }

    /// The peer broke the protocol.
    pub fn misbehaved(&self, what: impl ToString) -> ConnectError {
        ConnectError::PeerMisbehaved { address: self.address(), what: what.to_string() }
    }

    /// Nobody listens; `hint` says what to do.
    pub fn no_server(&self, hint: impl Into<String>) -> ConnectError {
        ConnectError::NoServer { address: self.address(), hint: hint.into() }
    }

    /// The device failed.
    pub fn device(&self, cause: impl std::error::Error + Send + Sync + 'static) -> ConnectError {
        ConnectError::Device { address: self.address(), cause: cause.into() }
    }

    /// This end or the peer must not take part.
    pub(super) fn not_permitted(&self, reason: impl Into<String>) -> ConnectError {
        ConnectError::NotPermitted { address: self.address(), reason: reason.into() }
    }

    fn frame(&self, error: FrameError) -> ConnectError {
        match error {
            FrameError::Version { ours, theirs } => ConnectError::VersionMismatch {
                address: self.address(),
                ours: ours.into(),
                theirs: theirs.into(),
            },
            FrameError::Tls => self.not_permitted(
                "the server answers in TLS; give the client `tls`, or is that a farcall server?",
            ),
            FrameError::Magic => self.misbehaved(format!("{error}; is that a farcall server?")),
            _ => self.misbehaved(error),
        }
    }

    /// This end could not be made.
    pub fn setup(&self, error: SetupError) -> ConnectError {
        let address = self.address();
        match error {
            SetupError::Unsupported(what) => ConnectError::Unsupported { address, what },
            SetupError::Misbehaved(what) => {
                ConnectError::PeerMisbehaved { address, what: what.to_owned() }
            }
            SetupError::Full(reason)
            | SetupError::SourceFull(reason)
            | SetupError::IdentityFull(reason)
            | SetupError::NoDevice(reason) => ConnectError::Refused { address, reason },
            SetupError::Device(cause) => ConnectError::Device { address, cause },
        }
    }

    /// Why a handshake did not end in a connection.
    pub fn refused(&self, refusal: Refusal, hello: &Hello) -> ConnectError {
        match refusal {
            Refusal::Frame(error) => self.frame(error),
            Refusal::Rejected(reject) => self.rejected(reject, hello),
            Refusal::ImpossibleTerms(terms) => {
                self.misbehaved(format!("impossible terms {terms:?}"))
            }
            Refusal::Methods(error) => self.misbehaved(error),
            Refusal::Incompatible { service, unmet: methods } => {
                ConnectError::IncompatibleService {
                    address: self.address(),
                    service: service.to_owned(),
                    methods,
                }
            }
            Refusal::OneService => ConnectError::Unsupported {
                address: self.address(),
                what: "the server is an older one, whose connections carry one service each; upgrade it, or connect \
                       each client by itself"
                    .into(),
            },
            Refusal::OneLane => ConnectError::Unsupported {
                address: self.address(),
                what: "the server is an older one, whose connections have one lane each; upgrade it".into(),
            },
            Refusal::AnyThread => ConnectError::Unsupported {
                address: self.address(),
                what: "the server is an older one, whose clients cannot name a server thread; upgrade it, or connect without `server_thread`".into(),
            },
            Refusal::UnexpectedFrame => self.misbehaved("it answered with a frame that was not due"),
            Refusal::KeyWanted => self.not_permitted(
                "the server lets in only clients with a key; give the client one with `key`",
            ),
            Refusal::KeyNotWanted => self.not_permitted(
                "the server asks for no key, so nothing proves that it is the right one; \
                 give it the client's with `authenticate`, or connect without a key",
            ),
            Refusal::FalseServer => self.not_permitted(
                "the server has not proven that it has the client's key, or someone between has changed what was said",
            ),
        }
    }

    fn rejected(&self, reject: Reject, hello: &Hello) -> ConnectError {
        let address = self.address();
        match reject {
            Reject::Backend { theirs } => {
                ConnectError::BackendMismatch { address, ours: hello.backend.clone(), theirs }
            }
            Reject::Service { served } => {
                let is_missing = |asked: &&str| !served.iter().any(|served| served == asked);
                let asked = hello.services().find(is_missing).unwrap_or(&hello.service).to_owned();
                ConnectError::NoSuchService { address, asked, served }
            }
            Reject::ShuttingDown => self.no_server("the server shuts down; start the next one"),
            Reject::Refused { reason } => ConnectError::Refused { address, reason },
            Reject::NotPermitted { reason } => ConnectError::NotPermitted { address, reason },
            Reject::Malformed { what } => {
                ConnectError::Refused { address, reason: format!("it read our frame as: {what}") }
            }
        }
    }
}
