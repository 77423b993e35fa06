//! The halves of a server's threads, at whatever address.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farcall_core::error::BindError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::transport::{BindOptions, ServerTransport};

use crate::contract::{
    Accepted, Backend, ClientLimits, Config, Fabric, Intake, NewClient, Placement, ServerHalf,
    SetupError, SharedClock, Source, ThreadOf, ThreadPlaces,
};

/// Most server threads of one address.
const MAX_THREADS: usize = 1024;

/// How many clients an address may have.
#[derive(Clone, Copy, Debug)]
pub struct MostClients {
    /// Over all threads.
    pub all: usize,
    /// Of them, those of one identity.
    pub of_identity: usize,
}

impl From<&BindOptions> for MostClients {
    fn from(options: &BindOptions) -> MostClients {
        let of_identity = options.max_connections_per_identity.unwrap_or(usize::MAX);
        MostClients { all: options.max_clients, of_identity }
    }
}

/// What the server's threads poll, and where their clients come in, in the order of the threads.
pub struct ServerHalves {
    /// For the server threads.
    pub transports: Vec<Box<dyn ServerTransport>>,
    /// For the threads that accept.
    pub intakes: Arc<Intakes>,
}

/// Where the clients of a server's threads come in. A thread that was lost gets another one.
#[derive(Debug)]
pub struct Intakes(Vec<Mutex<Arc<dyn Intake>>>);

impl Intakes {
    /// How many threads there are.
    pub(super) fn threads(&self) -> usize {
        self.0.len()
    }

    /// That of this thread, now.
    pub(super) fn of(&self, thread: usize) -> Arc<dyn Intake> {
        Arc::clone(&self.0[thread].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The thread has none for now. Gives the one that it had.
    pub(super) fn close(&self, thread: usize) -> Arc<dyn Intake> {
        let mut intake = self.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut intake, Arc::new(WithoutDevice))
    }

    /// The thread has another one from now on.
    pub(super) fn replace(&self, thread: usize, intake: Box<dyn Intake>) {
        let mut place = self.0[thread].lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, intake.into());
        // Not under the lock: its drop may take others.
        drop((place, before));
    }
}

/// Refuses clients, as the thread has lost its device. Another thread may have one.
#[derive(Debug)]
struct WithoutDevice;

impl Intake for WithoutDevice {
    fn accept(&self, _: NewClient<'_>) -> Result<Accepted, SetupError> {
        let told = "the server's device was removed, or has failed; it serves again when the device is back";
        Err(SetupError::NoDevice(told.into()))
    }

    fn make_room(&self, _: Source, _: Duration) -> bool {
        false
    }
}

impl ServerHalves {
    /// A half for each server thread, which has a site, a fabric and places; together for at most so many clients. `clock` is that of the
    /// server whose slices this one shares, if it does.
    ///
    /// # Errors
    /// [`BindError::Unsupported`] and [`BindError::Device`], which name the address.
    pub fn make<'a>(
        address: &str,
        (backend, config): (&dyn Backend, &Config),
        threads: impl ExactSizeIterator<Item = (&'a Site, Fabric<'a>, &'a Arc<ThreadPlaces>)>,
        most: MostClients,
        clock: Option<&SharedClock>,
    ) -> Result<ServerHalves, BindError> {
        let (mut transports, mut intakes) = (Vec::new(), Vec::new());
        let count = threads.len() as u32;
        for (number, (site, fabric, places)) in (0..).zip(threads) {
            let thread = ThreadOf { number, threads: count };
            let places = Some(places);
            let placement = Placement { thread, clock, places, ..Placement::new(site, fabric) };
            let ServerHalf { transport, intake } =
                serve(address, (backend, config), &placement, most)?;
            transports.push(transport);
            intakes.push(Mutex::new(intake.into()));
        }
        Ok(ServerHalves { transports, intakes: Arc::new(Intakes(intakes)) })
    }
}

/// The half of one server thread, of those that have at most so many clients together.
pub(super) fn serve(
    address: &str,
    (backend, config): (&dyn Backend, &Config),
    at: &Placement<'_>,
    most: MostClients,
) -> Result<ServerHalf, BindError> {
    let (config, max_clients) = share(config, at.thread, most);
    backend.serve(at, &config, max_clients).map_err(|error| bind_error(address, error))
}

/// What one of the threads is configured with, and its part of the clients: together exactly as many as asked for.
fn share(config: &Config, of: ThreadOf, most: MostClients) -> (Config, usize) {
    let (number, threads) = (of.number as usize, of.threads as usize);
    let share = |most: usize| most / threads + usize::from(number < most % threads);
    let mut config = config.clone();
    config.max_clients_per_source = share(config.max_clients_per_source as usize) as u32;
    config.max_clients_per_identity = u32::try_from(share(most.of_identity)).unwrap_or(u32::MAX);
    (config, share(most.all))
}

/// The places of the clients of each of these threads, whichever backends they come over.
pub fn places(sites: &[Site], config: &Config, most: MostClients) -> Vec<Arc<ThreadPlaces>> {
    let threads = sites.len() as u32;
    let places = |(number, site)| {
        let (config, max_clients) = share(config, ThreadOf { number, threads }, most);
        ThreadPlaces::new(site, ClientLimits::new(&config, max_clients))
    };
    (0..).zip(sites).map(places).collect()
}

/// Why a server cannot listen at this address.
pub(super) fn bind_error(address: &str, error: SetupError) -> BindError {
    match error {
        SetupError::Unsupported(what) => {
            BindError::Unsupported { address: address.to_owned(), what }
        }
        other => BindError::Device { address: address.to_owned(), cause: other.into() },
    }
}

/// Refuses numbers of threads and lists of services that no server can have.
///
/// # Errors
/// [`BindError::Threads`], [`BindError::NoService`], [`BindError::DuplicateService`].
pub fn check_services(
    threads: usize,
    services: &[&'static ServiceDescription],
) -> Result<(), BindError> {
    if threads == 0 || threads > MAX_THREADS {
        return Err(BindError::Threads { threads, max: MAX_THREADS });
    }
    if services.is_empty() {
        return Err(BindError::NoService);
    }
    for (index, service) in services.iter().enumerate() {
        if services[..index].iter().any(|earlier| earlier.name == service.name) {
            return Err(BindError::DuplicateService { service: service.name });
        }
    }
    Ok(())
}
