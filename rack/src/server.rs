//! Servers: listening on a rack, and server threads as actors.

use std::cell::Cell;
use std::sync::Arc;

use farcall_core::error::BindError;
use farcall_core::server::ServerThread;
use farcall_core::service::ServiceDescription;
use farcall_core::site::Site;
use farcall_core::time::{PollAt, Progress};
use farcall_core::transport::{Acceptor, BindOptions, Binding, Bound, BoundHalf, ConnectionId};
use farcall_transports::bootstrap::{
    Admission, Follower, NewIds, ServerHalves, adviser, check_services, places,
};
use farcall_transports::contract::SharedSlices;
use farcall_transports::hybrid;
use farcall_verbs::sim::{Actor, Next, Node, Turn};

use super::address::RackAddress;
use super::clock;
use super::cpu_costs;
use super::following::Following;
use super::liveness::NodeLife;
use super::network::{Listening, Network, fabric};
use super::waking::Waking;

/// What an actor does after a turn that made this progress: after work it looks once more; after an empty turn it waits for
/// what `next` says.
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
pub(super) struct ServerActor {
    pub(super) thread: ServerThread,
    pub(super) node: Node,
    /// Kept as long as the thread.
    pub(super) _waking: Option<Arc<Waking>>,
}

impl Actor for ServerActor {
    fn turn(&mut self, now_ns: u64) -> Turn {
        let progress = self.thread.turn(clock::now(&self.node, now_ns));
        if self.thread.is_over() {
            return Turn::then(Next::Never);
        }
        turn_after(clock::by_rack(&self.node, progress))
    }
}

/// An address, and the rack on which it is one.
pub(super) struct RackBinding<'a> {
    pub(super) network: &'a Arc<Network>,
    pub(super) life: NodeLife,
    pub(super) address: RackAddress,
    /// What is done to what it listens with.
    pub(super) alter: &'a dyn Fn(Bound) -> Bound,
    /// What asks another server for its time, if this one follows it. It is to become an actor.
    pub(super) following: Cell<Option<Following>>,
}

impl RackBinding<'_> {
    /// What follows the time of another server, if this one shares that one's slices.
    fn follower(&self) -> Result<Option<(RackAddress, Follower)>, String> {
        let config = self.address.config();
        let shared = self.address.backend().shared_slices(config).map_err(|it| it.to_string())?;
        let Some(SharedSlices { plan, of: Some(of) }) = shared else { return Ok(None) };
        let address = of.parse().map_err(|error| format!("slices_of: {error}"))?;
        Ok(Some((address, Follower::new(&of, plan))))
    }
}

impl Binding for RackBinding<'_> {
    fn bind(
        &self,
        sites: &[Site],
        services: &[&'static ServiceDescription],
        options: &BindOptions,
    ) -> Result<Bound, BindError> {
        check_services(sites.len(), services)?;
        let RackBinding { network, life, address, .. } = self;
        let (text, config) = (address.to_string(), address.config());
        let in_use = || BindError::InUse { address: text.clone() };
        if options.tls.is_some() {
            let what = "a simulated rack has no TLS; leave `tls` away there".into();
            return Err(BindError::Unsupported { address: text, what });
        }
        // A second server should not have made anything.
        if network.listening(address).is_some() {
            return Err(in_use());
        }
        // Opened for each thread, as `rdma://` addresses do, unless the rack shares them.
        let devices: Vec<_> = sites.iter().map(|_| network.device(life)).collect();
        let follower = self
            .follower()
            .map_err(|what| BindError::Unsupported { address: text.clone(), what })?;
        let clock = follower.as_ref().map(|(_, follower)| follower.clock());
        let costs = network.costs();
        let places = places(sites, config, options.into());
        let (mut halves, mut backends) = (Vec::new(), Vec::new());
        for (backend, config) in address.offered() {
            let threads = sites.iter().zip(&devices).zip(&places);
            let threads =
                threads.map(|((site, device), places)| (site, fabric(backend, device), places));
            let ServerHalves { transports, intakes } =
                ServerHalves::make(&text, (backend, config), threads, options.into(), clock)?;
            let transports =
                transports.into_iter().map(|it| cpu_costs::server(it, &life.node, costs));
            // A panic on a rack ends the simulation.
            halves.push(BoundHalf { transports: transports.collect(), renewal: None });
            backends.push((backend, config, intakes));
        }
        let of_ids = Arc::clone(network);
        let ids = NewIds::from(move || {
            let mut id = [0; 16];
            id.copy_from_slice(&of_ids.nonce()[..16]);
            Ok(ConnectionId::new(id))
        });
        let admission = Admission::new(backends, services, (places, ids), &sites[0])
            .with_authentication(options.authentication.clone());
        let listening = Arc::new(Listening { life: life.clone(), admission });
        if !network.listen(address, &listening) {
            return Err(in_use());
        }
        let following = follower.map(|it| Following::new(network, &listening, it));
        self.following.set(following);
        let acceptor = Accepting {
            network: Arc::clone(network),
            address: address.clone(),
            listening: Some(listening),
        };
        let moves = address.backend_name() == hybrid::NAME;
        let adviser = moves.then(|| adviser(address.offered(), sites.len(), &text));
        Ok((self.alter)(Bound { halves, acceptor: Box::new(acceptor), address: text, adviser }))
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
