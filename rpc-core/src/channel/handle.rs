//! The channel: the handle that callers share.

use super::call::Call;
use super::driven::ChannelDriver;
use super::driver::Driver;
use super::endpoint::Endpoint;
use super::io::{ChannelIo, Dialler};
use super::job::Job;
use super::options::ChannelOptions;
use super::shared::Shared;
use crate::client::unencodable;
use crate::codec::Payload;
use crate::error::{Backpressure, ConnectError, RpcError};
use crate::metrics::{MethodTable, Metrics, ThreadCounters};
use crate::older::Ends;
use crate::service::{Method, ServiceDescription};
use crate::site::Site;
use crate::time::saturating_nanos;
use crate::transport::{ClientTransport, Delivery, Dial, NewConnection};
use core::fmt;
use core::iter;
use core::time::Duration;
use crossbeam_channel::{Receiver, bounded};
use std::sync::Arc;

/// How long [`Channel::close`] waits for the I/O thread at most.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// A connection to a service for any number of threads and tasks: cheap to clone, usable from any executor.
///
/// A handler runs at most once per call, unless its method is marked idempotent. When the server is gone, calls in flight
/// end in [`RpcError::PeerGone`], which says whether the call may have run. Later calls dial again, and wait for the server
/// as long as [`ReconnectPolicy`](super::ReconnectPolicy) and their timeout allow.
///
/// When the window is full, a call waits for room, at most until its timeout. Beyond
/// [`max_calls`](ChannelOptions::max_calls), calls end in [`RpcError::Overloaded`] at once.
#[derive(Clone)]
pub struct Channel {
    inner: Arc<Inner>,
    timeout_ns: u64,
}

struct Inner {
    shared: Arc<Shared>,
    metrics: Metrics,
    services: Box<[&'static ServiceDescription]>,
    ended: Receiver<()>,
}

/// The services that a channel carries.
fn carried(
    service: &'static ServiceDescription,
    options: &ChannelOptions,
) -> Box<[&'static ServiceDescription]> {
    let further = options.dial.further.iter().filter(|further| further.name != service.name);
    iter::once(&service).chain(further).copied().collect()
}

/// The parts of a channel, whether a thread or the caller drives it.
fn parts(
    NewConnection { transport, compatibility, .. }: NewConnection,
    site: &Site,
    services: &[&'static ServiceDescription],
    options: &ChannelOptions,
) -> (Box<dyn ClientTransport>, Driver, Arc<Shared>, Metrics) {
    let shared = Arc::new(Shared::new(options.max_calls, site.clone()));
    let methods = Arc::new(MethodTable::new(services));
    let counters = Arc::new(ThreadCounters::new(&methods));
    let metrics = Metrics::new("client", methods.clone(), vec![counters.clone()])
        .with_moves(Arc::clone(&options.dial.moves));
    let slots = transport.slots();
    let driver = Driver::new(shared.clone(), methods, counters, slots, compatibility);
    (transport, driver, shared, metrics)
}

impl Channel {
    /// Connects to a server. Blocks, at most for [`ChannelOptions::dial_timeout`]. Without [`ChannelOptions::endpoint`], starts an I/O thread.
    ///
    /// # Errors
    /// [`ConnectError`] says why there is no connection: the address, the server, or this machine. A channel is not
    /// retried before it has connected once.
    pub fn connect(
        address: impl Dial + 'static,
        service: &'static ServiceDescription,
        mut options: ChannelOptions,
    ) -> Result<Channel, ConnectError> {
        // Taken out: a channel that kept its endpoint would keep the endpoint's thread running.
        let endpoint = options.endpoint.take();
        let endpoint = endpoint.unwrap_or_else(|| Endpoint::with_idle(options.idle));
        let idle = endpoint.idle();
        let site = endpoint.site().clone();
        // Channels with the same options count their moves each for itself.
        options.dial.moves = Arc::default();
        let dialled = address.dial(service, &site, &options.dial)?;
        let services = carried(service, &options);
        let (transport, driver, shared, metrics) = parts(dialled, &site, &services, &options);
        let timeout_ns = saturating_nanos(options.timeout);
        let (end, ended) = bounded(0);
        let dialler = Dialler { address: Arc::new(address), service, site, options };
        shared.io.put(ChannelIo::new(driver, &shared, transport, dialler, idle, end));
        endpoint.add(shared.clone()).map_err(|cause| {
            shared.retire();
            let (address, doing) = (service.name.into(), "starting the I/O thread");
            ConnectError::Io { address, doing, cause }
        })?;
        Ok(Channel { inner: Arc::new(Inner { shared, metrics, services, ended }), timeout_ns })
    }

    /// A channel over a connection that was dialled for `site`, whose I/O the caller drives: for a simulator. It does
    /// not reconnect.
    #[doc(hidden)]
    pub fn driven(
        dialled: impl Into<NewConnection>,
        site: &Site,
        service: &'static ServiceDescription,
        options: &ChannelOptions,
    ) -> (Channel, ChannelDriver) {
        let services = carried(service, options);
        let (transport, driver, shared, metrics) = parts(dialled.into(), site, &services, options);
        // Its other end is dropped: closing the channel does not wait for the driver.
        let (_, ended) = bounded(0);
        let inner = Arc::new(Inner { shared: shared.clone(), metrics, services, ended });
        let channel = Channel { inner, timeout_ns: saturating_nanos(options.timeout) };
        let site = site.clone();
        let driver =
            ChannelDriver { driver, transport, site, shared, is_over: false, asleep: None };
        (channel, driver)
    }

    /// Whether clients of this service may call over this connection.
    ///
    /// # Errors
    /// [`ConnectError::NotCarried`].
    pub(crate) fn check_carries(&self, service: &ServiceDescription) -> Result<(), ConnectError> {
        let carried = &self.inner.services;
        let is_same = |it: &ServiceDescription| {
            (it.name, it.fingerprint) == (service.name, service.fingerprint)
        };
        if carried.iter().any(|it| is_same(it)) {
            return Ok(());
        }
        let carried = carried.iter().map(|it| it.name).collect();
        Err(ConnectError::NotCarried { service: service.name, carried })
    }

    /// The same connection, with another timeout for calls without one of their own.
    pub fn with_timeout(&self, timeout: Duration) -> Channel {
        Channel { inner: self.inner.clone(), timeout_ns: saturating_nanos(timeout) }
    }

    /// Prepares a call: encodes the arguments now, sends them when the future is first polled. A long [`Bytes`](bytes::Bytes) that is the
    /// only argument is kept instead of copied, until the call is over.
    ///
    /// The call ends in [`RpcError::Overloaded`] at the limit of calls, and in [`RpcError::Malformed`] if the arguments
    /// cannot be encoded.
    pub fn call<M: Method, P: Payload + ?Sized>(&self, arguments: &P) -> Call<M::Output> {
        match self.prepare::<M, P>(arguments) {
            Ok(job) => Call::new(self.clone(), job, M::read),
            Err(error) => Call::failed(self.clone(), error, M::read),
        }
    }

    fn prepare<M: Method, P: Payload + ?Sized>(&self, arguments: &P) -> Result<Box<Job>, RpcError> {
        let shared = &self.inner.shared;
        let job = shared.job().ok_or(RpcError::Overloaded(Backpressure::Calls))?;
        let mut job = shared.lend(job);
        let encoded = job.arguments.encode(arguments, M::OLDER.is_empty()).and_then(|()| {
            if !M::OLDER.is_empty() {
                job.ends = Ends::of::<M, P>(arguments)?;
            }
            Ok(())
        });
        if let Err(error) = encoded {
            return Err(unencodable(M::NAME, error));
        }
        (job.method, job.sent_as) = (M::ID, M::ID);
        job.delivery = Delivery::of(M::IDEMPOTENT);
        job.timeout_ns = self.timeout_ns;
        Ok(job.keep())
    }

    /// The site of the thread, or of the simulated core, that drives the channel while no caller waits.
    #[doc(hidden)]
    pub fn site(&self) -> &Site {
        &self.inner.shared.site
    }

    /// The timeout of calls without one of their own.
    #[doc(hidden)]
    pub fn default_timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_ns)
    }

    /// The counters of this channel's calls.
    pub fn metrics(&self) -> Metrics {
        self.inner.metrics.clone()
    }

    /// Closes the connection, for all clones. Calls in flight end in [`RpcError::PeerGone`], and so do later ones. Waits at
    /// most 2 s for the I/O thread.
    ///
    /// Dropping the last clone closes it too, without waiting.
    pub fn close(self) {
        self.inner.shared.stop();
        if !self.inner.shared.is_here() {
            return;
        }
        // Nothing is ever sent: the channel's I/O ends, and its sender is dropped.
        let _ = self.inner.ended.recv_timeout(CLOSE_BOUND);
    }

    /// A handle whose I/O a test drives.
    #[cfg(test)]
    pub(super) fn detached(shared: &Arc<Shared>, metrics: Metrics) -> Channel {
        let inner = Inner {
            shared: shared.clone(),
            metrics,
            services: Box::default(),
            ended: bounded(0).1,
        };
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
        let timeout = Duration::from_nanos(self.timeout_ns);
        f.debug_struct("Channel").field("timeout", &timeout).finish_non_exhaustive()
    }
}
