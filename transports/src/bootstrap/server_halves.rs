//! The server threads' halves, at whatever address.

use farcall_core::error::BindError;
use farcall_core::service::ServiceDescription;
use farcall_core::transport::ServerTransport;
use farcall_verbs::Device;

use crate::address::Limits;
use crate::backend::{BackendKind, Intake, ServerHalf, SetupError};

/// Most server threads of one address.
const MAX_THREADS: usize = 1024;

/// What the threads poll, and where their clients come in.
pub(crate) struct Halves {
    pub(crate) transports: Vec<Box<dyn ServerTransport>>,
    pub(crate) intakes: Vec<Box<dyn Intake>>,
}

impl Halves {
    /// One thread's for each of `devices`, together for at most `max_clients`.
    pub(crate) fn make(
        address: &str,
        (backend, limits): (BackendKind, &Limits),
        devices: &[Device],
        max_clients: usize,
    ) -> Result<Halves, BindError> {
        let failed = |error: SetupError| match error {
            SetupError::Unsupported(what) => {
                BindError::Unsupported { address: address.to_owned(), what }
            }
            other => BindError::Device { address: address.to_owned(), cause: other.into() },
        };
        let mut halves = Halves { transports: Vec::new(), intakes: Vec::new() };
        let threads = devices.len();
        for (thread, device) in devices.iter().enumerate() {
            // Together exactly as many as asked for.
            let share = max_clients / threads + usize::from(thread < max_clients % threads);
            let ServerHalf { transport, intake } =
                backend.serve(device, limits, share).map_err(failed)?;
            halves.transports.push(transport);
            halves.intakes.push(intake);
        }
        Ok(halves)
    }
}

/// Refuses what no server can be.
pub(crate) fn check_services(
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
