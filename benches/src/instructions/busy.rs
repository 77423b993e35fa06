//! An endpoint whose I/O thread never drives.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use anyhow::{Context, Result};
use farcall::{Channel, ChannelOptions, ConnectError, DialOptions, Endpoint, IdlePolicy};
use farcall::{ServiceClient, ServiceDescription, Site};
use farcall_core::error::ReserveError;
use farcall_core::time::{Instant, Progress};
use farcall_core::transport::{
    Armed, ClientTransport, Closing, Delivery, Dial, Limits, NewConnection, ReplySink, SlotId,
};

use crate::echo::service::EchoClient;

/// The I/O thread polls its first channel at once.
const BOUND: Duration = Duration::from_secs(60);

/// An endpoint whose I/O thread waits in the poll of another channel.
pub(super) struct BusyEndpoint {
    endpoint: Endpoint,
    /// Dropped in this order: the thread goes on, and finds its channel closed.
    _release: Sender<()>,
    _other: Channel,
}

impl BusyEndpoint {
    pub(super) fn start() -> Result<Self> {
        // The callers spin until their calls have ended, however long that takes under a profiler.
        let endpoint = Endpoint::with_idle(IdlePolicy::SPIN);
        let (release, released) = mpsc::channel();
        let (busy, is_busy) = mpsc::channel();
        let dial = DialBlocking(Mutex::new(Some(Blocking { busy, released })));
        let options = ChannelOptions::default().endpoint(&endpoint);
        let other = Channel::connect(dial, EchoClient::DESCRIPTION, options)?;
        is_busy.recv_timeout(BOUND).context("the I/O thread does not poll")?;
        Ok(Self { endpoint, _release: release, _other: other })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Dials once.
struct DialBlocking(Mutex<Option<Blocking>>);

impl Dial for DialBlocking {
    fn dial(
        &self,
        _: &'static ServiceDescription,
        _: &Site,
        _: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        let blocking = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let blocking = blocking.ok_or_else(no_server)?;
        Ok(NewConnection::from(Box::new(blocking)))
    }
}

/// Its poll returns when the sender is dropped.
struct Blocking {
    busy: Sender<()>,
    released: Receiver<()>,
}

impl ClientTransport for Blocking {
    fn limits(&self) -> Limits {
        Limits { window: 1, max_message: 0 }
    }

    fn reserve(&mut self, _: usize) -> Result<(SlotId, &mut [u8]), ReserveError> {
        Err(ReserveError::Closed)
    }

    fn release(&mut self, _: SlotId) {}

    fn post(&mut self, _: SlotId, _: Delivery) {}

    fn flush(&mut self) {}

    fn abandon(&mut self, _: SlotId) {}

    fn poll(&mut self, _: Instant, _: &mut dyn ReplySink) -> Progress {
        // Either end may be gone already.
        let _ = self.busy.send(());
        let _ = self.released.recv();
        Progress::IDLE
    }

    fn arm(&mut self, _: Option<&Waker>) -> Armed {
        Armed::AtSite
    }

    fn close(&mut self, _: Closing) {}
}

fn no_server() -> ConnectError {
    ConnectError::NoServer { address: "busy".into(), hint: "it is dialled once".into() }
}
