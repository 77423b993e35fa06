//! What joins the nodes of a rack beside their NICs: the network over which connections are made.
//!
//! It is not the simulated one. A handshake's frames take as long as they would over TCP, are lost where the rack's
//! fault say so, and are sent again; nothing else about them is modelled.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcall_verbs::sim::Node;

use super::address::RackAddress;
use super::admitted::Admitted;
use super::charge::CpuCosts;
use super::ties::{Place, Ties};
use crate::bootstrap::admission::Admission;
use crate::handshake::{Frame, FrameError, PREFIX_BYTES, Reject, Welcome};

/// One way through the kernel's network, both ends' share in it included.
pub(super) const LEG_NS: u64 = 25_000;

/// What was lost is sent again after so long.
pub(super) const RETRY_NS: u64 = 10_000_000;

/// The bound on a handshake by hand.
pub(super) const KNOCK_BOUND: Duration = Duration::from_secs(5);

/// All that listens on a rack, and what holds its connections together.
pub(super) struct Network {
    pub(super) ties: Arc<Mutex<Ties>>,
    /// Any node, by which the others are found.
    pub(super) any: Node,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    listening: BTreeMap<(u16, String), Arc<Listening>>,
    costs: CpuCosts,
}

/// A server that takes clients in.
pub(super) struct Listening {
    pub(super) place: Place,
    pub(super) admission: Admission,
}

impl Network {
    pub(super) fn new(any: Node) -> Arc<Network> {
        Arc::new(Network { ties: Arc::default(), any, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn costs(&self) -> CpuCosts {
        self.lock().costs
    }

    pub(super) fn set_costs(&self, costs: CpuCosts) {
        self.lock().costs = costs;
    }

    /// Who listens there now.
    pub(super) fn listening(&self, address: &RackAddress) -> Option<Arc<Listening>> {
        let key = (address.node(), address.name().to_owned());
        let state = self.lock();
        // One of an earlier start of its node went with that.
        state.listening.get(&key).filter(|listening| listening.place.runs()).cloned()
    }

    /// Listens there from now on; `false`: somebody else does.
    pub(super) fn listen(&self, address: &RackAddress, listening: &Arc<Listening>) -> bool {
        let key = (address.node(), address.name().to_owned());
        let mut state = self.lock();
        let taken = state.listening.get(&key).is_some_and(|other| other.place.runs());
        if !taken {
            state.listening.insert(key, Arc::clone(listening));
        }
        !taken
    }

    /// Nobody listens there any more, if this was who did.
    pub(super) fn stop(&self, address: &RackAddress, listening: &Arc<Listening>) {
        let key = (address.node(), address.name().to_owned());
        let mut state = self.lock();
        if state.listening.get(&key).is_some_and(|now| Arc::ptr_eq(now, listening)) {
            state.listening.remove(&key);
        }
    }
}

/// The frame of these bytes.
pub(super) fn read(bytes: &[u8]) -> Result<Frame, FrameError> {
    let prefix = bytes.first_chunk::<PREFIX_BYTES>().ok_or(FrameError::Magic)?;
    let len = Frame::body_len(prefix)?;
    let body = bytes.get(PREFIX_BYTES..PREFIX_BYTES + len).ok_or(FrameError::Body)?;
    Frame::from_body(body)
}

impl Listening {
    /// Answers a client's first frame; and what its server thread has got, if it is let in.
    pub(super) fn answer(&self, hello: &[u8], time_left: Duration) -> (Frame, Option<Admitted>) {
        let malformed = |what: String| (Frame::Reject(Reject::Malformed { what }), None);
        let hello = match read(hello) {
            Ok(Frame::Hello(hello)) => hello,
            Ok(_) => return malformed("no hello".into()),
            Err(error) => return malformed(error.to_string()),
        };
        match self.admission.admit(&hello, || Ok(time_left)) {
            Ok((terms, accepted)) => {
                let welcome = Welcome { terms, setup: accepted.setup.clone() };
                (
                    Frame::Welcome(welcome),
                    Some(Admitted::new(accepted, self.place.clone(), self.admission.silence())),
                )
            }
            Err(reject) => (Frame::Reject(reject), None),
        }
    }
}
