//! Dialling a `shm://` address.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{ClientTransport, Dial, DialOptions};
use farcall_verbs::{Device, OpenError};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::stream::{FrameStream, StreamError};
use crate::address::Address;
use crate::backend::SetupError;
use crate::handshake::{Frame, FrameError, Hello, PROTOCOL_VERSION, Reject, Welcome, within};

/// One device for all connections that this process dials: each opened device has a socket and a
/// thread of its own.
static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

fn device() -> Result<Device, OpenError> {
    let mut device = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*device {
        Some(device) => Ok(device.clone()),
        None => Ok(device.insert(Device::open("shm")?).clone()),
    }
}

/// Errors name the address as its user wrote it.
struct Context<'a> {
    address: &'a Address,
    timeout: Duration,
}

impl Context<'_> {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn io(&self, doing: &'static str, source: io::Error) -> ConnectError {
        ConnectError::Io { address: self.address(), doing, source }
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
            SetupError::Device(source) => ConnectError::Device { address, source },
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

    /// A connected socket. A full backlog waits, until the deadline.
    fn connect(&self, deadline: Instant) -> Result<FrameStream, ConnectError> {
        let io = |doing| move |error: Errno| self.io(doing, error.into());
        let target = super::socket_address(self.address.name()).map_err(io("naming its socket"))?;
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
        let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)
            .map_err(io("making a socket"))?;
        set_socket_timeout(&socket, Timeout::Send, Some(self.timeout))
            .map_err(io("bounding the wait for it"))?;
        loop {
            match rustix::net::connect(&socket, &target) {
                Ok(()) => return Ok(FrameStream::new(socket, deadline)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(self.timed_out()),
                Err(Errno::CONNREFUSED | Errno::NOENT) => {
                    return Err(ConnectError::NoServer {
                        address: self.address(),
                        hint: "start the server, as the same user, and check the name".into(),
                    });
                }
                Err(error) => return Err(self.io("connecting to its socket", error.into())),
            }
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
        let mut stream = context.connect(deadline)?;
        stream
            .check_user()
            .map_err(|reason| ConnectError::NotPermitted { address: self.to_string(), reason })?;
        let device = device().map_err(|source| ConnectError::Device {
            address: self.to_string(),
            source: source.into(),
        })?;
        let pending = self
            .backend()
            .prepare(&device, &self.limits())
            .map_err(|error| context.setup(error))?;
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
    }
}
