//! From INIT to READY TO SEND.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{QueuePair, ShmEndpoint};
use crate::shm::bell::Bell;
use crate::shm::calls::PeersCalls;
use crate::shm::context::Context;
use crate::shm::inbox::{Inbox, InboxLayout, InboxState};
use crate::shm::outbox::{Outbox, Receives};
use crate::shm::pair::{Pair, gate};
use crate::shm::peer::Peer;
use crate::shm::shared_receive::CreditPage;
use crate::shm::wire::{Question, ask, receives};
use crate::{ConnectError, ConnectOptions, QpState, QpType};

/// Sockets take no time at all for no bound.
const LEAST_SETUP: Duration = Duration::from_millis(1);

/// Sockets do not take every time: what waits longer waits as long as this.
const LONGEST_SETUP: Duration = Duration::from_secs(365 * 24 * 3600);

impl QueuePair {
    pub(crate) fn connect(
        &mut self,
        peer: &ShmEndpoint,
        options: &ConnectOptions,
    ) -> Result<(), ConnectError> {
        let pair = &self.pair;
        if pair.ty == QpType::Ud {
            return Err(ConnectError::Type(pair.ty));
        }
        if pair.state() != QpState::Init {
            return Err(ConnectError::State(pair.state()));
        }
        if peer.ty != pair.ty as u32 {
            return Err(ConnectError::Mismatch("it names a queue pair of another type"));
        }
        if peer.uid != pair.context.uid {
            return Err(ConnectError::OtherUser { theirs: peer.uid, ours: pair.context.uid });
        }
        if !pair.bind_to(peer.gid, peer.qp) {
            return Err(ConnectError::Mismatch("another queue pair has connected to this one"));
        }
        let timeout = options.setup_timeout.clamp(LEAST_SETUP, LONGEST_SETUP);
        let context = pair.context.peer(peer.gid, timeout)?;
        let outbox = attach(pair, &context, peer.qp, peer.secret, timeout)?;
        for region in &options.regions {
            // Who accesses one that there is not, or of a peer that is gone, hears of it.
            let _ = context.ask_for_region(region.rkey);
        }
        // SAFETY: we are the owner, and nothing waits in a queue pair that was never connected.
        let side = unsafe { pair.side() };
        side.outbox = Some(outbox);
        side.peer = Some(Arc::clone(&context));
        side.peers_qp = peer.qp;
        side.rnr_retry = options.rnr_retry;
        side.rnr_timer_ns = options.rnr_timer_ns;
        side.retry_timeout_ns = options.retry_timeout_ns;
        let _ = pair.connected_to.set((Arc::clone(&context), peer.qp));
        if !pair.advance(QpState::Init, QpState::ReadyToReceive) {
            return Err(ConnectError::State(pair.state()));
        }
        pair.set_inbox_state(InboxState::Ready);
        self.ready_to_send();
        context.watch(&self.pair);
        Ok(())
    }

    /// The last step. An error that happened meanwhile is kept.
    fn ready_to_send(&self) {
        if self.pair.advance(QpState::ReadyToReceive, QpState::ReadyToSend) {
            self.pair.gate.fetch_and(!gate::CLOSED, Ordering::SeqCst);
        }
        if self.pair.state() == QpState::Error {
            self.pair.gate.fetch_or(gate::CLOSED, Ordering::SeqCst);
            self.pair.set_inbox_state(InboxState::Error);
        }
    }

    pub(crate) fn activate(&mut self, qkey: u32) -> Result<(), ConnectError> {
        let pair = &self.pair;
        if pair.ty != QpType::Ud {
            return Err(ConnectError::Type(pair.ty));
        }
        pair.qkey.store(qkey, Ordering::Release);
        if !pair.advance(QpState::Init, QpState::ReadyToReceive) {
            return Err(ConnectError::State(pair.state()));
        }
        self.ready_to_send();
        if self.pair.state() == QpState::ReadyToSend {
            self.pair.set_inbox_state(InboxState::Ready);
        }
        Ok(())
    }
}

/// Requests the inbox of a peer's queue pair, and maps it.
pub(in crate::shm) fn attach(
    pair: &Pair,
    peer: &Peer,
    to_qp: u32,
    secret: u64,
    timeout: Duration,
) -> Result<Outbox, ConnectError> {
    let question = Question {
        what: ask::ATTACH,
        gid: pair.context.gid,
        claim: peer.claim,
        from_qp: pair.number,
        to_qp,
        secret,
        ty: pair.ty as u32,
        ..Question::default()
    };
    let (answer, fds) = peer.ask(&question, timeout)?;
    let layout = InboxLayout { cells: answer.cells, lengths: answer.lengths }
        .checked()
        .ok_or(ConnectError::Malformed("layout of an inbox"))?;
    if pair.ty != QpType::Ud
        && let Some(context) = peer.own()
    {
        return attach_own(pair, &context, to_qp, answer.pd);
    }
    let mut fds = fds.into_iter();
    let mut next = |what| fds.next().ok_or(ConnectError::Malformed(what));
    let file: OwnedFd = next("no inbox")?;
    let inbox = Inbox::map(file.as_fd(), layout).map_err(|_| ConnectError::Malformed("inbox"))?;
    let page = |file: OwnedFd| {
        CreditPage::map(file.as_fd()).map_err(|_| ConnectError::Malformed("credit page"))
    };
    let receives = match answer.receives {
        receives::OURS => Receives::Exclusive,
        receives::TAKEN => Receives::Taken(page(next("no credit page")?)?),
        receives::SEEN => Receives::Seen(page(next("no credit page")?)?),
        _ => return Err(ConnectError::Malformed("way of counting receives")),
    };
    let index = answer.slot.checked_sub(1);
    let calls = index.map(|_| next("no page of calls")).transpose()?;
    let bell = match (answer.event, calls) {
        (0, _) => Bell::None,
        (number, calls) => {
            let at = peer.bell(number, next("no event")?);
            if let Some(file) = calls
                && at.calls.get().is_none()
            {
                let calls = PeersCalls::map(file.as_fd());
                let calls = calls.map_err(|_| ConnectError::Malformed("page of calls"))?;
                // Another queue pair may have set it meanwhile.
                let _ = at.calls.set(calls);
            }
            Bell::Remote { at, index }
        }
    };
    Ok(outbox(pair, Arc::new(inbox), answer.pd, receives, bell))
}

/// The same within this process, where the peer's queue pair has what it would otherwise send.
fn attach_own(pair: &Pair, context: &Context, to_qp: u32, pd: u32) -> Result<Outbox, ConnectError> {
    const GONE: ConnectError = ConnectError::Refused("its queue pair is gone");
    let to = context.pair(to_qp).ok_or(GONE)?;
    let inbox = Arc::clone(to.inbox().ok_or(GONE)?);
    let receives = match &to.credit {
        None => Receives::Exclusive,
        Some(credit) => Receives::Taken(credit.map_again().map_err(|error| {
            ConnectError::System { what: "mapping a credit page", source: error.into() }
        })?),
    };
    let bell = Bell::Own { cq: Arc::clone(&to.recv_cq), pair: to.id };
    Ok(outbox(pair, inbox, pd, receives, bell))
}

/// Where `pair` sends from now on.
fn outbox(pair: &Pair, inbox: Arc<Inbox>, pd: u32, receives: Receives, bell: Bell) -> Outbox {
    let (flow, peers_lines) = match pair.inbox() {
        Some(own) => {
            let _ = pair.flow.bell.set(bell.clone());
            let _ = pair.flow.outbox.set(Arc::clone(&inbox));
            (Arc::clone(&pair.flow), Some(own.duplex_lines()))
        }
        None => (Arc::default(), None), // Datagrams go one way.
    };
    Outbox::new(inbox, pd, receives, bell, flow, peers_lines)
}
