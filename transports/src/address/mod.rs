//! Where a service is, and how to talk to it: `shm://NAME?backend=write_imm&window=64`,
//! `rdma://HOST:PORT?device=rxe0`, or `tcp://HOST:PORT`.

mod build;
mod error;
#[cfg(test)]
mod fuzz;
mod moves;
mod options;
mod parse;
mod place;
mod user_text;

pub use build::{AddressBuilder, parse_address};
pub use error::AddressError;
pub use moves::{HYBRID_OPTIONS, Moves};
pub use options::{AddressOptions, Carrier, OPTIONS, RDMA_OPTIONS, runs_on_stream};
pub use place::{DeviceChoice, MAX_NAME_BYTES, NetworkPlace, Place, is_name};

use crate::contract::{Backend, Config};

/// The schemes an address may have.
pub const SCHEMES: &[&str] = &["shm", "rdma", "tcp"];

/// The address of a service: where it is, which backend reaches it, and the limits of this end.
///
/// ```
/// let address: farcall_transports::Address = "shm://kv?window=32".parse().unwrap();
/// assert_eq!(address.name(), "kv");
/// assert_eq!(address.config().window, 32);
///
/// let address: farcall_transports::Address = "rdma://10.0.0.1:7471?device=rxe0".parse().unwrap();
/// assert_eq!(address.name(), "10.0.0.1:7471");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    place: Place,
    /// The place in text.
    name: String,
    options: AddressOptions,
}

impl Address {
    /// Where the server is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The part between `://` and `?`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend that carries the calls.
    pub fn backend(&self) -> &'static dyn Backend {
        self.options.backend
    }

    /// The name of that backend, or `hybrid`: a connection that moves among several.
    pub fn backend_name(&self) -> &'static str {
        self.options.backend_name()
    }

    /// The addresses that a connection moves among, each with one backend, if it does.
    pub fn ways(&self) -> Option<Vec<Address>> {
        let ways = self.options.ways()?;
        Some(ways.into_iter().map(|options| self.way(options)).collect())
    }

    /// The address of the same server with these options, over TCP alone if the backend needs no device.
    fn way(&self, options: AddressOptions) -> Address {
        let place = match &self.place {
            Place::Rdma(place) if runs_on_stream(options.backend) => {
                Place::Tcp(NetworkPlace { device: DeviceChoice::default(), ..place.clone() })
            }
            place => place.clone(),
        };
        Address { place, name: self.name.clone(), options }
    }

    /// What this end is ready to give.
    pub fn config(&self) -> &Config {
        &self.options.config
    }

    /// The backends that a server offers there, each with what it is ready to give. A client uses the first.
    pub fn offered(&self) -> impl Iterator<Item = (&'static dyn Backend, &Config)> {
        self.options.offered()
    }

    /// The same address with a backend that is in no registry.
    #[cfg(test)]
    pub(crate) fn with_backend(self, backend: &'static dyn Backend) -> Address {
        Address { options: AddressOptions { backend, ..self.options }, ..self }
    }

    /// The same address with the TCP port that the system chose.
    pub(crate) fn with_port(&self, chosen: u16) -> Address {
        let mut address = self.clone();
        if let Place::Rdma(NetworkPlace { port, .. }) | Place::Tcp(NetworkPlace { port, .. }) =
            &mut address.place
        {
            *port = chosen;
        }
        address.name = address.place.to_text();
        address
    }
}
