//! A backend, and the ends of connections that it makes.

use std::fmt;
use std::time::Duration;

use farcall_core::time::Instant;
use farcall_core::transport::{ClientInfo, ClientTransport, ServerTransport};

use super::config::MAX_SLOT_BYTES;
use super::{
    Config, Fabric, MAX_WINDOW, OnDisconnect, OptionSpec, Placement, SetupError, SharedSlices,
    Source, Stream, Terms,
};

/// A way to carry calls. There is one value of each backend, in the [registry](crate::registry).
pub trait Backend: fmt::Debug + Sync {
    /// Its name in addresses and handshakes.
    fn name(&self) -> &'static str;

    /// Its number in a server's advice: part of the protocol, never 0, and no other backend's.
    fn number(&self) -> u8;

    /// The options of addresses that only this backend understands.
    fn options(&self) -> &'static [OptionSpec] {
        &[]
    }

    /// Most calls outstanding on one connection.
    fn max_window(&self) -> u32 {
        MAX_WINDOW
    }

    /// Bytes of a slot where slots take no memory until they are used, as on `shm`, if an address does not say. There, a longer
    /// one costs nothing until a long message comes.
    fn slot_in_memory(&self) -> u32 {
        Config::default().slot
    }

    /// The longest slot there: see [`slot_in_memory`](Backend::slot_in_memory).
    fn max_slot_in_memory(&self) -> u32 {
        MAX_SLOT_BYTES
    }

    /// The load of the server's NIC does not grow with the number of clients that call at the same time: its queue pairs are few, or few
    /// of them are in use at a time.
    fn suits_many_clients(&self) -> bool {
        false
    }

    /// Whether the fabric can carry this backend.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`], which names what is missing.
    fn check(&self, fabric: &Fabric<'_>) -> Result<(), SetupError>;

    /// How each end notices that the other's process has died.
    fn death_notice(&self) -> DeathNotice;

    /// The slices of time that a server with this configuration shares with others; `None`: it has none of that kind.
    ///
    /// # Errors
    /// [`SetupError::Unsupported`]: its options do not go together.
    fn shared_slices(&self, _config: &Config) -> Result<Option<SharedSlices>, SetupError> {
        Ok(None)
    }

    /// Begins a connection at the client.
    ///
    /// # Errors
    /// What [`check`](Backend::check) refuses, and failures of the device.
    fn dial(
        &self,
        at: &Placement<'_>,
        config: &Config,
    ) -> Result<Box<dyn PendingClient>, SetupError>;

    /// Makes one server thread's half, for at most `max_clients` connections.
    ///
    /// # Errors
    /// What [`check`](Backend::check) refuses, and failures of the device.
    fn serve(
        &self,
        at: &Placement<'_>,
        config: &Config,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError>;
}

/// Backends are the same if their names are: the registry refuses duplicates.
impl PartialEq for dyn Backend {
    fn eq(&self, other: &dyn Backend) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Backend {}

/// What tells an end that the process at the other end has died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticedBy {
    /// The device: a reliable queue pair breaks with its peer, as a stream does.
    Device,
    /// Only the liveness socket: what is sent unreliably is lost without a word.
    LivenessSocket,
}

/// How each end notices the death of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeathNotice {
    /// What tells the client that the server has died.
    pub client: NoticedBy,
    /// What tells the server that the client has died.
    pub server: NoticedBy,
}

impl DeathNotice {
    /// The device tells both ends.
    pub const BY_DEVICE: DeathNotice =
        DeathNotice { client: NoticedBy::Device, server: NoticedBy::Device };

    /// The device tells neither end.
    pub const BY_SOCKET: DeathNotice =
        DeathNotice { client: NoticedBy::LivenessSocket, server: NoticedBy::LivenessSocket };
}

/// Takes over the stream of the handshake when that has ended well, with nothing read or written beyond it: from now on it carries
/// the calls. It does not block, and it fails when the peer's process has died or its machine has been silent for too long.
pub type TakeStream = Box<dyn FnOnce(Stream) + Send>;

/// A client that has said what it has to say, and waits for the server's answer.
pub trait PendingClient: Send {
    /// The bytes for the server's [`Intake::accept`].
    fn setup(&self) -> Vec<u8>;

    /// For a backend on [`Fabric::Stream`]: gets the stream after [`finish`](PendingClient::finish). Without it the
    /// socket of the handshake stays the liveness socket.
    fn take_stream(&mut self) -> Option<TakeStream> {
        None
    }

    /// Shows the server that this client receives where its setup says, if the backend's server asks for that. Does what can be
    /// done at `now`, and gives when to call it again at the latest; `None`: the server needs to see nothing more. To be called
    /// before [`finish`](PendingClient::finish) until it gives `None`, at most until the bound on connecting.
    ///
    /// # Errors
    /// Those of [`finish`](PendingClient::finish).
    fn confirm(
        &mut self,
        _answer: &Answer<'_>,
        _now: Instant,
    ) -> Result<Option<Instant>, SetupError> {
        Ok(None)
    }

    /// Connects to the server that gave this answer.
    ///
    /// # Errors
    /// [`SetupError::Misbehaved`] if the answer makes no sense, and failures of the device.
    fn finish(self: Box<Self>, answer: Answer<'_>) -> Result<Box<dyn ClientTransport>, SetupError>;
}

/// The server's answer to a client's setup.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// What both ends agreed on.
    pub terms: &'a Terms,
    /// The bytes of [`Accepted::setup`].
    pub setup: &'a [u8],
    /// The bound on connecting.
    pub timeout: Duration,
}

/// Where new clients of one server thread come in, from any thread.
pub trait Intake: Send + Sync + fmt::Debug {
    /// Makes the server's end of a connection and hands it to the server thread, which serves it from now on.
    ///
    /// # Errors
    /// [`SetupError::Misbehaved`] if the client's bytes make no sense, [`SetupError::Full`] if no more clients fit, and
    /// failures of the device.
    fn accept(&self, client: NewClient<'_>) -> Result<Accepted, SetupError>;

    /// Has the server thread drop a client that has not called yet, if it may for a new one from that source, and waits for
    /// that at most for `wait`. `false`: there is none that must make room.
    fn make_room(&self, source: Source, wait: Duration) -> bool;
}

/// A client that is to be accepted.
#[derive(Debug, Clone, Copy)]
pub struct NewClient<'a> {
    /// What both ends agreed on.
    pub terms: &'a Terms,
    /// The bytes of [`PendingClient::setup`].
    pub setup: &'a [u8],
    /// The bound on connecting.
    pub timeout: Duration,
    /// Where it comes from.
    pub source: Source,
    /// What its handshake has come to.
    pub info: &'a ClientInfo,
}

/// A client that was handed to its server thread.
pub struct Accepted {
    /// The bytes for the client's [`PendingClient::finish`].
    pub setup: Vec<u8>,
    /// Takes the client back if its handshake does not end well, or its process dies.
    pub withdraw: Box<dyn FnOnce() + Send>,
    /// Drops what it is given when the server thread drops the client.
    pub on_disconnect: OnDisconnect,
    /// For a backend on [`Fabric::Stream`]: gets the stream. `withdraw` is then called only if the handshake does not end well.
    /// Without it the socket of the handshake stays the liveness socket.
    pub take_stream: Option<TakeStream>,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").finish_non_exhaustive()
    }
}

/// One server thread's half: what it polls, and where its clients come in.
pub struct ServerHalf {
    /// For the server thread.
    pub transport: Box<dyn ServerTransport>,
    /// For the threads that accept.
    pub intake: Box<dyn Intake>,
}

impl fmt::Debug for ServerHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHalf").finish_non_exhaustive()
    }
}
