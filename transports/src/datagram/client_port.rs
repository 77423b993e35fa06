//! A client's queue pair, and how a session uses it: alone, or in turn with others.

use std::ops::DerefMut;
use std::task::Waker;

use farcall_core::error::FailureKind;
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{Armed, ReplySink};
use farcall_verbs::{
    CompletionOpcode, DatagramSource, Device, GRH_BYTES, ProtectionDomain, Status, WorkCompletion,
};

use super::calls::{Broken, Calls};
use super::port::{Port, PortAddress};
use super::setup::{EndSetup, Sizes};
use super::wire::Header;
use crate::contract::SetupError;
use crate::kit::completions::{Completions, failure};

/// A client's queue pair, ready, and where it completes.
#[derive(Debug)]
pub(crate) struct ClientPort {
    // Dropped in this order: queue pair, completion queue.
    pub(crate) port: Port,
    pub(crate) completions: Completions,
    pub(crate) pd: ProtectionDomain,
    address: PortAddress,
    pub(crate) mtu: usize,
    pub(crate) has_network: bool,
}

/// The port of a session: its own, or one that it shares.
pub(crate) trait SessionPort: Send {
    const IS_SHARED: bool;

    type Locked<'a>: LockedPort
    where
        Self: 'a;

    /// Our number for the session.
    fn session(&self) -> u32;

    /// The port, for one turn; `None` while another thread has it.
    fn try_lock(&mut self) -> Option<Self::Locked<'_>>;

    /// The same; waits for the other thread. Only for sessions that begin or end.
    fn lock(&mut self) -> Self::Locked<'_>;
}

/// A port that nobody else uses now.
pub(crate) trait LockedPort: DerefMut<Target = ClientPort> {
    /// Hands what has arrived for the session to its calls.
    fn receive(&mut self, calls: &mut Calls, now: Instant, sink: &mut dyn ReplySink) -> Received;

    /// Gets ready to sleep: what arrives for the session calls the waker, if the device can.
    fn arm(&mut self, waker: Option<&Waker>, has_work: impl Fn(&Port) -> bool) -> Armed;

    /// Takes back `arm`, unless other sessions need the event.
    fn disarm(&mut self);
}

/// What a poll of a port has found.
#[derive(Debug)]
pub(crate) struct Received {
    /// Why the session must end.
    pub(crate) outcome: Result<(), Broken>,
    pub(crate) worked: u32,
    /// There may be more.
    pub(crate) more: bool,
    /// Completion-queue entries looked at.
    pub(crate) scanned: u32,
}

impl ClientPort {
    pub(crate) fn open(
        site: &Site,
        device: &Device,
        sizes: &Sizes,
    ) -> Result<ClientPort, SetupError> {
        let completions = Completions::in_batches(site, device, sizes.completions(), sizes.batch)?;
        let pd = device.alloc_pd()?;
        let (port, address) = Port::open(device, &pd, &completions.queue(), sizes)?;
        let has_network = device.caps().network;
        Ok(ClientPort { port, completions, pd, address, mtu: sizes.mtu, has_network })
    }

    /// What the server of the session of that number must know.
    pub(crate) fn setup(&self, session: u32) -> Vec<u8> {
        EndSetup::new(&self.address, session, 0, self.mtu).to_bytes()
    }
}

impl SessionPort for ClientPort {
    const IS_SHARED: bool = false;

    type Locked<'a> = &'a mut ClientPort;

    fn session(&self) -> u32 {
        0
    }

    #[inline]
    fn try_lock(&mut self) -> Option<&mut ClientPort> {
        Some(self)
    }

    fn lock(&mut self) -> &mut ClientPort {
        self
    }
}

impl LockedPort for &mut ClientPort {
    // Also where connecting uses it: each poll of a client does.
    #[inline(always)]
    fn receive(&mut self, calls: &mut Calls, now: Instant, sink: &mut dyn ReplySink) -> Received {
        let ClientPort { port, completions, .. } = &mut **self;
        let completed = match completions.poll() {
            Ok(completed) => completed,
            Err(error) => return Received::broken(failure(error)),
        };
        let found = completed.len();
        let mut outcome = Ok(());
        for completion in completed {
            outcome =
                complete(port, completion, |datagram, source| match Header::split(datagram) {
                    Some(parsed) => calls.on_datagram(parsed, source, now, sink),
                    None => Ok(()),
                });
            if outcome.is_err() {
                break;
            }
        }
        let (more, scanned) = (completions.is_batch(found), completions.scanned());
        Received { outcome, worked: found as u32, more, scanned }
    }

    fn arm(&mut self, waker: Option<&Waker>, has_work: impl Fn(&Port) -> bool) -> Armed {
        let ClientPort { port, completions, .. } = &mut **self;
        completions.arm_with(waker, || has_work(port))
    }

    fn disarm(&mut self) {
        self.completions.disarm();
    }
}

impl Received {
    /// The completion queue has failed.
    #[cold]
    pub(crate) fn broken(why: Broken) -> Received {
        Received { outcome: Err(why), worked: 0, more: false, scanned: 0 }
    }
}

/// Handles one completion; `handle` gets the datagram that it brings.
#[inline]
pub(crate) fn complete(
    port: &mut Port,
    completion: &mut WorkCompletion,
    handle: impl FnOnce(&[u8], Option<DatagramSource>) -> Result<(), Broken>,
) -> Result<(), Broken> {
    if completion.status != Status::Success {
        return Err(lost(completion));
    }
    if completion.opcode != CompletionOpcode::Recv {
        port.retire(completion);
        return Ok(());
    }
    let Some(buffer) = completion.buffer.take() else { return Ok(()) };
    let datagram = buffer.get(GRH_BYTES..completion.byte_len as usize).unwrap_or_default();
    let outcome = handle(datagram, completion.source);
    port.recycle(buffer);
    outcome
}

/// What a completion in error says about the sessions.
#[cold]
fn lost(completion: &WorkCompletion) -> Broken {
    tracing::debug!(status = ?completion.status, "a work request failed");
    match completion.status {
        Status::LocalProtection | Status::LocalLength => FailureKind::Device("local protection"),
        _ => FailureKind::Device("its queue pair is in error"),
    }
}
