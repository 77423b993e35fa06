//! A rack for each case: servers are actors on nodes of their own, and the case drives its clients, on other
//! nodes, from outside of the actors.

use std::{cell::RefCell, process::Command, sync::Arc, time::Duration};

use farcall_core::{
    BindError, ConnectError, DrivenServer, ServiceDescription,
    transport::{ClientTransport, Dial, DialOptions},
};
use farcall_transports::{
    AddressError,
    rack::{Rack, RackAddress},
};
use farcall_verbs::sim::{Fault, NodeId, SimConfig};

use super::raw_stream;
use crate::{
    addresses::{builder, with_options},
    case::Case,
    dice::Dice,
    fixture::{Capabilities, Fixture, Served},
    hostile::RawConnection,
    inspect::Holdings,
    service::Handlers,
    setup::Setup,
};

/// Nodes for clients, and as many for servers; cases that need more use them in turn.
const NODES_OF_A_KIND: usize = 4;

/// The longest that one case may take by the rack's clock.
const CASE_LIMIT_NS: u64 = 1_200_000_000_000;

/// How far an idle rack's clock moves at a time: those who wait for a moment must see it pass.
const IDLE_STEP_NS: u64 = 100_000;

/// The most time that may pass between two turns of the case while something happens.
const LONGEST_STEP_NS: u64 = 5_000;

/// The nodes of a case's rack.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// Where its clients are.
    pub clients: Vec<NodeId>,
    /// Where its servers are.
    pub servers: Vec<NodeId>,
}

/// What is to happen to each case's rack.
type Plan = Arc<dyn Fn(&mut Rack, &Nodes) + Send + Sync>;

/// A rack of its own for each case, all from one seed.
///
/// How much happens between two turns of the case is different each time, and the same for the same seed.
#[derive(Clone)]
pub struct RackFixture {
    template: RackAddress,
    seed: u64,
    config: SimConfig,
    plan: Option<Plan>,
}

thread_local! {
    /// The rack of the case that runs on this thread, or that has run last. A rack never leaves its thread.
    static PRESENT: RefCell<Option<Present>> = const { RefCell::new(None) };
}

pub(super) struct Present {
    pub(super) rack: Rack,
    nodes: Nodes,
    dice: Dice,
    addresses: usize,
    dialled: usize,
}

/// What is to be told of the last case of a thread.
#[derive(Clone, Debug)]
pub struct LastRun {
    /// The rack's time at its end.
    pub now_ns: u64,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The readable trace, as far as it was kept.
    pub trace: Vec<String>,
}

/// The last case that ran on this thread, on a rack.
pub fn last_run() -> Option<LastRun> {
    PRESENT.with_borrow(|present| {
        present.as_ref().map(|Present { rack, .. }| LastRun {
            now_ns: rack.now_ns(),
            trace_hash: rack.trace_hash(),
            trace: rack.trace(),
        })
    })
}

/// Does something with the rack of the present case.
pub(super) fn with<T>(then: impl FnOnce(&mut Present) -> T) -> T {
    PRESENT.with_borrow_mut(|present| {
        then(present.as_mut().expect("a case of the rack runs on the thread that begins it"))
    })
}

impl RackFixture {
    /// Racks of that seed, and addresses with the options of that one.
    pub fn new(template: &str, seed: u64) -> Result<RackFixture, AddressError> {
        // The template has no node: the suite chooses.
        let (scheme, rest) = template.split_once("://").unwrap_or(("sim", template));
        let template = format!("{scheme}://0/{rest}").parse()?;
        Ok(RackFixture { template, seed, config: SimConfig::default(), plan: None })
    }

    /// Racks of another kind.
    pub fn config(mut self, config: SimConfig) -> RackFixture {
        self.config = config;
        self
    }

    /// What is to be done with each case's rack before it begins: faults to be scheduled, a trace to be kept. Cases expect
    /// that all goes well in the end: only such faults are for them as a connection gets over.
    pub fn on_begin(
        mut self,
        plan: impl Fn(&mut Rack, &Nodes) + Send + Sync + 'static,
    ) -> RackFixture {
        self.plan = Some(Arc::new(plan));
        self
    }
}

impl Fixture for RackFixture {
    fn begin(&self, _case: &Case) {
        let mut rack = Rack::with_config(self.seed, self.config.clone());
        let mut some = || (0..NODES_OF_A_KIND).map(|_| rack.add_node()).collect();
        let nodes = Nodes { clients: some(), servers: some() };
        if let Some(plan) = &self.plan {
            plan(&mut rack, &nodes);
        }
        let dice = Dice::new(self.seed);
        let present = Present { rack, nodes, dice, addresses: 0, dialled: 0 };
        PRESENT.set(Some(present));
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            threads: false,
            processes: false,
            one_machine: false,
            holdings: true,
            virtual_time: true,
            raw_handshakes: true,
            gigabytes: false,
        }
    }

    fn fresh_address(&self, setup: &Setup) -> String {
        let address = with(|present| {
            let number = present.addresses;
            present.addresses += 1;
            let node = present.nodes.servers[number % NODES_OF_A_KIND];
            let template = self.template.to_string();
            let (_, options) = template.split_once('?').unwrap_or((&template, ""));
            format!("sim://{node}/{}-{number}?{options}", self.template.name())
        });
        with_options(address, Fixture::backend(self), setup)
    }

    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String> {
        match address.parse::<RackAddress>() {
            Ok(address) => Ok(Box::new(Presently(address))),
            Err(error) => Err(error.to_string()),
        }
    }

    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        let handlers = Arc::new(Handlers::default());
        let builder = builder(&handlers, setup);
        let server = with(|present| present.rack.serve(address, builder))?;
        Ok(Box::new(OnRack { handlers, server }))
    }

    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        self.serve(address, setup)
    }

    fn peer(&self) -> Command {
        unreachable!("a case that needs processes runs where they are")
    }

    fn backend(&self) -> &str {
        self.template.backend().name()
    }

    fn raw_connection(&self, address: &str) -> Option<RawConnection> {
        let from = with(Present::next_client);
        Some(raw_stream::connect(from, address))
    }

    fn turn(&self) {
        move_on();
    }

    fn now(&self) -> Duration {
        now()
    }
}

/// Lets something happen on the rack of the present case.
pub(super) fn move_on() {
    with(|Present { rack, dice, .. }| {
        if dice.below(2) > 0 {
            rack.run_for(dice.below(LONGEST_STEP_NS));
        } else if !rack.step_within(IDLE_STEP_NS) {
            // No further: the case itself may wait for a moment.
            rack.run_for(IDLE_STEP_NS);
        }
        let now_ns = rack.now_ns();
        assert!(now_ns < CASE_LIMIT_NS, "not ended within {now_ns} ns of the rack's time");
    });
}

/// The time of the present case's rack.
pub(super) fn now() -> Duration {
    Duration::from_nanos(with(|present| present.rack.now_ns()))
}

impl Present {
    /// The node of the next client.
    fn next_client(&mut self) -> NodeId {
        self.dialled += 1;
        self.nodes.clients[self.dialled % NODES_OF_A_KIND]
    }
}

/// An address, on the rack of the present case.
struct Presently(RackAddress);

impl Dial for Presently {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        options: &DialOptions,
    ) -> Result<Box<dyn ClientTransport>, ConnectError> {
        with(|present| {
            let from = present.next_client();
            let rack = &mut present.rack;
            let dialling = rack.dial(from, &self.0.to_string(), service, options)?;
            rack.finish(dialling)
        })
    }
}

/// A server of the present case.
struct OnRack {
    handlers: Arc<Handlers>,
    server: DrivenServer,
}

impl OnRack {
    /// Where it runs.
    fn node(&self) -> NodeId {
        let address: RackAddress = self.server.address().parse().expect("the rack gave it");
        let on = |node: &&NodeId| node.number() == address.node();
        with(|present| *present.nodes.servers.iter().find(on).expect("a server's node"))
    }
}

/// How long a server that ends gives the calls in flight.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

impl Served for OnRack {
    fn open(&mut self, gate: u64) {
        self.handlers.open_gate(gate);
    }

    fn metrics(&mut self) -> String {
        self.server.metrics().prometheus()
    }

    fn begin_shutdown(&mut self) {
        self.server.shut_down(DRAIN_BOUND);
    }

    fn has_ended(&mut self) -> bool {
        self.server.is_down()
    }

    fn holdings(&mut self) -> Option<Holdings> {
        let node = self.node();
        let held = with(|present| present.rack.node(node).nic_resources());
        Some(Holdings {
            queues: held.queue_pairs + held.completion_queues + held.shared_receive_queues,
            regions: held.regions,
            ..Holdings::default()
        })
    }

    /// As a process dies: its node, which is started again at once.
    fn kill(self: Box<Self>) {
        let node = self.node();
        with(|Present { rack, .. }| {
            rack.inject(Fault::KillNode(node));
            rack.inject(Fault::RestartNode(node));
        });
    }
}
