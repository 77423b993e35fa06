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
use farcall_transports::handshake::{FrameError, Nonce, Reject, ServerHandshake, ServerStep};

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
    /// Handshakes that have needed a nonce.
    nonces: u64,
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

    /// A number that no handshake of the rack has had. Each run of a simulation has the same: nobody is to be kept out.
    pub(super) fn nonce(&self) -> Nonce {
        let mut state = self.lock();
        state.nonces += 1;
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&state.nonces.to_le_bytes());
        nonce
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

/// Takes what has come of a client's frames, one after the other.
fn receive(handshake: &mut ServerHandshake, mut bytes: &[u8]) -> Result<ServerStep, FrameError> {
    loop {
        let (next, rest) = bytes.split_at(handshake.missing().min(bytes.len()));
        match handshake.receive(next)? {
            ServerStep::Receive if !rest.is_empty() => bytes = rest,
            step => return Ok(step),
        }
    }
}

/// A server's answer to frames of a client's.
pub(super) struct Answer {
    pub(super) bytes: Vec<u8>,
    pub(super) then: Then,
}

/// What comes after the server's answer.
pub(super) enum Then {
    /// Nothing: the server has refused the client, or answered a question.
    Nothing,
    /// The client's proof, for this handshake.
    Proof(Box<ServerHandshake>),
    /// The client is in, and says that it is ready.
    Ready(Box<Admitted>),
}

impl Answer {
    fn last(bytes: Vec<u8>) -> Answer {
        Answer { bytes, then: Then::Nothing }
    }

    /// The client, if it is let in.
    pub(super) fn into_admitted(self) -> Option<Box<Admitted>> {
        match self.then {
            Then::Ready(admitted) => Some(admitted),
            Then::Nothing | Then::Proof(_) => None,
        }
    }
}

impl Listening {
    /// The server's half of a new handshake.
    pub(super) fn handshake(&self, network: &Network) -> ServerHandshake {
        let handshake = ServerHandshake::default();
        match self.admission.authentication() {
            Some(authentication) => {
                handshake.authenticating(authentication.clone(), network.nonce())
            }
            None => handshake,
        }
    }

    /// Answers bytes of a client's in that handshake, or those of another server's question.
    pub(super) fn answer(
        &self,
        mut handshake: ServerHandshake,
        bytes: &[u8],
        (from, time_left): (&NodeLife, Duration),
    ) -> Answer {
        let hello = match receive(&mut handshake, bytes) {
            Ok(ServerStep::Decide(hello)) => hello,
            Ok(ServerStep::Challenge(bytes)) => {
                return Answer { bytes, then: Then::Proof(Box::new(handshake)) };
            }
            Ok(ServerStep::Refuse(answer)) => {
                self.admission.count_refusal(handshake.refusal_reason());
                return Answer::last(answer);
            }
            Ok(ServerStep::Reject(reject)) => {
                self.admission.count_refusal(RefusalReason::NotPermitted);
                return Answer::last(ServerHandshake::reject(reject));
            }
            Ok(ServerStep::TellTime) => {
                let now = Instant::from_nanos(self.life.node.clock_ns());
                let told = self.admission.tell_time(now, now);
                let told = told.map(|told| handshake.tell_time(told));
                return Answer::last(told.unwrap_or_else(ServerHandshake::reject));
            }
            Ok(ServerStep::Receive | ServerStep::Ready) => {
                self.admission.count_refusal(RefusalReason::NoHandshake);
                let what = "an incomplete frame".to_owned();
                return Answer::last(ServerHandshake::reject(Reject::Malformed { what }));
            }
            // A socket would be closed without a word.
            Err(error) => {
                self.admission.count_refusal(RefusalReason::NoHandshake);
                let what = error.to_string();
                return Answer::last(ServerHandshake::reject(Reject::Malformed { what }));
            }
        };
        // The server's threads move on only after this.
        let source = Source::Node(from.node.id().number());
        let (identity, no_wait) = (handshake.identity(), Duration::ZERO);
        let client = (&hello, identity.as_ref());
        match self.admission.admit(client, (source, no_wait), || Ok(time_left)) {
            Ok(farcall_transports::bootstrap::Admitted { greeting, accepted, .. }) => {
                let bytes = handshake.welcome(greeting);
                let (life, silence) = (self.life.clone(), self.admission.silence());
                let admitted = Admitted::new(handshake, accepted, life, silence);
                Answer { bytes, then: Then::Ready(Box::new(admitted)) }
            }
            Err(reject) => Answer::last(ServerHandshake::reject(reject.told_to(source))),
        }
    }
}
