//! Which backends there are, what each asks of a device, and how each is set up.
//!
//! Setting up is split at the bytes that the two ends exchange, so that a device without sockets or
//! threads can be driven by hand: `prepare` gives the client's bytes, `accept` turns them into the
//! server's, `finish` makes the client of those.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_core::transport::{ClientThread, ClientTransport, ServerTransport};
use farcall_verbs::{ConnectError, Device, VerbsError};

use crate::address::Limits;
use crate::handshake::Terms;
use crate::{datagram, write_imm};

/// A way to carry calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BackendKind {
    /// RC WRITE_WITH_IMM both ways ([`write_imm`]).
    #[default]
    WriteImm,
    /// UD SEND both ways, made reliable ([`datagram`]).
    Datagram,
}

/// Why an end of a connection, or a server thread's share of the device, could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The device cannot carry this backend.
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

/// A client that has said what it has to say, and waits for the server's answer.
pub trait PendingClient: Send {
    /// The bytes for the server's [`Intake::accept`].
    fn setup(&self) -> Vec<u8>;

    /// Connects to the server that answered with these bytes, under these terms.
    fn finish(
        self: Box<Self>,
        terms: &Terms,
        setup: &[u8],
        timeout: Duration,
    ) -> Result<Box<dyn ClientTransport>, SetupError>;
}

/// Where new clients of one server thread come in, from any thread.
pub trait Intake: Send + Sync + fmt::Debug {
    /// Makes the server's end of a connection and hands it to the server thread, which serves it
    /// from now on.
    fn accept(
        &self,
        terms: &Terms,
        setup: &[u8],
        timeout: Duration,
    ) -> Result<Accepted, SetupError>;
}

/// A client that was handed to its server thread.
pub struct Accepted {
    /// The bytes for the client's [`PendingClient::finish`].
    pub setup: Vec<u8>,
    /// Takes the client back, should its handshake not end well, or its process be gone.
    pub withdraw: Box<dyn FnOnce() + Send>,
    /// Keeps something for as long as the server thread has the client.
    pub keepsake: Keepsake,
}

/// Something that is dropped as soon as its server thread no longer has a client.
#[derive(Clone, Default)]
pub struct Keepsake(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    thing: Option<Box<dyn Send>>,
    /// The client is gone.
    over: bool,
}

impl Keepsake {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps this; if the client is gone already, drops it at once.
    pub fn keep(&self, thing: Box<dyn Send>) {
        let mut kept = self.lock();
        if !kept.over {
            kept.thing = Some(thing);
        }
    }

    /// The half of the server thread.
    pub(crate) fn custody(&self) -> Custody {
        Custody(self.clone())
    }
}

/// Lives as long as its server thread has the client.
pub(crate) struct Custody(Keepsake);

impl Drop for Custody {
    fn drop(&mut self) {
        let thing = {
            let mut kept = self.0.lock();
            kept.over = true;
            kept.thing.take()
        };
        // Not under the lock: dropping it may take others.
        drop(thing);
    }
}

impl fmt::Debug for Custody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custody").finish_non_exhaustive()
    }
}

impl fmt::Debug for Keepsake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keepsake").finish_non_exhaustive()
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted").finish_non_exhaustive()
    }
}

/// One server thread's half: what it polls, and where its clients come in.
pub struct ServerHalf {
    /// For the thread.
    pub transport: Box<dyn ServerTransport>,
    /// For whoever accepts.
    pub intake: Box<dyn Intake>,
}

impl fmt::Debug for ServerHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHalf").finish_non_exhaustive()
    }
}

impl BackendKind {
    /// Every backend of this build.
    pub const ALL: &'static [BackendKind] = &[BackendKind::WriteImm, BackendKind::Datagram];

    /// Its name in an address.
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::WriteImm => "write_imm",
            BackendKind::Datagram => "datagram",
        }
    }

    /// The names of all backends.
    pub fn names() -> Vec<&'static str> {
        Self::ALL.iter().map(|backend| backend.name()).collect()
    }

    /// The backend of that name.
    pub fn from_name(name: &str) -> Option<BackendKind> {
        Self::ALL.iter().copied().find(|backend| backend.name() == name)
    }

    /// Whether both its ends notice by themselves that the other's process is dead, where the device does: reliable queue
    /// pairs break with their peer, as streams do. What goes unreliably, in one direction or both, is lost without a word.
    pub(crate) fn notices_death(self) -> bool {
        match self {
            BackendKind::WriteImm => true,
            BackendKind::Datagram => false,
        }
    }

    /// Whether this device can carry this backend, and if not, why.
    pub fn check(self, device: &Device) -> Result<(), SetupError> {
        match self {
            BackendKind::WriteImm => write_imm::check(device.caps()),
            BackendKind::Datagram => datagram::check(device.caps()),
        }
    }

    /// Begins a connection at the client: one of that thread, if it shares with others.
    pub fn prepare(
        self,
        device: &Device,
        limits: &Limits,
        thread: Option<&ClientThread>,
    ) -> Result<Box<dyn PendingClient>, SetupError> {
        self.check(device)?;
        match self {
            BackendKind::WriteImm => write_imm::prepare(device, limits),
            BackendKind::Datagram => datagram::prepare(device, limits, thread),
        }
    }

    /// Makes one server thread's half, for at most `max_clients` connections.
    pub fn serve(
        self,
        device: &Device,
        limits: &Limits,
        max_clients: usize,
    ) -> Result<ServerHalf, SetupError> {
        self.check(device)?;
        match self {
            BackendKind::WriteImm => write_imm::serve(device, limits, max_clients),
            BackendKind::Datagram => datagram::serve(device, limits, max_clients),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keepsake_goes_with_its_client() {
        let thing = Arc::new(());
        let keepsake = Keepsake::default();
        let custody = keepsake.custody();
        keepsake.keep(Box::new(Arc::clone(&thing)));
        assert_eq!(Arc::strong_count(&thing), 2);
        drop(custody);
        assert_eq!(Arc::strong_count(&thing), 1);
        // What comes too late is not kept.
        keepsake.keep(Box::new(Arc::clone(&thing)));
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}
