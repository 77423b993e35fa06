//! The handle that callers share.

use super::call::Call;
use super::driven::ChannelDriver;
use super::driver::Driver;
use super::options::ChannelOptions;
use super::shared::Shared;
use super::thread::{IoThread, Origin};
use crate::client::unencodable;
use crate::codec::{self, Payload};
use crate::error::{Backpressure, ConnectError, RpcError};
use crate::metrics::{MethodTable, Metrics, ThreadCounters};
use crate::service::{Method, ServiceDescription};
use crate::time::saturating_nanos;
use crate::transport::{ClientTransport, Dial};
use core::fmt;
use core::time::Duration;
use crossbeam_channel::{Receiver, bounded};
use std::sync::Arc;
use std::thread;

/// How long [`Channel::close`] waits for the I/O thread.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// A connection to a service for any number of threads and tasks: cheap to clone, usable from any executor.
///
/// A handler runs at most once per call, unless its method is marked idempotent. When the server is gone, calls in flight
/// end in [`RpcError::PeerGone`], which says whether the call may have run; later calls dial again, and wait for the server as long as
/// [`ReconnectPolicy`](super::ReconnectPolicy) and their deadline allow. When the window is full, a call waits for
/// room, at most until its deadline.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
    timeout_ns: u64,
}

struct Inner {
    shared: Arc<Shared>,
    metrics: Metrics,
    ended: Receiver<()>,
}

/// What a channel is made of, whoever drives it.
fn parts(
    transport: &dyn ClientTransport,
    service: &'static ServiceDescription,
    options: &ChannelOptions,
) -> (Driver, Arc<Shared>, Metrics) {
    let shared = Arc::new(Shared::new(options.max_calls, transport.unparker()));
    let methods = Arc::new(MethodTable::new(&[service]));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let metrics = Metrics::new("client", methods.clone(), vec![counters.clone()]);
    let driver = Driver::new(shared.clone(), methods, counters, transport.limits().window);
    (driver, shared, metrics)
}

impl Channel {
    /// Dials, and starts the I/O thread. Blocks, at most for the dial's timeout.
    pub fn connect(
        address: impl Dial + 'static,
        service: &'static ServiceDescription,
        options: ChannelOptions,
    ) -> Result<Channel, ConnectError> {
        let transport = address.dial(service, &options.dial)?;
        Channel::start(transport, Arc::new(address), service, options)
    }

    /// A channel over a connection that is there already; when that is lost, `address` is dialled.
    pub fn start(
        transport: Box<dyn ClientTransport>,
        address: Arc<dyn Dial>,
        service: &'static ServiceDescription,
        options: ChannelOptions,
    ) -> Result<Channel, ConnectError> {
        let (driver, shared, metrics) = parts(&*transport, service, &options);
        let timeout_ns = saturating_nanos(options.deadline);
        let io = IoThread {
            driver,
            transport,
            shared: shared.clone(),
            origin: Origin { address, service },
            options,
        };
        let (end, ended) = bounded(0);
        let body = move || {
            let _end = end;
            io.run();
        };
        thread::Builder::new().name("farcall-io".into()).spawn(body).map_err(|source| {
            let doing = "starting the I/O thread";
            ConnectError::Io { address: service.name.into(), doing, cause: source }
        })?;
        Ok(Channel { inner: Arc::new(Inner { shared, metrics, ended }), timeout_ns })
    }

    /// A channel over that connection whose I/O somebody else drives: a simulator. It is not made again when it is lost.
    pub fn driven(
        transport: Box<dyn ClientTransport>,
        service: &'static ServiceDescription,
        options: &ChannelOptions,
    ) -> (Channel, ChannelDriver) {
        let (driver, shared, metrics) = parts(&*transport, service, options);
        // Nobody is waited for: the channel's end is its driver's next turn.
        let (_, ended) = bounded(0);
        let inner = Arc::new(Inner { shared: shared.clone(), metrics, ended });
        let channel = Channel { inner, timeout_ns: saturating_nanos(options.deadline) };
        (channel, ChannelDriver { driver, transport, shared, is_over: false })
    }

    /// The same connection with another deadline for calls that are given none.
    pub fn with_deadline(&self, deadline: Duration) -> Channel {
        Channel { inner: self.inner.clone(), timeout_ns: saturating_nanos(deadline) }
    }

    /// Prepares a call: encodes the arguments at once, sends them when the future is first polled.
    pub fn call<M: Method, P: Payload + ?Sized>(&self, arguments: &P) -> Call<M::Output> {
        match self.prepare::<M, P>(arguments) {
            Ok(job) => Call::new(self.clone(), job, M::read),
            Err(error) => Call::failed(self.clone(), error, M::read),
        }
    }

    fn prepare<M: Method, P: Payload + ?Sized>(
        &self,
        arguments: &P,
    ) -> Result<Box<super::job::Job>, RpcError> {
        let mut job = self.inner.shared.job().ok_or(RpcError::Overloaded(Backpressure::Calls))?;
        let encoded = codec::encoded_len(arguments).and_then(|len| {
            job.arguments.resize(len, 0);
            codec::encode(arguments, &mut job.arguments)
        });
        if let Err(error) = encoded {
            self.inner.shared.recycle(job);
            return Err(unencodable(M::NAME, error));
        }
        (job.method, job.idempotent) = (M::ID, M::IDEMPOTENT);
        job.timeout_ns = self.timeout_ns;
        Ok(job)
    }

    /// The counters of this channel's calls.
    pub fn metrics(&self) -> Metrics {
        self.inner.metrics.clone()
    }

    /// Says goodbye, for all clones. Calls in flight end in [`RpcError::PeerGone`], and so do later ones.
    ///
    /// Dropping the last clone does it too, without waiting.
    pub fn close(self) {
        self.inner.shared.stop();
        // The thread's end disconnects the channel; nothing is ever sent.
        let _ = self.inner.ended.recv_timeout(CLOSE_BOUND);
    }

    /// A handle whose I/O thread a test plays.
    #[cfg(test)]
    pub(super) fn detached(shared: &Arc<Shared>, metrics: Metrics) -> Channel {
        let inner = Inner { shared: shared.clone(), metrics, ended: bounded(0).1 };
        Channel { inner: Arc::new(inner), timeout_ns: 10_000_000_000 }
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = Duration::from_nanos(self.timeout_ns);
        f.debug_struct("Channel").field("deadline", &deadline).finish_non_exhaustive()
    }
}
