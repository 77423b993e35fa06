//! The network over which connections are made, apart from the simulated NICs.
//!
//! The frames of a handshake take as long as they would over TCP, are lost where the rack's faults say so, and are sent
//! again; nothing else about them is modelled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_core::metrics::RefusalReason;
use farcall_core::time::Instant;
use farcall_transports::contract::{Fabric, Source};
use farcall_transports::{Backend, runs_on_stream};
use farcall_verbs::Device;
use farcall_verbs::sim::{Node, NodeId};

use farcall_transports::bootstrap::{Admission, OnPeerGone};
use farcall_transports::handshake::{Reject, ServerHandshake, ServerStep};

use super::address::RackAddress;
use super::admitted::Admitted;
use super::cpu_costs::CpuCosts;
use super::liveness::{Liveness, NodeLife};
use super::stream::{self, Deliveries, StreamEnd};

/// One way through the kernel's network, with both ends' share in it.
pub(super) const LEG_NS: u64 = 25_000;

/// What was lost is sent again after so long.
pub(super) const RETRY_NS: u64 = 10_000_000;

/// The bound on a handshake by hand.
pub(super) const RAW_HANDSHAKE_BOUND: Duration = Duration::from_secs(5);

/// All that listens on a rack, and what holds its connections together.
pub(super) struct Network {
    pub(super) liveness: Arc<Mutex<Liveness>>,
    pub(super) deliveries: Arc<Mutex<Deliveries>>,
    /// Any node, by which the others are found.
    pub(super) any: Node,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listening: BTreeMap<(u16, String), Arc<Listening>>,
    costs: CpuCosts,
    /// By node and start, where the programs of a node share an opened device.
    shared_devices: Option<BTreeMap<(NodeId, u32), Device>>,
    /// Of the next stream.
    seed: u64,
}

/// What a backend runs on at a node with that device.
pub(super) fn fabric<'d>(backend: &dyn Backend, device: &'d Device) -> Fabric<'d> {
    if runs_on_stream(backend) { Fabric::Stream } else { Fabric::Verbs(device) }
}

/// A server that takes clients in.
pub(super) struct Listening {
    pub(super) life: NodeLife,
    pub(super) admission: Admission,
}

impl Network {
    pub(super) fn new(any: Node, seed: u64) -> Arc<Network> {
        let state = Mutex::new(State { seed, ..State::default() });
        Arc::new(Network { liveness: Arc::default(), deliveries: Arc::default(), any, state })
    }

    /// A byte stream between a client and a server: see [`stream::stream`].
    pub(super) fn stream(&self, ends: [&NodeLife; 2]) -> ([StreamEnd; 2], [OnPeerGone; 2]) {
        let seed = {
            let mut state = self.lock();
            state.seed = state.seed.wrapping_add(1);
            state.seed
        };
        stream::stream(&self.deliveries, ends, seed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device of that node: a new one, or the one that its programs share.
    pub(super) fn device(&self, life: &NodeLife) -> Device {
        match &mut self.lock().shared_devices {
            None => life.node.device(),
            Some(devices) => {
                devices.entry(life.key()).or_insert_with(|| life.node.device()).clone()
            }
        }
    }

    pub(super) fn share_devices(&self) {
        self.lock().shared_devices.get_or_insert_default();
    }

    pub(super) fn costs(&self) -> CpuCosts {
        self.lock().costs
    }

    pub(super) fn set_costs(&self, costs: CpuCosts) {
        self.lock().costs = costs;
    }

    /// The server that listens there now.
    pub(super) fn listening(&self, address: &RackAddress) -> Option<Arc<Listening>> {
        let key = (address.node(), address.name().to_owned());
        let state = self.lock();
        // A server of an earlier start of its node is gone.
        state.listening.get(&key).filter(|listening| listening.life.is_running()).cloned()
    }

    /// Listens there from now on; `false`: another server does.
    pub(super) fn listen(&self, address: &RackAddress, listening: &Arc<Listening>) -> bool {
        let key = (address.node(), address.name().to_owned());
        let mut state = self.lock();
        let taken = state.listening.get(&key).is_some_and(|other| other.life.is_running());
        if !taken {
            state.listening.insert(key, Arc::clone(listening));
        }
        !taken
    }

    /// Stops listening there, if this is the server that does.
    pub(super) fn stop(&self, address: &RackAddress, listening: &Arc<Listening>) {
        let key = (address.node(), address.name().to_owned());
        let mut state = self.lock();
        if state.listening.get(&key).is_some_and(|now| Arc::ptr_eq(now, listening)) {
            state.listening.remove(&key);
        }
    }
}

impl Listening {
    /// Answers the bytes of a client's first frame, or of another server's question. Gives the client too, if it is let in.
    pub(super) fn answer(
        &self,
        hello: &[u8],
        from: &NodeLife,
        time_left: Duration,
    ) -> (Vec<u8>, Option<Box<Admitted>>) {
        let mut handshake = ServerHandshake::default();
        let hello = match handshake.receive(hello) {
            Ok(ServerStep::Decide(hello)) => hello,
            Ok(ServerStep::Refuse(answer)) => {
                self.admission.count_refusal(handshake.refusal_reason());
                return (answer, None);
            }
            Ok(ServerStep::Reject(reject)) => {
                self.admission.count_refusal(RefusalReason::NotPermitted);
                return (ServerHandshake::reject(reject), None);
            }
            Ok(ServerStep::TellTime) => {
                let now = Instant::from_nanos(self.life.node.clock_ns());
                let told = self.admission.tell_time(now, now);
                let told = told.map(|told| handshake.tell_time(told));
                return (told.unwrap_or_else(ServerHandshake::reject), None);
            }
            Ok(ServerStep::Receive | ServerStep::Challenge(_) | ServerStep::Ready) => {
                self.admission.count_refusal(RefusalReason::NoHandshake);
                let what = "an incomplete frame".to_owned();
                return (ServerHandshake::reject(Reject::Malformed { what }), None);
            }
            // A socket would be closed without a word.
            Err(error) => {
                self.admission.count_refusal(RefusalReason::NoHandshake);
                let what = error.to_string();
                return (ServerHandshake::reject(Reject::Malformed { what }), None);
            }
        };
        // The server's threads move on only after this.
        let source = Source::Node(from.node.id().number());
        match self.admission.admit((&hello, None), (source, Duration::ZERO), || Ok(time_left)) {
            Ok(farcall_transports::bootstrap::Admitted { greeting, accepted, .. }) => {
                let answer = handshake.welcome(greeting);
                let silence = self.admission.silence();
                let life = self.life.clone();
                let admitted = Admitted::new(handshake, accepted, life, silence);
                (answer, Some(Box::new(admitted)))
            }
            Err(reject) => (ServerHandshake::reject(reject.told_to(source)), None),
        }
    }
}
