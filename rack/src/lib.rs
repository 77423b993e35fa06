//! farcall on a simulated rack: the very code of servers and clients, as actors in virtual time.
//!
//! A [`Rack`] is a [`Sim`] and the network over which connections are made on it. A server's threads are actors on the
//! cores of its node; a client is an actor's own poll-mode connection, or an `async` program. Everything takes place in one
//! thread, and the same seed gives the same run.
//!
//! # How connections begin and end
//! As those of `rdma://` addresses do: the frames of the [handshake](farcall_transports::handshake) travel apart from the
//! simulated NICs, through a network that takes its time, and that knows of nodes that are dead and of ways that are cut.
//! Backends that need no NIC get a byte stream through the same network.
//! When a node is gone, its peers learn it from their queue pairs or streams, or when they have been silent for as long as the
//! address allows (`silence`).

#![forbid(unsafe_code)]

mod address;
mod admitted;
mod clock;
mod cpu_costs;
mod dial;
mod following;
mod liveness;
mod network;
mod program;
mod raw_handshake;
mod server;
mod stream;
mod waking;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use farcall_core::error::{BindError, ConnectError};
use farcall_core::server::{DrivenServer, ServerBuilder};
use farcall_core::service::{PollClient, ServiceDescription};
use farcall_core::site::Site;
use farcall_core::time::Instant;
use farcall_core::transport::{Bound, DialOptions, NewConnection};
use farcall_core::{Connection, ConnectionOptions};
use farcall_transports::runs_on_stream;
use farcall_verbs::VerbsError;
use farcall_verbs::sim::{NodeId, Sim, SimConfig};

pub use address::RackAddress;
pub use clock::site_of;
pub use cpu_costs::CpuCosts;
pub use dial::{Dialled, Dialling};
pub use program::{Host, Task};
pub use raw_handshake::RawAnswer;
pub use server::turn_after;

use liveness::{Liveness, NodeLife};
use network::Network;
use program::Program;
use server::{RackBinding, ServerActor};
use stream::Deliveries;
use waking::Waking;

/// A simulated rack, with servers and clients on its nodes. It is a [`Sim`] besides: what that can do, this can.
///
/// Node 0 is the rack's own. Nothing is to happen to it: it notices whose peers are gone.
pub struct Rack {
    sim: Sim,
    network: Arc<Network>,
    /// Its streams' readers are woken.
    has_streams: bool,
}

impl Rack {
    /// A rack without other nodes. The same seed, and the same use, give the same run, bit for bit.
    pub fn new(seed: u64) -> Rack {
        Rack::with_config(seed, SimConfig::default())
    }

    /// A rack of another kind.
    pub fn with_config(seed: u64, config: SimConfig) -> Rack {
        let mut sim = Sim::with_config(seed, config);
        let own = sim.add_node();
        let node = sim.node(own);
        let network = Network::new(node.clone(), seed);
        let all = Arc::clone(&network.liveness);
        let caretaker = sim.spawn(own, move |now_ns| liveness::look_after(&all, &node, now_ns));
        sim.wake_on_faults(caretaker);
        Liveness::set_caretaker(&network.liveness, sim.waker(caretaker));
        Rack { sim, network, has_streams: false }
    }

    /// What calls cost the cores, from the next server and the next connection on.
    pub fn set_cpu_costs(&mut self, costs: CpuCosts) {
        self.network.set_costs(costs);
    }

    /// From now on the clients and server threads of a node share one opened device, as those of a process do that does not
    /// open one for each: they contend for the lock of its doorbells.
    pub fn share_devices(&mut self) {
        self.network.share_devices();
    }

    fn life(&self, node: NodeId) -> NodeLife {
        NodeLife::new(self.sim.node(node))
    }

    /// Listens at an address of this rack, such as `sim://1/kv`, and puts the server's threads onto cores of that node.
    ///
    /// # Errors
    /// [`BindError`]: the address is not one of this rack, or is in use, or the node's device cannot carry the backend.
    pub fn serve(&mut self, text: &str, server: ServerBuilder) -> Result<DrivenServer, BindError> {
        self.serve_altered(text, server, &|bound| bound)
    }

    /// Serves as [`serve`](Rack::serve) does, with what it listens with as `alter` makes it: a hostile server, for example.
    ///
    /// # Errors
    /// [`BindError`]: the address is not one of this rack, or is in use, or the node's device cannot carry the backend.
    pub fn serve_altered(
        &mut self,
        text: &str,
        server: ServerBuilder,
        alter: &dyn Fn(Bound) -> Bound,
    ) -> Result<DrivenServer, BindError> {
        let address: RackAddress =
            text.parse().map_err(|why| BindError::InvalidAddress(Box::new(why)))?;
        let Some(node) = self.network.any.neighbour(address.node()) else {
            let what =
                "the rack has no such node; `Sim::add_node` gives the numbers of those it has";
            return Err(BindError::Unsupported { address: address.to_string(), what: what.into() });
        };
        let life = NodeLife::new(node.clone());
        let network = Arc::clone(&self.network);
        let binding =
            RackBinding { network: &network, life, address, alter, following: Cell::default() };
        let on_stream = binding.address.offered().any(|(backend, _)| runs_on_stream(backend));
        let sites: Vec<_> = (0..server.thread_count()).map(|_| site_of(&node)).collect();
        let mut waking = Vec::new();
        if on_stream {
            self.wake_readers();
            for site in &sites {
                let failed = |error: VerbsError| BindError::Device {
                    address: text.to_owned(),
                    cause: error.into(),
                };
                waking.push(Waking::at(site, &node).map_err(failed)?);
            }
        }
        let (server, threads) = server.assemble(&[&binding], sites)?;
        let mut waking = waking.into_iter();
        for thread in threads {
            let waking = waking.next();
            let actor = ServerActor { thread, node: node.clone(), _waking: waking.clone() };
            let actor = self.sim.spawn(node.id(), actor);
            if let Some(waking) = waking {
                waking.set_actor(self.sim.waker(actor));
            }
        }
        if let Some(following) = binding.following.take() {
            self.sim.spawn(node.id(), following);
        }
        Ok(server)
    }

    /// From now on an actor wakes the readers of streams.
    fn wake_readers(&mut self) {
        if std::mem::replace(&mut self.has_streams, true) {
            return;
        }
        let deliveries = Arc::clone(&self.network.deliveries);
        let own = self.network.any.id();
        let caretaker = self.sim.spawn(own, move |now_ns| stream::deliver(&deliveries, now_ns));
        Deliveries::set_caretaker(&self.network.deliveries, self.sim.waker(caretaker));
    }

    /// A connection to be made from that node, for the site of the actor that drives it: see [`site_of`].
    ///
    /// # Errors
    /// [`ConnectError`]: the address is not one of this rack.
    pub fn dial(
        &self,
        from: NodeId,
        address: &str,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<Dialling, ConnectError> {
        Dialling::new(&self.network, self.life(from), address, service, site, options)
    }

    /// Runs the rack until the connection is made. The connection may be used from outside of actors, between steps, or move
    /// into an actor of its node.
    ///
    /// # Errors
    /// [`ConnectError`]: why there is no connection.
    pub fn finish(&mut self, mut dialling: Dialling) -> Result<NewConnection, ConnectError> {
        loop {
            match dialling.turn(Instant::from_nanos(self.sim.now_ns())) {
                Dialled::Done(transport) => return transport,
                Dialled::NotYet(at) => self.sim.run_until(at.as_nanos()),
            }
        }
    }

    /// A client on that node, connected when this returns: see [`finish`](Rack::finish).
    ///
    /// # Errors
    /// [`ConnectError`]: why there is no connection.
    pub fn connect<C: PollClient>(
        &mut self,
        from: NodeId,
        address: &str,
        options: &ConnectionOptions,
    ) -> Result<C, ConnectError> {
        let site = options.given_site().cloned().unwrap_or_else(|| site_of(&self.sim.node(from)));
        let dialling = self.dial(from, address, C::DESCRIPTION, &site, options.dial_options())?;
        let dialled = self.finish(dialling)?;
        Ok(C::from_connection(Connection::new(dialled, &site, options)))
    }

    /// Puts a program onto a core of that node.
    pub fn spawn_program<F>(
        &mut self,
        node: NodeId,
        program: impl FnOnce(Host) -> F,
    ) -> Task<F::Output>
    where
        F: Future + 'static,
    {
        let site = site_of(&self.sim.node(node));
        self.spawn_program_at(node, &site, program)
    }

    /// Puts a program onto a core of that node, whose connections are made for this site: programs of one site can share
    /// what a backend lets the connections of a site share.
    pub fn spawn_program_at<F>(
        &mut self,
        node: NodeId,
        site: &Site,
        program: impl FnOnce(Host) -> F,
    ) -> Task<F::Output>
    where
        F: Future + 'static,
    {
        let host = Host::new(self.life(node), site.clone(), Arc::clone(&self.network));
        let (program, task) = Program::new(host.clone(), program(host));
        self.sim.spawn(node, program);
        task
    }

    /// Runs a program on that node to its end, and everything else meanwhile. `None`: its node was killed, or the rack is
    /// idle and the program still waits.
    pub fn run<F>(&mut self, node: NodeId, program: impl FnOnce(Host) -> F) -> Option<F::Output>
    where
        F: Future + 'static,
    {
        let task = self.spawn_program(node, program);
        while task.is_running() && self.sim.step() {}
        task.take()
    }
}

impl Deref for Rack {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.sim
    }
}

impl DerefMut for Rack {
    fn deref_mut(&mut self) -> &mut Sim {
        &mut self.sim
    }
}

impl fmt::Debug for Rack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rack").field("sim", &self.sim).finish_non_exhaustive()
    }
}
