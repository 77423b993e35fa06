//! Server threads that panicked or lost their device: they get new transports, and clients come in there.

use std::sync::Arc;

use farcall_core::error::BindError;
use farcall_core::site::Site;
use farcall_core::transport::{Renewal, ServerTransport};

use super::device;
use super::server_halves::{Intakes, MostClients, serve};
use crate::address::{Address, runs_on_stream};
use crate::contract::{
    Backend, Config, Placement, ServerHalf, SharedClock, ThreadOf, ThreadPlaces,
};

/// What the transports of an address are made of that one backend has.
#[derive(Debug)]
pub(super) struct AtAddress {
    pub(super) address: Address,
    pub(super) backend: &'static dyn Backend,
    pub(super) config: Config,
    /// Those of each thread.
    pub(super) places: Vec<Arc<ThreadPlaces>>,
    /// The address with the port that the system chose, for errors.
    pub(super) text: String,
    pub(super) intakes: Arc<Intakes>,
    pub(super) most_clients: MostClients,
    /// Of slices that are shared with another server.
    pub(super) clock: Option<SharedClock>,
}

impl Renewal for AtAddress {
    /// Opens the device once more: what the thread had of it may be what failed.
    fn renew(&self, thread: usize, site: &Site) -> Result<Box<dyn ServerTransport>, BindError> {
        let AtAddress { address, backend, config, places, text, intakes, most_clients, clock } =
            self;
        let device = match runs_on_stream(*backend) {
            true => None,
            false => {
                let opened = address.open_devices(1).map_err(|error| BindError::Device {
                    address: text.clone(),
                    cause: error.into(),
                })?;
                opened.into_iter().next().flatten()
            }
        };
        device::count_refusals(device.as_ref(), site);
        let of = ThreadOf { number: thread as u32, threads: intakes.threads() as u32 };
        let placement = Placement {
            thread: of,
            clock: clock.as_ref(),
            places: places.get(thread),
            ..Placement::new(site, device::fabric(&device))
        };
        let ServerHalf { transport, intake } =
            serve(text, (*backend, config), &placement, *most_clients)?;
        intakes.replace(thread, intake);
        Ok(transport)
    }

    fn lose(&self, thread: usize) {
        drop(self.intakes.close(thread));
    }
}
