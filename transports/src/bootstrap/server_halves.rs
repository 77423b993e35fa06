//! The halves of a server's threads, at whatever address.

use farcall_core::error::BindError;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::transport::ServerTransport;

use crate::contract::{
    Backend, Config, Fabric, Intake, Placement, ServerHalf, SetupError, ThreadOf,
};

/// Most server threads of one address.
const MAX_THREADS: usize = 1024;

/// What the server's threads poll, and where their clients come in, in the order of the threads.
pub struct ServerHalves {
    /// For the server threads.
    pub transports: Vec<Box<dyn ServerTransport>>,
    /// For the threads that accept.
    pub intakes: Vec<Box<dyn Intake>>,
}

impl ServerHalves {
    /// A half for each server thread, which has a site and a fabric; together for at most `max_clients`.
    ///
    /// # Errors
    /// [`BindError::Unsupported`] and [`BindError::Device`], which name the address.
    pub fn make<'a>(
        address: &str,
        (backend, config): (&dyn Backend, &Config),
        threads: impl ExactSizeIterator<Item = (&'a Site, Fabric<'a>)>,
        max_clients: usize,
    ) -> Result<ServerHalves, BindError> {
        let failed = |error: SetupError| match error {
            SetupError::Unsupported(what) => {
                BindError::Unsupported { address: address.to_owned(), what }
            }
            other => BindError::Device { address: address.to_owned(), cause: other.into() },
        };
        let mut halves = ServerHalves { transports: Vec::new(), intakes: Vec::new() };
        let count = threads.len();
        for (thread, (site, fabric)) in threads.enumerate() {
            // Together exactly as many as asked for.
            let share = max_clients / count + usize::from(thread < max_clients % count);
            let thread = ThreadOf { number: thread as u32, threads: count as u32 };
            let placement = Placement { thread, ..Placement::new(site, fabric) };
            let ServerHalf { transport, intake } =
                backend.serve(&placement, config, share).map_err(failed)?;
            halves.transports.push(transport);
            halves.intakes.push(intake);
        }
        Ok(halves)
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
