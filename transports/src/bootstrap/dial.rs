//! Dialling an address.

use std::io;
use std::time::Instant;

use farcall_core::error::ConnectError;
use farcall_core::home;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::transport::{ClientTransport, Dial, DialOptions, DialTls, NewConnection};
use rustix::io::Errno;

use super::attempt::Attempt;
use super::deadline_stream::{DeadlineStream, StreamError};
use super::liveness::LivenessSocket;
use super::moving;
use super::nonce;
use super::socket::resolve::ResolveError;
use super::socket::{Liveness, Socket, tcp, unix};
use super::{device, liveness_layer};
use crate::address::{Address, NetworkPlace, Place};
use crate::contract::{Answer, NoticedBy, PendingClient, Placement, SetupError, deadline_in};
use crate::handshake::{Agreement, ClientHandshake, ClientStep, Welcome};
use crate::tls::{self, Failure, Session};

/// Why an address on this machine takes no TLS.
pub(super) const NO_TLS_ON_THIS_MACHINE: &str = "shm:// has no TLS: only processes of the same user connect, and their bytes stay \
    in the memory of this machine; leave `tls` away, use keys to tell clients apart, or use tcp:// or rdma://";

/// What to check when no socket has the name of a service.
const NO_NAME: &str = "start the server, as the same user and in the same network namespace (of a container: --network=host, or \
    --network=container:NAME), and check the name";

/// The system had no port for this end of a connection.
fn no_local_port(error: io::Error) -> io::Error {
    let what = format!(
        "this machine has no free port for another connection to there ({error}); close some, wait a minute for those that were closed, or widen \
         net.ipv4.ip_local_port_range"
    );
    io::Error::new(error.kind(), what)
}

/// An attempt to dial an address in text.
pub(super) struct Dialler<'a> {
    pub(super) address: &'a Address,
    pub(super) attempt: Attempt<'a>,
}

impl Dialler<'_> {
    pub(super) fn stream(&self, error: StreamError) -> ConnectError {
        match error {
            StreamError::TimedOut => self.attempt.timed_out(),
            // A server that ends closes the connections that it has not accepted yet.
            StreamError::Closed => self
                .attempt
                .no_server(format!("{error}; it may be shutting down, or not be a farcall server")),
            StreamError::Tls(failure) => self.attempt.not_permitted(failure.to_string()),
            StreamError::Io(error) => self.attempt.io("the handshake", error),
        }
    }

    /// A connected socket.
    pub(super) fn connect(&self, deadline: Instant) -> Result<Box<dyn Socket>, ConnectError> {
        match self.address.place() {
            Place::Shm { name } => match unix::connect(name, deadline) {
                Ok(stream) => Ok(Box::new(stream)),
                Err(failed) => Err(self.no_unix(failed)),
            },
            Place::Rdma(place) | Place::Tcp(place) => match tcp::connect(place, deadline) {
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
            Errno::CONNREFUSED | Errno::NOENT => self.attempt.no_server(NO_NAME),
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
            tcp::Failed::Resolve(ResolveError::Thread { source, .. }) => {
                return self.attempt.io("starting a thread to resolve the host's name", source);
            }
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
            io::ErrorKind::AddrNotAvailable => {
                self.attempt.io("connecting over TCP", no_local_port(error))
            }
            _ => self.attempt.io("connecting over TCP", error),
        }
    }
}

impl Dialler<'_> {
    /// The server has answered on its socket, and its device has not.
    #[cold]
    fn no_datagram(&self) -> ConnectError {
        let cause = io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "none came within {:?}, although the server has answered; on one machine the server's process may have no free descriptor, raise its \
                 limit of open files (ulimit -n); over a network check that the devices of both ends reach each other",
                self.attempt.timeout
            ),
        );
        self.attempt.io("waiting for a datagram of the server", cause)
    }

    /// What this end needs of its device, before the server hears of it: a client that connects and says nothing is
    /// suspicious.
    fn prepare(&self, site: &Site, share: bool) -> Result<Box<dyn PendingClient>, ConnectError> {
        let device = device::shared(self.address).map_err(|error| self.attempt.device(error))?;
        let placement = Placement { share, ..Placement::new(site, device::fabric(&device)) };
        self.address
            .backend()
            .dial(&placement, self.address.config())
            .inspect_err(|error| {
                if matches!(error, SetupError::Device(_)) {
                    device::forget(self.address);
                }
            })
            .map_err(|error| self.attempt.setup(error))
    }

    /// A session for TLS with the server, which nobody has greeted yet.
    fn session(&self, tls: &DialTls) -> Result<Session, ConnectError> {
        let Some(NetworkPlace { host, .. }) = self.address.place().in_network() else {
            return Err(ConnectError::Unsupported {
                address: self.address.to_string(),
                what: NO_TLS_ON_THIS_MACHINE.into(),
            });
        };
        tls::client_session(tls, host).map_err(|Failure(what)| ConnectError::Unsupported {
            address: self.address.to_string(),
            what,
        })
    }

    /// Says hello, and waits until the server has answered.
    fn shake_hands(
        &self,
        stream: &mut DeadlineStream,
        handshake: &mut ClientHandshake,
    ) -> Result<Agreement, ConnectError> {
        stream.send(&handshake.hello_bytes()).map_err(|error| self.stream(error))?;
        loop {
            let mut buffer = vec![0; handshake.missing()];
            let bytes = stream.receive(&mut buffer).map_err(|error| self.stream(error))?;
            let received = handshake.receive(bytes);
            let refused = |refusal| self.attempt.refused(refusal, handshake.hello());
            match received.map_err(refused)? {
                ClientStep::Receive => {}
                ClientStep::Send(bytes) => {
                    stream.send(&bytes).map_err(|error| self.stream(error))?;
                }
                ClientStep::Connect(agreement) => return Ok(agreement),
            }
        }
    }

    /// Lets the client show the server that it receives where it said. The server says nothing on the stream meanwhile.
    fn confirm(
        &self,
        pending: &mut dyn PendingClient,
        answer: &Answer<'_>,
        (stream, site): (&DeadlineStream, &Site),
    ) -> Result<(), ConnectError> {
        loop {
            let now = site.now();
            let confirmed = pending.confirm(answer, now);
            match confirmed.map_err(|error| self.attempt.setup(error))? {
                None => return Ok(()),
                Some(again) => {
                    let pause = again.saturating_since(now);
                    stream.wait_for_hang_up(pause).map_err(|error| match error {
                        StreamError::TimedOut => self.no_datagram(),
                        error => self.stream(error),
                    })?;
                }
            }
        }
    }

    /// Ends the connection with its peer, if the liveness socket is needed for that.
    fn watch(
        &self,
        client: Box<dyn ClientTransport>,
        site: &Site,
        socket: Box<dyn Socket>,
    ) -> io::Result<Box<dyn ClientTransport>> {
        let liveness = socket.watch_liveness(self.address.config().silence)?;
        let noticed_by = self.address.backend().death_notice().client;
        if (liveness, noticed_by) == (Liveness::IfDeviceIsSilent, NoticedBy::Device) {
            return Ok(client);
        }
        liveness_layer::end_with_peer(client, site, |on_peer_gone| {
            let watched = LivenessSocket::hold(socket, on_peer_gone).map_err(|(error, _)| error)?;
            Ok(Box::new(watched) as Box<dyn Send>)
        })
    }
}

impl Dial for Address {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        match self.ways() {
            None => self.dial_lane(self, service, site, options),
            Some(ways) => moving::dial(self, ways, (service, site, options)),
        }
    }
}

impl Address {
    /// Dials the one backend of this address, which stands in errors as `named`.
    pub(super) fn dial_lane(
        &self,
        named: &Address,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        home::tell_processes_by(farcall_verbs::process_word());
        let attempt = Attempt { address: named, timeout: options.timeout };
        let dialler = Dialler { address: self, attempt };
        let session = options.tls.as_ref().map(|tls| dialler.session(tls)).transpose()?;
        let deadline = deadline_in(options.timeout);
        let mut pending = dialler.prepare(site, options.share)?;
        let mut stream = DeadlineStream::new(dialler.connect(deadline)?, deadline);
        stream
            .check_peer()
            .map_err(|reason| ConnectError::NotPermitted { address: self.to_string(), reason })?;
        if let Some(session) = session {
            stream.secure(session, &[]).map_err(|error| dialler.stream(error))?;
        }
        let by = (self.backend(), self.config());
        let mut handshake = attempt.handshake(by, service, options, &*pending)?;
        if let Some(key) = &options.key {
            let nonce = nonce::random().map_err(|error| attempt.io("getting a nonce", error))?;
            let binding = stream.binding().map_err(|error| dialler.stream(error))?;
            handshake = handshake.with_key(key.clone(), nonce).bound_to(binding);
        }
        let Agreement { welcome: Welcome { terms, setup, connection }, compatibility } =
            dialler.shake_hands(&mut stream, &mut handshake)?;
        let timeout = stream.remaining().map_err(|error| dialler.stream(error))?;
        let answer = Answer { terms: &terms, setup: &setup, timeout };
        let take_stream = pending.take_stream();
        dialler.confirm(&mut *pending, &answer, (&stream, site))?;
        let client = pending.finish(answer).map_err(|error| attempt.setup(error))?;
        stream.send(&handshake.ready_bytes()).map_err(|error| dialler.stream(error))?;
        let connected = match take_stream {
            Some(take) => stream.into_stream(self.config().silence).map(|stream| {
                take(stream);
                client
            }),
            None => dialler.watch(client, site, stream.into_socket()),
        };
        let transport = connected.map_err(|error| attempt.io("watching the connection", error))?;
        Ok(NewConnection { transport, compatibility, connection })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn dialler(address: &Address) -> Dialler<'_> {
        Dialler { address, attempt: Attempt { address, timeout: Duration::from_secs(1) } }
    }

    fn tcp_error(why: tcp::Failed) -> ConnectError {
        let address = "tcp://node:7".parse::<Address>().unwrap();
        let Place::Tcp(place) = address.place() else { panic!("{address}") };
        dialler(&address).no_tcp(place, why)
    }

    #[test]
    fn a_machine_without_a_free_port_is_told_what_to_widen() {
        let error = tcp_error(tcp::Failed::Io(Errno::ADDRNOTAVAIL.into()));
        let text = error.to_string();
        assert!(matches!(error, ConnectError::Io { .. }), "{text}");
        assert!(text.contains("no free port") && text.contains("ip_local_port_range"), "{text}");
    }

    #[test]
    fn a_server_whose_datagrams_do_not_come_is_not_said_to_be_silent() {
        let address = "shm://kv?backend=datagram".parse::<Address>().unwrap();
        let text = dialler(&address).no_datagram().to_string();
        assert!(text.contains("the server has answered") && text.contains("open files"), "{text}");
    }

    #[test]
    fn a_thread_that_cannot_be_started_is_no_missing_server() {
        let source = io::ErrorKind::WouldBlock.into();
        let error =
            tcp_error(tcp::Failed::Resolve(ResolveError::Thread { name: "node".into(), source }));
        assert!(matches!(error, ConnectError::Io { .. }) && error.to_string().contains("thread"));
    }

    #[test]
    fn a_name_without_a_server_may_be_one_of_another_network_namespace() {
        let address = "shm://kv".parse::<Address>().unwrap();
        let error = dialler(&address).no_unix(("connecting", Errno::CONNREFUSED));
        assert!(matches!(error, ConnectError::NoServer { .. }));
        let text = error.to_string();
        assert!(text.contains("network namespace") && text.contains("same user"), "{text}");
    }
}
