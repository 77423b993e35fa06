//! The owner's side of a queue pair.

mod connect;
#[cfg(all(test, not(loom)))]
mod ends;
#[cfg(all(test, not(loom)))]
pub(super) mod hostile;
#[cfg(all(test, not(loom)))]
mod long_messages;
#[cfg(all(test, not(loom)))]
mod long_sends;
mod post_recv;
mod post_send;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::completion_queue::{Change, CqHandle};
use super::datagram::{DatagramReceiver, Paths, Supply};
use super::domain::Domain;
use super::inbox::{Inbox, InboxLayout, InboxState};
use super::pair::{Arrivals, Pair, PairParts};
use super::peer::lock;
use super::receive::{Posted, Receive, Receiver, Source};
use super::shared_receive::{CreditPage, SharedReceiveQueue};
use super::spsc::{Producer, queue};
use super::wire::{Gid, receives};
use crate::memory::window::Binder;
use crate::random;
use crate::{Buffer, QpState, QpType, VerbsError};

pub(super) use connect::attach;

/// Buffers in flight for which there is room from the beginning: bytes that are inline take none.
const FEW_BUFFERS: usize = 16;

/// Identifies a queue pair to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ShmEndpoint {
    pub(crate) secret: u64,
    pub(crate) gid: Gid,
    pub(crate) uid: u32,
    pub(crate) qp: u32,
    pub(crate) ty: u32,
    pub(crate) reserved: u32,
}

/// An id of a queue pair, or of a sender of datagrams, at its completion queues; ids are never reused in a process.
pub(super) fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The checked parameters of a queue pair.
pub(crate) struct Config<'a> {
    pub(crate) ty: QpType,
    pub(crate) send_cq: &'a CqHandle,
    pub(crate) recv_cq: &'a CqHandle,
    pub(crate) srq: Option<&'a SharedReceiveQueue>,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
}

/// Where receives are posted.
enum Receives {
    /// To the poller, which takes them exclusively.
    Own(Producer<Posted>),
    /// The same, for datagrams.
    Datagrams(Producer<Receive>),
    /// To a shared receive queue, which posts them itself.
    Srq,
}

pub(crate) struct QueuePair {
    pair: Arc<Pair>,
    /// What windows know it by.
    binder: Binder,
    /// Send work requests posted so far, and the limit of that count as last computed.
    posted: u64,
    limit: u64,
    max_send_wr: u64,
    /// Buffers of send work requests, with the requests' numbers, until they are retired.
    in_flight: VecDeque<(u64, Buffer)>,
    receives: Receives,
    /// Receives posted so far, wrapping.
    posted_receives: u32,
    max_recv_wr: u32,
    /// Receives with buffers have been posted, so the inbox's table of lengths must be maintained.
    lengths_used: bool,
    /// The completions that this queue pair may have outstanding at its two completion queues.
    demand: (usize, usize),
}

impl QueuePair {
    pub(crate) fn new(domain: &Domain, config: Config<'_>) -> Result<QueuePair, VerbsError> {
        let system =
            |what| move |error: io::Errno| VerbsError::System { what, source: error.into() };
        let Config { ty, send_cq, recv_cq, srq, max_send_wr, max_recv_wr } = config;
        let Domain { context, number: pd, sole } = domain;
        let pd = *pd;
        if let Some(sole) = sole {
            sole.take_place()?;
        }
        let (send_cq, recv_cq) = (send_cq.of(context)?, recv_cq.of(context)?);
        if srq.is_some_and(|srq| !srq.belongs_to(context)) {
            return Err(VerbsError::Foreign("shared receive queue"));
        }
        let mut secret = 0;
        let arrivals = if ty == QpType::Ud {
            Arrivals::Many(Paths::default())
        } else {
            secret = random::word().map_err(system("random secret"))?;
            let layout = InboxLayout::for_receives(max_recv_wr);
            let (inbox, file) =
                Inbox::create(layout).map_err(system("memory for an inbox of a queue pair"))?;
            Arrivals::One { inbox: Arc::new(inbox), file: Some(file).into() }
        };
        let pool = srq.map(|srq| Arc::clone(&srq.pool));
        let (credit, receives) = match &pool {
            Some(pool) => (Some(Arc::clone(&pool.credit)), receives::TAKEN),
            None if ty == QpType::Ud => {
                let page = CreditPage::create()
                    .map_err(system("memory to count the receives of a queue pair"))?;
                (Some(Arc::new(page)), receives::SEEN)
            }
            None => (None, receives::OURS),
        };
        let number = context.new_qp_number();
        let pair = Arc::new(Pair::new(PairParts {
            number,
            ty,
            pd,
            secret,
            context: Arc::clone(context),
            send_cq: Arc::clone(&send_cq),
            recv_cq: Arc::clone(&recv_cq),
            id: new_id(),
            arrivals,
            sole: sole.clone(),
            credit,
            receives,
        }));
        context.add_pair(number, &pair);
        if let Some(srq) = srq {
            srq.pool.expect_in(&recv_cq);
        }
        let demand = (max_send_wr, if srq.is_some() { 0 } else { max_recv_wr });
        send_cq.expect(demand.0);
        recv_cq.expect(demand.1);
        let receives = if ty == QpType::Ud {
            let (supply, receives) = match pool {
                Some(pool) => (Supply::Shared(pool), Receives::Srq),
                None => {
                    let (producer, consumer) = queue(max_recv_wr);
                    (Supply::Own(consumer), Receives::Datagrams(producer))
                }
            };
            let receiver = DatagramReceiver::new(Arc::clone(&pair), supply);
            recv_cq.change(Change::Datagrams(Box::new(receiver)));
            receives
        } else {
            let (source, receives) = match pool {
                Some(pool) => (Source::Shared(pool), Receives::Srq),
                None => {
                    let (producer, consumer) = queue(max_recv_wr);
                    (Source::Own(consumer), Receives::Own(producer))
                }
            };
            if let Some(receiver) = Receiver::new(Arc::clone(&pair), source) {
                recv_cq.change(Change::Receiver(Box::new(receiver)));
            }
            receives
        };
        if !Arc::ptr_eq(&send_cq, &recv_cq) {
            send_cq.change(Change::Sender(Arc::clone(&pair)));
        }
        Ok(QueuePair {
            pair,
            binder: Binder::default(),
            posted: 0,
            limit: max_send_wr as u64,
            max_send_wr: max_send_wr as u64,
            in_flight: VecDeque::with_capacity(max_send_wr.min(FEW_BUFFERS)),
            receives,
            posted_receives: 0,
            max_recv_wr: max_recv_wr as u32,
            lengths_used: false,
            demand,
        })
    }

    #[inline]
    pub(crate) fn number(&self) -> u32 {
        self.pair.number
    }

    #[inline]
    pub(crate) fn state(&self) -> QpState {
        self.pair.state()
    }

    /// What windows know it by.
    #[cfg(feature = "faults")]
    pub(crate) fn binder(&self) -> &Binder {
        &self.binder
    }

    pub(crate) fn endpoint(&self) -> ShmEndpoint {
        ShmEndpoint {
            secret: self.pair.secret,
            gid: self.pair.context.gid,
            uid: self.pair.context.uid,
            qp: self.pair.number,
            ty: self.pair.ty as u32,
            reserved: 0,
        }
    }

    pub(crate) fn fail(&mut self) {
        self.pair.fail();
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let pair = &self.pair;
        pair.detached.store(true, Ordering::SeqCst);
        let was_in_error = pair.state() == QpState::Error;
        pair.fail();
        pair.set_inbox_state(InboxState::Destroyed);
        if was_in_error {
            pair.notify_peer(); // The peer knows of the error; now it can drop its record of us.
        }
        {
            let _slow = lock(&pair.slow);
            // SAFETY: we are the owner and hold the lock.
            unsafe { pair.side() }.destinations.close(pair.number);
        }
        pair.context.remove_pair(pair.number);
        pair.send_cq.expect_no_more(self.demand.0);
        pair.recv_cq.expect_no_more(self.demand.1);
        pair.recv_cq.change(Change::Gone(pair.id));
        pair.send_cq.change(Change::Gone(pair.id));
        // The CPU acts as the NIC: no operation is in flight any more, so the buffers may be reused.
        self.in_flight.clear();
    }
}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("pair", &self.pair).finish_non_exhaustive()
    }
}
