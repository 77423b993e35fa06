//! A rack for each case: servers are actors on nodes of their own, and the case drives its clients, on other
//! nodes, from outside the actors.

use std::{cell::RefCell, process::Command, sync::Arc, time::Duration};

use farcall_core::{
    BindError, ConnectError, DrivenServer, ServiceDescription, Site,
    transport::{Dial, DialOptions, Lane, NewConnection},
};
use farcall_rack::{Rack, RackAddress, site_of};
use farcall_transports::AddressError;
use farcall_verbs::sim::{Fault, FaultRates, NodeId, SimConfig};

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

/// Nodes for clients, and as many for servers; cases that need more share them.
const NODES_OF_A_KIND: usize = 4;

/// The longest that one case may take by the rack's clock.
const CASE_LIMIT_NS: u64 = 1_200_000_000_000;

/// How far an idle rack's clock moves at a time: a case that waits for a deadline needs time to pass.
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

/// Prepares each case's rack.
type Plan = Arc<dyn Fn(&mut Rack, &Nodes) + Send + Sync>;

/// A rack of its own for each case, all from one seed.
///
/// The time between two turns of the case varies at random, and is the same for the same seed.
#[derive(Clone)]
pub struct RackFixture {
    template: RackAddress,
    seed: u64,
    config: SimConfig,
    plan: Option<Plan>,
}

thread_local! {
    /// The rack of the current or last case of this thread. A rack never leaves its thread.
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

pub(super) struct Current {
    pub(super) rack: Rack,
    nodes: Nodes,
    dice: Dice,
    addresses: usize,
    dialled: usize,
}

/// The state of a rack at the end of a case.
#[derive(Clone, Debug)]
pub struct LastRun {
    /// The rack's time at its end.
    pub now_ns: u64,
    /// Equal for equal runs.
    pub trace_hash: u64,
    /// The readable trace, if it was recorded.
    pub trace: Vec<String>,
}

/// The last case that ran on this thread, on a rack.
pub fn last_run() -> Option<LastRun> {
    CURRENT.with_borrow(|current| {
        current.as_ref().map(|Current { rack, .. }| LastRun {
            now_ns: rack.now_ns(),
            trace_hash: rack.trace_hash(),
            trace: rack.trace(),
        })
    })
}

/// Uses the rack of the current case.
pub(super) fn with<T>(then: impl FnOnce(&mut Current) -> T) -> T {
    CURRENT.with_borrow_mut(|current| {
        then(current.as_mut().expect("a case of the rack runs on the thread that begins it"))
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

    /// Sets the configuration of the racks.
    pub fn config(mut self, config: SimConfig) -> RackFixture {
        self.config = config;
        self
    }

    /// Prepares each case's rack before it begins: schedules faults, records a trace. Only faults that a connection repairs are
    /// allowed.
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
        let current = Current { rack, nodes, dice, addresses: 0, dialled: 0 };
        CURRENT.set(Some(current));
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            threads: false,
            processes: false,
            one_machine: false,
            holdings: true,
            virtual_time: true,
            raw_handshakes: true,
            strangers: true,
            gigabytes: false,
        }
    }

    fn fresh_address(&self, setup: &Setup) -> String {
        let address = with(|current| {
            let number = current.addresses;
            current.addresses += 1;
            let node = current.nodes.servers[number % NODES_OF_A_KIND];
            let template = self.template.to_string();
            let (_, options) = template.split_once('?').unwrap_or((&template, ""));
            format!("sim://{node}/{}-{number}?{options}", self.template.name())
        });
        with_options(address, Fixture::backend(self), setup)
    }

    fn parse(&self, address: &str) -> Result<Box<dyn Dial>, String> {
        match address.parse::<RackAddress>() {
            Ok(address) => Ok(Box::new(CurrentAddress(address))),
            Err(error) => Err(error.to_string()),
        }
    }

    fn serve(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        let handlers = Arc::new(Handlers::default());
        let builder = builder(&handlers, setup);
        let server = with(|current| current.rack.serve(address, builder))?;
        Ok(Box::new(OnRack { handlers, server }))
    }

    fn serve_in_process(&self, address: &str, setup: &Setup) -> Result<Box<dyn Served>, BindError> {
        self.serve(address, setup)
    }

    fn peer(&self) -> Command {
        unreachable!("a case that needs processes runs where they are")
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn has_random_faults(&self) -> bool {
        self.config.faults != FaultRates::default()
    }

    fn backend(&self) -> &str {
        self.template.backend_name()
    }

    fn raw_connection(&self, address: &str) -> Option<RawConnection> {
        let from = with(|current| current.next_client(Lane::Alone));
        Some(raw_stream::connect(from, address))
    }

    fn site(&self) -> Site {
        with(|current| site_of(&current.rack.node(current.nodes.clients[0])))
    }

    fn turn(&self) {
        move_on();
    }

    fn now(&self) -> Duration {
        now()
    }
}

/// Advances the rack of the current case.
pub(super) fn move_on() {
    with(|Current { rack, dice, .. }| {
        if dice.below(2) > 0 {
            rack.run_for(dice.below(LONGEST_STEP_NS));
        } else if !rack.step_within(IDLE_STEP_NS) {
            // Nothing is due: the case itself may wait for a deadline.
            rack.run_for(IDLE_STEP_NS);
        }
        let now_ns = rack.now_ns();
        assert!(now_ns < CASE_LIMIT_NS, "not ended within {now_ns} ns of the rack's time");
    });
}

/// The time of the current case's rack.
pub(super) fn now() -> Duration {
    Duration::from_nanos(with(|current| current.rack.now_ns()))
}

impl Current {
    /// The node of the next client; of a further lane, that of the last client, whose it is.
    fn next_client(&mut self, lane: Lane) -> NodeId {
        self.dialled += usize::from(!matches!(lane, Lane::Of(_)));
        self.nodes.clients[self.dialled % NODES_OF_A_KIND]
    }
}

/// An address on the rack of the current case.
struct CurrentAddress(RackAddress);

impl Dial for CurrentAddress {
    fn dial(
        &self,
        service: &'static ServiceDescription,
        site: &Site,
        options: &DialOptions,
    ) -> Result<NewConnection, ConnectError> {
        with(|current| {
            let from = current.next_client(options.lane);
            let rack = &mut current.rack;
            let dialling = rack.dial(from, &self.0.to_string(), service, site, options)?;
            rack.finish(dialling)
        })
    }
}

/// A server of the current case.
struct OnRack {
    handlers: Arc<Handlers>,
    server: DrivenServer,
}

impl OnRack {
    /// Where it runs.
    fn node(&self) -> NodeId {
        let address: RackAddress = self.server.address().parse().expect("the rack gave it");
        let on = |node: &&NodeId| node.number() == address.node();
        with(|current| *current.nodes.servers.iter().find(on).expect("a server's node"))
    }
}

/// How long a server that shuts down waits for calls in flight.
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
        let held = with(|current| current.rack.node(node).nic_resources());
        Some(Holdings {
            queues: held.queue_pairs + held.completion_queues + held.shared_receive_queues,
            regions: held.regions,
            clients: self.server.connections(),
            ..Holdings::default()
        })
    }

    /// Kills its node, and starts it again at once.
    fn kill(self: Box<Self>) {
        let node = self.node();
        with(|Current { rack, .. }| {
            rack.inject(Fault::KillNode(node));
            rack.inject(Fault::RestartNode(node));
        });
    }
}
