//! The destinations of a queue pair's datagrams: for each receiver, the inbox that is requested on first
//! use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::attachment::{Attachment, deliver};
use crate::shm::discarded::Remains;
use crate::shm::outbox::Outbox;
use crate::shm::pair::Pair;
use crate::shm::peer::Peer;
use crate::shm::wire::Gid;

/// With at most this many destinations, each new one triggers a search for dead ones.
const FEW_DESTINATIONS: usize = 8;

/// A receiver that did not exist is requested again after this time.
const ASK_AGAIN_NANOS: u64 = 10_000_000;

/// The inboxes that we send to.
#[derive(Debug, Default)]
pub(in crate::shm) struct Destinations {
    routes: Vec<Route>,
    /// For each destination, its index in `routes`.
    places: HashMap<(Gid, u32), usize, foldhash::fast::RandomState>,
    /// The index of the last lookup.
    last: usize,
    /// Destinations sent to since the last doorbell.
    unrung: Vec<usize>,
    /// The number of destinations at which dead ones are searched for.
    enough: usize,
}

/// The route to one queue pair.
#[derive(Debug)]
pub(in crate::shm) struct Route {
    reach: RouteState,
    peer: Arc<Peer>,
    qp: u32,
    unrung: bool,
}

#[derive(Debug)]
enum RouteState {
    Known(Box<Outbox>),
    /// Requested at this time.
    Asked(Arc<Attachment>, u64),
}

impl Route {
    fn leads_to(&self, peer: &Peer, qp: u32) -> bool {
        self.qp == qp && self.peer.gid == peer.gid
    }

    fn is_over(&self) -> bool {
        self.peer.is_dead()
            || match &self.reach {
                RouteState::Known(outbox) => outbox.is_over(),
                RouteState::Asked(attachment, _) => attachment.is_over(),
            }
    }
}

impl Destinations {
    #[inline]
    fn find(&mut self, peer: &Peer, qp: u32) -> Option<usize> {
        if !self.routes.get(self.last).is_some_and(|route| route.leads_to(peer, qp)) {
            self.last = *self.places.get(&(peer.gid, qp))?;
        }
        Some(self.last)
    }

    /// Returns the index of the route to this queue pair, if its inbox is known.
    #[inline]
    pub(in crate::shm) fn find_known(&mut self, peer: &Peer, qp: u32) -> Option<usize> {
        self.find(peer, qp)
            .filter(|route| matches!(self.routes[*route].reach, RouteState::Known(_)))
    }

    /// Returns the index of the route to this queue pair, and requests its inbox if necessary. `None`: it does
    /// not exist.
    #[cold]
    pub(in crate::shm) fn find_or_ask(
        &mut self,
        pair: &Arc<Pair>,
        peer: &Arc<Peer>,
        qp: u32,
    ) -> Option<usize> {
        if let Some(number) = self.find(peer, qp) {
            let route = &mut self.routes[number];
            if let RouteState::Asked(attachment, since) = &route.reach
                && attachment.is_refused()
            {
                let now = pair.context.now_ns();
                if now.saturating_sub(*since) < ASK_AGAIN_NANOS || peer.is_dead() {
                    return None;
                }
                route.reach = RouteState::Asked(Attachment::ask(pair, peer, qp), now);
            }
            return Some(number);
        }
        if peer.is_dead() {
            return None;
        }
        if self.routes.len() <= FEW_DESTINATIONS || self.routes.len() >= self.enough {
            self.remove_dead(pair);
        }
        let number = self.routes.len();
        let reach = RouteState::Asked(Attachment::ask(pair, peer, qp), pair.context.now_ns());
        self.routes.push(Route { reach, peer: Arc::clone(peer), qp, unrung: false });
        self.places.insert((peer.gid, qp), number);
        self.unrung.reserve(self.routes.len());
        Some(number)
    }

    /// Puts a datagram into the inbox, if there is room and a receive. Does not wake the peer.
    #[inline]
    pub(in crate::shm) fn send(&mut self, route: usize, bytes: &[u8], imm: Option<u32>, qkey: u32) {
        let Some(Route { reach, unrung, .. }) = self.routes.get_mut(route) else { return };
        if let RouteState::Asked(attachment, _) = reach {
            let Some(outbox) = attachment.hold(bytes, imm, qkey) else { return };
            *reach = RouteState::Known(outbox);
        }
        if let RouteState::Known(outbox) = reach
            && deliver(outbox, bytes, imm, qkey)
            && !std::mem::replace(unrung, true)
        {
            self.unrung.push(route);
        }
    }

    /// Wakes the sleeping receivers among those sent to since the last doorbell.
    #[inline]
    pub(in crate::shm) fn ring_doorbell(&mut self) {
        if self.unrung.is_empty() {
            return;
        }
        // Orders the cells before the loads of `armed` (see `Outbox::ring_doorbell`); once for all receivers.
        fence(Ordering::SeqCst);
        for number in self.unrung.drain(..) {
            if let Some(Route { reach: RouteState::Known(outbox), unrung, .. }) =
                self.routes.get_mut(number)
            {
                *unrung = false;
                outbox.wake_if_armed();
            }
        }
    }

    /// Removes dead receivers. A server whose clients come and go keeps at most twice as many routes as there
    /// are live clients.
    fn remove_dead(&mut self, pair: &Pair) {
        self.ring_doorbell();
        let dead = self.routes.extract_if(.., |route| route.is_over());
        pair.context.control.discard(dead.map(Remains::Route).collect());
        self.places.clear();
        self.places.extend(
            self.routes
                .iter()
                .enumerate()
                .map(|(number, route)| ((route.peer.gid, route.qp), number)),
        );
        self.last = 0;
        self.enough = 2 * self.routes.len();
    }

    /// Tells the receivers that this sender is gone.
    pub(in crate::shm) fn close(&mut self, from_qp: u32) {
        self.unrung.clear();
        self.places.clear();
        for Route { reach, peer, qp, .. } in self.routes.drain(..) {
            let is_attached = match reach {
                RouteState::Known(_) => true,
                RouteState::Asked(attachment, _) => attachment.give_up(),
            };
            if is_attached {
                peer.notify_closed(from_qp, qp);
            }
        }
    }
}
