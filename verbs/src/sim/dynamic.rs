//! Dynamic connections (Mellanox's DCT): an initiator connects on the fly to the target of its next work request.
//!
//! An initiator is connected to one target at a time. When the next work request is for another one, the initiator's NIC asks that
//! target's NIC for a connection as soon as the work before has left, and sends the request when it has the reply and the answers of
//! the work before. Then it disconnects from the earlier target. So a change costs three packets (FaSST, section 3.3): connect, reply,
//! disconnect. The target's NIC has a responder for each initiator that is connected to it, with a context of its own. Everything else is as
//! with a reliable connection between the initiator and that responder.
//!
//! A lost connect or reply is repeated as an unanswered message is. A lost disconnect leaves a responder behind, until its initiator
//! connects again or the target is destroyed.

use std::collections::BTreeMap;

use super::event::{Answer, QpId};
use super::message::Kind;
use super::nic::Work;
use super::pair::{Pair, PairParts, RETRIES, RetryPolicy};
use super::queue_pair::{QueuePair, SimEndpoint};
use super::world::World;
use crate::{ConnectError, ConnectOptions, QpState, QpType, Status};

/// What a queue pair is to dynamic connections.
#[derive(Debug)]
pub(super) enum Dynamic {
    Initiator(Initiator),
    Target(Target),
    /// One initiator's end at a target, made for the connection that begins with this message.
    Responder {
        target: u32,
        begins: u32,
    },
}

#[derive(Debug, Default)]
pub(super) struct Initiator {
    /// The keys of the targets that it has named.
    keys: BTreeMap<(u16, u32), u64>,
    /// The target of what is posted next.
    named: Option<QpId>,
    /// The target that it is connected to. The queue pair's peer is its responder.
    connected: Option<QpId>,
    next: Option<Next>,
}

/// The connection that comes next.
#[derive(Debug)]
struct Next {
    target: QpId,
    /// The work request that it begins with. Those before may be sent again meanwhile.
    begins: u64,
    /// Known when the target has replied.
    responder: Option<QpId>,
}

#[derive(Debug)]
pub(super) struct Target {
    key: u64,
    /// By initiator: its responder.
    responders: BTreeMap<(u16, u32), u32>,
}

fn name(qp: QpId) -> (u16, u32) {
    (qp.node, qp.number)
}

impl Dynamic {
    /// Where an initiator's next posted work goes.
    pub(super) fn named(&self) -> Option<QpId> {
        match self {
            Dynamic::Initiator(initiator) => initiator.named,
            _ => None,
        }
    }

    /// Whether work for this target can be sent now.
    pub(super) fn reaches(&self, target: QpId) -> bool {
        !matches!(self, Dynamic::Initiator(initiator) if initiator.connected != Some(target))
    }

    /// Whether it waits for the reply of its next target.
    pub(super) fn is_connecting(&self) -> bool {
        let Dynamic::Initiator(initiator) = self else { return false };
        initiator.next.as_ref().is_some_and(|next| next.responder.is_none())
    }

    /// The number that the owner of a target knows, if this is one of its responders.
    pub(super) fn target_number(&self) -> Option<u32> {
        match self {
            Dynamic::Responder { target, .. } => Some(*target),
            _ => None,
        }
    }
}

impl QueuePair {
    pub(crate) fn accept_dynamically(&mut self, key: u64) -> Result<(), ConnectError> {
        self.become_dynamic(|pair| {
            if pair.state != QpState::Init {
                return Err(ConnectError::State(pair.state));
            }
            let target = Target { key, responders: BTreeMap::new() };
            pair.dynamic = Some(Box::new(Dynamic::Target(target)));
            pair.state = QpState::ReadyToReceive;
            Ok(())
        })
    }

    pub(crate) fn connect_dynamically(
        &mut self,
        target: &SimEndpoint,
        key: u64,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let to = self.peer_of(target)?;
        self.become_dynamic(|pair| {
            match (&mut pair.dynamic, pair.state) {
                (None, QpState::Init) => {
                    pair.retry_policy = RetryPolicy::of(options);
                    pair.rnr_left = options.rnr_retry;
                    pair.dynamic = Some(Box::new(Dynamic::Initiator(Initiator::default())));
                    pair.state = QpState::ReadyToSend;
                }
                (Some(_), QpState::ReadyToSend) => {}
                (_, state) => return Err(ConnectError::State(state)),
            }
            let Some(Dynamic::Initiator(initiator)) = pair.dynamic.as_deref_mut() else {
                return Err(ConnectError::Mismatch("it is a target, which initiates nothing"));
            };
            initiator.keys.insert(name(to), key);
            initiator.named = Some(to);
            Ok(())
        })
    }

    fn become_dynamic(
        &mut self,
        change: impl FnOnce(&mut Pair) -> Result<(), ConnectError>,
    ) -> Result<(), ConnectError> {
        let mut world = self.context.lock();
        let pair = world.pair(self.id).ok_or(ConnectError::State(QpState::Error))?;
        if pair.ty != QpType::Rc {
            return Err(ConnectError::Type(pair.ty));
        }
        change(pair)
    }
}

impl World {
    fn initiator(&mut self, qp: QpId) -> Option<&mut Pair> {
        self.pair(qp).filter(|pair| matches!(pair.dynamic.as_deref(), Some(Dynamic::Initiator(_))))
    }

    /// The next work request of an initiator is for a target that it is not connected to.
    pub(super) fn approach(&mut self, qp: QpId, target: QpId) {
        let Some(pair) = self.initiator(qp) else { return };
        let (is_idle, begins) = (pair.next == pair.base, pair.next);
        let (sent_ns, timeout_ns) = (pair.last_launch_ns, pair.retry_policy.timeout_ns);
        let Some(Dynamic::Initiator(initiator)) = pair.dynamic.as_deref_mut() else { return };
        match &initiator.next {
            None => {
                initiator.next = Some(Next { target, begins, responder: None });
                let at_ns = self.now_ns.max(sent_ns);
                if let Some(pair) = self.pair(qp).filter(|_| is_idle) {
                    pair.deadline_ns = at_ns.saturating_add(timeout_ns);
                }
                self.ask_to_connect(qp, at_ns);
            }
            Some(Next { responder: Some(responder), .. }) if is_idle => {
                let responder = *responder;
                let before = initiator.connected.replace(target);
                initiator.next = None;
                if let Some(left) = pair.peer.replace(responder).filter(|_| before.is_some()) {
                    self.send_control(Kind::Disconnect, qp, left, 0, self.now_ns);
                }
                self.fetch(qp);
            }
            // The reply, or the answers of the work before, come first.
            Some(_) => {}
        }
    }

    /// Sends a connect to the next target, or sends it again.
    pub(super) fn ask_to_connect(&mut self, qp: QpId, at_ns: u64) {
        let Some(pair) = self.initiator(qp) else { return };
        let Some(Dynamic::Initiator(initiator)) = pair.dynamic.as_deref() else { return };
        let Some(Next { target, begins, .. }) = initiator.next else { return };
        let key = initiator.keys.get(&name(target)).copied().unwrap_or_default();
        self.send_control(Kind::Connect { key }, qp, target, begins as u32, at_ns);
        self.start_timer(qp);
    }

    /// Sends a packet that no work request is for.
    fn send_control(&mut self, kind: Kind, from: QpId, to: QpId, psn: u32, at_ns: u64) {
        let index = self.messages.insert(QpType::Rc, kind, from, to);
        self.messages[index].psn = psn;
        let nic = &mut self.nodes[usize::from(from.node)].nic;
        let work = Work { lines: 1, pushed: true, last: true, fetched: 0, datagram: false };
        let at_ns = nic.send(&self.config.costs, at_ns, work);
        self.transmit(index, at_ns);
        self.messages.release(index);
    }

    /// A connect has arrived at a target.
    pub(super) fn accept_initiator(&mut self, index: u32, key: u64) {
        let message = &self.messages[index];
        let (from, to, psn) = (message.from, message.to, message.psn);
        let made = self.responder_for(from, to, key, psn);
        self.note(to, || format!("is asked for a connection, and accepts: {}", made.is_some()));
        let answer = match made {
            Some(number) => {
                let node = &mut self.nodes[usize::from(to.node)];
                // Its context is needed for the first time.
                if let Some(pair) = node.pairs.get_mut(number) {
                    let costs = &self.config.costs;
                    node.nic.find_to_respond(costs, self.now_ns, number, &mut pair.context);
                }
                Answer::Connected
            }
            None => Answer::NotConnected,
        };
        self.answer(to, from, psn, answer);
    }

    /// The responder of an initiator for the connection that begins with this message; `None`: the target does not accept it.
    fn responder_for(&mut self, from: QpId, to: QpId, key: u64, begins: u32) -> Option<u32> {
        let pair = self.pair(to).filter(|pair| pair.accepts_messages())?;
        let parts = PairParts {
            ty: pair.ty,
            pd: pair.pd,
            send_cq: pair.send_cq,
            recv_cq: pair.recv_cq,
            srq: pair.srq,
            max_send_wr: 0,
            max_recv_wr: 0,
        };
        let Some(Dynamic::Target(target)) = pair.dynamic.as_deref() else { return None };
        if target.key != key {
            return None;
        }
        let before = target.responders.get(&name(from)).copied();
        let pairs = &mut self.nodes[usize::from(to.node)].pairs;
        if let Some(number) = before {
            let known = pairs.get(number).and_then(|it| it.dynamic.as_deref());
            if let Some(Dynamic::Responder { begins: known, .. }) = known {
                match begins.wrapping_sub(*known) as i32 {
                    // The reply was lost, and the connect came again.
                    0 => return Some(number),
                    // A copy of an earlier one was late.
                    ..0 => return None,
                    _ => {}
                }
            }
            pairs.remove(number);
        }
        let mut responder = Pair::new(parts);
        responder.peer = Some(from);
        responder.expected = begins;
        responder.state = QpState::ReadyToReceive;
        responder.dynamic = Some(Box::new(Dynamic::Responder { target: to.number, begins }));
        let number = pairs.insert(responder)?;
        if let Some(Dynamic::Target(target)) = self.pair(to)?.dynamic.as_deref_mut() {
            target.responders.insert(name(from), number);
        }
        Some(number)
    }

    /// The target has replied to a connect.
    pub(super) fn handle_reply(&mut self, qp: QpId, psn: u32, accepted: bool) {
        let Some(pair) = self.initiator(qp) else { return };
        let Some(Dynamic::Initiator(initiator)) = pair.dynamic.as_deref() else { return };
        let next = initiator.next.as_ref();
        let next = next.filter(|next| next.responder.is_none() && next.begins as u32 == psn);
        let Some(&Next { target, begins, .. }) = next else { return };
        if !accepted {
            // After the answers to what was sent before.
            return self.refuse(qp, begins, Status::RemoteInvalidRequest);
        }
        let known = self.pair(target).and_then(|pair| match pair.dynamic.as_deref() {
            Some(Dynamic::Target(target)) => target.responders.get(&name(qp)).copied(),
            _ => None,
        });
        let Some(pair) = self.initiator(qp) else { return };
        pair.retries_left = RETRIES;
        if let Some(Dynamic::Initiator(initiator)) = pair.dynamic.as_deref_mut()
            && let Some(next) = &mut initiator.next
        {
            // Gone meanwhile: the request finds nobody, and times out.
            let number = known.unwrap_or(target.number);
            next.responder = Some(QpId { node: target.node, number });
        }
        self.fetch(qp);
    }

    /// A disconnect has arrived at a responder.
    pub(super) fn forget_initiator(&mut self, from: QpId, responder: QpId) {
        let Some(pair) = self.pair(responder).filter(|pair| pair.peer == Some(from)) else {
            return;
        };
        let Some(target) = pair.dynamic.as_deref().and_then(Dynamic::target_number) else { return };
        let node = &mut self.nodes[usize::from(responder.node)];
        node.pairs.remove(responder.number);
        let dynamic = node.pairs.get_mut(target).and_then(|pair| pair.dynamic.as_deref_mut());
        if let Some(Dynamic::Target(target)) = dynamic {
            target.responders.remove(&name(from));
        }
    }

    /// A queue pair is about to be destroyed: an initiator disconnects, and a target loses its responders.
    pub(super) fn end_dynamic(&mut self, qp: QpId) {
        let Some(pair) = self.pair(qp) else { return };
        let peer = pair.peer;
        match pair.dynamic.take().map(|dynamic| *dynamic) {
            Some(Dynamic::Initiator(Initiator { connected: Some(_), .. })) => {
                if let Some(responder) = peer {
                    self.send_control(Kind::Disconnect, qp, responder, 0, self.now_ns);
                }
            }
            Some(Dynamic::Target(target)) => {
                let pairs = &mut self.nodes[usize::from(qp.node)].pairs;
                target.responders.into_values().for_each(|number| drop(pairs.remove(number)));
            }
            _ => {}
        }
    }

    /// An initiator may have been waiting for answers to connect to another target.
    pub(super) fn resume_initiator(&mut self, qp: QpId) {
        if self.initiator(qp).is_some_and(|pair| pair.next == pair.base) {
            self.fetch(qp);
        }
    }

    /// Repeats a connect whose reply has not come in time.
    pub(super) fn repeat_connect(&mut self, qp: QpId) {
        let is_connecting =
            |pair: &mut Pair| pair.dynamic.as_deref().is_some_and(Dynamic::is_connecting);
        if self.pair(qp).is_some_and(is_connecting) {
            self.ask_to_connect(qp, self.now_ns);
        }
    }
}
