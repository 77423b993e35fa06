//! Dialling an address.

use std::io;
use std::time::{Duration, Instant};

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{ClientTransport, Dial, DialOptions};
use rustix::io::Errno;

use super::stream::{FrameStream, StreamError};
use super::{Socket, device, tethered};
use crate::address::{Address, NetworkPlace, Place};
use crate::backend::SetupError;
use crate::handshake::{Frame, FrameError, Hello, PROTOCOL_VERSION, Reject, Welcome, within};
use crate::{tcp, unix};

/// Errors name the address as its user wrote it.
struct Context<'a> {
    address: &'a Address,
    timeout: Duration,
}

impl Context<'_> {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn io(&self, doing: &'static str, cause: io::Error) -> ConnectError {
        ConnectError::Io { address: self.address(), doing, cause }
    }

    fn timed_out(&self) -> ConnectError {
        ConnectError::TimedOut { address: self.address(), after: self.timeout }
    }

    fn misbehaved(&self, what: impl ToString) -> ConnectError {
        ConnectError::PeerMisbehaved { address: self.address(), what: what.to_string() }
    }

    fn stream(&self, error: StreamError) -> ConnectError {
        match error {
            StreamError::TimedOut => self.timed_out(),
            StreamError::Frame(FrameError::Version { theirs }) => ConnectError::VersionMismatch {
                address: self.address(),
                ours: PROTOCOL_VERSION,
                theirs,
            },
            StreamError::Frame(FrameError::Magic) => {
                self.misbehaved(format!("{error}; is that a farcall server?"))
            }
            StreamError::Frame(_) | StreamError::Closed => self.misbehaved(error),
            StreamError::Io(error) => self.io("the handshake", error),
        }
    }

    fn setup(&self, error: SetupError) -> ConnectError {
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

    fn no_server(&self, hint: impl Into<String>) -> ConnectError {
        ConnectError::NoServer { address: self.address(), hint: hint.into() }
    }

    /// A connected socket.
    fn connect(&self, deadline: Instant) -> Result<Box<dyn Socket>, ConnectError> {
        match self.address.place() {
            Place::Shm { name } => match unix::connect(name, self.timeout) {
                Ok(stream) => Ok(Box::new(stream)),
                Err(failed) => Err(self.no_unix(failed)),
            },
            Place::Rdma(place) => match tcp::connect(place, deadline) {
                Ok(stream) => Ok(Box::new(stream)),
                Err(failed) => Err(self.no_tcp(place, failed)),
            },
        }
    }

    #[cold]
    fn no_unix(&self, (doing, error): unix::Failed) -> ConnectError {
        match error {
            // The backlog was full until the time was over.
            Errno::AGAIN => self.timed_out(),
            Errno::CONNREFUSED | Errno::NOENT => {
                self.no_server("start the server, as the same user, and check the name")
            }
            error => self.io(doing, error.into()),
        }
    }

    #[cold]
    fn no_tcp(
        &self,
        NetworkPlace { host, port, .. }: &NetworkPlace,
        why: tcp::Failed,
    ) -> ConnectError {
        let error = match why {
            tcp::Failed::TimedOut => return self.timed_out(),
            tcp::Failed::Resolve(error) => return self.no_server(error.to_string()),
            tcp::Failed::Io(error) => error,
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => self.no_server(format!(
                "{host} answers, but nothing listens on its port {port}; start the server, or check the port"
            )),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                self.no_server(format!(
                    "{host} cannot be reached ({error}); check the address, the route and the link"
                ))
            }
            _ => self.io("connecting over TCP", error),
        }
    }
}

impl Dial for Address {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        let context = Context { address: self, timeout: options.timeout };
        let deadline = Instant::now() + options.timeout;
        let device = device::shared(self).map_err(|error| ConnectError::Device {
            address: self.to_string(),
            cause: error.into(),
        })?;
        // Before the server hears of us: whoever has connected there and says nothing is suspicious.
        let pending = self
            .backend()
            .prepare(&device, &self.limits())
            .inspect_err(|error| {
                if matches!(error, SetupError::Device(_)) {
                    device::forget(self);
                }
            })
            .map_err(|error| context.setup(error))?;
        let mut stream = FrameStream::new(context.connect(deadline)?, deadline);
        stream
            .check_peer()
            .map_err(|reason| ConnectError::NotPermitted { address: self.to_string(), reason })?;
        let hello = Hello {
            backend: self.backend().name().to_owned(),
            service: service.name.to_owned(),
            fingerprint: service.fingerprint,
            terms: self.limits().terms(),
            setup: pending.setup(),
        };
        stream
            .send(&Frame::Hello(hello.clone()))
            .and_then(|()| stream.receive())
            .map_err(|error| context.stream(error))
            .and_then(|frame| match frame {
                Frame::Welcome(welcome) => Ok(welcome),
                Frame::Reject(reject) => Err(context.rejected(reject, &hello)),
                Frame::Hello(_) | Frame::Ready => {
                    Err(context.misbehaved("it answered with a client's frame"))
                }
            })
            .and_then(|Welcome { terms, setup }| {
                if !within(&terms, &hello.terms) {
                    return Err(context.misbehaved(format!("impossible terms {terms:?}")));
                }
                let remaining = stream.remaining().map_err(|error| context.stream(error))?;
                let client = pending
                    .finish(&terms, &setup, remaining)
                    .map_err(|error| context.setup(error))?;
                stream.send(&Frame::Ready).map_err(|error| context.stream(error))?;
                Ok(client)
            })
            .and_then(|client| {
                let socket = stream.into_socket();
                let tied = match socket.become_tether() {
                    Ok(true) => tethered::tie(client, socket),
                    Ok(false) => Ok(client),
                    Err(error) => Err(error),
                };
                tied.map_err(|error| context.io("watching the connection", error))
            })
    }
}
