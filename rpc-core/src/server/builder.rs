//! From services and wishes to a running server.

use super::control::Control;
use super::driven::DrivenServer;
use super::running::RunningServer;
use super::table::Table;
use super::thread::{Seed, ServerThread};
use crate::error::BindError;
use crate::idle::IdlePolicy;
use crate::metrics::{MethodTable, Metrics, ThreadCounters};
use crate::service::{Service, ServiceDescription};
use crate::transport::{BindOptions, Binding, Bound};
use core::fmt;
use std::sync::Arc;

/// Most threads of one server.
const MAX_THREADS: usize = 1024;

/// Where servers come from.
#[derive(Debug)]
pub struct Server {
    _builder_only: (),
}

impl Server {
    /// A server to be, with one thread and no service yet.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            services: Vec::new(),
            beside: Vec::new(),
            threads: 1,
            pin: Vec::new(),
            idle: IdlePolicy::default(),
            cancel: CancelPolicy::default(),
            async_calls: 16 << 10,
            bind: BindOptions::default(),
            addresses: no_addresses,
        }
    }
}

/// Makes something to listen on of an address in text.
pub type ReadAddress = fn(&str) -> Result<Box<dyn Binding>, BindError>;

#[cold]
fn no_addresses(_: &str) -> Result<Box<dyn Binding>, BindError> {
    Err(BindError::InvalidAddress(
        "this builder knows no addresses in text; give it some with `addresses`, or use `serve`"
            .into(),
    ))
}

/// What happens to an `async` handler whose caller gave up, or whose deadline has passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CancelPolicy {
    /// It is dropped at its current `.await`, and its slot is free at once.
    #[default]
    Abort,
    /// It runs to its end, and can ask [`CallContext::is_cancelled`](super::CallContext::is_cancelled).
    Finish,
}

/// Gives each thread its own instance of a service.
trait Factory {
    fn description(&self) -> &'static ServiceDescription;
    fn instance(&self) -> Box<dyn Service>;
}

impl<S: Service + Clone> Factory for S {
    fn description(&self) -> &'static ServiceDescription {
        Service::description(self)
    }

    fn instance(&self) -> Box<dyn Service> {
        Box::new(self.clone())
    }
}

/// A server to be.
#[must_use = "a builder serves nothing until it listens"]
pub struct ServerBuilder {
    services: Vec<Box<dyn Factory>>,
    beside: Vec<Box<dyn Factory>>,
    threads: usize,
    pin: Vec<usize>,
    idle: IdlePolicy,
    cancel: CancelPolicy,
    async_calls: usize,
    bind: BindOptions,
    addresses: ReadAddress,
}

impl ServerBuilder {
    /// Adds a service. Each thread works on a clone of it.
    pub fn service<S: Service + Clone>(mut self, service: S) -> Self {
        self.services.push(Box::new(service));
        self
    }

    /// Adds a service that is no reason to listen: a server of nothing else is refused.
    pub fn beside<S: Service + Clone>(mut self, service: S) -> Self {
        self.beside.push(Box::new(service));
        self
    }

    /// The number of server threads. Default 1.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Cores to pin the threads to, in turn. Default: not pinned.
    pub fn pin(mut self, cores: impl IntoIterator<Item = usize>) -> Self {
        self.pin = cores.into_iter().collect();
        self
    }

    /// What an idle thread does. Default: spins 50 us, yields 200 us, then sleeps.
    pub fn idle(mut self, idle: IdlePolicy) -> Self {
        self.idle = idle;
        self
    }

    /// What happens to an `async` handler that nobody waits for any more. Default: it is dropped.
    pub fn on_cancel(mut self, policy: CancelPolicy) -> Self {
        self.cancel = policy;
        self
    }

    /// Most `async` handlers in flight per thread; further calls end in
    /// [`RpcError::Overloaded`](crate::RpcError::Overloaded). Default 16384.
    pub fn async_calls(mut self, calls: usize) -> Self {
        self.async_calls = calls;
        self
    }

    /// How to listen: handshake bound, most clients.
    pub fn bind_options(mut self, options: BindOptions) -> Self {
        self.bind = options;
        self
    }

    /// Most clients at once; further ones are refused. Default 4096.
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.bind.max_clients = clients;
        self
    }

    /// How [`listen`](Self::listen) reads an address; the crate that knows the transports gives it.
    pub fn addresses(mut self, read: ReadAddress) -> Self {
        self.addresses = read;
        self
    }

    /// Listens at an address in text, such as `shm://kv`, and starts the threads.
    pub fn listen(self, address: &str) -> Result<RunningServer, BindError> {
        let address = (self.addresses)(address)?;
        self.serve(&*address)
    }

    /// Listens, and starts the threads.
    pub fn serve(mut self, address: &dyn Binding) -> Result<RunningServer, BindError> {
        check_cores(&self.pin)?;
        let (server, seeds) = self.bind(address)?;
        let mut running = RunningServer::new(server);
        for (index, seed) in seeds.into_iter().enumerate() {
            let core = (!self.pin.is_empty()).then(|| self.pin[index % self.pin.len()]);
            running.spawn(core, self.idle, seed)?;
        }
        Ok(running)
    }

    /// Listens, and gives the threads to whoever wants to drive them: a simulator. How idle threads rest, and where they
    /// are pinned, is up to their driver.
    pub fn assemble(
        mut self,
        address: &dyn Binding,
    ) -> Result<(DrivenServer, Vec<ServerThread>), BindError> {
        let (server, seeds) = self.bind(address)?;
        Ok((server, seeds.into_iter().map(Seed::into_thread).collect()))
    }

    /// Listens.
    fn bind(&mut self, address: &dyn Binding) -> Result<(DrivenServer, Vec<Seed>), BindError> {
        if self.services.is_empty() {
            return Err(BindError::NoService);
        }
        self.services.append(&mut self.beside);
        if self.threads == 0 || self.threads > MAX_THREADS {
            return Err(BindError::Threads { threads: self.threads, max: MAX_THREADS });
        }
        let descriptions: Vec<_> = self.services.iter().map(|s| s.description()).collect();
        Table::new(&descriptions)?;
        let bound = address.bind(self.threads, &descriptions, &self.bind)?;
        self.seed(&descriptions, bound)
    }

    fn seed(
        &self,
        descriptions: &[&'static ServiceDescription],
        bound: Bound,
    ) -> Result<(DrivenServer, Vec<Seed>), BindError> {
        let methods = Arc::new(MethodTable::new(descriptions));
        let threads = bound.transports.len();
        let control = Arc::new(Control::new(threads));
        let counters: Vec<_> =
            (0..threads).map(|_| Arc::new(ThreadCounters::new(&methods))).collect();
        let metrics = Metrics::new("server", methods.clone(), counters.clone());
        let unparkers = bound.transports.iter().map(|t| t.unparker()).collect();
        let (acceptor, address) = (bound.acceptor, bound.address);
        let server = DrivenServer::new(control.clone(), unparkers, acceptor, metrics, address);
        let mut seeds = Vec::with_capacity(threads);
        for (index, transport) in bound.transports.into_iter().enumerate() {
            seeds.push(Seed {
                index,
                transport,
                control: control.clone(),
                services: self.services.iter().map(|s| s.instance()).collect(),
                table: Table::new(descriptions)?,
                unknown: methods.unknown(),
                counters: counters[index].clone(),
                async_calls: self.async_calls,
                cancel: self.cancel,
            });
        }
        let services: Vec<_> = descriptions.iter().map(|d| d.name).collect();
        tracing::info!(?services, threads, "serving");
        Ok((server, seeds))
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

/// The highest core that an affinity mask of the system's usual size can name.
const MAX_CORE: usize = 1023;

/// Refuses cores that no thread can be pinned to. Found by trying, on a thread of its own: a caller that is pinned
/// itself sees only its own core in the list of cores.
fn check_cores(cores: &[usize]) -> Result<(), BindError> {
    let wanted = cores.to_vec();
    let can_pin = |id: &usize| {
        *id <= MAX_CORE && core_affinity::set_for_current(core_affinity::CoreId { id: *id })
    };
    let tried = std::thread::spawn(move || {
        let core = wanted.into_iter().find(|core| !can_pin(core))?;
        Some(BindError::NoSuchCore { core, available: (0..=MAX_CORE).filter(can_pin).collect() })
    });
    match tried.join() {
        Ok(Some(error)) => Err(error),
        Ok(None) | Err(_) => Ok(()),
    }
}
