//! The builder of servers.

use super::advising::Advising;
use super::control::Control;
use super::driven::{DrivenServer, Listeners};
use super::quota::{ClientQuota, SharedAccounts};
use super::running::RunningServer;
use super::settings::{check_async_calls, check_bind, check_cores, check_threads};
use super::stealing;
use super::table::Table;
use super::thread::{ServerThread, ThreadParts};
use crate::error::{BindError, Source};
use crate::identity::Authentication;
use crate::idle::IdlePolicy;
use crate::metrics::{Connections, MethodTable, Metrics, ThreadCounters};
use crate::service::{Service, ServiceDescription};
use crate::site::Site;
use crate::transport::{
    BindOptions, BindTls, Binding, Bound, BoundHalf, ParseAddress, ServerAddress, ToAddress,
};
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

/// A server: [`builder`](Server::builder) makes one.
#[derive(Debug)]
pub struct Server {
    _builder_only: (),
}

impl Server {
    /// The builder of a server with one thread, and no service yet.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            services: Vec::new(),
            built_in: Vec::new(),
            threads: 1,
            pin: Vec::new(),
            idle: IdlePolicy::default(),
            cancel: CancelPolicy::default(),
            async_calls: 16 << 10,
            work_stealing: false,
            quota: ClientQuota::default(),
            bind: BindOptions::default(),
            addresses: no_addresses,
            context: None,
            metrics_cell: None,
            tells_metrics: true,
        }
    }
}

#[cold]
fn no_addresses(_: &str) -> Result<Box<dyn ServerAddress>, Source> {
    Err("this builder cannot parse addresses; give it a parser with `addresses`, or use `serve`"
        .into())
}

/// What happens to an `async` handler whose caller gave up or whose deadline has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelPolicy {
    /// It is dropped at its current `.await`, which frees its slot at once.
    #[default]
    Abort,
    /// It runs to its end. [`CallContext::is_cancelled`](super::CallContext::is_cancelled) tells it.
    Finish,
}

/// Surrounds the work of a server thread: see [`ServerBuilder::thread_context`].
pub(super) type ThreadContext = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// Makes an instance of a service for each thread.
trait ServiceFactory {
    fn description(&self) -> &'static ServiceDescription;
    fn instance(&self) -> Box<dyn Service>;
}

impl<S: Service + Clone> ServiceFactory for S {
    fn description(&self) -> &'static ServiceDescription {
        Service::description(self)
    }

    fn instance(&self) -> Box<dyn Service> {
        Box::new(self.clone())
    }
}

/// Configures and starts a server.
#[must_use = "a builder serves nothing until it listens"]
pub struct ServerBuilder {
    services: Vec<Box<dyn ServiceFactory>>,
    built_in: Vec<Box<dyn ServiceFactory>>,
    threads: usize,
    pin: Vec<usize>,
    idle: IdlePolicy,
    cancel: CancelPolicy,
    async_calls: usize,
    work_stealing: bool,
    quota: ClientQuota,
    bind: BindOptions,
    addresses: ParseAddress,
    context: Option<ThreadContext>,
    metrics_cell: Option<Arc<OnceLock<Metrics>>>,
    tells_metrics: bool,
}

impl ServerBuilder {
    /// Adds a service. Each thread works on a clone of it.
    pub fn service<S: Service + Clone>(mut self, service: S) -> Self {
        self.services.push(Box::new(service));
        self
    }

    /// Adds a built-in service. It does not count as one of yours: a server of nothing else is refused.
    #[doc(hidden)]
    pub fn built_in_service<S: Service + Clone>(mut self, service: S) -> Self {
        self.built_in.push(Box::new(service));
        self
    }

    /// The number of server threads: 1 to 1024. Default 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// The number of server threads, for a simulator that makes their sites.
    #[doc(hidden)]
    pub fn thread_count(&self) -> usize {
        self.threads
    }

    /// Pins the threads to these cores, one after the other; more threads than cores share them. Default: not pinned.
    pub fn pin(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
        self.pin = cores.into_iter().collect();
        self
    }

    /// What an idle thread does. Default: spins 5 us, yields 250 us, then sleeps.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// What happens to an `async` handler whose caller gave up. Default: it is dropped.
    pub fn on_cancel(mut self, policy: CancelPolicy) -> Self {
        self.cancel = policy;
        self
    }

    /// The limit of `async` handlers in flight per thread; further calls end in
    /// [`RpcError::Overloaded`](crate::RpcError::Overloaded). 1 to 1,048,576; default 16384.
    pub fn async_calls(mut self, calls: usize) -> Self {
        self.async_calls = calls;
        self
    }

    /// Whether idle threads run calls of a thread that is behind. Default: no. It has no effect with one thread.
    ///
    /// A thread that has a call of a method that ran long lately (some 20 us), or whose turn has lasted as long already, gives
    /// the call to an idle thread, and answers it when the other has run it. So a slow handler does not hold up the calls of
    /// other clients, as long as a thread is idle. Only methods of services that are declared `any_thread` are given away:
    /// `#[farcall::service(any_thread)]`. Their calls may run in any order.
    ///
    /// A call that is given away is copied twice more, and costs some microseconds; every other one costs a reading of the
    /// clock. [`MethodSnapshot::stolen`](crate::metrics::MethodSnapshot::stolen) counts how many were.
    pub fn work_stealing(mut self, steals: bool) -> Self {
        self.work_stealing = steals;
        self
    }

    /// What surrounds the work of each server thread: it is called once on each, and calls the function that it is given
    /// once, which returns when the thread ends. Whatever handlers find in thread-local state it can thus provide, such as a
    /// runtime, and it costs nothing per call. Default: nothing.
    ///
    /// It has no effect on a simulated rack, which has no server threads.
    pub fn thread_context(
        mut self,
        context: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static,
    ) -> Self {
        self.context = Some(Arc::new(context));
        self
    }

    /// Lets handlers use this tokio runtime: its timers, its sockets and files, and `tokio::spawn`.
    ///
    /// Handlers still run on the server's threads, which enter the runtime as [`Handle::enter`] does; the runtime's own
    /// threads drive what the handlers wait for. A runtime of one thread must therefore be inside of `block_on` while calls
    /// are handled. Keep the runtime until the server has shut down: a handler that uses it afterwards panics. This is a
    /// [`thread_context`](Self::thread_context).
    ///
    /// [`Handle::enter`]: tokio::runtime::Handle::enter
    #[cfg(feature = "tokio")]
    pub fn tokio(self, runtime: tokio::runtime::Handle) -> Self {
        self.thread_context(move |run| {
            let _entered = runtime.enter();
            run();
        })
    }

    /// The limit for one client's handshake. More than nothing; default 5 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.bind.handshake_timeout = timeout;
        self
    }

    /// Whether to raise the soft limit of this process's open files (`ulimit -n`) to its hard limit: each client needs a descriptor or a few. It
    /// stays raised, and programs that this process starts inherit it: some close all descriptors up to the limit, and `select` takes
    /// none above 1,024. Default: yes. Clients leave it alone.
    pub fn raise_descriptor_limit(mut self, raise: bool) -> Self {
        self.bind.raise_descriptor_limit = raise;
        self
    }

    /// The limit of clients at each address, over all threads; further ones are refused. At least 1; default 4096. A
    /// device may have room for fewer.
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.bind.max_clients = clients;
        self
    }

    /// Lets in only clients that prove that they have one of these keys, and whom it permits the service that they ask for. With
    /// [`tls`](Self::tls) that asks for certificates it needs no key: then it permits the names of certificates.
    /// Handlers find the client's identity in [`CallContext::identity`](super::CallContext::identity). Default: every client that
    /// reaches the address.
    pub fn authenticate(mut self, authentication: Authentication) -> Self {
        self.bind.authentication = Some(authentication);
        self
    }

    /// How much one client may use: calls and CPU time per second, and connections. Default: nothing is limited, and nothing
    /// measured.
    pub fn client_quota(mut self, quota: ClientQuota) -> Self {
        self.bind.max_connections_per_identity = quota.max_connections();
        self.quota = quota;
        self
    }

    /// Lets in only clients that shake hands within TLS, with these settings (`farcall::tls::ServerTls`). The name in a client's
    /// certificate is its identity: see [`authenticate`](Self::authenticate) for whom to permit what. Default: no TLS.
    pub fn tls(mut self, tls: impl Into<BindTls>) -> Self {
        self.bind.tls = Some(tls.into());
        self
    }

    /// Whether the server tells its clients what it has refused so far, and which connections it has, with the names of other clients that
    /// have proven who they are: `farcall info ADDRESS` shows it. Default: yes, to every client that may call.
    pub fn remote_info(mut self, tells: bool) -> Self {
        self.tells_metrics = tells;
        self
    }

    /// Where a built-in service finds the server's metrics, unless [`remote_info`](Self::remote_info) forbids it.
    #[doc(hidden)]
    pub fn metrics_for_built_in(mut self, cell: Arc<OnceLock<Metrics>>) -> Self {
        self.metrics_cell = Some(cell);
        self
    }

    /// The parser of addresses for [`listen`](Self::listen).
    #[doc(hidden)]
    pub fn addresses(mut self, parse: ParseAddress) -> Self {
        self.addresses = parse;
        self
    }

    /// Listens at an address, such as `"shm://kv"`, and starts the threads.
    ///
    /// # Errors
    /// Those of [`serve`](Self::serve), and [`BindError::InvalidAddress`].
    pub fn listen(self, address: impl ToAddress) -> Result<RunningServer, BindError> {
        self.listen_all([address])
    }

    /// Listens at several addresses at once, such as `shm://kv` and `tcp://0.0.0.0:7471`. Each thread serves the clients
    /// of all of them.
    ///
    /// # Errors
    /// As [`listen`](Self::listen). If one address cannot be had, the server listens at none.
    pub fn listen_all(
        self,
        addresses: impl IntoIterator<Item = impl ToAddress>,
    ) -> Result<RunningServer, BindError> {
        let parsed = addresses.into_iter().map(|address| address.to_address(self.addresses));
        let parsed: Vec<_> = parsed.collect::<Result<_, _>>().map_err(BindError::InvalidAddress)?;
        let bindings: Vec<_> =
            parsed.iter().map(|address| -> &dyn Binding { &**address }).collect();
        self.serve_all(&bindings)
    }

    /// Listens at an address of a transport of your own, and starts the threads.
    ///
    /// # Errors
    /// - [`BindError::NoService`], [`DuplicateService`](BindError::DuplicateService),
    ///   [`MethodCollision`](BindError::MethodCollision): the services cannot be served together.
    /// - [`BindError::Threads`], [`NoSuchCore`](BindError::NoSuchCore): the number of threads, or a core, is not possible.
    /// - [`BindError::Setting`]: another setting cannot work.
    /// - Any other: the address or its device cannot be had.
    pub fn serve(self, address: &dyn Binding) -> Result<RunningServer, BindError> {
        self.serve_all(&[address])
    }

    /// [`serve`](Self::serve) at several addresses at once.
    ///
    /// # Errors
    /// As [`serve`](Self::serve), and [`BindError::NoAddress`] without any. If one address cannot be had, the server listens
    /// at none.
    pub fn serve_all(mut self, addresses: &[&dyn Binding]) -> Result<RunningServer, BindError> {
        check_cores(&self.pin)?;
        check_threads(self.threads)?;
        let sites = (0..self.threads).map(|_| Site::new()).collect();
        let (server, threads) = self.bind(addresses, sites)?;
        let mut running = RunningServer::new(server);
        for (index, parts) in threads.into_iter().enumerate() {
            let core = (!self.pin.is_empty()).then(|| self.pin[index % self.pin.len()]);
            running.spawn(core, self.idle, self.context.clone(), parts)?;
        }
        Ok(running)
    }

    /// Listens, and returns the threads for the caller to drive, one per site: for a simulator, whose sites are
    /// [driven](Site::driven). [`threads`](Self::threads), [`pin`](Self::pin) and [`idle`](Self::idle) do not apply.
    ///
    /// # Errors
    /// As [`serve_all`](Self::serve_all).
    #[doc(hidden)]
    pub fn assemble(
        mut self,
        addresses: &[&dyn Binding],
        sites: Vec<Site>,
    ) -> Result<(DrivenServer, Vec<ServerThread>), BindError> {
        check_threads(sites.len())?;
        let (server, threads) = self.bind(addresses, sites)?;
        Ok((server, threads.into_iter().map(ThreadParts::into_thread).collect()))
    }

    /// Listens at all addresses, or at none.
    fn bind(
        &mut self,
        addresses: &[&dyn Binding],
        sites: Vec<Site>,
    ) -> Result<(DrivenServer, Vec<ThreadParts>), BindError> {
        check_async_calls(self.async_calls)?;
        check_bind(&self.bind)?;
        if self.services.is_empty() {
            return Err(BindError::NoService);
        }
        if addresses.is_empty() {
            return Err(BindError::NoAddress);
        }
        let is_identified = self.bind.tls.as_ref().is_some_and(BindTls::identifies_clients);
        let problem_of = |authentication: &Authentication| authentication.problem(is_identified);
        if let Some(problem) = self.bind.authentication.as_ref().and_then(problem_of) {
            return Err(BindError::Authentication { problem });
        }
        if let Some(problem) = self.quota.problem() {
            return Err(BindError::Quota { problem });
        }
        self.services.append(&mut self.built_in);
        let descriptions: Vec<_> = self.services.iter().map(|s| s.description()).collect();
        Table::new(&descriptions)?;
        let mut bound: Vec<Bound> = Vec::with_capacity(addresses.len());
        for address in addresses {
            match address.bind(&sites, &descriptions, &self.bind) {
                Ok(one) => bound.push(one),
                Err(error) => {
                    bound.iter_mut().for_each(|earlier| earlier.acceptor.stop());
                    return Err(error);
                }
            }
        }
        self.prepare_threads(&descriptions, bound, sites)
    }

    fn prepare_threads(
        &self,
        descriptions: &[&'static ServiceDescription],
        bound: Vec<Bound>,
        sites: Vec<Site>,
    ) -> Result<(DrivenServer, Vec<ThreadParts>), BindError> {
        let methods = Arc::new(MethodTable::new(descriptions));
        let control = Arc::new(Control::new(sites.len()));
        let steals = self.work_stealing && sites.len() > 1;
        let stealing = steals.then(|| Arc::new(stealing::Shared::new(&sites, methods.rows())));
        let accounts = SharedAccounts::new(&self.quota);
        let mut listeners = Listeners { acceptors: Vec::new(), addresses: Vec::new() };
        let mut threads = Vec::with_capacity(sites.len());
        for (index, site) in sites.iter().enumerate() {
            threads.push(ThreadParts {
                index,
                site: site.clone(),
                transports: Vec::with_capacity(bound.len()),
                renewals: Vec::with_capacity(bound.len()),
                control: control.clone(),
                services: self.services.iter().map(|s| s.instance()).collect(),
                table: Table::new(descriptions)?,
                unknown_row: methods.unknown(),
                counters: Arc::new(ThreadCounters::of_server_thread(&methods)),
                async_calls: self.async_calls,
                cancel: self.cancel,
                stealing: stealing.clone(),
                accounts: accounts.clone(),
                connections: Arc::new(Connections::new(site)),
                advising: None,
            });
        }
        for one in bound {
            let first_way = threads.first().map_or(0, |thread| thread.transports.len());
            let ways = first_way..first_way + one.halves.len();
            for BoundHalf { transports, renewal } in one.halves {
                assert_eq!(transports.len(), sites.len(), "a binding has one transport per site");
                for (thread, transport) in threads.iter_mut().zip(transports) {
                    thread.transports.push(transport);
                    thread.renewals.push(renewal.clone());
                }
            }
            if let Some(adviser) = one.adviser {
                for thread in &mut threads {
                    let own = || Advising::new(adviser.clone(), thread.index, ways.clone());
                    thread.advising.get_or_insert_with(own);
                }
            }
            listeners.acceptors.push(one.acceptor);
            listeners.addresses.push(one.address);
        }
        let counters = threads.iter().map(|thread| thread.counters.clone()).collect();
        let refusals = sites.iter().map(|site| site.refusals().clone()).collect();
        let connections = threads.iter().map(|thread| thread.connections.clone()).collect();
        let metrics = Metrics::new("server", methods, counters).with_refusals(refusals);
        let metrics = metrics.with_connections(connections);
        if let (true, Some(cell)) = (self.tells_metrics, &self.metrics_cell) {
            // Set by an earlier server only if the builder was cloned, which it cannot be.
            let _ = cell.set(metrics.clone());
        }
        let services: Vec<_> = descriptions.iter().map(|d| d.name).collect();
        let addresses = &listeners.addresses;
        tracing::info!(?services, ?addresses, threads = threads.len(), "serving");
        Ok((DrivenServer::new(control, sites, listeners, metrics), threads))
    }
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let services: Vec<_> = self.services.iter().map(|s| s.description().name).collect();
        f.debug_struct("ServerBuilder")
            .field("services", &services)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulator_makes_a_site_for_each_thread() {
        assert_eq!(Server::builder().thread_count(), 1);
        assert_eq!(Server::builder().threads(3).thread_count(), 3);
    }
}
