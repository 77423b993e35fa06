//! Dialling an address.

use std::io;
use std::time::Instant;

use farcall_core::error::ConnectError;
use farcall_core::service::ServiceDescription;
use farcall_core::transport::{ClientTransport, Dial, DialOptions};
use rustix::io::Errno;

use super::attempt::{self, Attempt};
use super::stream::{FrameStream, StreamError};
use super::{Socket, device, tethered};
use crate::address::{Address, NetworkPlace, Place};
use crate::backend::SetupError;
use crate::handshake::{Frame, Welcome};
use crate::{tcp, unix};

/// An attempt to dial an address in text.
struct Dialler<'a> {
    address: &'a Address,
    attempt: Attempt<'a>,
}

impl Dialler<'_> {
    fn stream(&self, error: StreamError) -> ConnectError {
        match error {
            StreamError::TimedOut => self.attempt.timed_out(),
            StreamError::Frame(error) => self.attempt.frame(error),
            StreamError::Closed => self.attempt.misbehaved(error),
            StreamError::Io(error) => self.attempt.io("the handshake", error),
        }
    }

    /// A connected socket.
    fn connect(&self, deadline: Instant) -> Result<Box<dyn Socket>, ConnectError> {
        match self.address.place() {
            Place::Shm { name } => match unix::connect(name, self.attempt.timeout) {
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
            Errno::AGAIN => self.attempt.timed_out(),
            Errno::CONNREFUSED | Errno::NOENT => {
                self.attempt.no_server("start the server, as the same user, and check the name")
            }
            error => self.attempt.io(doing, error.into()),
        }
    }

    #[cold]
    fn no_tcp(
        &self,
        NetworkPlace { host, port, .. }: &NetworkPlace,
        why: tcp::Failed,
    ) -> ConnectError {
        let error = match why {
            tcp::Failed::TimedOut => return self.attempt.timed_out(),
            tcp::Failed::Resolve(error) => return self.attempt.no_server(error.to_string()),
            tcp::Failed::Io(error) => error,
        };
        match error.kind() {
            io::ErrorKind::ConnectionRefused => self.attempt.no_server(format!(
                "{host} answers, but nothing listens on its port {port}; start the server, or check the port"
            )),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                self.attempt.no_server(format!(
                    "{host} cannot be reached ({error}); check the address, the route and the link"
                ))
            }
            _ => self.attempt.io("connecting over TCP", error),
        }
    }
}

impl Dial for Address {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        let dialler =
            Dialler { address: self, attempt: Attempt { address: self, timeout: options.timeout } };
        let attempt = &dialler.attempt;
        let deadline = Instant::now() + options.timeout;
        let device = device::shared(self).map_err(|error| attempt.device(error))?;
        // Before the server hears of us: whoever has connected there and says nothing is suspicious.
        let pending = self
            .backend()
            .prepare(&device, &self.limits(), options.thread.as_ref())
            .inspect_err(|error| {
                if matches!(error, SetupError::Device(_)) {
                    device::forget(self);
                }
            })
            .map_err(|error| attempt.setup(error))?;
        let mut stream = FrameStream::new(dialler.connect(deadline)?, deadline);
        stream
            .check_peer()
            .map_err(|reason| ConnectError::NotPermitted { address: self.to_string(), reason })?;
        let hello = attempt::hello(self.backend(), &self.limits(), service, &*pending);
        let answer = stream
            .send(&Frame::Hello(hello.clone()))
            .and_then(|()| stream.receive())
            .map_err(|error| dialler.stream(error))?;
        let Welcome { terms, setup } = attempt.welcomed(answer, &hello)?;
        let remaining = stream.remaining().map_err(|error| dialler.stream(error))?;
        let client =
            pending.finish(&terms, &setup, remaining).map_err(|error| attempt.setup(error))?;
        stream.send(&Frame::Ready).map_err(|error| dialler.stream(error))?;
        let socket = stream.into_socket();
        let tied = match socket.become_tether(self.limits().silence) {
            Ok(false) if self.backend().notices_death() => Ok(client),
            Ok(_) => tethered::tie(client, socket),
            Err(error) => Err(error),
        };
        tied.map_err(|error| attempt.io("watching the connection", error))
    }
}
