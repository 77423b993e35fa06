//! Servers: listening on a rack, and server threads as actors.

use std::sync::Arc;

use farcall_core::error::BindError;
use farcall_core::server::ServerThread;
use farcall_core::service::ServiceDescription;
use farcall_core::time::{Instant, PollAt, Progress};
use farcall_core::transport::{Acceptor, BindOptions, Binding, Bound};
use farcall_verbs::sim::{Actor, Next, Turn};

use super::address::RackAddress;
use super::charge;
use super::network::{Listening, Network};
use super::ties::Place;
use crate::bootstrap::admission::Admission;
use crate::bootstrap::halves::{Halves, check_services};
use crate::handshake::Reception;

/// What comes after a turn of anything that makes [`Progress`]: whoever has worked looks once more, and whoever found
/// nothing waits for what it says.
pub fn turn_after(progress: Progress) -> Turn {
    let next = match progress.next {
        _ if !progress.is_idle() => Next::Now,
        PollAt::Now => Next::Now,
        PollAt::At(at) => Next::At(at.as_nanos()),
        PollAt::OnEvent => Next::OnEvent,
    };
    Turn::then(next).scanned(progress.scanned)
}

/// A server thread on a core of its node.
pub(super) struct ServerActor(pub(super) ServerThread);

impl Actor for ServerActor {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let progress = self.0.turn(Instant::from_nanos(now_ns));
        if self.0.is_over() {
            return Turn::then(Next::Never);
        }
        turn_after(progress)
    }
}

/// An address, and the rack on which it is one.
pub(super) struct RackBinding<'a> {
    pub(super) network: &'a Arc<Network>,
    pub(super) place: Place,
    pub(super) address: RackAddress,
}

impl Binding for RackBinding<'_> {
    fn bind(
        &self,
        threads: usize,
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        check_services(threads, services)?;
        let RackBinding { network, place, address } = self;
        let (text, limits) = (address.to_string(), address.limits());
        let in_use = || BindError::InUse { address: text.clone() };
        // Whoever is second should not have made anything.
        if network.listening(address).is_some() {
            return Err(in_use());
        }
        let of = (address.backend(), &limits);
        // Opened for each thread, as `rdma://` addresses do.
        let devices: Vec<_> = (0..threads).map(|_| place.node.device()).collect();
        let Halves { transports, intakes } =
            Halves::make(&text, of, &devices, options.max_clients)?;
        let costs = network.costs();
        let transports = transports.into_iter().map(|it| charge::server(it, &place.node, costs));
        let reception = Reception::new(address.backend(), services, limits);
        let admission = Admission::new(reception, intakes);
        let listening = Arc::new(Listening { place: place.clone(), admission });
        if !network.listen(address, &listening) {
            return Err(in_use());
        }
        let acceptor = Accepting {
            network: Arc::clone(network),
            address: address.clone(),
            listening: Some(listening),
        };
        Ok(Bound { transports: transports.collect(), acceptor: Box::new(acceptor), address: text })
    }
}

/// Takes clients in until it is stopped.
struct Accepting {
    network: Arc<Network>,
    address: RackAddress,
    listening: Option<Arc<Listening>>,
}

impl Acceptor for Accepting {
    fn stop(&mut self) {
        if let Some(listening) = self.listening.take() {
            self.network.stop(&self.address, &listening);
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stop();
    }
}
